"""`Head`: the name of one attention head, as in `L18H6`: parse, print, order, range check."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from qkprism.errors import QKPrismError
from qkprism.options import show, whole_number

_NAME = re.compile(r"L(\d{1,9})[.\s]?H(\d{1,9})", re.IGNORECASE)


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
        for name in ("layer", "index"):
            object.__setattr__(self, name, whole_number(getattr(self, name), f"the {name} of a head: {name}"))

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
                raise QKPrismError(f"{show(name)} is not the name of a head. Write it as L18H6: layer 18, head 6.")
            return cls(int(match[1]), int(match[2]))
        if not _is_pair(name):
            raise QKPrismError(f"{show(name)} is not a head. Write it as 'L18H6', or as (18, 6): layer 18, head 6.")
        return cls(*name)


HeadLike = Head | str | tuple[int, int]


def is_name(text: str) -> bool:
    """Whether this is the name of one head."""
    return _NAME.fullmatch(text) is not None


def _is_pair(value: Any) -> bool:
    """Whether this is a layer and an index, in a tuple, a list or an array."""
    if not isinstance(value, tuple | list) and not hasattr(value, "__array__"):
        return False
    try:
        return len([operator.index(number) for number in value]) == 2
    except (TypeError, ValueError):
        return False


def all_heads(heads_per_layer: Mapping[int, int]) -> tuple[Head, ...]:
    """Every head of a model, in order, from the number of heads of each of its layers."""
    return tuple(Head(layer, index) for layer, count in sorted(heads_per_layer.items()) for index in range(count))


def check_heads(
    heads: Iterable[HeadLike] | HeadLike, heads_per_layer: Mapping[int, int], model: str
) -> tuple[Head, ...]:
    """Parse heads, drop repeats, sort, and refuse those that the model does not have."""
    every: Any = [heads] if isinstance(heads, Head | str) or _is_pair(heads) else heads
    if not isinstance(every, Iterable):
        raise QKPrismError(f"{show(heads)} is not a list of heads. Write them as ['L18H6', 'L21H7'].")
    parsed = sorted({Head.parse(head) for head in every})
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
