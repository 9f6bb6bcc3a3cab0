"""`score_figure` and `rank_figure`: which heads find the positive keys, and in which heads a feature has how many
directions.

Maps have a column a layer and a row a head index, and only those that occur: a model whose layers have gaps, or a
choice of some heads, gives no empty stripes. A few chosen heads are drawn as dots instead of an almost empty map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.errors import QKPrismError
from qkprism.figures.theme import (
    DIVERGING,
    INK,
    MISSING,
    MUTED,
    SEQUENTIAL,
    WIDTH,
    axis,
    feature_color,
    finish,
    number,
    plain,
    shortened,
)
from qkprism.heads import Head

if TYPE_CHECKING:
    from qkprism.core.feature_set import Features
    from qkprism.core.features import Feature
    from qkprism.core.scores import HeadScores

_LEFT, _RIGHT = 64, 120  # pixels beside a map, for the axis and the colour bar
_BETWEEN = 64  # pixels between panels
_BEST = 5


@dataclass(frozen=True)
class Measure:
    """How a measure of heads is named, what it is in units, and which values the colours span."""

    title: str
    unit: str
    top: float | None = 1.0  # None: the highest value


MEASURES = MappingProxyType(
    {
        "accuracy": Measure("Accuracy among the marked keys", "share of examples"),
        "accuracy_all": Measure("Accuracy among all tokens", "share of examples"),
        "attention_positive": Measure("Attention on the positive keys", "share of attention", None),
        "attention_negative": Measure("Attention on the negative keys", "share of attention", None),
        "ratio": Measure("Positive share of the attention on marked keys", "share of attention"),
        "logit_gap": Measure("Logit gap between positive and negative keys", "logits", None),
    }
)
_SEE = MappingProxyType(
    {
        "accuracy": "How often the marked key with the most attention is a positive one. Picking a marked key at random "
        "gives {chance}: darker than that on the colour bar is better than chance.",
        "accuracy_all": "How often the token with the most attention, of all in the text, is a positive key.",
        "attention_positive": "How much attention the positive keys get together.",
        "attention_negative": "How much attention the negative keys get together.",
        "ratio": "How much of the attention on marked keys is on positive ones. Equal attention on each gives {chance}.",
        "logit_gap": "Mean logit of positive minus negative keys. Blue heads prefer positive keys, red ones negative keys.",
    }
)


@dataclass(frozen=True)
class Grid:
    """The layers (columns) and head indices (rows) of a map, and the size of a cell in pixels."""

    layers: tuple[int, ...]
    indices: tuple[int, ...]
    width: int

    @classmethod
    def of(cls, heads: Iterable[Head], width: int) -> Grid:
        chosen = tuple(heads)
        layers = tuple(sorted({head.layer for head in chosen}))
        return cls(layers, tuple(sorted({head.index for head in chosen})), max(1, width - _LEFT - _RIGHT))

    @property
    def cell(self) -> tuple[float, float]:
        """Width and height; a colour bar needs a map of 140 pixels."""
        rows = len(self.indices)
        return min(64.0, self.width / len(self.layers)), max(140 / rows, min(28.0, max(13.0, 640 / rows)))

    @property
    def height(self) -> int:
        return round(self.cell[1] * len(self.indices))

    @property
    def share(self) -> float:
        """How much of the figure's width the map takes."""
        return min(1.0, self.cell[0] * len(self.layers) / self.width)

    def place(self, head: Head) -> tuple[int, int]:
        """Column and row."""
        return self.layers.index(head.layer), self.indices.index(head.index)

    def heads(self) -> list[list[Head]]:
        """Every head that has a place on the map, row by row."""
        return [[Head(layer, index) for layer in self.layers] for index in self.indices]

    def fits(self, letters: int) -> bool:
        """Is there room for this many letters in a cell?"""
        width, height = self.cell
        return width >= 6 * letters + 3 and height >= 13


