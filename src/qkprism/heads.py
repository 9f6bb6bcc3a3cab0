"""`Head`: the name of one attention head, as in `L18H6`: parse, print, order, range check."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from qkprism.errors import QKPrismError

_NAME = re.compile(r"L(\d+)[.\s]?H(\d+)", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Head:
    """One attention head.

    >>> Head.parse("L18H6")
    Head(layer=18, index=6)
    >>> str(Head(18, 6))
    'L18H6'
    """

    layer: int
    index: int

    def __post_init__(self) -> None:
        if self.layer < 0 or self.index < 0:
            raise QKPrismError(
                f"A head needs a layer and an index from 0 up, not layer {self.layer}, index {self.index}."
            )

    def __str__(self) -> str:
        return f"L{self.layer}H{self.index}"

    @classmethod
    def parse(cls, name: HeadLike) -> Head:
        """Read `L18H6` (any case), a pair `(18, 6)`, or a `Head`."""
        if isinstance(name, Head):
            return name
        if isinstance(name, str):
            match = _NAME.fullmatch(name.strip())
            if match is None:
                raise QKPrismError(f"{name!r} is not the name of a head. Write it as L18H6: layer 18, head 6.")
            return cls(int(match[1]), int(match[2]))
        layer, index = name
        return cls(int(layer), int(index))


HeadLike = Head | str | tuple[int, int]


def all_heads(heads_per_layer: Mapping[int, int]) -> tuple[Head, ...]:
    """Every head of a model, in order, from the number of heads of each of its layers."""
    return tuple(Head(layer, index) for layer, count in sorted(heads_per_layer.items()) for index in range(count))


def check_heads(
    heads: Iterable[HeadLike] | HeadLike, heads_per_layer: Mapping[int, int], model: str
) -> tuple[Head, ...]:
    """Parse heads, drop repeats, sort, and refuse those that the model does not have."""
    if isinstance(heads, (Head, str)) or (isinstance(heads, tuple) and len(heads) == 2 and isinstance(heads[0], int)):
        heads = [heads]
    parsed = sorted({Head.parse(head) for head in heads})
    if not parsed:
        raise QKPrismError("No head was named. Name at least one, such as L18H6, or leave `heads` out for all of them.")
    for head in parsed:
        if head.index >= heads_per_layer.get(head.layer, 0):
            raise QKPrismError(f"{head} is not in {model} {_describe(heads_per_layer)}")
    return tuple(parsed)


def _describe(heads_per_layer: Mapping[int, int]) -> str:
    every = all_heads(heads_per_layer)
    counts = sorted(set(heads_per_layer.values()))
    size = f"{len(heads_per_layer)} layers x {' or '.join(map(str, counts))} heads"
    layers = sorted(heads_per_layer)
    gaps = "" if layers == list(range(len(layers))) else f", attention layers {', '.join(map(str, layers))}"
    return f"({size}{gaps}). Heads run from {every[0]} to {every[-1]}."
