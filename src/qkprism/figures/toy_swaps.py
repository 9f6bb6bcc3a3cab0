"""Swaps in toy heads: attention before and after as in the paper, and how far edits are from the truth (section 4).

Also attributions beside the true parts of logits, which results survive a change of basis, and where projectors fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import geometric_mean, mean
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.controls import BY_NAME
from qkprism.errors import QKPrismError
from qkprism.figures.panels import on, panels
from qkprism.figures.theme import MUTED, WIDTH
from qkprism.figures.toy_panels import (
    METHOD_COLORS,
    METHOD_NAMES,
    METHOD_SYMBOLS,
    RULE_COLORS,
    RULES,
    cell_title,
    finish_panels,
    method_look,
    slack,
    slack_panels,
)
from qkprism.figures.words import count

if TYPE_CHECKING:
    from qkprism.toy.cells import Cell
    from qkprism.toy.interventions import Swap
    from qkprism.toy.limits import Limit
    from qkprism.toy.portrait import PartError, Portrait

BARS = (
    ("before", "none", "z1+z2"),
    ("z1", "feature", "z1"),
    ("z2", "feature", "z2"),
    ("z1 + z2", "feature", "z1+z2"),
    ("rand r1", "gaussian", "z1"),
    ("rand r2", "gaussian", "z2"),
    ("rand r1 + r2", "gaussian", "z1+z2"),
)
SIDES = (("on_original", "on the original token", "#56B4E9"), ("on_target", "on the target token", "#D55E00"))
_PANEL, _BETWEEN = 170, 88


def bars_in(rows: Mapping[tuple[Cell, str, str], Swap]) -> list[tuple[str, str, str]]:
    """The bars that were measured: a study may have no random controls."""
    measured = {(control, feature) for _, control, feature in rows}
    return [bar for bar in BARS if bar[1:] in measured]


def swap_bars(swaps: Sequence[Swap], cells: Sequence[Cell], *, method: str = "raw") -> go.Figure:
    """Attention on the original and the target token before and after every edit, a panel a head."""
    rows = {
        (row.cell, row.control, row.feature): row
        for row in swaps
        if row.target == "given" and row.method in ("", method)
    }
    if missing := [cell for cell in cells if (cell, "feature", "z1") not in rows]:
        raise QKPrismError(f"There are no swaps of {missing[0]} by the method {method!r}.")
    lines, columns = -(-len(cells) // 2), min(2, len(cells))
    titles = [cell_title(cell) for cell in cells]
    fig, height = panels(lines, columns, _PANEL, down=_BETWEEN, across=56, edges=0, subplot_titles=titles)
    bars = bars_in(rows)
    for panel, cell in enumerate(cells, 1):
        for side, name, color in SIDES:
            values = {title: getattr(rows[cell, control, feature], side) for title, control, feature in bars}
            _bars(fig, panel, values, name, color)
        fig.layout[f"xaxis{panel}"].update(tickfont={"size": 11}, showgrid=False)
        fig.layout[f"yaxis{panel}"].update(title_text="attention" if panel % 2 else "", range=[0, 1])
    fig.update_layout(bargap=0.25, bargroupgap=0.05)
    return finish_panels(
        fig,
        height,
        title="Swapping both features moves all the attention",
        subtitle=f"Method: {METHOD_NAMES[method]}. The target is any other token.",
        caption="As in the paper: keys of the original and the target token exchange their coordinates in the subspace "
        "of z1, of z2, of both, or in random (Gaussian) subspaces of the same dimension. What one latent leaves goes "
        "to tokens that share the rest.",
    )


def _bars(fig: go.Figure, panel: int, values: Mapping[str, float], name: str, color: str) -> None:
    fig.add_bar(
        x=list(values),
        y=list(values.values()),
        name=name,
        legendgroup=name,
        showlegend=panel == 1,
        marker_color=color,
        hovertemplate="%{x}: %{y:.3f} " + name + "<extra></extra>",
        **on(panel),
    )


def truth_figure(swaps: Sequence[Swap], *, feature: str = "z1") -> go.Figure:
    """How far the swap of a feature is from a true exchange of its latent, by method, in all heads."""
    shown = [row for row in swaps if row.target == "given" and row.feature == feature]
    fig, height = _by_method(shown, lambda row: row.off_truth, y="total variation")
    return finish_panels(
        fig,
        height,
        title=f"Does the swap of {feature} do what exchanging {feature} does?",
        subtitle="Total variation of attention between the edited head and one whose tokens really changed places in "
        f"{feature}; 0 is perfect.",
        caption="Points are means over heads with the same room. In the grey part the head has fewer dimensions than "
        "its latents: features share directions, and no linear edit of keys can move one alone.",
    )


def _by_method(rows: Sequence[Swap], value: Callable[[Swap], float], *, y: str) -> tuple[go.Figure, int]:
    """The swap of a feature by every method, and no edit."""
    unedited = BY_NAME["none"]
    series = {
        title: (lambda row, method=method: row.method == method and row.control == "feature")
        for method, title in METHOD_NAMES.items()
    } | {unedited.title: lambda row: row.control == unedited.name}
    looks = {title: method_look(method) for method, title in METHOD_NAMES.items()}
    line = {"color": MUTED, "width": 1.5, "dash": unedited.mark}
    looks[unedited.title] = {"line": line, "marker": {"color": MUTED, "size": 4}}
    return slack_panels(rows, series, value, looks, y=y)


def matched_figure(swaps: Sequence[Swap]) -> go.Figure:
    """Targets that differ in z1 only: z1's feature moves the attention."""
    shown = [row for row in swaps if row.target == "z1"]
    limits = {(row.cell, row.control): row.on_target for row in shown if row.control in ("none", "full")}

    def moved(row: Swap) -> float:
        none, full = limits[row.cell, "none"], limits[row.cell, "full"]
        return (row.on_target - none) / (full - none)

    fig, height = _by_method([row for row in shown if row.feature == "z1"], moved, y="share of the shift")
    return finish_panels(
        fig,
        height,
        title="Does a target that differs in z1 only move when z1 is swapped?",
        subtitle="Attention that the swap of z1 brings to the target, as a share of what exchanging the whole keys "
        "brings: it should be 1.",
        caption="With fewer dimensions than latents (grey) the subspaces of z1 and z2 share directions.",
    )


