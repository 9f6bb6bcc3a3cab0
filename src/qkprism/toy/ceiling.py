"""How often the best possible answer is right, and how often that of a head that compares by a dot product.

Tokens can share their latents. Of n tokens with the selector's latents each is as likely to be the one that was
meant, and noise does not help (the selector's is its own), so the best answer is the most frequent of their payloads:

    n - 1 ~ Binomial(T - 1, 2^-(r1 + r2)),    ceiling = E[ E[largest of P payload counts among n] / n ]

With n = 1 it is right; else right in 1/n of the cases plus those in which payloads coincide. A head that attends
equally to the n tokens and reads the mean payload off gives that answer. In the continuous task no two tokens share
their latents, and without noise the ceiling is 1.

A dot product does not reach it, because it favours long keys. With G = g I on n dimensions, g large, the head picks
the largest z.z_i; z.z = |z|^2 has to beat T - 1 products that are N(0, |z|^2), and a wrong token may have the payload:

    p = E[ Phi(|z|)^(T - 1) ],  |z| ~ chi_n,  n = min(r1 + r2, d_head),    dot-product ceiling = p + (1 - p) / P
"""

from __future__ import annotations

from functools import cache
from math import comb, factorial, lgamma, log

import torch

from qkprism.toy.task import ToyTask


def bayes_ceiling(task: ToyTask) -> float:
    """The accuracy of the best answer, without noise."""
    if task.variant == "continuous":
        return 1.0
    shared, others = 0.5 ** (task.r1 + task.r2), task.tokens - 1
    total = 0.0
    for more in range(others + 1):
        chance = comb(others, more) * shared**more * (1 - shared) ** (others - more)
        total += chance * expected_largest(more + 1, task.payloads) / (more + 1)
    return total


def dot_product_ceiling(task: ToyTask, d_head: int) -> float:
    """What a head with sharp attention by a dot product can reach, without noise.

    In the discrete task all latents are equally long, and with a dimension for each of them the ceiling is Bayes'.
    """
    if task.variant == "discrete":
        return bayes_ceiling(task)
    n = min(task.r1 + task.r2, d_head)
    length = torch.linspace(1e-6, n**0.5 + 10, 20_001, dtype=torch.float64)
    density = ((n - 1) * length.log() - length.square() / 2 - (n / 2 - 1) * log(2) - lgamma(n / 2)).exp()
    right = float(torch.trapezoid(density * torch.special.ndtr(length) ** (task.tokens - 1), length))
    return right + (1 - right) / task.payloads


@cache
def expected_largest(n: int, payloads: int) -> float:
    """The mean of the largest of the counts when n tokens get one of P payloads each."""
    return sum(1 - _none_above(most, n, payloads) for most in range(n))


def _none_above(most: int, n: int, payloads: int) -> float:
    """The chance that no count is above `most`: n! / P^n times the coefficient of x^n in (sum_j x^j / j!)^P."""
    one = [1 / factorial(count) for count in range(most + 1)]
    power = [1.0] + [0.0] * n
    for _ in range(payloads):
        power = [sum(power[i - j] * c for j, c in enumerate(one[: i + 1])) for i in range(n + 1)]
    return power[n] * factorial(n) / payloads**n
