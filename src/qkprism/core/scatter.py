"""Means and covariances of some values over examples, added up chunk by chunk, and what follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

FEWEST = 10  # more examples than coefficients that a slope needs
_FLAT = 1e-12  # of a mean square, of the largest variance or of a correlation: below it nothing varies by itself


@dataclass
class Scatter:
    """Number, mean, and sums of products of deviations from the mean.

    >>> both = Scatter.zeros(2)
    >>> both.add(torch.tensor([[1.0, 2.0], [3.0, 2.0]]).double())
    >>> both.n, both.mean.tolist(), both.products.tolist()
    (2, [2.0, 2.0], [[2.0, 0.0], [0.0, 0.0]])
    """

    n: int
    mean: Float64[Tensor, " value"]
    products: Float64[Tensor, "value value"]

    @classmethod
    def zeros(cls, size: int) -> Scatter:
        """Of nothing."""
        return cls(0, torch.zeros(size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64))

    def add(self, values: Float64[Tensor, "example value"]) -> None:
        """Add some examples."""
        if not len(values):
            return
        mean, n = values.mean(0), self.n + len(values)
        apart, deviation = mean - self.mean, values - mean
        self.products += deviation.mT @ deviation + torch.outer(apart, apart) * (self.n * len(values) / n)
        self.mean += apart * (len(values) / n)
        self.n = n

    def error(self, at: int) -> float:
        """The standard error of a mean."""
        return self._error(float(self.products[at, at]))

    def ratio(self, above: int, below: int) -> tuple[float, float]:
        """The ratio of two means with its standard error."""
        denominator = float(self.mean[below])
        if denominator == 0:
            return math.nan, math.nan
        ratio = float(self.mean[above]) / denominator
        return ratio, self._error(self._squares(above, below, -ratio)) / abs(denominator)

    def difference(self, first: int, second: int) -> tuple[float, float, float]:
        """The mean difference of two values, its standard error, and the root mean square of the differences."""
        mean, squares = float(self.mean[first] - self.mean[second]), self._squares(first, second, -1.0)
        return mean, self._error(squares), math.sqrt(squares / self.n + mean**2)

    def _squares(self, first: int, second: int, weight: float) -> float:
        """The squared deviations of a value plus a weighted other, added up."""
        (a, b), (_, c) = self.products[[first, second]][:, [first, second]].tolist()
        found: float = a + weight * (2 * b + weight * c)
        return found if math.isnan(found) else max(found, 0.0)

    def _error(self, squares: float) -> float:
        return math.sqrt(squares / (self.n - 1) / self.n) if self.n > 1 else math.nan

    def slopes(self) -> tuple[Float64[Tensor, " value"], Float64[Tensor, " value"]]:
        """The last value's linear regression on all others (with intercept), and standard errors.

        NaN where they are not determined: too few examples, or others that are constant or follow from each other.
        """
        k = len(self.mean) - 1
        within, shared = self.products[:k, :k], self.products[:k, k]
        nothing = torch.full((k,), torch.nan, dtype=torch.float64)
        size = within.diagonal()
        least = _FLAT * torch.maximum(self.n * self.mean[:k].square(), size.max())
        if self.n < k + 1 + FEWEST or bool((size <= least).any()):
            return nothing, nothing
        scale = size.sqrt()
        if float(torch.linalg.eigvalsh(within / torch.outer(scale, scale))[0]) <= _FLAT:
            return nothing, nothing
        inverse = torch.linalg.inv(within)
        found = inverse @ shared
        noise = max(float(self.products[k, k] - shared @ found), 0.0) / (self.n - k - 1)
        return found, (inverse.diagonal() * noise).clamp(min=0).sqrt()