DASHES = {"oblique": "solid", "shapley": "dash", "sequential": "dot"}
METRICS = {"contrast": "contrast metric", "raw": "raw", "paper": "raw (the paper's)"}
_COLORS = {"contrast": "contrast", "raw": "raw oblique", "paper": "raw"}  # as the swaps that use the same features


def part_figure(parts: Sequence[PartError]) -> go.Figure:
    """Errors of every split in every metric, relative to the size of the true parts."""
    series: dict[str, Any] = {}
    looks: dict[str, Any] = {}
    for metric, split in dict.fromkeys((row.metric, row.split) for row in parts):
        name, color = f"{split}, {METRICS[metric]}", METHOD_COLORS[_COLORS[metric]]
        series[name] = lambda row, key=(metric, split): (row.metric, row.split) == key
        line = {"color": color, "dash": DASHES[split], "width": 2}
        looks[name] = {"line": line, "marker": {"color": color, "size": 6}}
    fig, height = slack_panels(parts, series, lambda row: row.share, looks, y="error / size")
    return finish_panels(
        fig,
        height,
        title="Attributions against the true parts of the logits",
        subtitle="Mean absolute error of the parts of z1 and z2, relative to the mean size of the true part.",
        caption="The true part of a latent in q·k is known. The oblique split projects keys along all other features; "
        "the sequential and the Shapley split share out what query directions have in common. With more directions "
        "than dimensions (grey) there is no oblique split, and the lines end.",
        below=150,
    )


TITLES = ("swaps of one feature", "attributions", "ranks")
SPLITS = {("contrast", "oblique"): "contrast", ("raw", "oblique"): "raw oblique", ("paper", "sequential"): "raw"}
_HEIGHT = 320
_FLOOR = 1e-3
Errors = Mapping[tuple[Any, ...], float]  # by method, cell and latent


def gauge_figure(before: Portrait, after: Portrait) -> go.Figure:
    """Errors of swaps and attributions and exact ranks, before and after; heads that are not superposed."""
    fig = make_subplots(rows=1, cols=3, subplot_titles=[f"<b>{t}</b>" for t in TITLES], horizontal_spacing=80 / WIDTH)
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
    place = on(panel)
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
        fig.layout[f"{letter}axis{panel}"].update(title_text=text, **_LOG)


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
            **on(3),
        )
    fig.layout.yaxis3.update(range=[0, 1.1], title_text="share exact")


_LOG = {"type": "log", "dtick": 1, "exponentformat": "none"}  # an axis of errors


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
        fig.layout[f"xaxis{panel}"].update(title_text=name, type="log" if panel == 2 else "linear")
        fig.layout[f"yaxis{panel}"].update(title_text="error of the projector", **_LOG)
    fig.layout.xaxis2.update(tickvals=sorted({row.n for row in limits}))
    return finish_panels(
        fig,
        300,
        title="Projectors where latents correlate and where examples are few",
        subtitle=f"{_heads(limits)}, both latents; small marks are single ones, "
        f"lines their geometric means. Left: {most:,} examples a contrast.",
        caption="The error is that of the logits which a projector moves, relative to those that it should move. The "
        "contrasts hold the other latent fixed within an example, so correlation in the data costs little. What the "
        "orthogonal projector gets wrong does not go away with more data.",
    )


def _heads(rows: Sequence[Limit]) -> str:
    """How many heads there are, and whether they have room for both latents."""
    places = [slack(row) for row in rows]
    room = "<" if max(places) < 0 else "≤" if max(places) == 0 else ">" if min(places) > 0 else ""
    told = f" with r1 + r2 {room} d_head" if room else ", some of them superposed"
    return count(len({row.cell for row in rows}), "head") + told


def _errors(fig: go.Figure, panel: int, method: str, points: Sequence[tuple[float, float]]) -> None:
    place = {**on(panel), "legendgroup": method}
    mark = {"color": METHOD_COLORS[method], "symbol": METHOD_SYMBOLS[method], "size": 4, "opacity": 0.35}
    x, y = [p[0] for p in points], [p[1] for p in points]
    fig.add_scatter(x=x, y=y, mode="markers", marker=mark, showlegend=False, hoverinfo="skip", **place)
    places = sorted({p[0] for p in points})
    fig.add_scatter(
        x=places,
        y=[geometric_mean(max(error, 1e-12) for at, error in points if at == one) for one in places],
        mode="lines+markers",
        name=METHOD_NAMES[method],
        showlegend=panel == 1,
        hovertemplate="%{x}: %{y:.4f}<extra></extra>",
        **method_look(method),
        **place,
    )
