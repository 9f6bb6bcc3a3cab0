"""All figures of a categories study by name, from its results alone: ranks, clouds of keys and queries, and proofs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.figures.clouds import Cloud, Labels, clouds_figure, component_names
from qkprism.figures.crossing import crossing_figure
from qkprism.figures.panels import error_bars, legend_above, name_panel, on
from qkprism.figures.separation import separation_figure
from qkprism.figures.theme import MUTED, finish, plain
from qkprism.figures.words import count, facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from qkprism.core.feature import Feature
    from qkprism.heads import Head
    from qkprism.studies.categories import Scope
    from qkprism.studies.filter import FilterStudy

BOTH = ("five", "all")
RULES = {  # attribute, title, symbol, colour
    "rank_energy": ("99% energy (the paper's)", "circle", "#D55E00"),
    "rank_balanced": ("99% energy, balanced", "diamond", "#E69F00"),
    "rank_heldout": ("held out", "square", "#0072B2"),
}
CASES = ("one category", "one category,<br>centred", "pooled", "pooled,<br>centred")
_LEFT, _PANEL = 64, 240  # pixels


def filter_drawings(study: FilterStudy) -> dict[str, Callable[[], go.Figure]]:
    """Every figure of a study, to be drawn: the counterparts of the paper's, and the proofs beside them."""
    heads, five, every = study.heads, study.scopes["five"], study.scopes["all"]
    names = [str(head) for head in heads]
    found: dict[str, Callable[[], go.Figure]] = {
        "heads": partial(study.scores.plot, "ratio"),
        "ranks": partial(category_ranks_figure, every, heads),
        "spectrum": every.features["pooled", heads[0]].plot,
        "keys_and_queries": partial(keys_and_queries_figure, five, heads),
        "keys": partial(keys_figure, every, heads),
    }
    for name in BOTH:
        found[f"separation_{name}"] = partial(separation_figure, study.scopes[name].separation, names)
        found[f"effects_{name}"] = study.scopes[name].effects.plot
        found[f"crossing_{name}"] = partial(_crossing, study, study.scopes[name])
    return found


def _crossing(study: FilterStudy, scope: Scope) -> go.Figure:
    """The best head in both subspaces."""
    best = max(study.heads, key=lambda head: scope.gain(head, "pooled")[0])
    maps = [(group, scope.crossing(group, best)) for group in scope.groups]
    lists = scope.test.n
    return crossing_figure(maps, scope.categories, lists, subtitle=facts(scope.test.provenance, f"{lists} lists"))


def keys_and_queries_figure(scope: Scope, heads: Sequence[Head]) -> go.Figure:
    """Keys and queries together: in the span of single categories, and in the pooled feature."""
    categories = count(len(scope.categories), "category").replace("ys", "ies")
    return _clouds(
        scope,
        [_with_queries(scope, head) for head in heads],
        title=f"Keys and queries of {categories} in their subspaces",
        caption="Held-out items as keys (dots) and the queries that ask for a category (open diamonds). Left and "
        "middle, the paper's subspace: coordinates on the directions of single categories, keys and queries in one "
        "PCA. Component 1 separates keys from queries, because nothing is centred; in 2 and 3 look whether the "
        "diamonds of a colour lie the way of its dots. Right, the first two directions of the pooled feature, keys and "
        "queries each centred and scaled: a diamond among the dots of its colour is a query that matches its items.",
    )


def keys_figure(scope: Scope, heads: Sequence[Head]) -> go.Figure:
    """Keys alone: in the span of single categories, in the pooled feature, and without projection."""
    return _clouds(
        scope,
        [_keys_alone(scope, head) for head in heads],
        title=f"Held-out items of {len(scope.categories)} categories as keys",
        caption="Keys of items that no feature was made from. Left, principal components in the paper's subspace; "
        "middle, the first two directions of the pooled feature; right, principal components of the keys as they are. "
        "A subspace that holds the category has one cloud a colour; two dimensions cannot show all of them, so see the "
        "figure of accuracies for how far they are apart in all. Keys also hold the item's place in the list (rotary "
        "positions), which spreads a colour.",
    )


def _clouds(scope: Scope, rows: Sequence[Sequence[Cloud]], *, title: str, caption: str) -> go.Figure:
    labels = Labels(scope.test.labels["category"], scope.test.query_labels("category"), scope.categories)
    told = facts(scope.test.provenance, count(len(rows), "head"), f"{scope.test.n} lists of held-out items")
    return clouds_figure(rows, labels, title=title, subtitle=told, caption=caption)


def _with_queries(scope: Scope, head: Head) -> list[Cloud]:
    key, query, shares = scope.test.joint_components(scope.compared, scope.categories, head)
    ours = scope.test.scaled_coordinates(scope.compared, "pooled", head)
    span = [Cloud(f"{head}: {scope.span}", key[:, at:], query[:, at:], component_names(shares, at)) for at in (0, 1)]
    return [*span, Cloud(f"{head}: pooled", *ours, _DIRECTIONS)]