def score_figure(scores: HeadScores, measure: str, *, width: int = WIDTH) -> go.Figure:
    """Layers against heads, coloured by a measure of `HeadScores`; `width` in pixels."""
    if measure not in MEASURES:
        raise QKPrismError(f"{measure!r} is not a measure of heads. Use one of {', '.join(MEASURES)}.")
    _refuse_none(scores.heads)
    grid, shown = Grid.of(scores.heads, width), MEASURES[measure]
    values = dict(zip(scores.heads, scores.values[measure].tolist(), strict=True))
    texts = {head: _score_text(scores, i) for i, head in enumerate(scores.heads)}
    fig = go.Figure()
    letters = _signed if measure == "logit_gap" else _share
    _draw_map(fig, 1, grid, values, texts, letters=letters, absent="not scored")
    finite = [v for v in values.values() if math.isfinite(v)]
    chance = scores.chance if measure in ("accuracy", "ratio") else None
    fig.update_layout(coloraxis=_colors(measure, finite, chance, grid))
    best = _highest(values) if len(values) > 2 * _BEST else []
    for head in best:
        _outline(fig, grid, head)
    lines = [_SEE[measure].format(chance=f"{scores.chance:.2g}")]
    if best:
        errors = dict(zip(scores.heads, scores.errors[measure].tolist(), strict=True))
        named = ", ".join(f"{head} {number(values[head], errors[head])}" for head in best)
        lines.append(f"Outlined: the {len(best)} highest, {named} (± one standard error over examples).")
    if _gaps(grid, values):
        lines.append("Grey: not scored.")
    model = scores.provenance.get("model")
    facts = [shortened(model)] if model else []
    return finish(
        fig,
        title=f"{shown.title} ({shown.unit})",
        subtitle=" · ".join([*facts, _count(len(scores), "head"), _count(scores.n, "example")]),
        caption="\n".join([" ".join(lines[:1]), " ".join(lines[1:])]),
        width=width,
        plot_height=grid.height,
        left=_LEFT,
        right=_RIGHT,
    )


def rank_figure(features: Features, *, width: int = WIDTH) -> go.Figure:
    """The held-out rank of every head, a panel a contrast: a map, or dots if only a few heads were chosen."""
    _refuse_none(features.heads)
    return _rank_dots(features, width) if few_heads(features.heads) else _rank_map(features, width)


def few_heads(heads: Sequence[Head]) -> bool:
    """Would a map of these heads be small or almost empty?"""
    cells = len({head.layer for head in heads}) * len({head.index for head in heads})
    return len(heads) <= 16 or (len(heads) <= 48 and len(heads) < 0.4 * cells)


def _rank_map(features: Features, width: int) -> go.Figure:
    names, grid = features.contrasts, Grid.of(features.heads, width)
    height = len(names) * grid.height + (len(names) - 1) * _BETWEEN
    fig = make_subplots(rows=len(names), cols=1, vertical_spacing=_BETWEEN / height if len(names) > 1 else 0)
    ranks = {name: _of_contrast(features, name) for name in names}
    for panel, name in enumerate(names, 1):
        values = {head: _maybe(feature.rank_heldout) for head, feature in ranks[name].items()}
        texts = {head: _summary_text(feature) for head, feature in ranks[name].items()}
        _draw_map(fig, panel, grid, values, texts, letters=_whole, absent="not computed")
        _name_panel(fig, panel, name, names)
    known = [f.rank_heldout for f in features.values() if f.rank_heldout is not None]
    top = max([1, *known])
    bar = _bar(grid, "held-out rank<br>(directions)") | {"tickformat": "d", "dtick": max(1, math.ceil(top / 6))}
    fig.update_layout(coloraxis={"colorscale": _scale(SEQUENTIAL), "cmin": 0, "cmax": top, "colorbar": bar})
    return _finish_ranks(fig, features, width, height, left=_LEFT, right=_RIGHT, grey=len(known) < len(features))


def _rank_dots(features: Features, width: int) -> go.Figure:
    names, heads = features.contrasts, sorted(features.heads)
    columns = min(len(names), max(1, width // 300))
    rows = math.ceil(len(names) / columns)
    panel_height = max(120, 30 * len(heads))
    height = rows * panel_height + (rows - 1) * (_BETWEEN + 40)
    fig = make_subplots(
        rows=rows,
        cols=columns,
        horizontal_spacing=72 / (width - _LEFT - 24) if columns > 1 else 0,
        vertical_spacing=(_BETWEEN + 40) / height if rows > 1 else 0,
    )
    for panel, name in enumerate(names, 1):
        _draw_dots(fig, panel, _of_contrast(features, name), feature_color(name, names))
        _name_panel(fig, panel, name, names)
    top = max(r or 0 for f in features.values() for r in (f.rank_heldout, f.rank_balanced, f.rank_energy))
    fig.update_xaxes(title_text="rank (directions)", range=[-0.04 * max(top, 5), 1.06 * max(top, 5)], matches="x")
    fig.update_yaxes(
        tickvals=list(range(len(heads))), ticktext=[str(h) for h in heads], range=[len(heads) - 0.4, -0.6], matches="y"
    )
    fig.update_layout(legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1 + 36 / height, "yanchor": "bottom"})
    grey = any(f.rank_heldout is None for f in features.values())
    return _finish_ranks(fig, features, width, height, left=_LEFT, right=24, grey=grey, above=64)
