"""`validation_figure`: edits and attributions against true counterfactuals (results/validation.py), two rows a factor.

Above, how far edits are from the truth: in the two edited logits, in attention if only the two keys had changed, and in
attention as it really changed. Below, the predicted part of the logit gap against the true one, and whether the part
follows its own factor and no other. Heads in which the factor matters are filled and make
the large marks; in the others there is next to nothing to exchange, so they are open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from qkprism.errors import QKPrismError
from qkprism.figures.panels import error_bars, legend_above, name_panel, notice, on, panels, write
from qkprism.figures.theme import FEATURE_COLORS, INK, MUTED, axis, finish, number, plain, shortened
from qkprism.figures.words import count, facts, few, known

if TYPE_CHECKING:
    from qkprism.results.validation import TruthCheck, Validation

# a method has one colour in every figure, and not one of the first features
METHOD_COLORS = MappingProxyType(
    {
        "conditional": "#AA4499",
        "conditional, permuted": "#BBBBBB",
        "conditional, key draws": "#DDCC77",
        "contrast": "#332288",
        "raw oblique": "#44AA99",
        "raw": "#999933",
        "raw sequential": "#882255",
        "whole key": "#7F7F7F",
    }
)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
_TITLES = (
    "error of the two logits",
    "attention, two keys changed",
    "attention, whole truth",
    "predicted and true part",
    "slopes on the true parts",
)
_PANELS = len(_TITLES)  # of a factor
_DISTANCES = (
    ("logit", "error / that of no edit"),
    ("tv_pair", "total variation / no edit"),
    ("tv", "total variation / no edit"),
)
_LEFT, _PANEL, _BETWEEN = 72, 240, 116  # pixels
_BARRED = 12  # heads; with more, error bars would hide the dots


@dataclass(frozen=True)
class Series:
    """One set of features and method, and all its heads for one factor."""

    features: str
    method: str
    color: str
    symbol: str
    checks: tuple[TruthCheck, ...]

    @property
    def mattering(self) -> list[TruthCheck]:
        """The heads in which the factor matters."""
        return [check for check in self.checks if check.matters]


def validation_figure(validation: Validation) -> go.Figure:
    """Distances, parts and slopes: two rows a factor, a colour a method, a dot a head, large marks over heads."""
    if not validation.checks:
        raise QKPrismError("There is no check to draw. Was the choice of heads or pairs empty?")
    factors = validation.factors
    rows = 2 * len(factors)
    specs = [[{}, {}, {}], [{}, {}, None]] * len(factors)
    fig, height = panels(rows, 3, _PANEL, down=_BETWEEN, across=76, edges=_LEFT + 24, specs=specs)
    for place, factor in enumerate(factors):
        series, first = series_of(validation, factor), _PANELS * place + 1
        for panel, (name, unit) in enumerate(_DISTANCES, first):
            _draw_distance(fig, panel, series, name, unit)
        _draw_parts(fig, first + 3, series)
        _draw_slopes(fig, first + 4, series)
        for panel, title in enumerate(_TITLES, first):
            name_panel(fig, panel, f"{shortened(factor, 12)}: {title}")
    _legend(fig, validation, height)
    heads = len({check.head for check in validation.checks})
    sizes = sorted({check.n for check in validation.checks})
    pairs = count(sizes[0], "pair") if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} pairs"
    return finish(
        fig,
        title="Edits and attributions against true counterfactuals",
        subtitle=facts(validation.provenance, count(heads, "head"), f"{pairs} of texts"),
        caption=_caption(validation),
        plot_height=height,
        left=_LEFT,
        above=80,  # two rows of the legend
        below=92,
    )


def series_of(validation: Validation, factor: str) -> list[Series]:
    """What is compared for a factor, in the order of the table."""
    methods, sets = _methods(validation), _sets(validation)
    found: dict[tuple[str, str], list[TruthCheck]] = {}
    for check in validation.checks:
        if check.factor == factor:
            found.setdefault((check.method, check.features), []).append(check)
    return [
        Series(name, method, _color(method, methods), SYMBOLS[sets.index(name) % len(SYMBOLS)], tuple(found[key]))
        for key in sorted(found, key=lambda key: (methods.index(key[0]), sets.index(key[1])))
        for method, name in [key]
    ]


def _methods(validation: Validation) -> list[str]:
    return list(dict.fromkeys(check.method for check in validation.checks))


def _sets(validation: Validation) -> list[str]:
    return list(dict.fromkeys(check.features for check in validation.checks))


def _color(method: str, methods: Sequence[str]) -> str:
    return METHOD_COLORS.get(method, FEATURE_COLORS[methods.index(method) % len(FEATURE_COLORS)])


def _draw_distance(fig: go.Figure, panel: int, series: Sequence[Series], name: str, unit: str) -> None:
    """One ratio to no edit of every method; of the whole truth with what a perfect edit of two keys would leave."""

    def read(check: TruthCheck) -> tuple[float, float]:
        return getattr(check, name), getattr(check, f"{name}_error")

    edits = [one for one in series if any(math.isfinite(read(check)[0]) for check in one.checks)]
    for at, one in enumerate(edits):
        _draw_column(fig, panel, one, at, read, "median")
        _count_nearer(fig, panel, one, at, [read(check)[0] for check in one.mattering])
    floors = [check.floor for one in edits[:1] for check in one.mattering if math.isfinite(check.floor)]
    if name == "tv" and floors:
        _line(fig, panel, median(floors), "two keys alone")
    else:
        _line(fig, panel, 0, "perfect")
    _line(fig, panel, 1, "no edit")
    methods = list(dict.fromkeys(edit.method for edit in edits))
    places = {method: [at for at, edit in enumerate(edits) if edit.method == method] for method in methods}
    fig.layout[f"xaxis{panel}"].update(
        tickvals=[sum(spots) / len(spots) for spots in places.values()],
        ticktext=[plain(method) for method in methods],
        tickangle=-30,
        tickfont={"size": 11},
        range=[-0.6, max(1, len(edits)) - 0.4],
        showgrid=False,
    )
    ends = [v for edit in edits for v in (read(check)[0] for check in edit.checks) if math.isfinite(v)] + [0.0, 1.0]
    margin = 0.06 * (max(ends) - min(ends))
    fig.layout[f"yaxis{panel}"].update(title_text=unit, range=[min(ends) - margin, max(ends) + 2.5 * margin])
    if not edits:
        notice(fig, panel, "no edit to compare")


def _draw_parts(fig: go.Figure, panel: int, series: Sequence[Series]) -> None:
    for one in series:
        x, y = [check.true_part for check in one.checks], [check.part for check in one.checks]
        errors = [check.part_error_error for check in one.checks]
        _draw_dots(fig, panel, one, x, y, errors)
        some = one.mattering
        _draw_whole(fig, panel, one, _mean([c.true_part for c in some]), _mean([c.part for c in some]), "mean")
    values = [v for one in series for c in one.checks for v in (c.true_part, c.part) if math.isfinite(v)] + [0.0]
    margin = 0.08 * (max(values) - min(values)) or 0.5
    ends = [min(values) - margin, max(values) + margin]
    place = {"xref": axis("x", panel), "yref": axis("y", panel)}
    line = {"color": INK, "width": 1.2, "dash": "dash"}
    corners = {"x0": ends[0], "y0": ends[0], "x1": ends[1], "y1": ends[1]}
    fig.add_shape(type="line", name="identity", line=line, **corners, **place)
    fig.layout[f"xaxis{panel}"].update(title_text="true part (logits)", range=ends)
    fig.layout[f"yaxis{panel}"].update(title_text="predicted part (logits)", range=ends)


def _draw_slopes(fig: go.Figure, panel: int, series: Sequence[Series]) -> None:
    shift = len(series) + 1
    for at, one in enumerate(series):
        _draw_column(fig, panel, one, at, lambda check: (check.slope_own, check.slope_own_error))
        _draw_column(fig, panel, one, at + shift, lambda check: (check.slope_other, check.slope_other_error))
    middle = (len(series) - 1) / 2
    _line(fig, panel, 1, "truth", (-0.6, shift - 1.2))
    _line(fig, panel, 0, "truth", (shift - 0.8, 2 * shift - 1.4))
    fig.layout[f"xaxis{panel}"].update(
        tickvals=[middle, middle + shift],
        ticktext=["own factor", "other factors"],
        range=[-0.8, 2 * shift - 1.2],
        showgrid=False,
    )
    every = [v for one in series for c in one.checks for v in (c.slope_own, c.slope_other) if math.isfinite(v)]
    ends = [min([0.0, *every]), max([1.0, *every])]
    margin = 0.06 * (ends[1] - ends[0])
    fig.layout[f"yaxis{panel}"].update(title_text="slope", range=[ends[0] - margin, ends[1] + margin])
    if not every:
        notice(fig, panel, "not tested: no shared texts, or too few")


def _count_nearer(fig: go.Figure, panel: int, series: Series, at: float, ratios: Sequence[float]) -> None:
    """Above a column, in how many of the heads in which the factor matters the edit is nearer than no edit."""
    if some := [ratio for ratio in ratios if math.isfinite(ratio)]:
        look = {"yanchor": "top", "font": {"size": 10, "color": series.color}}
        write(fig, panel, f"{sum(ratio < 1 for ratio in some)}/{len(some)}", "nearer", at, 1, domain="y", **look)


def _draw_column(
    fig: go.Figure,
    panel: int,
    series: Series,
    at: float,
    read: Callable[[TruthCheck], tuple[float, float]],
    kind: str = "mean",
) -> None:
    """The heads of a series one beside the other, and the mean or median of those in which the factor matters."""
    values, errors = zip(*map(read, series.checks), strict=True)
    n = len(values)
    spread = [at + (0.5 * i / (n - 1) - 0.25 if n > 1 else 0.0) for i in range(n)]
    _draw_dots(fig, panel, series, spread, values, errors)
    some = [read(check)[0] for check in series.mattering]
    _draw_whole(fig, panel, series, at, _median(some) if kind == "median" else _mean(some), kind)


def _draw_dots(
    fig: go.Figure, panel: int, series: Series, x: Sequence[float], y: Sequence[float], errors: Sequence[float]
) -> None:
    several = len(series.checks) > 1
    sizes = [known(value) for value in errors] if len(series.checks) <= _BARRED else None
    fig.add_scatter(
        x=[known(value) for value in x],
        y=[known(value) for value in y],
        error_y=error_bars(sizes, series.color, thickness=0.8, width=0),
        mode="markers",
        name=plain(f"{series.method} {series.features}".strip()),
        legendgroup=series.method,
        marker={
            "symbol": [series.symbol if check.matters else f"{series.symbol}-open" for check in series.checks],
            "size": 6 if several else 9,
            "color": series.color,
            "opacity": 0.55 if several else 1,
        },
        hovertext=[_text(check) for check in series.checks],
        hoverinfo="text",
        showlegend=False,
        **on(panel),
    )


def _draw_whole(fig: go.Figure, panel: int, series: Series, x: float, y: float, kind: str) -> None:
    """The mean or median of the heads in which the factor matters, where there are several heads."""
    if len(series.checks) < 2 or not (math.isfinite(x) and math.isfinite(y)):
        return
    title = plain(f"{series.method} {series.features}".strip())
    heads = f"{len(series.mattering)} of {count(len(series.checks), 'head')}"
    fig.add_scatter(
        x=[known(x)],
        y=[known(y)],
        mode="markers",
        name=f"{kind} of {title}",
        legendgroup=series.method,
        marker={"symbol": series.symbol, "size": 12, "color": series.color, "line": {"color": INK, "width": 1.2}},
        hovertext=[f"<b>{title}</b><br>{kind} over the {heads} in which the factor matters: {number(y)}"],
        hoverinfo="text",
        showlegend=False,
        **on(panel),
    )


def _line(fig: go.Figure, panel: int, y: float, name: str, across: tuple[float, float] | None = None) -> None:
    """A reference line, over the whole panel or a part of it."""
    x0, x1 = across or (0, 1)
    fig.add_shape(
        type="line",
        name=name,
        xref=axis("x", panel) if across else f"{axis('x', panel)} domain",
        yref=axis("y", panel),
        x0=x0,
        x1=x1,
        y0=y,
        y1=y,
        line={"color": INK, "width": 1.2, "dash": "dot" if name == "no edit" else "dash"},
    )
    if across is None:
        side = 0 if name == "no edit" else 1  # where dots are seldom
        look = {"xanchor": "left" if side == 0 else "right", "yanchor": "bottom", "font": {"size": 10, "color": MUTED}}
        write(fig, panel, name, "line", side, y, domain="x", **look)


def _legend(fig: go.Figure, validation: Validation, height: int) -> None:
    methods, sets = _methods(validation), _sets(validation)
    entries = [(plain(m), m, _color(m, methods), "circle", 9) for m in methods]
    if len(sets) > 1:
        entries += [(plain(shortened(s)) or "features", f"set {s}", INK, _symbol(s, sets), 9) for s in sets]
    if any(not check.matters for check in validation.checks):
        entries.append(("factor does not matter", "open", MUTED, "circle-open", 9))
    if len({check.head for check in validation.checks}) > 1:
        entries.append(("heads in which it matters", "whole", MUTED, "circle", 12))
    for title, group, color, symbol, size in entries:
        marker = {"symbol": symbol, "size": size, "color": color}
        fig.add_scatter(x=[None], y=[None], mode="markers", name=title, legendgroup=group, marker=marker)
    legend_above(fig, 28, height, traceorder="normal", tracegroupgap=0, font={"size": 11})


def _symbol(name: str, sets: Sequence[str]) -> str:
    return SYMBOLS[sets.index(name) % len(SYMBOLS)]


def _caption(validation: Validation) -> str:
    parts = [
        f"Filled: heads in which the factor matters, with a true part that is clearly not 0 and not tiny: "
        f"{_where(validation)}. Open: the others, in which a part of 0 is right whatever the method. Large marks and "
        "counts are of the filled ones.",
        "The truth is a text in which two keys have really exchanged one factor. Above, each beside no edit (1: no "
        "better; 0: perfect): the error of the two edited logits; the distance of the attention to the truth in which "
        "only the two keys changed; that to the whole truth, in which other keys change too, so that an edit of two "
        "keys can reach the dashed line at best. Large marks are medians, numbers say in how many heads the edit is "
        "nearer than no edit. The whole key moves the other factors too.",
        "Below: on the dashed line the part attributed to the feature is the true one. Right of it: a part should "
        "follow its own factor (1) and no other (0); a slope on the others is what the method mixes in. Large marks "
        "are means. An attribution without an edit has no distance.",
        "Standard errors over pairs are bars, or with many heads in the text at a mark. " + few(validation.notes),
    ]
    return "\n".join(part.strip() for part in parts)


def _where(validation: Validation) -> str:
    """In how many heads each factor matters."""
    told = []
    for factor in validation.factors:
        heads = {check.head: check.matters for check in validation.checks if check.factor == factor}
        told.append(f"{shortened(factor)} in {sum(heads.values())} of {count(len(heads), 'head')}")
    return ", ".join(told)


def _text(check: TruthCheck) -> str:
    of = f" ({plain(shortened(check.features))})" if check.features else ""
    return "<br>".join(
        [
            f"<b>{plain(shortened(check.factor))} in {plain(check.head)}: {plain(check.method)}{of}</b>",
            f"error of the two logits relative to no edit {number(check.logit, check.logit_error)}",
            f"total variation relative to no edit: two keys {number(check.tv_pair, check.tv_pair_error)}, whole truth "
            f"{number(check.tv, check.tv_error)} (two keys alone {number(check.floor)})",
            f"part {number(check.part)}, true {number(check.true_part, check.true_part_error)}"
            + ("" if check.matters else " (does not clearly matter)")
            + ", "
            f"difference {number(check.part_error, check.part_error_error)}",
            f"slope on its own factor {number(check.slope_own, check.slope_own_error)}, "
            f"on the others {number(check.slope_other, check.slope_other_error)}",
            f"n = {check.n} pairs",
        ]
    )


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _median(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return median(finite) if finite else math.nan
