"""Where finding features gets hard: correlated latents, few examples, other thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.figures.panels import on
from qkprism.figures.theme import WIDTH, axis
from qkprism.figures.toy_panels import (
    METHOD_COLORS,
    METHOD_NAMES,
    METHOD_SYMBOLS,
    RULE_COLORS,
    RULES,
    finish_panels,
    method_look,
    slack,
)
from qkprism.figures.words import count

if TYPE_CHECKING:
    from qkprism.toy.limits import Limit, RankAt

_HEIGHT = 300
_DASHES = ("dot", "solid", "dash")


def limit_figure(limits: Sequence[Limit]) -> go.Figure:
    """Errors of every projector against the correlation of the latents, and against the number of examples."""
    most = max(row.n for row in limits)
    sides: tuple[tuple[str, list[tuple[float, Limit]]], ...] = (
        ("correlation of z1 and z2 in the data", [(row.correlation, row) for row in limits if row.n == most]),
        ("examples a contrast", [(row.n, row) for row in limits if row.correlation == 0]),
    )
    fig = make_subplots(rows=1, cols=2, horizontal_spacing=80 / WIDTH)
    for panel, (name, rows) in enumerate(sides, 1):
        for method in METHOD_NAMES:
            _errors(fig, panel, method, [(x, row.error) for x, row in rows if row.method == method])
        fig.layout[axis("xaxis", panel)].update(title_text=name, type="log" if panel == 2 else "linear")
        fig.layout[axis("yaxis", panel)].update(
            title_text="error of the projector", type="log", dtick=1, exponentformat="none"
        )
    fig.layout.xaxis2.update(tickvals=sorted({row.n for row in limits}))
    return finish_panels(
        fig,
        _HEIGHT,
        title="Projectors where latents correlate and where examples are few",
        subtitle=f"{_heads(limits)}, both latents; small marks are single ones, "
        f"lines their geometric means. Left: {most:,} examples a contrast.",
        caption="The error is that of the logits which a projector moves, relative to those that it should move. The "
        "contrasts hold the other latent fixed within an example, so correlation in the data costs little. What the "
        "orthogonal projector gets wrong does not go away with more data.",
    )


def _heads(rows: Sequence[Limit | RankAt]) -> str:
    """How many heads there are, and whether they have room for both latents."""
    places = [slack(row) for row in rows]
    room = "<" if max(places) < 0 else "≤" if max(places) == 0 else ">" if min(places) > 0 else ""
    told = f" with r1 + r2 {room} d_head" if room else ", some of them superposed"
    return count(len({row.cell for row in rows}), "head") + told


def _errors(fig: go.Figure, panel: int, method: str, points: Sequence[tuple[float, float]]) -> None:
    place = {"xaxis": axis("x", panel), "yaxis": axis("y", panel), "legendgroup": method}
    mark = {"color": METHOD_COLORS[method], "symbol": METHOD_SYMBOLS[method], "size": 4, "opacity": 0.35}
    x, y = [p[0] for p in points], [p[1] for p in points]
    fig.add_scatter(x=x, y=y, mode="markers", marker=mark, showlegend=False, hoverinfo="skip", **place)
    places = sorted({p[0] for p in points})
    fig.add_scatter(
        x=places,
        y=[_geometric([error for at, error in points if at == one]) for one in places],
        mode="lines+markers",
        name=METHOD_NAMES[method],
        showlegend=panel == 1,
        hovertemplate="%{x}: %{y:.4f}<extra></extra>",
        **method_look(method),
        **place,
    )


def _geometric(values: Sequence[float]) -> float:
    product = 1.0
    for value in values:
        product *= max(value, 1e-12) ** (1 / len(values))
    return product


def rank_size_figure(ranks: Sequence[RankAt]) -> go.Figure:
    """How often each rule finds the true rank, by the number of examples and the threshold."""
    fig = make_subplots(rows=1, cols=3, subplot_titles=[f"<b>{t}</b>" for t in RULES.values()], horizontal_spacing=0.06)
    for panel, rule in enumerate(RULES, 1):
        by_rule = [row for row in ranks if row.rule == rule]
        for threshold, dash in zip(sorted({row.threshold for row in by_rule}), _DASHES, strict=False):
            _shares(fig, panel, rule, dash, threshold, [row for row in by_rule if row.threshold == threshold])
        ticks = sorted({row.n for row in by_rule})
        fig.layout[axis("xaxis", panel)].update(title_text="examples a contrast", type="log", tickvals=ticks)
        fig.layout[axis("yaxis", panel)].update(range=[0, 1.05], title_text="share exact" if panel == 1 else "")
    return finish_panels(
        fig,
        _HEIGHT,
        title="Ranks at other sample sizes and thresholds",
        subtitle=f"{_heads(ranks)}, both latents.",
        caption="Energy rules count the directions that hold a share of the energy; the held-out test those whose t is "
        "above a threshold on examples that did not choose them.",
    )


def _shares(fig: go.Figure, panel: int, rule: str, dash: str, threshold: float, rows: Sequence[RankAt]) -> None:
    places = sorted({row.n for row in rows})
    color = RULE_COLORS[rule]
    fig.add_scatter(
        x=places,
        y=[mean(row.found == row.true for row in rows if row.n == n) for n in places],
        mode="lines+markers",
        line={"color": color, "dash": dash, "width": 2},
        marker={"color": color, "size": 7},
        name=f"t > {threshold:g}" if rule == "heldout" else f"{rule} {threshold:.1%}",
        hovertemplate="%{x} examples: %{y:.0%} exact<extra></extra>",
        **on(panel),
    )
