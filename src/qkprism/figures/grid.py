"""A map of heads: a column a layer, a row a head index, and only those that occur.

A model whose layers have gaps, or a choice of some heads, gives no empty stripes; a cell without a value is grey.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from qkprism.errors import QKPrismError
from qkprism.figures.theme import INK, MISSING, WIDTH, axis, finish
from qkprism.heads import Head

LEFT, RIGHT = 64, 124  # pixels beside a map, for the axis and the colour bar


@dataclass(frozen=True)
class Grid:
    """The layers (columns) and head indices (rows) of a map, and the size of a cell in pixels."""

    layers: tuple[int, ...]
    indices: tuple[int, ...]
    width: int

    @classmethod
    def of(cls, heads: Iterable[Head]) -> Grid:
        chosen = tuple(heads)
        refuse_none(chosen)
        layers = tuple(sorted({head.layer for head in chosen}))
        return cls(layers, tuple(sorted({head.index for head in chosen})), WIDTH - LEFT - RIGHT)

    @property
    def cell(self) -> tuple[float, float]:
        """Width and height; a colour bar needs a map of 140 pixels."""
        rows = len(self.indices)
        return min(64.0, self.width / len(self.layers)), max(140 / rows, min(28.0, max(13.0, 640 / rows)))

    @property
    def height(self) -> int:
        return round(self.cell[1] * len(self.indices))

    @property
    def share(self) -> float:
        """How much of the figure's width the map takes."""
        return min(1.0, self.cell[0] * len(self.layers) / self.width)

    def place(self, head: Head) -> tuple[int, int]:
        """Column and row."""
        return self.layers.index(head.layer), self.indices.index(head.index)

    def heads(self) -> list[list[Head]]:
        """Every head that has a place on the map, row by row."""
        return [[Head(layer, index) for layer in self.layers] for index in self.indices]

    def fits(self, letters: int) -> bool:
        """Is there room for this many letters in a cell?"""
        width, height = self.cell
        return width >= 6 * letters + 3 and height >= 13


def refuse_none(heads: Sequence[Head]) -> None:
    """There is no figure of no head."""
    if not heads:
        raise QKPrismError("There is no head to draw. Was a threshold too high, or the choice of heads empty?")


def draw_map(
    fig: go.Figure,
    panel: int,
    grid: Grid,
    values: Mapping[Head, float],
    texts: Mapping[Head, str],
    *,
    letters: Callable[[float], str],
    absent: str,
) -> None:
    """Two layers of cells: the values, and grey where there is none."""
    cells = grid.heads()
    shown = [[values.get(head, math.nan) for head in row] for row in cells]
    hover = [[texts.get(head, f"{head}: {absent}") for head in row] for row in cells]
    words = [["" if math.isnan(value) else letters(value) for value in row] for row in shown]
    place = {"xaxis": axis("x", panel), "yaxis": axis("y", panel), "xgap": 1, "ygap": 1, "hoverinfo": "text"}
    fig.add_heatmap(
        z=[[1.0 if math.isnan(value) else None for value in row] for row in shown],
        name="missing",
        colorscale=[[0, MISSING], [1, MISSING]],
        showscale=False,
        hovertext=hover,
        **place,
    )
    room = grid.fits(max(len(word) for row in words for word in row))
    fig.add_heatmap(
        z=[[None if math.isnan(value) else value for value in row] for row in shown],
        name="values",
        coloraxis="coloraxis",
        hovertext=hover,
        text=words,
        texttemplate="%{text}" if room else None,
        textfont={"size": 10},
        **place,
    )
    name_axes(fig, panel, grid, absent)


def name_axes(fig: go.Figure, panel: int, grid: Grid, absent: str) -> None:
    """Layers and heads, of which there may be others that are absent from the map."""
    for letter, numbers, name in (("x", grid.layers, "layer"), ("y", grid.indices, "head")):
        size = grid.cell[0] if letter == "x" else grid.cell[1]
        step = max(1, math.ceil((22 if letter == "x" else 15) / size))
        fig.layout[f"{letter}axis{panel}"].update(
            title_text=name if list(numbers) == list(range(len(numbers))) else f"{name} (others {absent})",
            tickvals=list(range(0, len(numbers), step)),
            ticktext=[str(number) for number in numbers[::step]],
            showgrid=False,
            range=[-0.5, len(numbers) - 0.5] if letter == "x" else [len(numbers) - 0.5, -0.5],
        )
    fig.layout[f"xaxis{panel}"].domain = [0, grid.share]


def outline(fig: go.Figure, grid: Grid, head: Head) -> None:
    """Draw a frame around a head of the first panel."""
    column, row = grid.place(head)
    corners = {"x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5}
    fig.add_shape(type="rect", name=str(head), line={"color": INK, "width": 2}, **corners)


def scale(colors: Sequence[str]) -> list[list[Any]]:
    """Colours at equal steps, as plotly wants them."""
    return [[i / (len(colors) - 1), color] for i, color in enumerate(colors)]


def color_axis(
    fig: go.Figure, grid: Grid, colors: Sequence[str], ends: tuple[float, float], unit: str, **ticks: Any
) -> None:
    """The colours of a map between two values, and a bar right of the (first) map with its unit above."""
    bar = {
        "thickness": 14,
        "len": min(grid.height, 260),
        "lenmode": "pixels",
        "x": grid.share,
        "xanchor": "left",
        "xpad": 12,
        "y": 1,
        "yanchor": "top",
        "ypad": 0,
        "outlinewidth": 0,
        "tickfont": {"size": 11},
    }
    low, high = ends
    fig.update_layout(coloraxis={"colorscale": scale(colors), "cmin": low, "cmax": high, "colorbar": bar | ticks})
    # plotly's own title runs into the ticks
    place = {"xref": "paper", "yref": "paper", "x": grid.share, "xanchor": "left", "xshift": 11, "y": 1, "yshift": 5}
    fig.add_annotation(text=unit, name="bar", yanchor="bottom", showarrow=False, font={"size": 12}, **place)


def finish_map(fig: go.Figure, height: int, *, title: str, subtitle: str, caption: str, above: int = 24) -> go.Figure:
    """Texts around maps of a height, with room for the colour bar."""
    return finish(
        fig, title=title, subtitle=subtitle, caption=caption, plot_height=height, left=LEFT, right=RIGHT, above=above
    )
