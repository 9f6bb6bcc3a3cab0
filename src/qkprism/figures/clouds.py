"""Keys and queries as points (paper, section 5): panels of clouds with a colour a label, keys as dots, queries open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from qkprism.figures.panels import legend_above, name_panel, on, panels
from qkprism.figures.theme import FEATURE_COLORS, MUTED, finish, number, plain, shortened
from qkprism.figures.words import count, facts

if TYPE_CHECKING:
    from torch import Tensor

    from qkprism.heads import Head
    from qkprism.results.features import Features
    from qkprism.results.projections import Projections

MOST = 700  # points of a side in a panel
_NAMED, _IN_A_ROW = 13, 7  # values that get a place in the legend
_PANEL, _BETWEEN, _LEFT = 270, 84, 64  # pixels
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross")  # colours repeat after ten values


@dataclass(frozen=True)
class Cloud:
    """One panel: two coordinates of keys, of queries, or of both, and what these are called."""

    title: str
    key: Tensor | None
    query: Tensor | None
    axes: Sequence[str] = ()


@dataclass(frozen=True)
class Labels:
    """What each key and each query is labelled with, and the values in the order of their colours."""

    key: Sequence[Any] | None
    query: Sequence[Any] | None
    values: Sequence[Any]

    @classmethod
    def of(cls, projections: Projections, name: str) -> Labels:
        """A label of the keys; queries have that of their positive key."""
        key = projections.labels.get(name)
        values = sorted(set(key or ()), key=lambda value: (str(type(value)), value if value is not None else 0))
        return cls(key, None if key is None else projections.query_labels(name), values)


def clouds_figure(
    rows: Sequence[Sequence[Cloud]], labels: Labels, *, title: str, subtitle: str, caption: str
) -> go.Figure:
    """Rows of clouds, all in the same colours."""
    fig, height = panels(len(rows), len(rows[0]), _PANEL, down=_BETWEEN, edges=_LEFT + 24)
    for panel, cloud in enumerate((cloud for row in rows for cloud in row), 1):
        _draw(fig, panel, cloud.key, labels.key, labels.values, is_query=False)
        _draw(fig, panel, cloud.query, labels.query, labels.values, is_query=True)
        name_panel(fig, panel, cloud.title)
        for letter, name in zip("xy", cloud.axes, strict=False):
            fig.layout[f"{letter}axis{panel}"].title.text = name
    legend_above(fig, 30, height, itemsizing="constant")
    lines = -(-len(labels.values) // _IN_A_ROW) if len(labels.values) <= _NAMED else 0
    return finish(
        fig, title=title, subtitle=subtitle, caption=caption, plot_height=height,
        left=_LEFT, above=42 + 22 * lines, below=60,
    )  # fmt: skip


def _draw(
    fig: go.Figure,
    panel: int,
    points: Tensor | None,
    labels: Sequence[Any] | None,
    values: Sequence[Any],
    *,
    is_query: bool,
) -> None:
    if points is None:
        return
    shown = range(0, len(points), max(1, -(-len(points) // MOST)))
    for i, value in enumerate(values or [None]):
        rows = [at for at in shown if labels is None or labels[at] == value]
        symbol = "diamond-open" if is_query else _SYMBOLS[i // len(FEATURE_COLORS) % len(_SYMBOLS)]
        name = plain(shortened(value)) if values else ""
        fig.add_scatter(
            x=points[rows, 0].tolist(),
            y=points[rows, 1].tolist(),
            mode="markers",
            name=name,
            legendgroup=str(i),
            showlegend=panel == 1 and not is_query and 0 < len(values) <= _NAMED,
            marker={
                "size": 8 if is_query else 5,
                "color": FEATURE_COLORS[i % len(FEATURE_COLORS)] if values else MUTED,
                "symbol": symbol,
                "opacity": 1 if is_query else 0.6,
                "line": {"width": 1.5} if is_query else None,
            },
            hovertext=f"{'query' if is_query else 'key'} {name}",
            hoverinfo="text",
            **on(panel),
        )


def component_names(shares: Sequence[float], first: int = 0) -> list[str]:
    """Two principal components, with their share of the variance."""
    return [f"component {i + 1} ({shares[i]:.0%})" if i < len(shares) else "" for i in (first, first + 1)]


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
    labels, alone = Labels.of(projections, color), projections.components(features, contrast, head, 2)
    both = projections.together(features, contrast, head)
    by_umap = projections.umap(features, contrast, head, most=MOST) if umap else {}
    rows = []
    for place, how in (("", "projected"), ("whole_", "not projected")):
        (key, key_shares), (query, query_shares) = alone[f"{place}key"], alone[f"{place}query"]
        (key_both, shares), (query_both, _) = both[f"{place}key"], both[f"{place}query"]
        row = [
            Cloud(f"Keys, {how}", key, None, component_names(key_shares)),
            Cloud(f"Queries, {how}", None, query, component_names(query_shares)),
            Cloud(f"Both, {how}", key_both[:, 1:], query_both[:, 1:], component_names(shares, 1)),
        ]
        if umap:
            row.append(Cloud(f"Both by UMAP, {how}", by_umap[f"{place}key"], by_umap[f"{place}query"]))
        rows.append(row)
    right, error = projections.alignment(features, contrast, head)
    many = len(labels.values) > _NAMED
    return clouds_figure(
        rows,
        labels,
        title=f"{contrast} in {head}, coloured by {color or 'nothing'}",
        subtitle=facts(
            projections.provenance,
            f"rank {features[contrast, head].rank}",
            count(projections.n, "query").replace("querys", "queries"),
            f"alignment {number(right, error)}",
        ),
        caption="Above: marked keys (dots) and queries (open diamonds) in the feature's subspace, by principal "
        "components (with their share of the variance); where the colours separate in both, keys and queries share "
        "the label there. Below: the same without projection. Alignment: how often the positive key has the largest "
        "part of the logit among the marked keys by this feature alone. Both: all but component 1, which tells keys "
        "and queries apart."
        + (f" {len(labels.values)} different labels: point at a mark for its own." if many else ""),
    )
