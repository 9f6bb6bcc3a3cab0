"""The ranks of categories by every rule: one category or all pooled, with the query centred or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.figures.panels import error_bars, legend_above, name_panel, on
from qkprism.figures.theme import MUTED, axis, finish, plain
from qkprism.figures.words import count, facts

if TYPE_CHECKING:
    from qkprism.core.feature import Feature
    from qkprism.heads import Head
    from qkprism.studies.categories import Scope

RULES = {  # attribute, title, symbol, colour
    "rank_energy": ("99% energy (the paper's)", "circle", "#D55E00"),
    "rank_balanced": ("99% energy, balanced", "diamond", "#E69F00"),
    "rank_heldout": ("held out", "square", "#0072B2"),
}
CASES = ("one category", "one category,<br>centred", "pooled", "pooled,<br>centred")
_LEFT, _PANEL = 64, 240  # pixels


def category_ranks_figure(scope: Scope, heads: Sequence[Head]) -> go.Figure:
    """Dots are ranks, lines from the lowest to the highest of all categories; a panel a head."""
    fig = make_subplots(rows=1, cols=len(heads), shared_yaxes=True, horizontal_spacing=0.03)
    for panel, head in enumerate(heads, 1):
        for step, rule in enumerate(RULES):
            _draw(fig, panel, [_ranks(case, rule) for case in cases_of(scope, head)], rule, step)
        name_panel(fig, panel, str(head))
        fig.layout[axis("xaxis", panel)].update(
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
