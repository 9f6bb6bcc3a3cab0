"""Words and numbers that figures share: counts, facts for subtitles, notes for captions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from qkprism.figures.theme import shortened

_NOTES = 3
BELIEVE = (
    "Where rank and logit gap (or the accuracy of find_heads) seem to disagree: the gap and the accuracy measure what "
    "the head does; the rank counts the directions that can be told from chance with this many examples."
)
TOGETHER = (
    "Salience t of heads moves together: one draw of examples can make it large in half of all heads by chance, so "
    "many heads with a large one are one piece of evidence, not many."
)


def known(value: float) -> float | None:
    """A number for plotly, which knows no NaN."""
    return float(value) if math.isfinite(value) else None


def few(notes: Sequence[str]) -> str:
    """The first notes, and how many more there are."""
    more = [f"And {len(notes) - _NOTES} more such notes."] if len(notes) > _NOTES else []
    return " ".join([*notes[:_NOTES], *more])


def paragraphs(*texts: str) -> str:
    """What there is of some texts, each on a line of its own."""
    return "\n".join(text.strip() for text in texts if text.strip())


def facts(provenance: Mapping[str, Any], *more: str) -> str:
    """The model, where it is known, and other facts for a subtitle."""
    model = provenance.get("model")
    return " · ".join([*([shortened(model)] if model else []), *(fact for fact in more if fact)])


def count(n: int, noun: str) -> str:
    """
    >>> count(1, "head"), count(2, "head")
    ('1 head', '2 heads')
    """
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
