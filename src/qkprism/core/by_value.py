"""Sums of keys by the value of a label: what is needed where a factor is stronger at one value than at another.

    count, sum k, sum k k^T    of the marked keys whose label has a value, for both halves of the folds
    count, sum d d^T           of the twins whose positive keys both have that value
    the same, dealt            with values dealt anew among the keys of a text, and twins compared at a key which the
                               contrast does not change: the same one of the negative keys of both texts

Labels of few values are summed so, and only where examples have twins; values of all such labels stand on one axis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float64, Int
from torch import Tensor

MAX_VALUES = 16  # of all labels that keys are summed by: a d_head x d_head matrix each
N_HALVES = 2

ValueNumbers = Mapping[str, Mapping[Hashable, int]]  # of each label the numbers of its values


def number_values(counts: Mapping[str, Counter[Hashable]]) -> dict[str, dict[Hashable, int]]:
    """Numbers for the values of labels that have two or more, the labels of fewest values first, as far as they go.

    >>> number_values({"entity": Counter(range(40)), "order": Counter([0, 1, 0, 1])})
    {'order': {0: 0, 1: 1}}
    """
    found: dict[str, dict[Hashable, int]] = {}
    start = 0
    for label in sorted(counts, key=lambda name: (len(counts[name]), name)):
        values = sorted(counts[label], key=lambda value: (str(type(value)), value))
        if len(values) > 1 and start + len(values) <= MAX_VALUES:
            found[label] = {value: start + i for i, value in enumerate(values)}
            start += len(values)
    return found


@dataclass(frozen=True)
class ValuePlan:
    """By which values the keys of some examples are summed; -1 is by none.

    twin         the value that the positive keys of a text and of its twin share
    pair         +1 and -1 at the same negative key of the text and of its twin, drawn at random; zeros if there is none
    """

    value: Int[Tensor, "example key label"]
    twin: Int[Tensor, "example label"]
    dealt: Int[Tensor, "example key label"]
    pair: Float64[Tensor, "example key"]
    dealt_twin: Int[Tensor, "example label"]

    def to(self, device: str | torch.device) -> ValuePlan:
        """A copy on another device."""
        return replace(self, **{field.name: getattr(self, field.name).to(device) for field in fields(self)})

    @classmethod
    def of(
        cls,
        value: Int[Tensor, "example key label"],
        side: Int[Tensor, "example key"],
        text: Int[Tensor, "example key"],
        rngs: Sequence[np.random.Generator],
    ) -> ValuePlan:
        """From the values of all keys; what is random comes from a generator of each example."""
        value = torch.where((side != 0)[..., None], value, -1)
        dealt, pair = value.clone(), torch.zeros(side.shape, dtype=torch.float64)
        dealt_twin = torch.full((len(side), value.shape[-1]), -1)
        for i, rng in enumerate(rngs if value.shape[-1] else ()):
            keys = [((side[i] != 0) & (text[i] == which)).nonzero()[:, 0].numpy() for which in (0, 1)]
            still = [places[side[i, places].numpy() < 0] for places in keys]
            if min(map(len, still)) < 1:  # of one key there is nothing to deal
                dealt[i] = -1
                continue
            for places in keys:
                dealt[i, places] = value[i, rng.permutation(places)]
            chosen = int(rng.integers(min(map(len, still))))
            ours, theirs = (int(places[chosen]) for places in still)
            pair[i, ours], pair[i, theirs] = 1.0, -1.0
            dealt_twin[i] = dealt[i, ours]
        return cls(value, _shared_value(value, side, text), dealt, pair, dealt_twin)


def _shared_value(value: Tensor, side: Tensor, text: Tensor) -> Int[Tensor, "example label"]:
    """The value that all positive keys of a text and of its twin have, or -1."""
    positive = (side > 0)[..., None]
    most = value.masked_fill(~positive, -1).amax(1)
    least = value.masked_fill(~positive, MAX_VALUES).amin(1)
    has_twin = ((side > 0) & (text == 1)).any(1, keepdim=True)
    return torch.where((most == least) & has_twin, most, -1)


def add_by_value(
    weight: Float64[Tensor, " value"],
    square: Tensor,
    vectors: Float64[Tensor, "row kv_head d_head"],
    value: Int[Tensor, "row label"],
    mass: Float64[Tensor, " row"],
    total: Float64[Tensor, "value kv_head d_head"] | None = None,
) -> None:
    """Add vectors, and their squares, to the sums of their values."""
    for of_label in value.unbind(-1):
        for number in of_label.unique().tolist():
            if number < 0:
                continue
            inside = of_label == number
            rows, heavy = vectors[inside], mass[inside]
            weight[number] += heavy.sum()
            scaled = rearrange(rows * heavy.sqrt()[:, None, None], "row kv d -> kv row d")
            square[number] += scaled.mT @ scaled
            if total is not None:
                total[number] += (rows * heavy[:, None, None]).sum(0)
