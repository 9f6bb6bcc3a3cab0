"""`projection_figure`: keys and queries in the subspace of a feature, and without projection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.figures.panels import name_panel
from qkprism.figures.theme import FEATURE_COLORS, MUTED, finish, number, plain, shortened
from qkprism.figures.words import count, facts

if TYPE_CHECKING:
    from torch import Tensor

    from qkprism.heads import Head
    from qkprism.results.features import Features
    from qkprism.results.projections import Projections

MOST = 700  # points a panel
_NAMED = 12  # values that get a place in the legend
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")


def projection_figure(
    projections: Projections,
    features: Features,
    contrast: str,
    head: Head,
    color: str,
    *,
    umap: bool = False,
) -> go.Figure:
    """The first two principal components of keys and queries in the subspace (above) and without projection (below)."""
    found = projections.components(features, contrast, head, 2)
    key_labels = projections.labels.get(color)
    query_labels = None if key_labels is None else projections.query_labels(color)
    values, columns = _values(key_labels), 4 if umap else 3
    fig = make_subplots(rows=2, cols=columns, horizontal_spacing=0.07, vertical_spacing=0.17)
    for row, (place, how) in enumerate((("", "projected"), ("whole_", "not projected"))):
        for column, (side, labels) in enumerate((("key", key_labels), ("query", query_labels)), 1):
            panel, (points, shares) = columns * row + column, found[place + side]
            _draw(fig, panel, points, labels, values)
            name_panel(fig, panel, f"{'Keys' if side == 'key' else 'Queries'}, {how}")
            _name_axes(fig, panel, [f"component {i} ({share:.0%})" for i, share in enumerate(shares, 1)])
    both = projections.together(features, contrast, head)
    for row, place in enumerate(("", "whole_")):
        panel, sides = columns * row + 3, (both[f"{place}key"], both[f"{place}query"])
        _draw_both(fig, panel, [points[:, 1:] for points, _ in sides], (key_labels, query_labels), values)
        name_panel(fig, panel, f"Both, {'not ' if place else ''}projected")
        _name_axes(fig, panel, [f"component {i} ({sides[0][1][i - 1]:.0%})" for i in (2, 3)])
    if umap:
        found_umap = projections.umap(features, contrast, head, most=MOST)
        for row, place in enumerate(("", "whole_")):
            panel = columns * row + 4
            clouds = found_umap[f"{place}key"], found_umap[f"{place}query"]
            _draw_both(fig, panel, clouds, (key_labels, query_labels), values)
            name_panel(fig, panel, f"Both by UMAP, {'not ' if place else ''}projected")
    right, error = projections.alignment(features, contrast, head)
    many = len(values) > _NAMED
    return finish(
        fig,
        title=f"{contrast} in {head}, coloured by {color or 'nothing'}",
        subtitle=facts(
            projections.provenance,
            f"rank {features[contrast, head].rank}",
            count(projections.n, "query").replace("querys", "queries"),
            f"alignment {number(right, error)}",
        ),
        caption="Above: marked keys and queries in the feature's subspace, by principal components (with their share "
        "of the variance); where the colours separate in both, keys and queries share the label there. Below: the same "
        "without projection. Alignment: how often the positive key has the largest part of the logit among the marked "
        "keys by this feature alone. Both: keys as dots, queries as diamonds, but for component 1, which tells "
        "them apart." + (f" {len(values)} different labels: point at a mark for its own." if many else ""),
        plot_height=620,
        above=36 if many else 66,
        below=60,
    )


def _name_axes(fig: go.Figure, panel: int, names: Sequence[str]) -> None:
    for axis, name in zip(("x", "y"), names, strict=False):
        fig.update_layout({f"{axis}axis{panel if panel > 1 else ''}": {"title": {"text": name}}})


def _draw_both(
    fig: go.Figure,
    panel: int,
    sides: Sequence[Tensor],
    labels: tuple[Sequence[Any] | None, Sequence[Any] | None],
    values: Sequence[Any],
) -> None:
    """Keys as dots, queries as open diamonds."""
    for points, label, is_query in zip(sides, labels, (False, True), strict=True):
        _draw(fig, panel, points, label, values, open_marks=is_query)


def _values(labels: Sequence[Any] | None) -> list[Any]:
    return sorted(set(labels or ()), key=lambda value: (str(type(value)), value if value is not None else 0))


def _draw(
    fig: go.Figure,
    panel: int,
    points: Tensor,
    labels: Sequence[Any] | None,
    values: Sequence[Any],
    *,
    open_marks: bool = False,
) -> None:
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
                "symbol": "diamond-open" if open_marks else _SYMBOLS[i // len(FEATURE_COLORS) % len(_SYMBOLS)],
                "opacity": 0.75,
            },
            hovertext=plain(shortened(value)) if values else "",
            hoverinfo="text",
            xaxis=f"x{panel if panel > 1 else ''}",
            yaxis=f"y{panel if panel > 1 else ''}",
        )
    place = {"orientation": "h", "x": 0, "y": 1.045, "yanchor": "bottom", "itemsizing": "constant"}
    fig.update_layout(legend=place)
