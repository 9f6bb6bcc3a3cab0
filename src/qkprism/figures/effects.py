"""`effects_figure`: what an edit does, every feature beside its controls, a panel a head (paper, sections 4 and 5).

A group of marks for each method and feature: the feature first, then the controls of the same rank. Lines across a
panel are the two ends that belong to no feature: no edit, and the whole key.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from qkprism.controls import BY_NAME, EVIDENCE, RIVALS, SHARED, WEAK, Control, listed
from qkprism.errors import QKPrismError
from qkprism.figures.panels import error_bars, legend_above, legend_entry, name_panel, on, panels, write
from qkprism.figures.theme import GRID, INK, MUTED, WIDTH, feature_color, finish, number, plain, shortened
from qkprism.figures.words import count, facts, few, known, paragraphs

if TYPE_CHECKING:
    from torch import Tensor

    from qkprism.results.effects import Effects

SHOWN = 12  # heads
_LEFT, _RIGHT, _PANEL = 72, 24, 210  # pixels
_COLUMNS, _GAP = 4, 24  # panels beside each other, and pixels between them
_GROUP = 66  # pixels of a group, where there is room
_LEAST = 40  # below this the figure becomes wider
_PITCH, _APART = 6.0, 1.5  # between groups and between methods, in steps of one mark
_PALE = {"color": "#D0D0D0", "width": 6}  # lines of a spread


ALL_EVIDENCE = listed(EVIDENCE)
MEASURES = MappingProxyType(
    {
        "attention_original": "attention on the original key",
        "attention_target": "attention on the target key",
        "shift": "shift: target / (target + original)",
        "flip": "flips among marked keys (share)",
        "flip_all": "flips among all tokens (share)",
        "logit_change": "change of target less original (logits)",
        "probability_original": "probability of the original answer",
        "probability_target": "probability of the target answer",
        "predicts_original": "predicts the original answer (share)",
        "predicts_target": "predicts the target answer (share)",
    }
)


@dataclass(frozen=True)
class Group:
    """One feature, or several together, moved by one method; `at` is its place across a panel."""

    feature: str
    method: str
    at: float


@dataclass(frozen=True)
class _Layout:
    """How panels and their labels are laid out; sizes in pixels."""

    width: int
    columns: int
    panels: int
    labels: tuple[str, ...]
    turned: bool

    @classmethod
    def of(cls, groups: Sequence[Group], panels: int) -> _Layout:
        width = max(WIDTH, _LEFT + _RIGHT + _LEAST * len(groups))
        columns = min(_COLUMNS, panels, max(1, (width - _LEFT - _RIGHT) // (_GROUP * len(groups) + _GAP)))
        room = ((width - _LEFT - _RIGHT) // columns - _GAP) / len(groups)
        labels = tuple(shortened(group.feature, 22) for group in groups)
        return cls(width, columns, panels, labels, turned=6.5 * max(map(len, labels)) > room)

    @property
    def below(self) -> int:
        """Of the labels of a panel."""
        return 26 + (round(4.2 * max(map(len, self.labels))) if self.turned else 8)

    @property
    def height(self) -> int:
        rows = math.ceil(self.panels / self.columns)
        return rows * _PANEL + (rows - 1) * (self.below + 48)

    def figure(self) -> go.Figure:
        rows, edges = math.ceil(self.panels / self.columns), _LEFT + _RIGHT + WIDTH - self.width
        return panels(rows, self.columns, _PANEL, down=self.below + 48, across=_GAP, edges=edges)[0]


@dataclass(frozen=True)
class _HeadPanel:
    """One head of the figure and where it is drawn."""

    effects: Effects
    measure: str
    target: str
    groups: Sequence[Group]
    head: int
    number: int
    lost: frozenset[tuple[str, str, str]]  # head, feature and method: those that do not beat all that is evidence

    @property
    def place(self) -> dict[str, Any]:
        return {**on(self.number), "showlegend": False}

    def row(self, control: str, group: Group | None = None) -> int | None:
        """The row of the table, if there is one."""
        entry = (self.target, group.feature if group else "", group.method if group else "", control)
        return self.effects.entries.index(entry) if entry in self.effects.entries else None

    def value(self, row: int | None) -> float | None:
        """The mean of the measure in a row."""
        return self._of(self.effects.values, row)

    def error(self, row: int | None) -> float | None:
        """Its standard error."""
        return self._of(self.effects.errors, row)

    def _of(self, table: Tensor, row: int | None) -> float | None:
        return None if row is None else known(float(table[self.effects.measures.index(self.measure), row, self.head]))


def effects_figure(effects: Effects, measure: str, target: str) -> go.Figure:
    """Every feature beside its controls in up to 12 heads, by one measure and towards one target."""
    _refuse_unknown(effects, measure, target)
    groups, heads = _groups(effects, target), shown_heads(effects, target)
    layout = _Layout.of(groups, len(heads))
    fig = layout.figure()
    lost = frozenset(
        (row["head"], row["feature"], row["method"])
        for row in effects.beats()
        if row["target"] == target and row["evidence"] and not row["beaten"]
    )
    for panel, head in enumerate(heads, 1):
        _draw_panel(fig, _HeadPanel(effects, measure, target, groups, head, panel, lost))
    fig.update_yaxes(range=_range(fig), matches="y")
    _draw_legend(fig, layout.height)
    _name_groups(fig, groups, layout, MEASURES.get(measure, plain(measure)))
    return finish(
        fig,
        title=f"{effects.title[:1].upper()}{effects.title[1:]}: each feature alongside its controls",
        subtitle=_subtitle(effects, target),
        caption=_caption(effects, heads),
        width=layout.width,
        plot_height=layout.height,
        left=_LEFT,
        right=_RIGHT,
        above=92,
        below=layout.below + 14,
    )


def shown_heads(effects: Effects, target: str) -> list[int]:
    """The heads that are drawn: all, or of many those in which some feature gains most over no edit."""
    heads = range(len(effects.heads))
    if len(heads) <= SHOWN:
        return list(heads)
    rows = [i for i, e in enumerate(effects.entries) if e.target == target and e.control == "feature"]
    gains = effects.gains[rows].nan_to_num(-math.inf).amax(0).tolist()
    return sorted(sorted(heads, key=lambda head: -gains[head])[:SHOWN])


def is_combination(name: str, names: Iterable[str]) -> bool:
    """Is this a name such as "order+lexical", made of others?

    >>> is_combination("order+lexical", ["order", "lexical"]), is_combination("a+b", ["a+b", "a"])
    (True, False)
    """
    others = [other for other in names if other != name]
    rests = [name.removeprefix(f"{other}+") for other in others if name.startswith(f"{other}+")]
    return any(rest in others or is_combination(rest, others) for rest in rests)


def _refuse_unknown(effects: Effects, measure: str, target: str) -> None:
    if measure not in effects.measures:
        raise QKPrismError(f"{measure!r} was not measured. Use one of {', '.join(effects.measures)}.")
    if target not in effects.targets:
        raise QKPrismError(f"There is no target {target!r}. There are: {', '.join(effects.targets)}.")
    if not effects.heads or not effects.features:
        raise QKPrismError("There is no effect to draw. Was the choice of heads or features empty?")


def _groups(effects: Effects, target: str) -> list[Group]:
    found = {(e.feature, e.method) for e in effects.entries if e.target == target and e.control == "feature"}
    groups: list[Group] = []
    for method in effects.methods:
        for feature in effects.features:
            if (feature, method) in found:
                other = bool(groups) and groups[-1].method != method
                at = groups[-1].at + _PITCH + other * _APART if groups else 0.0
                groups.append(Group(feature, method, at))
    return groups


def _name_groups(fig: go.Figure, groups: Sequence[Group], layout: _Layout, measure: str) -> None:
    """Label the groups of every panel, and the values of the first panel in each row."""
    boundaries = [(a.at + b.at) / 2 for a, b in pairwise(groups)]
    fig.update_xaxes(
        tickvals=[group.at for group in groups],
        ticktext=[plain(label) for label in layout.labels],
        tickangle=-35 if layout.turned else 0,
        tickfont={"size": 11},
        range=[groups[0].at - 0.6 * _PITCH, groups[-1].at + 0.6 * _PITCH],
        showgrid=False,
        minor={"tickvals": boundaries, "showgrid": True, "gridcolor": GRID, "ticks": ""},
    )
    for panel in range(1, layout.panels + 1):
        first = (panel - 1) % layout.columns == 0
        fig.layout[f"yaxis{panel}"].update(showticklabels=first, title_text=measure if first else None)


def _draw_panel(fig: go.Figure, panel: _HeadPanel) -> None:
    _name_methods(fig, panel.number, panel.groups)
    name_panel(fig, panel.number, shortened(panel.effects.heads[panel.head], 30), shift=20)
    for end in SHARED:
        if (row := panel.row(end.name)) is not None:
            _draw_line(fig, panel, end, row)
    if panel.measure == panel.effects.compared:  # the spread of the others is not kept
        _draw_spread(fig, panel)
    for step, rival in enumerate(RIVALS, 1):
        _draw_marks(fig, panel, rival, _still(rival.mark, rival.color, 7), step)
    _draw_marks(fig, panel, BY_NAME["feature"], _feature_style(panel), 0)


def _draw_line(fig: go.Figure, panel: _HeadPanel, end: Control, row: int) -> None:
    groups = panel.groups
    at = [groups[0].at - _PITCH, *(group.at for group in groups), groups[-1].at + _PITCH]
    fig.add_scatter(
        x=at,
        y=[panel.value(row)] * len(at),
        mode="lines",
        name=end.title,
        legendgroup=end.name,
        line=_line(end),
        hovertext=[_text(panel, row)] * len(at),
        hoverinfo="text",
        **panel.place,
    )


def _draw_spread(fig: go.Figure, panel: _HeadPanel) -> None:
    """Pale bars behind the controls: one standard deviation over draws on either side."""
    at: list[float | None] = []
    ends: list[float | None] = []
    for step, rival in enumerate(RIVALS, 1):
        for group in panel.groups:
            row = panel.row(rival.name, group)
            if row is None or int(panel.effects.draws[row]) < 2:
                continue
            mean, spread = panel.value(row), float(panel.effects.spread[row, panel.head])
            at += [_across(group, step)] * 2 + [None]
            ends += [None if mean is None else known(mean + side * spread) for side in (-1, 1)] + [None]
    fig.add_scatter(
        x=at, y=ends, mode="lines", name="spread", legendgroup="spread", line=_PALE, hoverinfo="skip", **panel.place
    )


def _draw_marks(fig: go.Figure, panel: _HeadPanel, control: Control, style: dict[str, Any], step: int) -> None:
    rows = [panel.row(control.name, group) for group in panel.groups]
    fig.add_scatter(
        x=[_across(group, step) for group in panel.groups],
        y=[panel.value(row) for row in rows],
        mode="markers",
        name=control.title,
        legendgroup=control.name,
        marker=style,
        error_y=error_bars([panel.error(row) for row in rows], control.color),
        hovertext=[_text(panel, row) for row in rows],
        hoverinfo="text",
        **panel.place,
    )


def _across(group: Group, step: int) -> float:
    return group.at + step - len(RIVALS) / 2


def _feature_style(panel: _HeadPanel) -> dict[str, Any]:
    """A colour a feature, ink for several together; filled if it beats all controls that are evidence."""
    names = panel.effects.features
    single = [name for name in names if not is_combination(name, names)]
    colors = [feature_color(g.feature, single) if g.feature in single else INK for g in panel.groups]
    head = panel.effects.heads[panel.head]
    symbols = ["circle-open" if (head, g.feature, g.method) in panel.lost else "circle" for g in panel.groups]
    return {"symbol": symbols, "size": 11, "color": colors, "line": {"width": 2, "color": colors}}


def _name_methods(fig: go.Figure, panel: int, groups: Sequence[Group]) -> None:
    for method in dict.fromkeys(group.method for group in groups):
        places = [group.at for group in groups if group.method == method]
        look = {"yanchor": "bottom", "yshift": 2, "font": {"size": 11, "color": MUTED}}
        write(fig, panel, plain(method), "method", (places[0] + places[-1]) / 2, 1, domain="y", **look)


def _draw_legend(fig: go.Figure, height: int) -> None:
    """What the marks mean, in the colour of no feature."""
    legend_entry(fig, f"feature: beats all but {listed(WEAK)}", "feature", marker=_still("circle", INK, 11))
    legend_entry(fig, "feature: does not", "feature", marker=_still("circle-open", INK, 11))
    for control in RIVALS:
        legend_entry(fig, control.title, control.name, marker=_still(control.mark, control.color, 7))
    legend_entry(fig, "spread over draws", "spread", line=_PALE)
    for end in SHARED:
        legend_entry(fig, end.title, end.name, line=_line(end))
    legend_above(fig, 40, height, traceorder="normal", tracegroupgap=0, font={"size": 11})


def _line(end: Control) -> dict[str, Any]:
    return {"color": end.color, "width": 1.2, "dash": end.mark}


def _still(symbol: str, color: str, size: int) -> dict[str, Any]:
    return {"symbol": symbol, "size": size, "color": color, "line": {"width": 1.5, "color": color}}


def _range(fig: go.Figure) -> list[float]:
    """From the lowest to the highest end of an error bar in all panels, with 0 if it is near."""
    ends = []
    for trace in fig.data:
        errors = trace.error_y.array or [0.0] * len(trace.y)
        ends += [
            y + side * (e or 0.0) for y, e in zip(trace.y, errors, strict=True) if y is not None for side in (-1, 1)
        ]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    if abs(low) < 0.5 * (high - low) or abs(high) < 0.5 * (high - low):
        low, high = min(low, 0.0), max(high, 0.0)
    margin = 0.05 * (high - low) or 0.5
    return [low - margin, high + margin]


def _subtitle(effects: Effects, target: str) -> str:
    n = next(int(effects.n[i]) for i, entry in enumerate(effects.entries) if entry.target == target)
    aim = "targets as given" if target == "given" else f"targets that differ in {shortened(target)} alone"
    contrast = effects.provenance.get("contrast")
    return facts(
        effects.provenance,
        shortened(contrast) if contrast else "",
        count(len(effects.heads), "head") if len(effects.heads) > 1 else str(effects.heads[0]),
        count(n, "example"),
        aim,
    )


def _caption(effects: Effects, heads: Sequence[int]) -> str:
    shown = effects.compared
    drawn = (
        f"Drawn: {len(heads)} of {len(effects.heads)} heads, those with the largest gain over no edit in {shown}."
        if len(heads) < len(effects.heads)
        else ""
    )
    return paragraphs(
        f"Dots: the edit in a feature's subspace, in the feature's colour (black: several together); filled if {shown} "
        f"beats {ALL_EVIDENCE} by more than two standard errors, hollow if not. Grey marks: the same edit in other "
        f"subspaces of the same rank. Error bars: standard errors over examples; pale bars: spread over draws ({shown} "
        "only).",
        "A feature that is no better than permuted labels or key PCA proves little: the same pipeline on labels "
        "without meaning, or simply the directions in which keys differ most, would do as well. "
        f"{listed(WEAK)} count for nothing: noise beats them too. The whole key is what moving everything does.",
        f"{drawn} {few(effects.notes)}",
    )


def _text(panel: _HeadPanel, row: int | None) -> str:
    """Every number of an entry in a head."""
    if row is None:
        return ""
    effects, head = panel.effects, panel.head
    entry, draws = effects.entries[row], int(effects.draws[row])
    of = f" of {plain(shortened(entry.feature))} ({plain(entry.method)})" if entry.feature else ""
    lines = [
        f"<b>{plain(effects.heads[head])}: {BY_NAME[entry.control].title}{of}</b>",
        f"rank {int(effects.ranks[row, head])}, n = {int(effects.n[row])}"
        + (f", mean over {draws} draws" if draws > 1 else ""),
    ]
    for name, value, error in zip(effects.measures, effects.values, effects.errors, strict=True):
        lines.append(f"{plain(name)} {number(float(value[row, head]), float(error[row, head]))}")
    compared = plain(effects.compared)
    if draws > 1:
        lines.append(f"{compared} over draws: standard deviation {number(float(effects.spread[row, head]))}")
    if entry.control != "none":
        gain = number(float(effects.gains[row, head]), float(effects.gain_errors[row, head]))
        lines.append(f"gain over no edit in {compared}: {gain}")
    if BY_NAME[entry.control].is_rival:
        more = number(float(effects.advantage[row, head]), float(effects.advantage_error[row, head]))
        lines.append(f"advantage of the feature over this in {compared}: {more}")
    return "<br>".join(lines)
