"""Evidence over many heads: how often chance shows as much (p), and what share of the heads shown it makes (q).

A feature's p is that of its leading direction in the held-out test (rank.py), a head's that of its accuracy among the
marked keys. Of m heads about p m reach a value by chance alone, so with 270 heads some pass any test. Benjamini and
Hochberg's q of a head is the smallest share of false ones at which a list of the best heads would still have it:

    q_(i) = min over j >= i of  m p_(j) / j        p_(1) <= ... <= p_(m)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.core.moments import N_FOLDS

LEVEL = 0.05  # of q, up to which heads are counted as found
FREEDOM = N_FOLDS - 2  # two halves, a mean each
HALVES = 2


def chance_of(t: Float64[Tensor, "*value"]) -> Float64[Tensor, "*value"]:
    """How often one fixed direction of null data has a held-out t as large: Student's t with 6 degrees of freedom.

    >>> chance_of(torch.tensor(1.943).double()).round(decimals=3)
    tensor(0.0500, dtype=torch.float64)
    """
    cosine = (1 + t.square() / FREEDOM).rsqrt()
    sine = t / (t.square() + FREEDOM).sqrt()
    return (1 - sine * (1 + cosine**2 / 2 + 3 * cosine**4 / 8)) / 2


def leading_p(t: Float64[Tensor, "*value"]) -> Float64[Tensor, "*value"]:
    """p of the leading direction: twice Student's tail, because each half chooses the direction it gives the other.

    Noise has a strongest direction of its own. If both halves choose it, with coordinates a and b in it, each finds the
    other's with the sign of its own, and t is sign(ab) (|a| + |b|) where a fixed direction has a + b: its tail is twice
    as heavy. If noise is alike in all directions the halves choose different ones, and twice is too careful.
    """
    return (HALVES * chance_of(t)).clamp(max=1.0)


def f_tail(f: float, above: int, below: int) -> float:
    """P(F > f) of Fisher's F, by the incomplete beta function's continued sum: exact, slow for huge degrees.

    >>> round(f_tail(1.0, 4, 4), 6), round(f_tail(19.0, 2, 2), 6)
    (0.5, 0.05)
    """
    if not math.isfinite(f):
        return math.nan if math.isnan(f) else 0.0
    if above < 1 or f <= 0:
        return 1.0
    return _beta(below / (below + above * f), below / 2, above / 2)


def _beta(x: float, a: float, b: float, steps: int = 4000) -> float:
    """The regularised incomplete beta function, by the midpoint rule after t = x u^(1/a), which takes the pole away."""
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    if x > a / (a + b):
        return 1 - _beta(1 - x, b, a, steps)
    total = sum((1 - x * ((i + 0.5) / steps) ** (1 / a)) ** (b - 1) for i in range(steps)) / steps
    return math.exp(log + a * math.log(x)) / a * total if x > 0 else 0.0


def accuracy_p(accuracy: Float64[Tensor, " head"], n: float, chance: float) -> Float64[Tensor, " head"]:
    """How often a head that picks marked keys at random is right as often, in n independent examples.

    >>> accuracy_p(torch.tensor([1.0, 0.0]).double(), 3, 0.5).round(decimals=4).tolist()
    [0.125, 1.0]

    Exact for few examples. With another chance in each example the true tail is lighter than that of their mean.
    """
    size = math.floor(n + _ROUNDING)
    if not 0 < chance < 1 or size < 1:
        return torch.full_like(accuracy, torch.nan)
    tail = _binomial_tail(size, chance)
    right = (accuracy * size + _ROUNDING).floor().nan_to_num(nan=0).long()
    return torch.where(accuracy.isnan(), torch.nan, tail[right])


def _binomial_tail(n: int, chance: float) -> Float64[Tensor, " right"]:
    """P(at least k of n), for k = 0 to n."""
    k = torch.arange(n + 1, dtype=torch.float64)
    log_choices = math.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    each = (log_choices + k * math.log(chance) + (n - k) * math.log1p(-chance)).exp()
    return each.flip(0).cumsum(0).flip(0).clamp(max=1.0)


def q_values(p: Float64[Tensor, " head"]) -> Float64[Tensor, " head"]:
    """Benjamini and Hochberg's q of every p; what was not tested (NaN) is no member of the family and stays NaN.

    >>> q_values(torch.tensor([0.01, 0.04, 0.03, 0.5]).double()).round(decimals=4).tolist()
    [0.04, 0.0533, 0.0533, 0.5]
    """
    found, tested = torch.full_like(p, torch.nan), ~p.isnan()
    ordered, order = p[tested].sort()
    m = len(ordered)
    ratio = ordered * (m / torch.arange(1, m + 1, dtype=p.dtype))
    least = ratio.flip(0).cummin(0).values.flip(0) if m else ratio
    found[tested] = torch.empty_like(least).index_put_((order,), least.clamp(max=1.0))
    return found


class Count(NamedTuple):
    """How many of the heads looked at have a q up to a level, and how many chance alone would show there."""

    found: int
    tested: int
    by_chance: float
    level: float = LEVEL

    def __str__(self) -> str:
        heads = "head" if self.tested == 1 else "heads"
        return (
            f"{self.found} of {self.tested} {heads} (q <= {self.level:g}; "
            f"chance alone would show about {self.by_chance:.2g})"
        )


def count_found(p: Float64[Tensor, " head"], level: float = LEVEL, q: Float64[Tensor, " head"] | None = None) -> Count:
    """Count the heads found at a level of q; chance shows as many as reach the largest p among them.

    `q` is given where these heads are some of those that were looked at.

    >>> str(count_found(torch.tensor([0.001, 0.3, 0.6, 0.9]).double()))
    '1 of 4 heads (q <= 0.05; chance alone would show about 0.004)'
    """
    shown = (q_values(p) if q is None else q) <= level
    tested, found = int((~p.isnan()).sum()), int(shown.sum())
    largest = float(p[shown].max()) if found else level / max(tested, 1)
    return Count(found, tested, tested * largest, level)


_ROUNDING = 1e-6  # a mean over examples may fall short of a whole number of them
