"""Weighted means over examples with their standard errors, as additive sums: order and batches do not matter."""

from __future__ import annotations

from dataclasses import dataclass

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

    def error(self) -> Float64[Tensor, "*value"]:
        """Standard errors of the means; NaN for a single example."""
        effective = self.weight**2 / self.weight_square if self.n else 0.0
        if effective <= 1:
            return torch.full_like(self.sums, torch.nan)
        variance = (self.squares / self.weight - self.mean().square()).clamp(min=0)
        return (variance / (effective - 1)).sqrt()
