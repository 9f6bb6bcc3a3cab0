"""Contrasts as they are run: in which order, in which folds, and which of them share a pass.

Contrasts of the same texts, or of some of the texts of another (a part of a pooled contrast), are one pass; their twins
may differ. What a pass runs for one text are its examples in all contrasts: each of their texts once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from qkprism.capture.texts import TextCount, Texts
from qkprism.contrasts import Example
from qkprism.core.by_value import MAX_VALUES, ValueNumbers, number_values
from qkprism.core.moments import MAX_CELLS, assign_folds, group_weights
from qkprism.models.encoding import EncodedExample, EncodedText, Encodings
from qkprism.options import Reading

LabelCell = tuple[tuple[str, object], ...]  # one combination of all labels of a key
PlacesByText = dict[bytes, list[int]]  # where examples of these tokens stand in a pass


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
    def of(cls, encoded: Iterable[EncodedExample], examples: Iterable[Example]) -> Census:
        """Count examples one by one; the fullest label cells of two keys or more get a number."""
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
        return cls(texts.texts(), tuple(weights), tuple(lengths), first, numbers, named, freedom)


@dataclass(frozen=True)
class MarkedContrast:
    """The examples of one contrast, in the order they are run, with their folds and label cells.

    `place` says where each stands among the examples of its pass, which may be those of a larger contrast.
    """

    name: str
    reading: Reading
    examples: Encodings
    tokens: tuple[bytes, ...]
    fold: tuple[int, ...]
    group: tuple[int, ...]
    group_weight: tuple[float, ...]
    cells: Mapping[LabelCell, int]
    values: ValueNumbers
    freedom: int
    place: Sequence[int]

    @classmethod
    def of(cls, name: str, encoded: Encodings, census: Census, reading: Reading, seed: int) -> MarkedContrast:
        """Order examples (longest first) and assign folds."""
        groups = census.texts.grouping.group
        folds, group_weight = assign_folds(groups, seed), group_weights(groups, torch.tensor(census.weights)).tolist()
        order = sorted(range(len(encoded)), key=lambda i: (-census.lengths[i], i))
        tokens = tuple(census.tokens[i] for i in order)
        return cls(
            name=name,
            reading=reading,
            examples=encoded.pick(order),
            tokens=tokens,
            fold=tuple(folds[i] for i in order),
            group=tuple(groups[i] for i in order),
            group_weight=tuple(group_weight[i] for i in order),
            cells=census.cells,
            values=census.values,
            freedom=census.freedom,
            place=range(len(order)),
        )

    def within(self, places: Sequence[int]) -> MarkedContrast:
        """The same contrast in a pass of others: its examples are at these places, and in their order."""
        order = sorted(range(len(places)), key=lambda i: places[i])
        tokens = tuple(self.tokens[i] for i in order)
        return replace(
            self,
            examples=self.examples.pick(order),
            tokens=tokens,
            fold=tuple(self.fold[i] for i in order),
            group=tuple(self.group[i] for i in order),
            group_weight=tuple(self.group_weight[i] for i in order),
            place=tuple(places[i] for i in order),
        )

    def between(self, start: int, stop: int) -> slice:
        """Which of its examples stand between two places of the pass."""
        return slice(bisect_left(self.place, start), bisect_left(self.place, stop))


def cell_of(labels: Mapping[str, object]) -> LabelCell:
    return tuple(sorted(labels.items()))


@dataclass(frozen=True)
class Pass:
    """Contrasts that are run together: the first has all the texts, the others the same or some of them."""

    marked: tuple[MarkedContrast, ...]

    def __len__(self) -> int:
        return len(self.marked[0].examples)

    def chunk(self, start: int, stop: int) -> tuple[list[EncodedExample], dict[str, list[tuple[int, ...]]]]:
        """What is run between two places, and for each contrast which of an example's texts are its own."""
        stop = min(stop, len(self))
        texts: list[dict[object, EncodedText]] = [{} for _ in range(start, stop)]
        texts_of: dict[str, list[tuple[int, ...]]] = {}
        for marked in self.marked:
            here = marked.between(start, stop)
            texts_of[marked.name] = [
                numbers_of(example, texts[place - start])
                for place, example in zip(marked.place[here], marked.examples[here], strict=True)
            ]
        sources = [example.source for example in self.marked[0].examples[start:stop]]
        return [
            EncodedExample(start + i, first, None, 1.0, None, source, tuple(more))
            for i, (source, (first, *more)) in enumerate(zip(sources, (one.values() for one in texts), strict=True))
        ], texts_of


def numbers_of(example: EncodedExample, texts: dict[object, EncodedText]) -> tuple[int, ...]:
    """The numbers of an example's texts among those known, to which those are added that a pass can tell from them."""
    found = []
    for text in example.texts:
        what = seen_as(text)
        texts.setdefault(what, text)
        found.append([*texts].index(what))
    return tuple(found)


def seen_as(text: EncodedText) -> object:
    """What a pass knows of a text: its tokens, and where its query and its keys are."""
    return (text.ids, text.query, tuple(key.position for key in text.keys))


def passes_of(marked: Sequence[MarkedContrast]) -> list[Pass]:
    """Which contrasts share a pass."""
    found: list[tuple[PlacesByText, list[MarkedContrast]]] = []
    for contrast in sorted(marked, key=lambda one: -len(one.examples)):
        for places, group in found:
            if (at := _places(contrast.tokens, places)) is not None:
                group.append(contrast.within(at))
                break
        else:
            found.append((_all_places(contrast.tokens), [contrast]))
    return [Pass(tuple(group)) for _, group in found]


def _all_places(examples: Sequence[bytes]) -> PlacesByText:
    found: PlacesByText = defaultdict(list)
    for place, tokens in enumerate(examples):
        found[tokens].append(place)
    return found


def _places(wanted: Sequence[bytes], places: PlacesByText) -> list[int] | None:
    """A place of its own for each example, or None if one is not there."""
    if any(count > len(places.get(tokens, ())) for tokens, count in Counter(wanted).items()):
        return None
    left = {tokens: iter(places[tokens]) for tokens in wanted}
    return [next(left[tokens]) for tokens in wanted]
