"""Maps of heads: how well each finds the positive keys, any score of an atlas, and what on the shelf it does best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from qkprism.errors import QKPrismError
from qkprism.figures.grid import Grid, color_axis, draw_map, finish_map, name_axes, outline
from qkprism.figures.panels import legend_entry
from qkprism.figures.theme import DIVERGING, FEATURE_COLORS, MISSING, SEQUENTIAL, number, plain, shortened
from qkprism.figures.words import count, facts
from qkprism.heads import Head

if TYPE_CHECKING:
    import pandas as pd

    from qkprism.results.scores import HeadScores
    from qkprism.studies.shelf_result import Shelf

_BEST = 5
LEVEL = 0.05  # of q
BETTER = 0.5  # of the way from chance to always right, from which a head is coloured
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "words that come again": ("induction", "duplicate", "digit", "indirect_object"),
    "binding": ("boxes", "cities", "drinks", "json", "code"),
    "grammar": ("coreference", "coreference_number", "subject_verb", "bracket"),
    "meanings of words": ("category", "filter", "language", "opposite", "greater"),
    "positions": ("previous_token", "sink", "sentence_boundary"),
}


@dataclass(frozen=True)
class HeadMeasure:
    """How a measure of heads is named, its unit, what its map shows, and which values the colours span."""

    title: str
    unit: str
    see: str
    top: float | None = 1.0  # None: the highest value


MEASURES = MappingProxyType(
    {
        "accuracy": HeadMeasure(
            "Accuracy among the marked keys",
            "share of examples",
            "How often the marked key with the most attention is a positive one. Chance, picking a marked key at "
            "random, is {chance:.2g}.",
        ),
        "accuracy_all": HeadMeasure(
            "Accuracy among all tokens",
            "share of examples",
            "How often the token with the most attention, of all in the text, is a positive key.",
        ),
        "attention_positive": HeadMeasure(
            "Attention on the positive keys",
            "share of attention",
            "How much attention the positive keys get together.",
            None,
        ),
        "attention_negative": HeadMeasure(
            "Attention on the negative keys",
            "share of attention",
            "How much attention the negative keys get together.",
            None,
        ),
        "ratio": HeadMeasure(
            "Positive share of the attention on marked keys",
            "share of attention",
            "How much of the attention on marked keys is on positive ones. Equal attention gives {chance:.2g}.",
        ),
        "logit_gap": HeadMeasure(
            "Logit gap between positive and negative keys",
            "logits",
            "Mean logit of positive minus negative keys: blue heads prefer positive keys, red ones negative.",
            None,
        ),
    }
)


CAPTIONS = {
    "variation": "Total variation between the true rows of held-out text and rows rebuilt from the parts named alone: "
    "0 is exact, 1 shares nothing. A head at rest on the first token has little of it with nothing explained.",
    "variation without first": "Total variation of rows without their first token, where many heads rest.",
    "suffice": "The share of held-out rows that the parts named rebuild to within 0.1 of total variation.",
    "decides": "The share of held-out rows in which this part gives the most attended token most of its lead.",
    "signature": "What queries and keys hold, by held-out R2 from class means. Induction-like: keys hold the token "
    "before them better than their own. A score alongside the attention that was measured, not a verdict.",
    "attention": "The mean share of attention that goes to such tokens, on plain text; numbers are percent.",
}


def score_figure(scores: HeadScores, measure: str) -> go.Figure:
    """Layers against heads, coloured by a measure of `HeadScores`."""
    if measure not in MEASURES:
        raise QKPrismError(f"{measure!r} is not a measure of heads. Use one of {', '.join(MEASURES)}.")
    grid, shown = Grid.of(scores.heads), MEASURES[measure]
    values = dict(zip(scores.heads, scores.values[measure].tolist(), strict=True))
    texts = {head: _score_text(scores, i) for i, head in enumerate(scores.heads)}
    fig = go.Figure()
    letters = _signed if measure == "logit_gap" else _share
    draw_map(fig, 1, grid, values, texts, letters=letters, absent="not scored")
    finite = [v for v in values.values() if math.isfinite(v)]
    _color_scores(fig, grid, measure, finite, scores.chance if measure in ("accuracy", "ratio") else None)
    best = _highest(values) if len(values) > 2 * _BEST else []
    for head in best:
        outline(fig, grid, head)
    return finish_map(
        fig,
        grid.height,
        title=f"{shown.title} ({shown.unit})",
        subtitle=facts(scores.provenance, count(len(scores), "head"), count(scores.n, "example")),
        caption=_score_caption(scores, measure, best, grey=len(finite) < len(grid.layers) * len(grid.indices)),
    )


def _score_caption(scores: HeadScores, measure: str, best: Sequence[Head], *, grey: bool) -> str:
    values = dict(zip(scores.heads, scores.values[measure].tolist(), strict=True))
    errors = dict(zip(scores.heads, scores.errors[measure].tolist(), strict=True))
    lines = [MEASURES[measure].see.format(chance=scores.chance)]
    if measure == "accuracy":
        lines.append(f"{str(scores.count_found()).capitalize()}.")
    if finite := [error for error in errors.values() if math.isfinite(error)]:
        lines.append(f"Standard errors over examples: {median(finite):.2g} in the median head.")
    if best:
        named = ", ".join(f"{head} {number(values[head], errors[head])}" for head in best)
        lines.append(
            f"\nOutlined: the {len(best)} highest, {named}. The highest of many heads are a little too high: other "
            "examples would show less."
        )
    if grey:
        lines.append("Grey: not scored.")
    return " ".join(lines)


def _color_scores(fig: go.Figure, grid: Grid, measure: str, values: Sequence[float], chance: float | None) -> None:
    unit = MEASURES[measure].unit
    if measure == "logit_gap":
        top = max(map(abs, values), default=1.0) or 1.0
        color_axis(fig, grid, DIVERGING, (-top, top), unit)
        return
    marked = {}
    if chance is not None:
        ticks = [t for t in (0, 0.25, 0.5, 0.75, 1) if abs(t - chance) > 0.07]
        marked = {"tickvals": [*ticks, chance], "ticktext": [*map(str, ticks), f"{chance:.2g} chance"]}
    color_axis(fig, grid, SEQUENTIAL, (0, MEASURES[measure].top or max(values, default=1.0) or 1.0), unit, **marked)


def _highest(values: Mapping[Head, float]) -> list[Head]:
    finite = [head for head, value in values.items() if math.isfinite(value)]
    return sorted(finite, key=lambda head: -values[head])[:_BEST]


def _score_text(scores: HeadScores, i: int) -> str:
    rows = [
        f"{name} {number(float(scores.values[name][i]), float(scores.errors[name][i]))}"
        for name in MEASURES
        if name in scores.values
    ]
    return "<br>".join([f"<b>{scores.heads[i]}</b>", *rows])


def _share(value: float) -> str:
    return f"{value:.2f}".removeprefix("0") if 0.005 <= value < 0.995 else f"{value:.0f}"


def _signed(value: float) -> str:
    return f"{value:z.1f}"  # no minus before a zero


def atlas_figure(frame: pd.DataFrame, score: str, model: str) -> go.Figure:
    """Layers against heads, coloured by one column of an atlas."""
    columns = [str(name) for name in frame if name != "head"]
    if score not in columns:
        raise QKPrismError(f"{score!r} is not a score of this atlas. Use one of: {', '.join(columns)}.")
    values = {Head.parse(head): float(value) for head, value in zip(frame["head"], frame[score], strict=True)}
    grid = Grid.of(values)
    texts = {head: f"{head}: {score} {value:.3f}" for head, value in values.items()}
    finite = [value for value in values.values() if math.isfinite(value)]
    shares = max(finite) <= 1
    fig = go.Figure()

    def letters(value: float) -> str:
        return f"{100 * value:.0f}" if shares else f"{value:.1f}"

    draw_map(fig, 1, grid, values, texts, letters=letters, absent="not known")
    color_axis(fig, grid, SEQUENTIAL, (min(0.0, *finite), max(finite)), "share" if shares else "value")
    return finish_map(
        fig,
        grid.height,
        title=f"{score[0].upper()}{score[1:]}",
        subtitle=f"{shortened(model)} · {count(len(values), 'head')}",
        caption=CAPTIONS.get(score.partition(":")[0], ""),
    )


def shelf_figure(shelf: Shelf) -> go.Figure:
    """A map of heads, each in the colour of the family of the contrast it does best, with the contrast's number."""
    grid, best = Grid.of(shelf.heads), _best_of(shelf)
    number = {name: i for i, name in enumerate(_ordered(shelf.contrasts), 1)}
    fig = go.Figure()
    _draw_shelf(fig, grid, shelf, best, number)
    for row in shelf.rows:
        outline(fig, grid, row.head)
    for name in _families(shelf.contrasts):
        members = ", ".join(f"{number[c]} {c.replace('_', ' ')}" for c in number if family_of(c) == name)
        marker = {"symbol": "square", "size": 12, "color": family_color(name)}
        legend_entry(fig, plain(f"{name}: {members}"), marker=marker)
    lines = len(_families(shelf.contrasts))
    legend = {"x": 0, "xanchor": "left", "y": 1 + 12 / grid.height, "yanchor": "bottom", "traceorder": "normal"}
    fig.update_layout(legend=legend)
    told = [count(len(shelf.contrasts), "contrast"), count(len(shelf.heads), "head")]
    return finish_map(
        fig,
        grid.height,
        title="What each head does best",
        subtitle=" · ".join([shortened(shelf.provenance.get("model", "")), *told]),
        caption=_shelf_caption(shelf, best),
        above=24 + 20 * lines,
    )


