"""From which category to which a swap moves attention: a map a head and subspace (paper, section 5.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from qkprism.figures.panels import name_panel
from qkprism.figures.theme import DIVERGING, MISSING, WIDTH, finish, plain
from qkprism.figures.words import count, known

if TYPE_CHECKING:
    from qkprism.subspaces.crossing import Crossing

_LEFT, _RIGHT, _CELL, _LABELS = 110, 84, 26, 110  # pixels


def crossing_figure(
    found: Sequence[tuple[str, Crossing]], order: Sequence[str], lists: int, *, subtitle: str = ""
) -> go.Figure:
    """Maps side by side: rows the category asked for, columns that of the target, colours the gain of the shift."""
    side = (WIDTH - _LEFT - _RIGHT - 24 * (len(found) - 1)) // len(found)
    height = max(180, min(side, _CELL * len(order)))
    fig = make_subplots(rows=1, cols=len(found), shared_yaxes=True, horizontal_spacing=24 / (WIDTH - _LEFT - _RIGHT))
    for panel, (name, crossing) in enumerate(found, 1):
        _draw(fig, panel, crossing, order)
        name_panel(fig, panel, f"{crossing.head}: {name}")
    fig.update_xaxes(tickangle=-60, tickfont={"size": 11}, showgrid=False)
    fig.update_yaxes(autorange="reversed", tickfont={"size": 11}, showgrid=False)
    bar = {"title": {"text": "gain", "side": "top"}, "thickness": 12, "x": 1.01, "xanchor": "left"}
    fig.update_layout(
        coloraxis={"colorscale": [*DIVERGING], "cmid": 0, "cmin": -1, "cmax": 1, "colorbar": bar},
        yaxis={"title": {"text": "asked for"}},
    )
    return finish(
        fig,
        title="From one category to another: what a swap moves",
        subtitle=subtitle,
        caption=_caption([crossing for _, crossing in found], lists),
        plot_height=height,
        left=_LEFT,
        right=_RIGHT,
        above=24,
        below=_LABELS,
    ).update_layout(plot_bgcolor=MISSING)


def _caption(found: Sequence[Crossing], lists: int) -> str:
    errors = torch.stack([one.error for one in found])
    sure = errors[errors.isfinite()]
    spread = f", at most {float(sure.max()):.2f} here (the median is {float(sure.median()):.2f})" if len(sure) else ""
    return (
        "Gain: how much more of the attention on two items, one of the category asked for (rows) and one of another "
        f"(columns), is on the other after the two keys exchanged the subspace; mean over all such pairs of {lists} "
        f"lists of held-out items, with the standard error over lists in the hover text{spread}. Computed from queries "
        "and keys: a soft cap or a position bias, in models that have one, is not counted. Blue moves attention to the "
        "target. Grey: no such pair; categories that share items are never in one list."
    )


def _draw(fig: go.Figure, panel: int, crossing: Crossing, order: Sequence[str]) -> None:
    places = [crossing.labels.index(name) for name in order]
    gain, error, lists = (table[places][:, places].tolist() for table in (crossing.gain, crossing.error, crossing.n))
    names = [plain(name) for name in order]
    fig.add_heatmap(
        z=[[known(value) for value in row] for row in gain],
        x=names,
        y=names,
        coloraxis="coloraxis",
        text=[[_hover(*cell) for cell in zip(*rows, strict=True)] for rows in zip(gain, error, lists, strict=True)],
        hovertemplate="asked for %{y}, target %{x}: %{text}<extra></extra>",
        row=1,
        col=panel,
    )


def _hover(gain: float, error: float, lists: int) -> str:
    """A gain with its error, where there is one."""
    sure = f" ± {error:.2f}" if math.isfinite(error) else ""
    return f"{gain:+.2f}{sure} ({count(lists, 'list')})"
