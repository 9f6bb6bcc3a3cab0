"""What is known of a contrast's texts before any is run: which are the same, which nearly so, which marks are doubtful.

Identical texts are one group: copies of a prompt in two folds would let the held-out test see what it was made from.
Texts that are nearly identical are only counted, because where a contrast is written from a pattern that is as it
should be. Two are near if they differ by one token (put in, left out or replaced), or only in their marked words (where
these are less than half of the letters), in case, in spaces or in punctuation. Each text has a signature for every way
in which it can be near to another, so that one sort of all signatures finds them: for tokens, a hash of the text
without its i-th token, for each i,

    sum_{j<i} x_j r^j + sum_{j>i} x_j r^(j-1)   (mod 2^64)        x_j a random number for each token id, r odd.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np

from qkprism.contrasts import Example, Text
from qkprism.core.by_value import MAX_VALUES, ValueNumbers, number_values
from qkprism.core.groups import Grouping
from qkprism.core.moments import MAX_CELLS
from qkprism.models.encoding import EncodedExample
from qkprism.notes import MANY, Note
from qkprism.options import TokenChoice

MOST_SIGNATURES = 5_000_000  # of tokens, 40 MB: 100,000 texts of 50 tokens; those beyond are compared by letters only
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse
_INVERSE = np.uint64(pow(_BASE, -1, 2**64))
_NO_LETTERS = re.compile(r"[\W_]+")

LabelCell = tuple[tuple[str, object], ...]  # one combination of all labels of a key


@dataclass(frozen=True)
class Texts:
    """The texts of a contrast: their groups, and how many there are of what a reader of its results should know.

    near      texts (one of each group) that are nearly another's, and `pair`, the first two examples that are
    on_first  examples with a key or the query on the first token, where that is a word of the text
    split     marked words of several tokens, of all that are `marked`, and `word`, the first of them
    """

    grouping: Grouping
    near: int
    pair: tuple[str, str]
    on_first: int
    marked: int
    split: int
    word: str

    @classmethod
    def of(cls, encoded: Iterable[EncodedExample], examples: Iterable[Example]) -> Texts:
        """Of examples in tokens and as they are written."""
        count = TextCount()
        for tokens, written in zip(encoded, examples, strict=True):
            count.add(tokens, written)
        return count.texts()

    def notes(self, contrast: str, token: TokenChoice) -> list[Note]:
        """What is to be said of the examples of a contrast before its features are believed."""
        found = [*self.grouping.notes(contrast)]
        if self.near:
            found.append(
                Note(
                    f"{self.near} of {self.grouping.n_groups} different texts of {contrast!r} differ from another by "
                    "one token, or only in marked words, case, spaces or punctuation, such as "
                    f"{self.pair[0]} and {self.pair[1]}. Variants of one prompt are not independent: give them one "
                    "`group`. Texts drawn from one pattern can stay as they are."
                )
            )
        return found + self.notes_on_marks(contrast, token)

    def notes_on_search(self, contrast: str, token: TokenChoice) -> list[Note]:
        """What of this matters where heads are searched for: there are no folds."""
        return self.grouping.notes_on_repeats(contrast) + self.notes_on_marks(contrast, token)

    def notes_on_marks(self, contrast: str, token: TokenChoice) -> list[Note]:
        """What is to be said of where the marks are."""
        found, n = [], len(self.grouping.group)
        if self.on_first:
            text = f"{self.on_first} of {n} examples of {contrast!r} have a key or the query on the first token, which "
            text += "heads attend to whatever it says: a feature does not show there. Put a word or the "
            found.append(Note(f"{text}beginning-of-text token in front.", self.on_first > MANY * n))
        if self.split and token != "every":
            text = f"{self.split} of {self.marked} marked words of {contrast!r} are several tokens, such as "
            found.append(Note(f"{text}{self.word!r}: the {token} one stands for the word (token={token!r})."))
        return found


@dataclass
class TextCount:
    """What becomes `Texts` when all examples have been looked at, one by one; the examples are not kept."""

    groups: list[str | None] = field(default_factory=list)
    digests: list[tuple[bytes, ...]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    signatures: _Signatures = field(default_factory=lambda: _Signatures())
    on_first: int = 0
    marked: int = 0
    split: int = 0
    word: str = ""

    def add(self, tokens: EncodedExample, written: Example) -> None:
        """Look at the next example."""
        self.groups.append(tokens.group)
        self.digests.append(tuple(digest_of(text.ids) for text in tokens.texts))
        self.sources.append(tokens.source)
        self.signatures.add(tokens.text.ids, written.text)
        self.on_first += any(text.on_first for text in tokens.texts)
        self.marked += sum(len(text.marks) for _, text in zip(tokens.texts, written.texts, strict=False))
        split = [word for text in tokens.texts for word in text.split]
        self.split += len(split)
        self.word = self.word or next(iter(split), "")

    def texts(self) -> Texts:
        """What all of them are together."""
        grouping = Grouping.of(self.groups, self.digests)
        near, pair = self.signatures.shared(grouping.group)
        named = (self.sources[pair[0]], self.sources[pair[1]])
        return Texts(grouping, near, named, self.on_first, self.marked, self.split, self.word)


@dataclass(frozen=True)
class Census:
    """What must be known of all examples of a contrast before any is run: they are not kept, and this is."""

    texts: Texts
    weights: tuple[float, ...]
    lengths: tuple[int, ...]
    tokens: tuple[bytes, ...]  # a digest of the tokens of the first text
    cells: Mapping[LabelCell, int]
    values: ValueNumbers  # of labels by which keys are summed; none without twins
    freedom: int  # marked keys, less one for each example

    @classmethod
    def of(cls, encoded: Iterable[EncodedExample], examples: Iterable[Example], *, drawn: bool = False) -> Census:
        """Count examples one by one; the fullest label cells of two keys or more get a number.

        Texts that a template has `drawn` may be nearly the same: that is not told.
        """
        lengths, weights, freedom, texts = [], [], 0, TextCount()
        cells: Counter[LabelCell] = Counter()
        values: defaultdict[str, Counter[Hashable]] = defaultdict(Counter)
        twins = True
        for tokens, written in zip(encoded, examples, strict=True):
            texts.add(tokens, written)
            weights.append(tokens.weight)
            lengths.append(tokens.length)
            keys = [key for text in tokens.texts for key in text.keys]
            freedom += len(keys) - 1
            cells.update(cell_of(key.labels) for key in keys if key.labels)
            twins = twins and tokens.twin is not None
            for name, value in (item for key in keys if twins for item in key.labels.items()):
                if len(values[name]) <= MAX_VALUES:
                    values[name][value] += 1
        fullest = [cell for cell, count in cells.most_common(MAX_CELLS) if count > 1]
        first = tuple(digests[0] for digests in texts.digests)
        numbers = {cell: i for i, cell in enumerate(fullest)}
        named = number_values(values) if twins else {}
        found = replace(texts.texts(), near=0) if drawn else texts.texts()
        return cls(found, tuple(weights), tuple(lengths), first, numbers, named, freedom)


def cell_of(labels: Mapping[str, object]) -> LabelCell:
    return tuple(sorted(labels.items()))


def digest_of(ids: Sequence[int]) -> bytes:
    """Equal for texts of the same tokens."""
    return blake2b(repr(ids).encode(), digest_size=16).digest()


class _Signatures:
    """Numbers that two texts share if they are nearly the same, and which example each is of."""

    def __init__(self) -> None:
        self.found: list[np.ndarray] = []
        self.size = 0

    def add(self, ids: Sequence[int], text: Text) -> None:
        """The signatures of the next example's text."""
        found = [np.fromiter(_by_letters(text), np.uint64)]
        if self.size + len(ids) < MOST_SIGNATURES:
            found.append(_without_one(ids))
        self.found.append(np.concatenate(found))
        self.size += len(self.found[-1])

    def shared(self, group: Sequence[int]) -> tuple[int, tuple[int, int]]:
        """How many groups share a signature with another, and two examples of the first such groups."""
        example = np.repeat(np.arange(len(self.found)), [len(one) for one in self.found])
        signature = np.concatenate(self.found)
        order = np.argsort(signature, kind="stable")
        signature, example = signature[order], example[order]
        number = np.asarray(group)[example]
        # Where equal ones are of several groups, each of these stands beside another somewhere.
        beside = (signature[1:] == signature[:-1]) & (number[1:] != number[:-1])
        pairs = np.stack([example[:-1][beside], example[1:][beside]], 1)
        if not len(pairs):
            return 0, (0, 0)
        first, second = min(map(tuple, pairs.tolist()))
        return len(set(np.asarray(group)[pairs].flatten().tolist())), (first, second)


