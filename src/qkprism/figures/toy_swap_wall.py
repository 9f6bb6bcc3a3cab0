"""The swaps of every head of the grid at a glance: a column a head, a row an edit (paper, appendix)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.figures.theme import SEQUENTIAL, WIDTH, axis, finish
from qkprism.figures.toy_panels import METHOD_NAMES, by_kind, kind_title
from qkprism.figures.toy_swaps import SIDES, bars_in

if TYPE_CHECKING:
    from qkprism.toy.cells import Cell
    from qkprism.toy.interventions import Swap

_PANEL, _BETWEEN = 150, 62


def swap_wall(swaps: Sequence[Swap], *, method: str = "raw", seed: int = 0, width: int = WIDTH) -> go.Figure:
    """Attention on the original and on the target token after every edit, in all heads of a seed."""
    shown = [r for r in swaps if r.target == "given" and r.method in ("", method) and r.cell.seed == seed]
    rows = {(row.cell, row.control, row.feature): row for row in shown}
    kinds = by_kind(shown)
    panels = [(kind, side) for kind in kinds for side in SIDES]
    height = len(panels) * _PANEL + (len(panels) - 1) * _BETWEEN
    fig = make_subplots(
        rows=len(panels),
        cols=1,
        subplot_titles=[kind_title(kind, f": {name}") for kind, (_, name, _) in panels],
        vertical_spacing=_BETWEEN / height,
    )
    for panel, (kind, (side, _, _)) in enumerate(panels, 1):
        cells = sorted({row.cell for row in kinds[kind]}, key=lambda cell: cell.task.ranks)
        values = {
            title: [getattr(rows[cell, control, feature], side) for cell in cells]
            for title, control, feature in bars_in(rows)
        }
        _draw(fig, panel, cells, values)
    colors = [[i / (len(SEQUENTIAL) - 1), color] for i, color in enumerate(SEQUENTIAL)]
    bar = {"title": {"text": "attention", "side": "right"}, "thickness": 12, "outlinewidth": 0, "len": 320, "y": 1}
    bar |= {"lenmode": "pixels", "yanchor": "top"}
    fig.update_layout(coloraxis={"colorscale": colors, "cmin": 0, "cmax": 1, "colorbar": bar})
    return finish(
        fig,
        title="The swaps of every head",
        subtitle=f"Method: {METHOD_NAMES[method]}. Seed {seed}. A column is a head, named by its ranks r1, r2.",
        caption="Attention on the original and on the target token before and after keys exchange their coordinates in "
        "the subspace of z1, of z2, of both, or in Gaussian subspaces of the same dimension.",
        width=width,
        plot_height=height,
        left=104,
        right=96,
        above=30,
    )


def _draw(fig: go.Figure, panel: int, cells: Sequence[Cell], values: Mapping[str, Sequence[float]]) -> None:
    fig.add_heatmap(
        x=[f"{cell.task.r1}, {cell.task.r2}" for cell in cells],
        y=list(values),
        z=list(values.values()),
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
        hovertemplate="r1, r2 = %{x}<br>%{y}: %{z:.3f}<extra></extra>",
        xaxis=axis("x", panel),
        yaxis=axis("y", panel),
    )
    fig.layout[axis("xaxis", panel)].update(type="category", tickangle=-90, tickfont={"size": 8}, showgrid=False)
    fig.layout[axis("yaxis", panel)].update(autorange="reversed", tickfont={"size": 11}, showgrid=False)
