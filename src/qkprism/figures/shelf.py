"""`shelf_figure`: which contrast of the shelf each head of a model does best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from qkprism.figures.grid import Grid, finish_map, name_axes, outline
from qkprism.figures.panels import legend_entry
from qkprism.figures.theme import FEATURE_COLORS, MISSING, plain, shortened
from qkprism.figures.words import count
from qkprism.heads import Head

if TYPE_CHECKING:
    from qkprism.studies.shelf_result import Shelf

LEVEL = 0.05  # of q
BETTER = 0.5  # of the way from chance to always right, from which a head is coloured
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "words that come again": ("induction", "duplicate", "digit", "indirect_object"),
    "binding": ("boxes", "cities", "drinks", "json", "code"),
    "grammar": ("coreference", "coreference_number", "subject_verb", "bracket"),
    "meanings of words": ("category", "filter", "language", "opposite", "greater"),
    "positions": ("previous_token", "sink", "sentence_boundary"),
}


def shelf_figure(shelf: Shelf) -> go.Figure:
    """A map of heads, each in the colour of the family of the contrast it does best, with the contrast's number."""
    grid, best = Grid.of(shelf.heads), _best(shelf)
    number = {name: i for i, name in enumerate(_ordered(shelf.contrasts), 1)}
    fig = go.Figure()
    _draw(fig, grid, shelf, best, number)
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
        caption=_caption(shelf, best),
        above=24 + 20 * lines,
    )


def _draw(
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
        hovertext=[[_text(shelf, head) for head in row] for row in cells],
        hoverinfo="text",
        xgap=1,
        ygap=1,
    )
    name_axes(fig, 1, grid, "not in the model")


def _best(shelf: Shelf) -> dict[Head, tuple[str, float]]:
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


def _text(shelf: Shelf, head: Head) -> str:
    place = shelf.heads.index(head) if head in shelf.heads else -1
    if place < 0:
        return f"{head}: not in the model"
    scored = [(_above(shelf, i, place), row, float(shelf.accuracy[i, place])) for i, row in enumerate(shelf.rows)]
    shown = sorted((one for one in scored if not math.isnan(one[0])), key=lambda one: -one[0])[:6]
    lines = [f"{plain(row.contrast)} {value:.2f} (chance {row.chance:.2f})" for _, row, value in shown]
    return "<br>".join([f"<b>{head}</b>", *(lines or ["nothing on the shelf that chance would not show"])])


def _caption(shelf: Shelf, best: Mapping[Head, tuple[str, float]]) -> str:
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