def _draw_shelf(
    fig: go.Figure, grid: Grid, shelf: Shelf, best: Mapping[Head, tuple[str, float]], number: Mapping[str, int]
) -> None:
    families = _families(shelf.contrasts)
    colors = [MISSING, *map(family_color, families)]
    cells = grid.heads()
    kind = [[1 + families.index(family_of(best[h][0])) if h in best else 0 for h in row] for row in cells]
    steps = [[(i + end) / len(colors), color] for i, color in enumerate(colors) for end in (0, 1)]
    fig.add_heatmap(
        z=kind,
        zmin=-0.5,
        zmax=len(colors) - 0.5,
        colorscale=steps,
        showscale=False,
        text=[[str(number[best[h][0]]) if h in best else "" for h in row] for row in cells],
        texttemplate="%{text}" if grid.fits(2) else None,
        textfont={"size": 10, "color": "white"},
        hovertext=[[_shelf_text(shelf, head) for head in row] for row in cells],
        hoverinfo="text",
        xgap=1,
        ygap=1,
    )
    name_axes(fig, 1, grid, "not in the model")


def _best_of(shelf: Shelf) -> dict[Head, tuple[str, float]]:
    """Of each head the contrast that it is farthest above chance in, where that is clear and far enough."""
    found: dict[Head, tuple[str, float]] = {}
    for place, head in enumerate(shelf.heads):
        clear = [(_above(shelf, i, place), row.contrast) for i, row in enumerate(shelf.rows)]
        value, name = max((candidate for candidate in clear if not math.isnan(candidate[0])), default=(0.0, ""))
        if value >= BETTER:
            found[head] = (name, value)
    return found


