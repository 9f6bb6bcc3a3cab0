"""Draws in which every value comes equally often, so that no factor of a prompt leans to one value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from typing import TypeVar

Value = TypeVar("Value")


def balanced(values: Sequence[Value], count: int, rng: Random) -> list[Value]:
    """`count` values in random order; how often two of them come differs by at most 1."""
    return [first for first, _ in balanced_pairs(values, count, rng)]


def balanced_pairs(values: Sequence[Value], count: int, rng: Random) -> list[tuple[Value, Value]]:
    """`count` pairs of two different values, each value equally often first and equally often second.

    In a round every value comes once on each side: a shuffled row beside itself, turned by a random step.
    """
    return list(islice(_rounds(values, rng), count))


def pair_at(values: Sequence[Value], number: int, seed: str) -> tuple[Value, Value]:
    """The pair of a number, counted from 0, as `balanced_pairs` has them: without those before it."""
    rounds, place = divmod(number, len(values))
    return _round(values, Random(f"{seed} {rounds}"))[place]


def _rounds(values: Sequence[Value], rng: Random) -> Iterator[tuple[Value, Value]]:
    while True:
        yield from _round(values, rng)


def _round(values: Sequence[Value], rng: Random) -> list[tuple[Value, Value]]:
    row = rng.sample(values, len(values))
    step = rng.randrange(1, len(row)) if len(row) > 1 else 0
    return list(zip(row, row[step:] + row[:step], strict=True))
