"""Weighted means over examples with their standard errors, as additive sums: order and batches do not matter.

Examples of one group are not independent: `Pool` makes one value of them first, so that copies of a text do not make
errors smaller. Examples that use the same things again, such as two words of a short list, are no copies. With the
things of each, errors are those of a mean over other things too: all pairs of examples count that share one,

    error^2 = sum over e, f with a thing in common  w_e w_f (x_e - mean) (x_f - mean) / (sum w)^2
            = [ sum_S (-1)^(|S| + 1) (sum of w_e (x_e - mean) over the examples that have all of S)^2 ] / (sum w)^2

over all sets S of things of one example; and never less than if examples were independent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import torch
from jaxtyping import Float, Float64
from torch import Tensor


@dataclass
class Means:
    """Running sums of some values over examples; each example adds its values once, with its weight.

    >>> means = Means.zeros(2)
    >>> means.add(torch.tensor([[1.0, 2.0], [3.0, 2.0]]), torch.ones(2))
    >>> means.mean().tolist(), means.error().tolist()
    ([2.0, 2.0], [1.0, 0.0])
    """

    weight: float
    weight_square: float
    sums: Float64[Tensor, "*value"]
    squares: Float64[Tensor, "*value"]
    n: int = 0
    shared: dict[frozenset[Hashable], tuple[float, Float64[Tensor, "*value"]]] = field(default_factory=dict)
    things: tuple[set[Hashable], ...] = ()

    @classmethod
    def zeros(cls, *shape: int) -> Means:
        """Sums of nothing."""
        return cls(0.0, 0.0, torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64))

    def add(
        self,
        values: Float[Tensor, " example *value"],
        weight: Float[Tensor, " example"],
        things: Sequence[Sequence[Hashable]] | None = None,
    ) -> None:
        """Add the values of some examples; `things` are what each of them may share with others, equally many of all.

        >>> means = Means.zeros(1)
        >>> means.add(torch.tensor([[1.0], [1.0], [3.0], [3.0]]), torch.ones(4), [["hat"], ["hat"], ["jam"], ["jam"]])
        >>> means.error().tolist()
        [1.0]
        """
        values, weight = values.cpu().double(), weight.cpu().double()  # not every device has float64
        for value, heavy, those in zip(values, weight.tolist(), things or (), strict=things is not None):
            self._share(heavy, heavy * value, those)
        self.weight += float(weight.sum())
        self.weight_square += float(weight.square().sum())
        self.sums += torch.tensordot(weight, values, 1)
        self.squares += torch.tensordot(weight, values.square(), 1)
        self.n += len(weight)

    def _share(self, weight: float, value: Float64[Tensor, "*value"], things: Sequence[Hashable]) -> None:
        self.things = self.things or tuple(set() for _ in things)
        for seen, thing in zip(self.things, things, strict=True):
            seen.add(thing)
        for size in range(1, len(things) + 1):
            for some in dict.fromkeys(map(frozenset, combinations(things, size))):
                mass, total = self.shared.get(some, (0.0, torch.zeros_like(value)))
                self.shared[some] = mass + weight, total + value

    def mean(self) -> Float64[Tensor, "*value"]:
        """The weighted means; NaN if there was no example."""
        return self.sums / self.weight if self.n else torch.full_like(self.sums, torch.nan)

    @property
    def n_effective(self) -> float:
        """(sum w)^2 / sum w^2: how many equally weighted examples tell as much."""
        return self.weight**2 / self.weight_square if self.n else 0.0

    def error(self) -> Float64[Tensor, "*value"]:
        """Standard errors of the means; NaN for a single example."""
        if self.n_effective <= 1:
            return torch.full_like(self.sums, torch.nan)
        variance = (self.squares / self.weight - self.mean().square()).clamp(min=0)
        alone = (variance / (self.n_effective - 1)).sqrt()
        return torch.maximum(alone, self._error_of_shared()) if self.shared else alone

    def _error_of_shared(self) -> Float64[Tensor, "*value"]:
        """The error over things; NaN if all examples have one of them in common."""
        fewest = min(map(len, self.things))
        if fewest < 2:
            return torch.full_like(self.sums, torch.nan)
        mean, total = self.mean(), torch.zeros_like(self.sums)
        for some, (weight, value) in self.shared.items():
            total += (-1) ** (len(some) + 1) * (value - weight * mean).square()
        return (total.clamp(min=0) * fewest / (fewest - 1)).sqrt() / self.weight


@dataclass
class Pool:
    """Makes one value of the examples of each group, their weighted mean, when the last of them has come.

    >>> pool = Pool.of([0, 0, 2])
    >>> values, weight = pool.add(torch.tensor([[1.0], [4.0]]), torch.ones(2), [0, 2])
    >>> values.tolist(), weight.tolist()
    ([[4.0]], [1.0])
    >>> pool.add(torch.tensor([[3.0]]), torch.ones(1), [0])[0].tolist()
    [[2.0]]
    """

    left: Counter[int]  # of each group, the examples that have not come
    waiting: dict[int, tuple[Float64[Tensor, "*value"], float]] = field(default_factory=dict)

    @classmethod
    def of(cls, group: Sequence[int]) -> Pool:
        """For examples of which these are the groups."""
        return cls(Counter(group))

    def add(
        self, values: Float[Tensor, " example *value"], weight: Float[Tensor, " example"], group: Sequence[int]
    ) -> tuple[Float64[Tensor, " complete *value"], Float64[Tensor, " complete"]]:
        """Take the values of some examples and give those of the groups that are complete, with their weights."""
        values, weight = values.cpu().double(), weight.cpu().double()
        complete: list[tuple[Tensor, float]] = []
        for value, heavy, number in zip(values, weight.tolist(), group, strict=True):
            total, mass = self.waiting.pop(number, (torch.zeros_like(value), 0.0))
            total, mass = total + heavy * value, mass + heavy
            self.left[number] -= 1
            if self.left[number]:
                self.waiting[number] = (total, mass)
            else:
                complete.append((total / mass, mass))
        if not complete:
            return values[:0], weight[:0]
        return torch.stack([value for value, _ in complete]), torch.tensor([mass for _, mass in complete]).double()