def _above(shelf: Shelf, contrast: int, head: int) -> float:
    """How far a head is on the way from chance to always right; NaN if chance may show as much."""
    if not float(shelf.q[contrast, head]) <= LEVEL:
        return math.nan
    chance = shelf.rows[contrast].chance
    return (float(shelf.accuracy[contrast, head]) - chance) / (1 - chance)


def _shelf_text(shelf: Shelf, head: Head) -> str:
    place = shelf.heads.index(head) if head in shelf.heads else -1
    if place < 0:
        return f"{head}: not in the model"
    scored = [(_above(shelf, i, place), row, float(shelf.accuracy[i, place])) for i, row in enumerate(shelf.rows)]
    shown = sorted((one for one in scored if not math.isnan(one[0])), key=lambda one: -one[0])[:6]
    lines = [f"{plain(row.contrast)} {value:.2f} (chance {row.chance:.2f})" for _, row, value in shown]
    return "<br>".join([f"<b>{head}</b>", *(lines or ["nothing on the shelf that chance would not show"])])


def _shelf_caption(shelf: Shelf, best: Mapping[Head, tuple[str, float]]) -> str:
    return (
        "Colour and number: the contrast in which the head is farthest above chance on held-out words, if "
        f"it is at least half of the way to always right and q is at most {LEVEL:g}; so are {len(best)} of "
        f"{len(shelf.heads)} heads. Grey: no contrast. Outlined: the head that each contrast's row tells of. Point at "
        "a head for all that it does: many do several things alike, and one colour cannot say so."
    )


def family_of(contrast: str) -> str:
    """The family of a contrast; one that is new is a family of its own."""
    return next((family for family, members in FAMILIES.items() if contrast in members), contrast)


def family_color(family: str) -> str:
    families = list(FAMILIES)
    return FEATURE_COLORS[families.index(family)] if family in families else FEATURE_COLORS[-1]


def _families(contrasts: Sequence[str]) -> list[str]:
    found = {family_of(name) for name in contrasts}
    return [*(name for name in FAMILIES if name in found), *sorted(found - set(FAMILIES))]


def _ordered(contrasts: Sequence[str]) -> list[str]:
    """In the order of the families."""
    place = {name: i for i, name in enumerate(c for members in FAMILIES.values() for c in members)}
    return sorted(contrasts, key=lambda name: (place.get(name, len(place)), name))
