"""Can positive keys be told from negative ones without the meaning? Then a feature may be that, and nothing more.

Each predictor knows one simple thing of a key: its place among the keys, its distance to the query, its length, the
token itself. It learns from half of the examples how often keys of each value are positive, and says of the other half
which keys are. Its AUC is how often a positive key gets a higher score than a negative key of the same text: 0.5 is a
coin, 1 gives the answer away.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from qkprism.contrasts.examples import Example
from qkprism.contrasts.markup import Span, Text

Offsets = Callable[[str], Sequence[tuple[int, int]]]
NAMES = ("place", "distance", "length", "token")
_BINS = 12
_BLOCKS = 8
_TELLING_AUC, _TELLING_ERRORS = 0.6, 4.0
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Balance:
    """How well one simple thing tells positive from negative keys, on examples it has not seen."""

    predictor: str
    auc: float
    error: float
    n: int

    @property
    def tells(self) -> bool:
        """Whether it is clearly better than a coin."""
        return self.auc > _TELLING_AUC and self.auc - 0.5 > _TELLING_ERRORS * self.error


@dataclass(frozen=True, slots=True)
class _Key:
    positive: bool
    values: Mapping[str, Any]


def words_of(text: str) -> list[tuple[int, int]]:
    """Offsets of words and signs: what stands for tokens where there is no tokenizer."""
    return [match.span() for match in _WORD.finditer(text)]


def balance(examples: Iterable[Example], offsets: Offsets = words_of) -> tuple[Balance, ...]:
    """The AUC of each predictor, held out; none where no text has keys of both sides."""
    texts = [_keys(example.text, offsets) for example in examples if example.text.positive and example.text.negative]
    if len(texts) < 2:
        return ()
    return tuple(_balance(name, _binned(texts, name)) for name in NAMES)


def _keys(text: Text, offsets: Offsets) -> list[_Key]:
    tokens = list(offsets(text.text))
    starts = [start for start, _ in tokens]

    def index(span: Span) -> int:
        return span.end - 1 if span.unit == "token" else max(bisect_right(starts, span.end - 1) - 1, 0)

    query = len(tokens) - 1 if text.query is None else index(text.query)
    spans = sorted((*text.positive, *text.negative), key=lambda span: span.place)
    count, positive = len(spans), set(text.positive)
    return [
        _Key(
            span in positive,
            {
                "place": (place, count),
                "distance": query - index(span),
                "length": span.end - span.start,
                "token": text.text[span.start : span.end] if span.unit == "char" else None,
            },
        )
        for place, span in enumerate(spans)
    ]


def _binned(texts: Sequence[Sequence[_Key]], name: str) -> list[list[tuple[bool, Any]]]:
    """Sides and values; many different numbers are put into bins of equal size."""
    values = sorted({key.values[name] for keys in texts for key in keys}) if name in ("distance", "length") else []
    if len(values) <= _BINS:
        return [[(key.positive, key.values[name]) for key in keys] for keys in texts]
    every = sorted(key.values[name] for keys in texts for key in keys)
    edges = [every[len(every) * step // _BINS] for step in range(1, _BINS)]
    return [[(key.positive, bisect_right(edges, key.values[name])) for key in keys] for keys in texts]


def _balance(name: str, texts: Sequence[Sequence[tuple[bool, Any]]]) -> Balance:
    # In blocks: within one the template's draws are balanced already, and a sorted file has its kinds in both halves.
    block = max(len(texts) // _BLOCKS, 1)
    halves = [[keys for at, keys in enumerate(texts) if at // block % 2 == side] for side in (0, 1)]
    found = [_auc(keys, _learned(train)) for train, test in (halves, reversed(halves)) for keys in test]
    error = stdev(found) / len(found) ** 0.5
    return Balance(name, fmean(found), error, len(found))


def _learned(texts: Sequence[Sequence[tuple[bool, Any]]]) -> dict[Any, float]:
    """For each value how much more often than the others of its text a key of it is positive, if more than by chance.

    Without that, what is exactly balanced over all examples would seem to be worse than a coin: what one half has more
    of, the other has less of.
    """
    sums: dict[Any, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for keys in texts:
        share = sum(positive for positive, _ in keys) / len(keys)
        for positive, value in keys:
            for place, term in enumerate((positive - share, share * (1 - share), 1.0)):
                sums[value][place] += term
    return {value: total / n for value, (total, variance, n) in sums.items() if total**2 > variance}


def _auc(keys: Sequence[tuple[bool, Any]], scores: Mapping[Any, float]) -> float:
    """How often a positive key is above a negative one; a tie is half."""
    ups = [scores.get(value, 0.0) for positive, value in keys if positive]
    downs = [scores.get(value, 0.0) for positive, value in keys if not positive]
    return fmean((up > down) + 0.5 * (up == down) for up in ups for down in downs)
