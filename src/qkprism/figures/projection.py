"""`projection_figure`: keys and queries in the subspace of a feature, beside keys without projection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.figures.theme import FEATURE_COLORS, MUTED, WIDTH, finish, number, plain, shortened
from qkprism.figures.words import count, facts, name_panel

if TYPE_CHECKING:
    from torch import Tensor

    from qkprism.core.feature_set import Features
    from qkprism.core.projection import Projections

MOST = 700  # points a panel
_NAMED = 12  # values that get a place in the legend
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")


def projection_figure(
    projections: Projections, features: Features, contrast: str, head: str, color: str, *, width: int = WIDTH
) -> go.Figure:
    """The first two principal components of keys and of queries in the subspace, and of keys without projection."""
    found = projections.components(features, contrast, head, 2)
    own, asked = projections.labels.get(color), projections.query_labels(color) if color in projections.labels else None
    panels = [
        ("Keys, projected", found["key"], own),
        ("Queries, projected", found["query"], asked),
        ("Keys, not projected", found["all"], own),
    ]
    values = _values(own)
    fig = make_subplots(rows=1, cols=3, horizontal_spacing=0.07)
    for panel, (name, (points, shares), labels) in enumerate(panels, 1):
        _draw(fig, panel, points, labels, values)
        name_panel(fig, panel, name)
        for axis, share in zip(("x", "y"), shares, strict=False):
            title = f"component {1 if axis == 'x' else 2} ({share:.0%} of the variance)"
            fig.update_layout({f"{axis}axis{panel if panel > 1 else ''}": {"title": {"text": title}}})
    right, error = projections.alignment(features, contrast, head)
    feature = features[contrast, head]
    return finish(
        fig,
        title=f"{contrast} in {head}, coloured by {color or 'nothing'}",
        subtitle=facts(
            projections.provenance,
            f"rank {feature.rank}",
            count(projections.n, "query").replace("querys", "queries"),
            f"alignment {number(right, error)}",
        ),
        caption="Left and middle: marked keys and queries in the feature's subspace, by their principal components; "
        "where the colours separate in both, the feature holds the label. Right: the same keys without projection. "
        "Alignment: how often the positive key has the largest part of the logit among the marked keys by this feature "
        "alone.",
        width=width,
        plot_height=300,
        above=44,
        below=60,
    )


def _values(labels: Sequence[Any] | None) -> list[Any]:
    return sorted(set(labels or ()), key=lambda value: (str(type(value)), value if value is not None else 0))


def _draw(fig: go.Figure, panel: int, points: Tensor, labels: Sequence[Any] | None, values: Sequence[Any]) -> None:
    step = max(1, -(-len(points) // MOST))
    shown = range(0, len(points), step)
    for i, value in enumerate(values or [None]):
        rows = [at for at in shown if labels is None or labels[at] == value]
        fig.add_scatter(
            x=points[rows, 0].tolist(),
            y=points[rows, 1].tolist(),
            mode="markers",
            name=plain(shortened(value)) if values else "",
            legendgroup=str(i),
            showlegend=panel == 1 and 0 < len(values) <= _NAMED,
            marker={
                "size": 5,
                "color": FEATURE_COLORS[i % len(FEATURE_COLORS)] if values else MUTED,
                "symbol": _SYMBOLS[i // len(FEATURE_COLORS) % len(_SYMBOLS)],
                "opacity": 0.75,
            },
            hovertext=plain(shortened(value)) if values else "",
            hoverinfo="text",
            xaxis=f"x{panel if panel > 1 else ''}",
            yaxis=f"y{panel if panel > 1 else ''}",
        )
    place = {"orientation": "h", "x": 0, "y": 1.08, "yanchor": "bottom", "itemsizing": "constant"}
    fig.update_layout(legend=place)
