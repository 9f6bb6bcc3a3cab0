"""Contrasts as they are run: in which order, in which folds, and which of them share a pass.

Contrasts of the same texts, or of some of the texts of another (a part of a pooled contrast), are one pass.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qkprism.core.moments import MAX_CELLS, Reading, assign_folds, group_numbers
from qkprism.models.encoding import EncodedExample

Cell = tuple[tuple[str, object], ...]  # one combination of all labels of a key
Tokens = tuple[tuple[object, ...], ...]
Places = dict[Tokens, list[int]]  # where examples of these tokens stand in a pass


@dataclass(frozen=True)
class Marked:
    """The encoded examples of one contrast, in the order they are run, with their folds and label cells.

    `place` says where each stands among the examples of its pass, which may be those of a larger contrast.
    """

    name: str
    reading: Reading
    examples: tuple[EncodedExample, ...]
    fold: tuple[int, ...]
    group: tuple[int, ...]
    cells: Mapping[Cell, int]
    place: Sequence[int]

    @classmethod
    def of(cls, name: str, encoded: Sequence[EncodedExample], reading: Reading, seed: int) -> Marked:
        """Order examples (longest first), assign folds, and number the fullest label cells of two keys or more."""
        named = [example.index if example.group is None else example.group for example in encoded]
        folds, groups = assign_folds(named, seed), group_numbers(named)
        order = sorted(range(len(encoded)), key=lambda i: (-encoded[i].length, encoded[i].index))
        examples = tuple(encoded[i] for i in order)
        fold, group = (tuple(numbers[i] for i in order) for numbers in (folds, groups))
        return cls(name, reading, examples, fold, group, _cells(encoded), range(len(examples)))

    def within(self, places: Sequence[int]) -> Marked:
        """The same contrast in a pass of others: its examples are at these places, and in their order."""
        order = sorted(range(len(places)), key=lambda i: places[i])
        examples = tuple(self.examples[i] for i in order)
        fold, group, place = (tuple(own[i] for i in order) for own in (self.fold, self.group, places))
        return replace(self, examples=examples, fold=fold, group=group, place=place)

    def between(self, start: int, stop: int) -> slice:
        """Which of its examples stand between two places of the pass."""
        return slice(bisect_left(self.place, start), bisect_left(self.place, stop))


def _cells(encoded: Sequence[EncodedExample]) -> dict[Cell, int]:
    counts = Counter(
        cell_of(key.labels) for example in encoded for text in example.texts for key in text.keys if key.labels
    )
    fullest = [cell for cell, count in counts.most_common(MAX_CELLS) if count > 1]
    return {cell: i for i, cell in enumerate(fullest)}


def cell_of(labels: Mapping[str, object]) -> Cell:
    return tuple(sorted(labels.items()))


def same_texts(marked: Sequence[Marked]) -> list[list[Marked]]:
    """Contrasts that share a pass: the first of each group has all the texts, the others the same or some of them."""
    passes: list[tuple[Places, list[Marked]]] = []
    for own in sorted(marked, key=lambda one: -len(one.examples)):
        wanted = [_tokens(example) for example in own.examples]
        for places, group in passes:
            if (found := _places(wanted, places)) is not None:
                group.append(own.within(found))
                break
        else:
            passes.append((_all_places(wanted), [own]))
    return [group for _, group in passes]


def _tokens(example: EncodedExample) -> Tokens:
    """What a pass needs to know of an example: its tokens, queries and keys."""
    return tuple((text.ids, text.query, tuple(key.position for key in text.keys)) for text in example.texts)


def _all_places(examples: Sequence[Tokens]) -> Places:
    found: Places = defaultdict(list)
    for place, tokens in enumerate(examples):
        found[tokens].append(place)
    return found


def _places(wanted: Sequence[Tokens], places: Places) -> list[int] | None:
    """A place of its own for each example, or None if one is not there."""
    if any(count > len(places.get(tokens, ())) for tokens, count in Counter(wanted).items()):
        return None
    left = {tokens: iter(places[tokens]) for tokens in wanted}
    return [next(left[tokens]) for tokens in wanted]
