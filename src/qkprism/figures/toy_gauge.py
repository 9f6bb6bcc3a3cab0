"""Which results survive a change of basis that leaves every logit as it was."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.figures.theme import MUTED, WIDTH, axis
from qkprism.figures.toy_panels import METHOD_COLORS, METHOD_NAMES, METHOD_SYMBOLS, RULE_COLORS, RULES, finish_panels

if TYPE_CHECKING:
    from qkprism.toy.portrait import Portrait

TITLES = ("swaps of one feature", "attributions", "ranks")
SPLITS = {("contrast", "oblique"): "contrast", ("raw", "oblique"): "raw oblique", ("paper", "sequential"): "raw"}
_HEIGHT = 320
_FLOOR = 1e-3
Errors = Mapping[tuple[Any, ...], float]  # by method, cell and latent


def gauge_figure(before: Portrait, after: Portrait, *, width: int = WIDTH) -> go.Figure:
    """Errors of swaps and attributions and exact ranks, before and after; heads that are not superposed."""
    fig = make_subplots(rows=1, cols=3, subplot_titles=[f"<b>{t}</b>" for t in TITLES], horizontal_spacing=80 / width)
    swaps = [_swap_errors(one) for one in (before, after)]
    parts = [_part_errors(one) for one in (before, after)]
    for panel, (was, now) in enumerate((swaps, parts), 1):
        _scatter(fig, panel, was, now, showlegend=panel == 1 or not swaps[0])
    _ranks(fig, before, after)
    return finish_panels(
        fig,
        _HEIGHT,
        title="The same heads in other coordinates",
        subtitle="Every point is a latent of a head (r1 + r2 ≤ d_head), before and after a random change of basis of "
        "condition number 30.",
        caption="W_Q → Aᵀ W_Q and W_K → A⁻¹ W_K leave every logit as it was. What stays on the diagonal is about the "
        "model; what leaves it is about the coordinates it happened to be trained in. Left: total variation to a true "
        "exchange. Middle: error of the parts relative to their size. Right: share of latents whose rank is exact.",
        width=width,
        below=136,
    )


def _swap_errors(portrait: Portrait) -> dict[tuple[Any, ...], float]:
    return {
        (row.method, row.cell, row.feature): row.off_truth
        for row in portrait.swaps
        if row.target == "given"
        and row.control == "feature"
        and row.feature in ("z1", "z2")
        and not row.cell.superposed
    }


def _part_errors(portrait: Portrait) -> dict[tuple[Any, ...], float]:
    return {
        (SPLITS[row.metric, row.split], row.cell, row.latent): row.share
        for row in portrait.parts
        if (row.metric, row.split) in SPLITS and not row.cell.superposed
    }


def _scatter(fig: go.Figure, panel: int, was: Errors, now: Errors, *, showlegend: bool) -> None:
    values = [max(v, _FLOOR) for v in (*was.values(), *now.values()) if v == v]
    if not values:
        return
    ends = [min(values) / 1.3, max(values) * 1.3]
    place = {"xaxis": axis("x", panel), "yaxis": axis("y", panel)}
    diagonal = {"color": MUTED, "width": 1, "dash": "dot"}
    fig.add_scatter(x=ends, y=ends, mode="lines", line=diagonal, showlegend=False, hoverinfo="skip", **place)
    for method in reversed(METHOD_NAMES):
        keys = [key for key in was if key[0] == method and key in now]
        fig.add_scatter(
            x=[max(was[key], _FLOOR) for key in keys],
            y=[max(now[key], _FLOOR) for key in keys],
            text=[f"{key[1]}, {key[2]}" for key in keys],
            mode="markers",
            marker={"color": METHOD_COLORS[method], "symbol": METHOD_SYMBOLS[method], "size": 6, "opacity": 0.7},
            name=METHOD_NAMES[method],
            legendgroup=method,
            showlegend=showlegend,
            hovertemplate="%{text}<br>before %{x:.3f}, after %{y:.3f}<extra></extra>",
            **place,
        )
    for letter, text in (("x", "error before"), ("y", "error after")):
        fig.layout[axis(f"{letter}axis", panel)].update(type="log", title_text=text, dtick=1, exponentformat="none")


def _ranks(fig: go.Figure, before: Portrait, after: Portrait) -> None:
    for rule, name in RULES.items():
        shares = [
            mean(getattr(row, rule) == row.true for row in one.recovered if not row.cell.superposed)
            for one in (before, after)
        ]
        fig.add_bar(
            x=["before", "after"],
            y=shares,
            name=f"rank: {name}",
            marker_color=RULE_COLORS[rule],
            text=[f"{share:.0%}" for share in shares],
            textposition="outside",
            xaxis=axis("x", 3),
            yaxis=axis("y", 3),
        )
    fig.layout.yaxis3.update(range=[0, 1.1], title_text="share exact")
