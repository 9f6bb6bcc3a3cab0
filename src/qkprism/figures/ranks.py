"""`rank_figure`: in which heads a feature holds, and by how many directions.

Many heads are a map (grid.py); a few chosen ones are dots, because a map of them would be almost empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from qkprism.figures.grid import LEFT, Grid, color_axis, draw_map, finish_map, refuse_none
from qkprism.figures.panels import legend_above, legend_entry, name_panel, on, panels
from qkprism.figures.theme import (
    INK,
    MISSING,
    MUTED,
    SEQUENTIAL,
    WIDTH,
    feature_color,
    finish,
    number,
    plain,
    shortened,
)
from qkprism.figures.words import BELIEVE, TOGETHER, count, facts, paragraphs
from qkprism.heads import Head

if TYPE_CHECKING:
    from qkprism.core.feature import Feature
    from qkprism.results.features import Features

_BETWEEN = 60  # pixels between panels
_ENERGY = (
    "Energy rule: the fewest directions with {energy:g}% of the energy; right of the dot they count noise, left of it "
    "they miss weak directions that hold."
)


@dataclass(frozen=True)
class RankMark:
    """One kind of rank and how it is drawn; sizes differ so that equal ranks are all seen."""

    name: str
    title: str
    symbol: str
    size: int

    def of(self, feature: Feature) -> int | None:
        """This rank of a feature."""
        found: int | None = getattr(feature, self.name)
        return found


RANKS = (
    RankMark("rank_heldout", "held out", "circle", 9),
    RankMark("rank_balanced", "energy rule, balanced metric", "square-open", 13),
    RankMark("rank_energy", "energy rule, raw metric", "diamond-open", 19),
)
OWN = RankMark("rank_own", "held out and mostly its own", "star", 11)
_OWN = (
    " The more examples, the weaker the directions that hold. Mostly its own are those in which keys differ more by "
    "this contrast than by the others and noise together."
)


def rank_figure(features: Features) -> go.Figure:
    """The held-out rank of every head, a panel a contrast: a map, or dots if only a few heads were chosen."""
    refuse_none(features.heads)
    return _rank_dots(features) if few_heads(features.heads) else _rank_map(features)


def few_heads(heads: Sequence[Head]) -> bool:
    """Would a map of these heads be small or almost empty?"""
    cells = len({head.layer for head in heads}) * len({head.index for head in heads})
    return len(heads) <= 16 or (len(heads) <= 48 and len(heads) < 0.4 * cells)


def _rank_map(features: Features) -> go.Figure:
    names, grid = features.contrasts, Grid.of(features.heads)
    fig, height = panels(len(names), 1, grid.height, down=_BETWEEN)
    for panel, name in enumerate(names, 1):
        of_contrast = _of_contrast(features, name)
        values = {head: _known(feature.rank_heldout) for head, feature in of_contrast.items()}
        texts = {head: _summary_text(feature) for head, feature in of_contrast.items()}
        draw_map(fig, panel, grid, values, texts, letters=lambda rank: f"{rank:.0f}", absent="not computed")
        name_panel(fig, panel, shortened(name, max(12, grid.width // 8)), color=feature_color(name, names))
        if panel < len(names):
            fig.layout[f"xaxis{panel}"].title.text = None
    top = max([1, *(f.rank_heldout or 0 for f in features.values())])
    color_axis(fig, grid, SEQUENTIAL, (0, top), "directions", tickformat="d", dtick=max(1, math.ceil(top / 6)))
    tested = sum(feature.rank_heldout is not None for feature in features.values())
    grey = tested < len(names) * len(grid.layers) * len(grid.indices)
    return finish_map(
        fig,
        height,
        title="Held-out rank of each head",
        subtitle=_facts(features),
        caption=_rank_caption(features, "Grey: not known." if grey else ""),
        above=30,
    )


def _rank_dots(features: Features) -> go.Figure:
    names, heads, marks = features.contrasts, sorted(features.heads), (OWN, *RANKS) if _tells_own(features) else RANKS
    columns = min(len(names), max(1, WIDTH // 300))
    rows = math.ceil(len(names) / columns)
    below = _BETWEEN + 32
    fig, height = panels(rows, columns, max(120, 30 * len(heads)), down=below, edges=LEFT + 24)
    for panel, name in enumerate(names, 1):
        _draw_dots(fig, panel, heads, _of_contrast(features, name), marks, feature_color(name, names))
        letters = max(12, ((WIDTH - LEFT - 24) // columns - 72) // 8)
        name_panel(fig, panel, shortened(name, letters), color=feature_color(name, names))
    for rank in marks:  # a legend without the colour of any one contrast
        legend_entry(fig, rank.title, marker=_marker(rank, INK))
    top = max(5, *(rank.of(feature) or 0 for feature in features.values() for rank in marks))
    ticks = {"tickvals": list(range(len(heads))), "ticktext": [str(head) for head in heads]}
    fig.update_xaxes(
        title_text="rank (directions)", range=[-0.05 * top, 1.07 * top], dtick=max(1, math.ceil(top / 8)), matches="x"
    )
    fig.update_yaxes(range=[len(heads) - 0.4, -0.6], matches="y", **ticks)
    legend_above(fig, 28, height, traceorder="normal")
    return finish(
        fig,
        title="Ranks of the chosen heads",
        subtitle=_facts(features),
        caption=_rank_caption(features, _ENERGY.format(energy=100 * features.choices.energy)),
        plot_height=height,
        left=LEFT,
        above=62,
    )


def _tells_own(features: Features) -> bool:
    return any(feature.rank_own is not None for feature in features.values())


def _marker(rank: RankMark, color: str) -> dict[str, Any]:
    return {"symbol": rank.symbol, "size": rank.size, "color": color, "line": {"width": 1.6, "color": color}}


def _draw_dots(
    fig: go.Figure,
    panel: int,
    heads: Sequence[Head],
    features: Mapping[Head, Feature],
    marks: Sequence[RankMark],
    color: str,
) -> None:
    place = {**on(panel), "showlegend": False}
    rows = {head: row for row, head in enumerate(heads) if head in features}
    ends = {head: [r for rank in marks if (r := rank.of(features[head])) is not None] for head in rows}
    fig.add_scatter(
        x=[x for head in rows for x in (min(ends[head]), max(ends[head]), None)],
        y=[y for row in rows.values() for y in (row, row, None)],
        mode="lines",
        name="span",
        line={"color": MISSING, "width": 2},
        hoverinfo="skip",
        **place,
    )
    for rank in reversed(marks):
        fig.add_scatter(
            x=[rank.of(features[head]) for head in rows],
            y=list(rows.values()),
            mode="markers",
            name=rank.name,
            marker=_marker(rank, color if rank.name in ("rank_heldout", "rank_own") else MUTED),
            hovertext=[_summary_text(features[head]) for head in rows],
            hoverinfo="text",
            **place,
        )


def _of_contrast(features: Features, name: str) -> dict[Head, Feature]:
    return {head: feature for (contrast, head), feature in features.items() if contrast == name}


def _facts(features: Features) -> str:
    counts = sorted({feature.n for feature in features.values()})
    n = count(counts[0], "example") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} examples"
    return facts(features.provenance, count(len(features.heads), "head"), n, f"{features.choices.metric} metric")


def _rank_caption(features: Features, more: str) -> str:
    rule_own = _OWN if _tells_own(features) else ""
    untested = any(feature.rank_heldout is None for feature in features.values())
    return paragraphs(
        f"Held out: how many leading directions hold on examples that did not choose them (t above "
        f"{features.choices.threshold:g}); 0: no leading direction holds by itself, though a later one or the logit "
        f"gap may.{rule_own} {more}",
        "A rank says that queries and keys share the information, not that the head uses it: compare the logit gap "
        f"(point at a head). {BELIEVE}" + (" Some were not tested: too few examples." if untested else ""),
        TOGETHER if len(features.heads) > 1 else "",
    )


def _summary_text(feature: Feature) -> str:
    """Every number of the feature's summary, an error beside its value."""
    summary = feature.summary()
    head = f"<b>{plain(shortened(feature.contrast))} in {feature.head}</b>"
    rows = [
        f"{name} {_value(value, summary.get(f'{name}_error'))}"
        for name, value in summary.items()
        if name not in ("contrast", "head") and not name.endswith("_error")
    ]
    return "<br>".join([head, plain(feature.evidence), *rows])


def _value(value: object, error: object) -> str:
    if value is None or isinstance(value, float):
        return number(value, error if isinstance(error, float) else None)
    return plain(value)


def _known(rank: int | None) -> float:
    return math.nan if rank is None else float(rank)
