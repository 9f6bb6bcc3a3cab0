"""Which examples belong together: those that share a text or a group are not independent, and stand in one fold."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from qkprism.core.moments import N_FOLDS
from qkprism.notes import MANY, Note


def connected(marks: Iterable[Iterable[Hashable]]) -> list[int]:
    """For each example the first of its group: those that share a mark, and those that share one with them, and so on.

    >>> connected([["a"], ["b"], ["c"], ["b", "a"], []])
    [0, 0, 2, 0, 4]
    """
    parent: list[int] = []
    owner: dict[Hashable, int] = {}
    for example, shared in enumerate(marks):
        parent.append(example)
        for mark in shared:
            first, second = sorted((_root(parent, example), _root(parent, owner.setdefault(mark, example))))
            parent[second] = first
    return [_root(parent, example) for example in range(len(parent))]


def _root(parent: list[int], example: int) -> int:
    """The first example of a group; the way there is shortened for those who come later."""
    while parent[example] != example:
        parent[example] = parent[parent[example]]
        example = parent[example]
    return example


@dataclass(frozen=True)
class Grouping:
    """Examples in groups: those that were given, joined where two examples have the same text or vectors.

    `group` is the number of the first example of each example's group, `repeated` how many examples have what an
    earlier one has; it is 0 where the groups that were given cover that already.
    """

    group: tuple[int, ...]
    repeated: int

    @classmethod
    def of(cls, named: Sequence[str | int | None], texts: Sequence[Sequence[bytes]]) -> Grouping:
        """From the name of each example's group (None: of its own) and the digests of its texts."""
        names = [() if name is None else (name,) for name in named]
        group = connected((*name, *digests) for name, digests in zip(names, texts, strict=True))
        if len(set(group)) == len(set(connected(names))):
            return cls(tuple(group), 0)
        seen: set[bytes] = set()
        repeated = 0
        for digests in texts:
            repeated += not seen.isdisjoint(digests)
            seen.update(digests)
        return cls(tuple(group), repeated)

    @property
    def n_groups(self) -> int:
        return len(set(self.group))

    def notes(self, contrast: str, what: str = "text") -> list[Note]:
        """What is to be said of repeats, and of groups that are too few for the held-out test."""
        return [*self.notes_on_repeats(contrast, what), *self.notes_on_folds(contrast)]

    def notes_on_repeats(self, contrast: str, what: str = "text") -> list[Note]:
        """How many examples were put in the group of another."""
        if not self.repeated:
            return []
        text = f"{self.repeated} of {len(self.group)} examples of {contrast!r} repeat the {what} of another. Examples "
        text += f"with the same {what} are one group: there are {self.n_groups} groups."
        return [Note(text, self.repeated > MANY * len(self.group))]

    def notes_on_folds(self, contrast: str) -> list[Note]:
        """Whether groups are too few for the held-out test."""
        if self.n_groups >= min(N_FOLDS, len(self.group)):
            return []
        text = f"The held-out test of {contrast!r} was not made: it needs {N_FOLDS} groups of examples, and there are "
        return [Note(f"{text}{self.n_groups}.")]
