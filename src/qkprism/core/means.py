"""Weighted means over examples with their standard errors, as additive sums: order and batches do not matter.

Examples of one group are not independent: `Pool` makes one value of them first, so that copies of a text do not make
errors smaller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

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

    @classmethod
    def zeros(cls, *shape: int) -> Means:
        """Sums of nothing."""
        return cls(0.0, 0.0, torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64))

    def add(self, values: Float[Tensor, " example *value"], weight: Float[Tensor, " example"]) -> None:
        """Add the values of some examples."""
        values, weight = values.cpu().double(), weight.cpu().double()  # not every device has float64
        self.weight += float(weight.sum())
        self.weight_square += float(weight.square().sum())
        self.sums += torch.tensordot(weight, values, 1)
        self.squares += torch.tensordot(weight, values.square(), 1)
        self.n += len(weight)

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
        return (variance / (self.n_effective - 1)).sqrt()


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
