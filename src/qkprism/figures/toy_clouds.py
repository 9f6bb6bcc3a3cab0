"""Keys and queries in the subspace of z1, in three dimensions: the cube and the ball (paper, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.figures.theme import FEATURE_COLORS, GRID, INK, WIDTH, finish
from qkprism.figures.toy_panels import cell_title

if TYPE_CHECKING:
    from qkprism.toy.cells import Cell
    from qkprism.toy.clouds import Point

SYMBOLS = {"key": "circle", "query": "diamond-open"}
_HEIGHT = 440


def cloud_figure(points: Sequence[Point], *, width: int = WIDTH) -> go.Figure:
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
        width=width,
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
