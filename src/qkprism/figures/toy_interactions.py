"""How latents meet in toy heads: G = B^T W_Q^T W_K A of some cells, with its mass told (paper, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.figures.theme import DIVERGING, INK, WIDTH, axis, finish
from qkprism.figures.toy_panels import cell_title

if TYPE_CHECKING:
    from qkprism.toy.cells import Cell
    from qkprism.toy.truth import Interaction

_IN_A_LINE = 4
_GAP = 28  # pixels between panels
_TITLE = 60  # pixels above a panel


def interaction_grid(found: Sequence[tuple[Cell, Interaction]], *, width: int = WIDTH) -> go.Figure:
    """G of each cell, scaled to its largest entry."""
    columns = min(_IN_A_LINE, len(found))
    lines = -(-len(found) // columns)
    side = (width - 88 - (columns - 1) * _GAP) / columns
    height = round(lines * side + (lines - 1) * (_TITLE + _GAP))
    fig = make_subplots(
        rows=lines,
        cols=columns,
        subplot_titles=[_told(cell, one) for cell, one in found],
        horizontal_spacing=_GAP / (width - 88),
        vertical_spacing=(_TITLE + _GAP) / height if lines > 1 else 0,
    )
    for number, (cell, one) in enumerate(found, 1):
        _draw(fig, number, cell, one)
    fig.update_annotations(font={"size": 11, "color": INK})
    fig.update_layout(
        coloraxis={
            "colorscale": [[i / (len(DIVERGING) - 1), color] for i, color in enumerate(DIVERGING)],
            "cmin": -1,
            "cmax": 1,
            "colorbar": {
                "thickness": 12,
                "outlinewidth": 0,
                "title": {"text": "share of the largest", "side": "right"},
            },
        }
    )
    return finish(
        fig,
        title="How the coordinates of both latents meet in q·k",
        subtitle="G: rows are the selector's coordinates, columns the token's; z1 first, then z2.",
        caption="A diagonal means that each coordinate is compared with itself only. With fewer dimensions than "
        "coordinates (r1 + r2 > d_head) more than one coordinate shares a dimension: superposition. They may be of "
        "both latents (`across`) or of one. Shares are those of the squared entries; `a dimension` is the number of "
        "coordinates for each dimension of G (its effective rank); symmetry is ⟨G, Gᵀ⟩ / |G|².",
        width=width,
        plot_height=height,
        left=24,
        right=96,
        above=_TITLE,
        below=24,
    )


def _told(cell: Cell, found: Interaction) -> str:
    return (
        f"{cell_title(cell)}<br>{found.diagonal:.0%} diagonal, {found.across:.0%} across<br>"
        f"{found.crowding:.2f} a dimension, symmetry {found.symmetry:.2f}"
    )


def _draw(fig: go.Figure, number: int, cell: Cell, found: Interaction) -> None:
    matrix = found.matrix / found.matrix.abs().max()
    fig.add_heatmap(
        z=matrix.tolist(),
        coloraxis="coloraxis",
        hovertemplate="selector %{y}, token %{x}: %{z:.2f}<extra></extra>",
        xaxis=axis("x", number),
        yaxis=axis("y", number),
    )
    hidden = {"showticklabels": False, "ticks": "", "showgrid": False, "showline": False, "constrain": "domain"}
    fig.layout[f"xaxis{number}"].update(**hidden)
    fig.layout[f"yaxis{number}"].update(autorange="reversed", scaleanchor=axis("x", number), **hidden)
    border = {"color": INK, "width": 1}
    at, end = cell.task.r1 - 0.5, len(matrix) - 0.5
    place = {"xref": axis("x", number), "yref": axis("y", number), "type": "line", "line": border}
    fig.add_shape(x0=at, x1=at, y0=-0.5, y1=end, **place)
    fig.add_shape(x0=-0.5, x1=end, y0=at, y1=at, **place)
