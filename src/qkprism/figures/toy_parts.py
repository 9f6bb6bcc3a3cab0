"""Attributions of toy heads against the true parts of their logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from qkprism.figures.theme import WIDTH
from qkprism.figures.toy_panels import METHOD_COLORS, finish_panels, slack_panels

if TYPE_CHECKING:
    from qkprism.toy.attributions import PartError

DASHES = {"oblique": "solid", "shapley": "dash", "sequential": "dot"}
METRICS = {"contrast": "contrast metric", "raw": "raw", "paper": "raw (the paper's)"}
_COLORS = {"contrast": "contrast", "raw": "raw oblique", "paper": "raw"}  # as the swaps that use the same features


def part_figure(parts: Sequence[PartError], *, width: int = WIDTH) -> go.Figure:
    """Errors of every split in every metric, relative to the size of the true parts."""
    series: dict[str, Any] = {}
    looks: dict[str, Any] = {}
    for metric, split in dict.fromkeys((row.metric, row.split) for row in parts):
        name, color = f"{split}, {METRICS[metric]}", METHOD_COLORS[_COLORS[metric]]
        series[name] = lambda row, key=(metric, split): (row.metric, row.split) == key
        line = {"color": color, "dash": DASHES[split], "width": 2}
        looks[name] = {"line": line, "marker": {"color": color, "size": 6}}
    fig, height = slack_panels(parts, series, lambda row: row.share, looks, y="error / size", width=width)
    return finish_panels(
        fig,
        height,
        title="Attributions against the true parts of the logits",
        subtitle="Mean absolute error of the parts of z1 and z2, relative to the mean size of the true part.",
        caption="The true part of a latent in q·k is known. The oblique split projects keys along all other features; "
        "the sequential and the Shapley split share out what query directions have in common. With more directions "
        "than dimensions (grey) there is no oblique split, and the lines end.",
        width=width,
        below=150,
    )
