"""All figures of a categories study by name, from its results alone (paper, section 5.1).

Ranks of categories, clouds of keys and queries, bars of how well subspaces tell categories apart beside controls of the
same rank, and maps of the category from which and to which a swap moves attention.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from qkprism.controls import BY_NAME, RIVALS
from qkprism.figures.clouds import Cloud, Labels, clouds_figure, component_names
from qkprism.figures.panels import error_bars, legend_above, line, name_panel, on, panels
from qkprism.figures.theme import DIVERGING, GRID, MISSING, MUTED, WIDTH, feature_color, finish, number, plain
from qkprism.figures.words import count, facts, known

if TYPE_CHECKING:
    from collections.abc import Callable

    from qkprism.core.feature import Feature
    from qkprism.heads import Head
    from qkprism.results.effects import Effects
    from qkprism.studies.categories import Scope
    from qkprism.studies.filter import FilterStudy
    from qkprism.subspaces.crossing import Crossing

BOTH = ("five", "all")
RULES = {  # attribute, title, symbol, colour
    "rank_energy": ("99% energy (the paper's)", "circle", "#D55E00"),
    "rank_balanced": ("99% energy, balanced", "diamond", "#E69F00"),
    "rank_heldout": ("held out", "square", "#0072B2"),
}
CASES = ("one category", "one category,<br>centred", "pooled", "pooled,<br>centred")
_LEFT, _PANEL = 64, 240  # pixels
_SCORES = {"accuracy": "accuracy of the nearest centroid", "silhouette": "silhouette"}
_BARS, _BETWEEN = 170, 100  # pixels
_NAMES, _RIGHT, _CELL, _LABELS = 110, 84, 26, 110  # pixels around maps of categories


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


@dataclass(frozen=True)
class Bar:
    """One subspace: its place, name, colour, score and error."""

    name: str
    color: str
    value: float
    error: float
    text: str


def separation_figure(found: Effects, heads: Sequence[str]) -> go.Figure:
    """Accuracy on the left, silhouettes on the right, a row a head."""
    fig, height = panels(len(heads), len(found.targets), _BARS, down=_BETWEEN, edges=_LEFT + 24)
    for panel, (head, target) in enumerate(product(heads, found.targets), 1):
        _draw_bars(fig, panel, _bars(found, head, target))
        name_panel(fig, panel, f"{head}: {_SCORES.get(target, target)}")
        if target == "accuracy":
            line(fig, panel, dash="dot", width=2, y=1 / found.provenance["labels"])
    return finish(
        fig,
        title=f"Which {found.provenance['label']} is it? Held-out items in subspaces of keys",
        subtitle=facts(
            found.provenance,
            f"{found.provenance['labels']} labels",
            count(len(heads), "head"),
            _lists(found),
        ),
        caption="Colour: the feature's subspace; grey: subspaces of the same number of dimensions. Accuracy: how often "
        "the nearest centroid, of other items, has the item's category; the dotted line is guessing. Silhouette: 1 is "
        "far apart, 0 mixed. Lines on bars: one standard deviation over draws, or the standard error over "
        f"{'lists' if found.provenance.get('items') is None else 'different items'} where there is one draw. "
        "Key PCA knows no labels: where it does as well, the category is simply where keys differ "
        "most.",
        plot_height=height,
        left=_LEFT,
        above=34,
        below=100,
    )


def _lists(found: Effects) -> str:
    """What the scores are of."""
    provenance = found.provenance
    if provenance.get("items") is None:
        return f"{int(found.n[0])} lists of held-out items"
    return f"{provenance['items']} different held-out items in {provenance['examples']} lists"


def _bars(found: Effects, head: str, target: str) -> list[Bar]:
    rows = {
        (row["feature"], row["control"]): row
        for row in found.to_frame().to_dict("records")
        if (row["head"], row["target"]) == (head, target)
    }
    bars = []
    for feature in found.features:
        rank, color = rows[feature, "feature"]["rank"], feature_color(feature, found.features)
        bars.append(_bar(rows[feature, "feature"], f"<b>{plain(feature)}</b> ({rank})", color))
        bars += [_bar(rows[feature, rival.name], rival.title, rival.shade) for rival in RIVALS]
    whole = BY_NAME["full"]
    return [*bars, _bar(rows["", whole.name], whole.title, whole.shade)]


def _bar(row: Mapping[Hashable, Any], title: str, color: str) -> Bar:
    error = row["score_error"] if row["spread"] != row["spread"] else row["spread"]
    return Bar(title, color, row["score"], error, f"{title}: {number(row['score'], error)}")


def _draw_bars(fig: go.Figure, panel: int, bars: Sequence[Bar]) -> None:
    places = list(range(len(bars)))
    fig.add_bar(
        x=places,
        y=[known(bar.value) for bar in bars],
        marker={"color": [bar.color for bar in bars]},
        error_y=error_bars([known(bar.error) for bar in bars], MUTED, width=3),
        hovertext=[bar.text for bar in bars],
        hoverinfo="text",
        showlegend=False,
        **on(panel),
    )
    fig.layout[f"xaxis{panel}"].update(
        tickvals=places, ticktext=[bar.name for bar in bars], tickangle=-40, tickfont={"size": 11}, gridcolor=GRID
    )


def crossing_figure(
    found: Sequence[tuple[str, Crossing]], order: Sequence[str], lists: int, *, subtitle: str = ""
) -> go.Figure:
    """Maps side by side: rows the category asked for, columns that of the target, colours the gain of the shift."""
    side = (WIDTH - _NAMES - _RIGHT - 24 * (len(found) - 1)) // len(found)
    height = max(180, min(side, _CELL * len(order)))
    fig = make_subplots(rows=1, cols=len(found), shared_yaxes=True, horizontal_spacing=24 / (WIDTH - _NAMES - _RIGHT))
    for panel, (name, crossing) in enumerate(found, 1):
        _draw_map(fig, panel, crossing, order)
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
        caption=_crossing_caption([crossing for _, crossing in found], lists),
        plot_height=height,
        left=_NAMES,
        right=_RIGHT,
        above=24,
        below=_LABELS,
    ).update_layout(plot_bgcolor=MISSING)


def _crossing_caption(found: Sequence[Crossing], lists: int) -> str:
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


def _draw_map(fig: go.Figure, panel: int, crossing: Crossing, order: Sequence[str]) -> None:
    places = [crossing.labels.index(name) for name in order]
    gain, error, lists = (table[places][:, places].tolist() for table in (crossing.gain, crossing.error, crossing.n))
    names = [plain(name) for name in order]
    fig.add_heatmap(
        z=[[known(value) for value in row] for row in gain],
        x=names,
        y=names,
        coloraxis="coloraxis",
        text=[[_gain_text(*cell) for cell in zip(*rows, strict=True)] for rows in zip(gain, error, lists, strict=True)],
        hovertemplate="asked for %{y}, target %{x}: %{text}<extra></extra>",
        row=1,
        col=panel,
    )


def _gain_text(gain: float, error: float, lists: int) -> str:
    """A gain with its error, where there is one."""
    sure = f" ± {error:.2f}" if math.isfinite(error) else ""
    return f"{gain:+.2f}{sure} ({count(lists, 'list')})"
