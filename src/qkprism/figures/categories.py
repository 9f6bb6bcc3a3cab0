"""Keys and queries of lists in the subspaces of categories (paper, section 5.1): a row a head, a colour a category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from qkprism.figures.panels import legend_above, name_panel, on, panels
from qkprism.figures.theme import FEATURE_COLORS, INK, axis, finish, plain
from qkprism.figures.words import count, facts

if TYPE_CHECKING:
    from torch import Tensor

    from qkprism.heads import Head
    from qkprism.studies.categories import Scope

_PANEL, _BETWEEN, _LEFT = 270, 84, 64  # pixels
_MOST = 600  # keys a panel
_SYMBOLS = ("circle", "square", "diamond")  # colours repeat after ten categories
_LEGEND = 22  # pixels of a row of the legend


@dataclass(frozen=True)
class CloudPanel:
    """Points of one head by two of their principal components, or of the feature's own directions without `shares`."""

    title: str
    key: Tensor
    query: Tensor | None
    shares: Sequence[float] = ()
    first: int = 0

    def label(self, which: int) -> str:
        at = self.first + which
        if not self.shares:
            return f"direction {at + 1}"
        share = f" ({self.shares[at]:.0%} of variance)" if at < len(self.shares) else ""
        return f"PC {at + 1}{share}"


def keys_and_queries_figure(scope: Scope, heads: Sequence[Head]) -> go.Figure:
    """Keys and queries together: in the span of single categories, and in the pooled feature."""
    rows = [_with_queries(scope, head) for head in heads]
    return _figure(
        scope,
        rows,
        heads,
        title=f"Keys and queries of {count(len(scope.categories), 'category').replace('ys', 'ies')} in their subspaces",
        caption="Held-out items as keys (dots) and the queries that ask for a category (stars). Left and middle, the "
        "paper's subspace: coordinates on the directions of single categories, keys and queries in one PCA. PC 1 "
        "separates keys from queries, because nothing is centred; in PC 2 and PC 3 look whether the star of a colour "
        "lies the way of its dots. Right, the first two directions of the pooled feature, keys and queries each "
        "centred and scaled: a star among the dots of its colour is a query that matches its items.",
    )


def keys_figure(scope: Scope, heads: Sequence[Head]) -> go.Figure:
    """Keys alone: in the span of single categories, in the pooled feature, and without projection."""
    rows = [_keys_alone(scope, head) for head in heads]
    return _figure(
        scope,
        rows,
        heads,
        title=f"Held-out items of {len(scope.categories)} categories as keys",
        caption="Keys of items that no feature was made from. Left, principal components in the paper's subspace; "
        "middle, the first two directions of the pooled feature; right, principal components of the keys as they are. "
        "A subspace that holds the category has one cloud a colour; two dimensions cannot show all of them, so see the "
        "figure of accuracies for how far they are apart in all. Keys also hold the item's place in the list (rotary "
        "positions), which spreads a colour.",
    )


def _with_queries(scope: Scope, head: Head) -> list[CloudPanel]:
    key, query, shares = scope.test.joint_components(scope.compared, scope.categories, head)
    ours = scope.test.scaled_coordinates(scope.compared, "pooled", head)
    return [
        CloudPanel(f"{head}: {scope.span}", key, query, shares),
        CloudPanel(f"{head}: {scope.span}", key, query, shares, first=1),
        CloudPanel(f"{head}: pooled", ours[0], ours[1]),
    ]


def _keys_alone(scope: Scope, head: Head) -> list[CloudPanel]:
    span = scope.test.key_components(scope.compared, scope.categories, head)
    pooled = scope.test.scaled_coordinates(scope.compared, "pooled", head)[0]
    whole = scope.test.components(scope.compared, "pooled", head)["whole_key"]
    return [
        CloudPanel(f"{head}: {scope.span}", span[0], None, span[1]),
        CloudPanel(f"{head}: pooled", pooled, None),
        CloudPanel(f"{head}: whole key", whole[0], None, whole[1]),
    ]


def _figure(
    scope: Scope, rows: Sequence[Sequence[CloudPanel]], heads: Sequence[Head], *, title: str, caption: str
) -> go.Figure:
    fig, height = panels(len(rows), 3, _PANEL, down=_BETWEEN, edges=_LEFT + 24)
    for number, panel in enumerate((panel for row in rows for panel in row), 1):
        _draw(fig, number, panel, scope)
        name_panel(fig, number, panel.title)
        for which, letter in enumerate("xy"):
            fig.layout[axis(f"{letter}axis", number)].title.text = panel.label(which)
    lines = -(-len(scope.categories) // 7)
    legend_above(fig, 30, height, itemsizing="constant")
    facts_ = facts(scope.test.provenance, count(len(heads), "head"), f"{scope.test.n} lists of held-out items")
    return finish(
        fig, title=title, subtitle=facts_, caption=caption, plot_height=height,
        left=_LEFT, above=42 + lines * _LEGEND, below=60,
    )  # fmt: skip


def _draw(fig: go.Figure, number: int, panel: CloudPanel, scope: Scope) -> None:
    labels, queried = scope.test.labels["category"], scope.test.query_labels("category")
    step = max(1, -(-len(labels) // _MOST))
    for i, category in enumerate(scope.categories):
        color, symbol = FEATURE_COLORS[i % len(FEATURE_COLORS)], _SYMBOLS[i // len(FEATURE_COLORS) % len(_SYMBOLS)]
        of_category = [at for at in range(0, len(labels), step) if labels[at] == category]
        look = {"symbol": symbol, "size": 5, "color": color, "opacity": 0.55}
        _points(fig, number, panel.key[of_category], panel.first, category, look, legend=number == 1)
        if panel.query is not None:
            queries = [at for at, value in enumerate(queried) if value == category]
            star = {"symbol": "star", "size": 11, "color": color, "line": {"color": INK, "width": 1}}
            _points(fig, number, panel.query[queries], panel.first, f"asks for {category}", star, group=category)


def _points(
    fig: go.Figure,
    number: int,
    points: Tensor,
    first: int,
    name: str,
    look: dict[str, Any],
    *,
    group: str = "",
    legend: bool = False,
) -> None:
    fig.add_scatter(
        x=points[:, first].tolist(),
        y=points[:, first + 1].tolist(),
        mode="markers",
        name=plain(name),
        legendgroup=plain(group or name),
        showlegend=legend,
        marker=look,
        hovertext=plain(name),
        hoverinfo="text",
        **on(number),
    )