def _by_letters(text: Text) -> Iterator[int]:
    """Of the letters and digits of a text, and of those outside its marks if they are most of it."""
    yield from _number("all", _letters(text.text))
    if all(span.unit == "char" for _, span in text.marks):
        ends = sorted((span.start, span.end) for _, span in text.marks)
        starts = [0, *(end for _, end in ends)]
        stops = [*(start for start, _ in ends), len(text.text)]
        outside = [_letters(text.text[start:stop]) for start, stop in zip(starts, stops, strict=True)]
        if 2 * sum(map(len, outside)) > len(_letters(text.text)):
            yield from _number("outside", *outside)


def _letters(text: str) -> str:
    return _NO_LETTERS.sub("", text.casefold())


def _number(kind: str, *parts: str) -> Iterator[int]:
    if any(parts):
        digest = blake2b("\0".join((kind, *parts)).encode("utf-8", "surrogatepass"), digest_size=8)
        yield int.from_bytes(digest.digest(), "little")


def _without_one(ids: Sequence[int]) -> np.ndarray:
    """Of the tokens without each one of them, and of all: two texts that differ by one token share one of these."""
    terms = _mixed(np.asarray(ids, np.uint64)) * np.cumprod(np.full(len(ids), _BASE, np.uint64))
    upto = np.cumsum(terms, dtype=np.uint64)
    return np.append(upto - terms + (upto[-1:] - upto) * _INVERSE, upto[-1:])


def _mixed(ids: np.ndarray) -> np.ndarray:
    """A random number for each token id (splitmix64)."""
    mixed = (ids + np.uint64(1)) * np.uint64(_BASE)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
