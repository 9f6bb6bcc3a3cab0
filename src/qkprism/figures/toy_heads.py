"""Single toy heads: keys and queries in the subspace of z1, and how latents meet in G (paper, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.figures.grid import scale
from qkprism.figures.panels import on, panels
from qkprism.figures.theme import DIVERGING, FEATURE_COLORS, GRID, INK, WIDTH, axis, finish
from qkprism.figures.toy_panels import cell_title

if TYPE_CHECKING:
    from qkprism.toy.cells import Cell
    from qkprism.toy.clouds import Point
    from qkprism.toy.truth import Interaction

SYMBOLS = {"key": "circle", "query": "diamond-open"}
_HEIGHT = 440


def cloud_figure(points: Sequence[Point]) -> go.Figure:
    """The points of every head, a scene each, coloured by the value of z1."""
    cells = list(dict.fromkeys(point.cell for point in points))
    fig = make_subplots(
        rows=1,
        cols=len(cells),
        specs=[[{"type": "scene"}] * len(cells)],
        subplot_titles=[cell_title(cell) for cell in cells],
        horizontal_spacing=0.02,
    )
    for column, cell in enumerate(cells, 1):
        for side, symbol in SYMBOLS.items():
            of_side = [point for point in points if point.cell == cell and point.side == side]
            fig.add_trace(_trace(of_side, side, symbol, cell, showlegend=column == 1), row=1, col=column)
    plain = {"showticklabels": False, "gridcolor": GRID, "zerolinecolor": GRID, "showbackground": False}
    axes = {f"{letter}axis": {**plain, "title": {"text": ""}} for letter in "xyz"}
    fig.update_scenes(aspectmode="cube", camera={"eye": {"x": 1.3, "y": 1.0, "z": 0.8}}, **axes)
    fig.update_layout(legend={"orientation": "h", "x": 0, "y": 0, "yanchor": "top", "itemsizing": "constant"})
    return finish(
        fig,
        title="Keys and queries in the subspace of z1",
        subtitle="Keys on the paper's key directions, queries on its query directions; then PCA of both together.",
        caption="Colours are values of z1: the vertex of a sign vector, or the first coordinate of a Gaussian one. "
        "Keys (dots) and queries (diamonds) of one value lie in one place: the cube for rank 3 of the discrete task, a "
        "ball for the continuous one. Turn with the mouse.",
        plot_height=_HEIGHT,
        left=16,
        above=24,
    )


def _trace(points: Sequence[Point], side: str, symbol: str, cell: Cell, *, showlegend: bool) -> go.Scatter3d:
    discrete = cell.task.variant == "discrete"
    colors: list[Any] = [
        FEATURE_COLORS[int(point.value) % len(FEATURE_COLORS)] if discrete else point.value for point in points
    ]
    look = {} if discrete else {"colorscale": "Viridis", "cmin": -2.5, "cmax": 2.5}
    size = 3.5 if side == "key" else 4.5
    return go.Scatter3d(
        x=[point.x for point in points],
        y=[point.y for point in points],
        z=[point.z for point in points],
        mode="markers",
        marker={
            "symbol": symbol,
            "size": size,
            "color": colors,
            "line": {"color": INK},
            **look,
        },
        name="keys" if side == "key" else "queries",
        legendgroup=side,
        showlegend=showlegend,
        text=[f"z1: {point.value:.2g}" for point in points],
        hoverinfo="text",
    )


_IN_A_LINE = 4
_GAP = 28  # pixels between panels
_TITLE = 60  # pixels above a panel


def interaction_grid(found: Sequence[tuple[Cell, Interaction]]) -> go.Figure:
    """G of each cell, scaled to its largest entry."""
    columns = min(_IN_A_LINE, len(found))
    lines = -(-len(found) // columns)
    side = (WIDTH - 88 - (columns - 1) * _GAP) / columns
    titles = [_told(cell, one) for cell, one in found]
    fig, height = panels(lines, columns, round(side), down=_TITLE + _GAP, across=_GAP, subplot_titles=titles)
    for number, (cell, one) in enumerate(found, 1):
        _draw(fig, number, cell, one)
    fig.update_annotations(font={"size": 11, "color": INK})
    fig.update_layout(
        coloraxis={
            "colorscale": scale(DIVERGING),
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
        **on(number),
    )
    hidden = {"showticklabels": False, "ticks": "", "showgrid": False, "showline": False, "constrain": "domain"}
    fig.layout[f"xaxis{number}"].update(**hidden)
    fig.layout[f"yaxis{number}"].update(autorange="reversed", scaleanchor=axis("x", number), **hidden)
    border = {"color": INK, "width": 1}
    at, end = cell.task.r1 - 0.5, len(matrix) - 0.5
    place = {"xref": axis("x", number), "yref": axis("y", number), "type": "line", "line": border}
    fig.add_shape(x0=at, x1=at, y0=-0.5, y1=end, **place)
    fig.add_shape(x0=-0.5, x1=end, y0=at, y1=at, **place)