def _keys_alone(scope: Scope, head: Head) -> list[Cloud]:
    span, shares = scope.test.key_components(scope.compared, scope.categories, head)
    pooled, _ = scope.test.scaled_coordinates(scope.compared, "pooled", head)
    whole, whole_shares = scope.test.components(scope.compared, "pooled", head)["whole_key"]
    return [
        Cloud(f"{head}: {scope.span}", span, None, component_names(shares)),
        Cloud(f"{head}: pooled", pooled, None, _DIRECTIONS),
        Cloud(f"{head}: whole key", whole, None, component_names(whole_shares)),
    ]


_DIRECTIONS = ("direction 1", "direction 2")


def category_ranks_figure(scope: Scope, heads: Sequence[Head]) -> go.Figure:
    """Dots are ranks, lines from the lowest to the highest of all categories; a panel a head."""
    fig = make_subplots(rows=1, cols=len(heads), shared_yaxes=True, horizontal_spacing=0.03)
    for panel, head in enumerate(heads, 1):
        for step, rule in enumerate(RULES):
            _draw(fig, panel, [_ranks(case, rule) for case in cases_of(scope, head)], rule, step)
        name_panel(fig, panel, str(head))
        fig.layout[f"xaxis{panel}"].update(
            tickvals=[0, 1, 2, 3], ticktext=list(CASES), range=[-0.5, 3.5], tickfont={"size": 11}
        )
    fig.update_layout(
        yaxis={"title": {"text": "rank"}, "range": [-0.04 * _highest(scope, heads), 1.08 * _highest(scope, heads)]}
    )
    legend_above(fig, 24, _PANEL)
    categories = len(scope.categories)
    least = scope.mean_query_shares(heads)[0]
    one = "One category has rank 1 by construction" if scope.one_query(heads) else "Ranks of one category"
    return finish(
        fig,
        title=f"{one}; {categories} pooled have what the head matches",
        subtitle=facts(scope.features.provenance, f"{categories} categories", count(len(heads), "head")),
        caption="With a constant query q, dC = q (mean positive − mean negative)ᵀ has rank 1 whatever the head does. "
        f"Of single categories the mean query makes {least:.2%} of the energy of dC or more; centred, only the rest is "
        "left, and the energy rule counts the directions of that rest however small it is. Pooled, queries differ: "
        f"{categories} mean queries span at most "
        f"{categories - 1} centred directions; what holds beyond that is how queries differ within a category. Lines: "
        f"from the lowest to the highest rank of the {categories} categories, the mark at their median. A mark is "
        "missing where a rule does not apply (too few examples for the balanced metric).",
        plot_height=_PANEL,
        left=_LEFT,
        above=60,
        below=64,
    )


def _highest(scope: Scope, heads: Sequence[Head]) -> int:
    cases = [case for head in heads for case in cases_of(scope, head)]
    return max([1, *(rank for case in cases for rule in RULES for rank in _ranks(case, rule))])


def cases_of(scope: Scope, head: Head) -> list[list[Feature]]:
    """The features of every case, in the order of `CASES`."""
    single = [[found[name, head] for name in scope.categories] for found in (scope.uncentred, scope.features)]
    return [*single, [scope.uncentred["pooled", head]], [scope.features["pooled", head]]]


def _ranks(features: Sequence[Feature], rule: str) -> list[int]:
    return [rank for rank in (getattr(feature, rule) for feature in features) if rank is not None]


def _draw(fig: go.Figure, panel: int, ranks: Sequence[Sequence[int]], rule: str, step: int) -> None:
    title, symbol, color = RULES[rule]
    shown = [
        (case + 0.18 * (step - 1), sorted(ranks_of_case)) for case, ranks_of_case in enumerate(ranks) if ranks_of_case
    ]
    middle = [ranks_of_case[len(ranks_of_case) // 2] for _, ranks_of_case in shown]
    ends = list(zip(shown, middle, strict=True))
    fig.add_scatter(
        x=[at for at, _ in shown],
        y=middle,
        mode="markers",
        name=plain(title),
        legendgroup=rule,
        showlegend=panel == 1,
        marker={"symbol": symbol, "size": 10, "color": color, "line": {"color": MUTED, "width": 0.5}},
        error_y=error_bars([each[-1] - m for (_, each), m in ends], color, thickness=2, width=4)
        | {"symmetric": False, "arrayminus": [m - each[0] for (_, each), m in ends]},
        hovertext=[
            f"{title}: {ranks_of_case[0]}"
            + (f" to {ranks_of_case[-1]}" if ranks_of_case[-1] > ranks_of_case[0] else "")
            for _, ranks_of_case in shown
        ],
        hoverinfo="text",
        **on(panel),
    )
