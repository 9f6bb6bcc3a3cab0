"""`validation_figure`: edits and attributions against true counterfactuals (results/validation.py), two rows a factor.

Above, how far edits are from the truth: in the two edited logits, in attention if only the two keys had changed, and in
attention as it really changed. Below, the predicted part of the logit gap against the true one, and whether the part
follows its own factor and no other. Heads in which the factor matters are filled and make
the large marks; in the others there is next to nothing to exchange, so they are open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import plotly.graph_objects as go

from qkprism.errors import QKPrismError
from qkprism.figures.panels import error_bars, legend_above, legend_entry, line, name_panel, notice, on, panels, write
from qkprism.figures.theme import FEATURE_COLORS, INK, MUTED, axis, finish, number, plain, shortened
from qkprism.figures.words import count, facts, few, known, paragraphs

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
_WHOLE: Mapping[str, Callable[[Sequence[float]], float]] = {"mean": fmean, "median": median}
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

    @property
    def title(self) -> str:
        return plain(f"{self.method} {self.features}".strip())


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
    return [one for one in _every_series(validation) if one.checks[0].factor == factor]


def _every_series(validation: Validation) -> list[Series]:
    """A series a factor, method and set of features; a colour a method, a symbol a set."""
    methods, sets = ([*dict.fromkeys(getattr(c, name) for c in validation.checks)] for name in ("method", "features"))
    found: dict[tuple[str, str, str], list[TruthCheck]] = {}
    for check in validation.checks:
        found.setdefault((check.factor, check.method, check.features), []).append(check)
    return [
        Series(
            features,
            method,
            METHOD_COLORS.get(method, FEATURE_COLORS[methods.index(method) % len(FEATURE_COLORS)]),
            SYMBOLS[sets.index(features) % len(SYMBOLS)],
            tuple(checks),
        )
        for (_, method, features), checks in sorted(
            found.items(), key=lambda one: (methods.index(one[0][1]), sets.index(one[0][2]))
        )
    ]


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
        _reference(fig, panel, median(floors), "two keys alone")
    else:
        _reference(fig, panel, 0, "perfect")
    _reference(fig, panel, 1, "no edit")
    methods = list(dict.fromkeys(edit.method for edit in edits))
    places = [[at for at, edit in enumerate(edits) if edit.method == method] for method in methods]
    fig.layout[f"xaxis{panel}"].update(
        tickvals=[fmean(spots) for spots in places],
        ticktext=[plain(method) for method in methods],
        tickangle=-30,
        tickfont={"size": 11},
        range=[-0.6, max(1, len(edits)) - 0.4],
        showgrid=False,
    )
    ends = _span([read(check)[0] for edit in edits for check in edit.checks], 0.0, 1.0, above=2.5)
    fig.layout[f"yaxis{panel}"].update(title_text=unit, range=ends)
    if not edits:
        notice(fig, panel, "no edit to compare")


def _span(values: Iterable[float], *kept: float, room: float = 0.06, above: float = 1.0) -> list[float]:
    """An axis with all values and those that it always has, with some room below and so many times that above."""
    ends = [value for value in values if math.isfinite(value)] + [*kept]
    margin = room * (max(ends) - min(ends)) or 0.5
    return [min(ends) - margin, max(ends) + above * margin]


def _draw_parts(fig: go.Figure, panel: int, series: Sequence[Series]) -> None:
    for one in series:
        true, part = ([getattr(check, name) for check in one.checks] for name in ("true_part", "part"))
        _draw_dots(fig, panel, one, true, part, [check.part_error_error for check in one.checks])
        true, part = ([getattr(check, name) for check in one.mattering] for name in ("true_part", "part"))
        _draw_whole(fig, panel, one, _over_heads(true, "mean"), part, "mean")
    ends = _span([value for one in series for c in one.checks for value in (c.true_part, c.part)], 0.0, room=0.08)
    _draw_segment(fig, panel, "identity", (ends[0], ends[0]), (ends[1], ends[1]))
    fig.layout[f"xaxis{panel}"].update(title_text="true part (logits)", range=ends)
    fig.layout[f"yaxis{panel}"].update(title_text="predicted part (logits)", range=ends)


def _draw_slopes(fig: go.Figure, panel: int, series: Sequence[Series]) -> None:
    shift = len(series) + 1
    for at, one in enumerate(series):
        _draw_column(fig, panel, one, at, lambda check: (check.slope_own, check.slope_own_error))
        _draw_column(fig, panel, one, at + shift, lambda check: (check.slope_other, check.slope_other_error))
    middle = (len(series) - 1) / 2
    _draw_segment(fig, panel, "truth", (-0.6, 1), (shift - 1.2, 1))
    _draw_segment(fig, panel, "truth", (shift - 0.8, 0), (2 * shift - 1.4, 0))
    fig.layout[f"xaxis{panel}"].update(
        tickvals=[middle, middle + shift],
        ticktext=["own factor", "other factors"],
        range=[-0.8, 2 * shift - 1.2],
        showgrid=False,
    )
    slopes = [value for one in series for c in one.checks for value in (c.slope_own, c.slope_other)]
    fig.layout[f"yaxis{panel}"].update(title_text="slope", range=_span(slopes, 0.0, 1.0))
    if not any(map(math.isfinite, slopes)):
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
    kind: Literal["mean", "median"] = "mean",
) -> None:
    """The heads of a series one beside the other, and the mean or median of those in which the factor matters."""
    values, errors = zip(*map(read, series.checks), strict=True)
    n = len(values)
    spread = [at + (0.5 * i / (n - 1) - 0.25 if n > 1 else 0.0) for i in range(n)]
    _draw_dots(fig, panel, series, spread, values, errors)
    _draw_whole(fig, panel, series, at, [read(check)[0] for check in series.mattering], kind)


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
        name=series.title,
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


def _over_heads(values: Iterable[float], kind: Literal["mean", "median"]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return _WHOLE[kind](finite) if finite else math.nan


def _draw_whole(
    fig: go.Figure, panel: int, series: Series, x: float, values: Sequence[float], kind: Literal["mean", "median"]
) -> None:
    """The mean or median of the heads in which the factor matters, where there are several heads."""
    y = _over_heads(values, kind)
    if len(series.checks) < 2 or not (math.isfinite(x) and math.isfinite(y)):
        return
    heads = f"{len(series.mattering)} of {count(len(series.checks), 'head')}"
    fig.add_scatter(
        x=[x],
        y=[y],
        mode="markers",
        name=f"{kind} of {series.title}",
        legendgroup=series.method,
        marker={"symbol": series.symbol, "size": 12, "color": series.color, "line": {"color": INK, "width": 1.2}},
        hovertext=[f"<b>{series.title}</b><br>{kind} over the {heads} in which the factor matters: {number(y)}"],
        hoverinfo="text",
        showlegend=False,
        **on(panel),
    )


def _draw_segment(fig: go.Figure, panel: int, name: str, start: tuple[float, float], end: tuple[float, float]) -> None:
    place = {"xref": axis("x", panel), "yref": axis("y", panel)}
    corners = {"x0": start[0], "y0": start[1], "x1": end[0], "y1": end[1]}
    fig.add_shape(type="line", name=name, line={"color": INK, "width": 1.2, "dash": "dash"}, **corners, **place)


def _reference(fig: go.Figure, panel: int, y: float, name: str) -> None:
    """A line over the whole panel with its name, at the side where dots are seldom."""
    unedited = name == "no edit"
    line(fig, panel, name, y=y, dash="dot" if unedited else "dash")
    look = {"xanchor": "left" if unedited else "right", "yanchor": "bottom", "font": {"size": 10, "color": MUTED}}
    write(fig, panel, name, "line", 0 if unedited else 1, y, domain="x", **look)


def _legend(fig: go.Figure, validation: Validation, height: int) -> None:
    series = _every_series(validation)
    for method, color in {one.method: one.color for one in series}.items():
        legend_entry(fig, plain(method), method, marker={"symbol": "circle", "size": 9, "color": color})
    sets = {one.features: one.symbol for one in series}
    for name, symbol in sets.items() if len(sets) > 1 else ():
        title = plain(shortened(name)) or "features"
        legend_entry(fig, title, f"set {name}", marker={"symbol": symbol, "size": 9, "color": INK})
    if any(not check.matters for check in validation.checks):
        look = {"symbol": "circle-open", "size": 9, "color": MUTED}
        legend_entry(fig, "factor does not matter", "open", marker=look)
    if len({check.head for check in validation.checks}) > 1:
        look = {"symbol": "circle", "size": 12, "color": MUTED}
        legend_entry(fig, "heads in which it matters", "whole", marker=look)
    legend_above(fig, 28, height, traceorder="normal", tracegroupgap=0, font={"size": 11})


def _caption(validation: Validation) -> str:
    return paragraphs(
        f"Filled: heads in which the factor matters, with a true part that is clearly not 0 and not tiny: "
        f"{_where(validation)}. Open: the others, in which a part of 0 is right whatever the method. Large marks and "
        "counts are of the filled ones.",
        "The truth is a text in which two keys have really exchanged one factor. Above, each against no edit (1: no "
        "better; 0: perfect): the error of the two edited logits; the distance of the attention to the truth in which "
        "only the two keys changed; that to the whole truth, in which other keys change too, so that an edit of two "
        "keys can reach the dashed line at best. Large marks are medians, numbers say in how many heads the edit is "
        "nearer than no edit. The whole key moves the other factors too.",
        "Below: on the dashed line the part attributed to the feature is the true one. Right of it: a part should "
        "follow its own factor (1) and no other (0); a slope on the others is what the method mixes in. Large marks "
        "are means. An attribution without an edit has no distance.",
        f"Standard errors over pairs are bars, or with many heads in the text at a mark. {few(validation.notes)}",
    )


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
