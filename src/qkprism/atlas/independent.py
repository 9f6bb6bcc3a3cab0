"""Independent directions of whitened vectors (FastICA by the fourth moment, all directions at once).

    w <- E[z (w.z)^3] - 3 w,     then the nearest orthogonal matrix,     until nothing turns any more

It finds axes along which vectors are independent and far from Gaussian, such as bits. Vectors without such axes
(Gaussian, or more latents than dimensions) have no answer, and what comes out then means nothing.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

STEPS = 200
SETTLED = 1e-8


def independent_directions(vectors: Float64[Tensor, "sample d"]) -> Float64[Tensor, "d d"]:
    """The unmixing matrix: a row a direction, whose products with the vectors have variance 1.

    It starts from the vectors' own axes and draws nothing at random, so that it moves with them. Rows are ordered and
    signed by the axis that each has most of.
    """
    centred = vectors - vectors.mean(0)
    values, axes = torch.linalg.eigh(centred.mT @ centred / len(centred))
    whiten = (axes * values.clamp(min=1e-12 * float(values.max())).rsqrt()) @ axes.mT
    white = centred @ whiten
    turn = torch.eye(white.shape[1], dtype=white.dtype, device=white.device)
    for _ in range(STEPS):
        former = turn
        turn = _nearest_orthogonal((white @ turn.mT).pow(3).mT @ white / len(white) - 3 * turn)
        if float((1 - (turn * former).sum(1).abs()).abs().max()) < SETTLED:
            break
    return _settled(turn) @ whiten


def _nearest_orthogonal(matrix: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(matrix)
    return left @ right


def _settled(turn: Tensor) -> Tensor:
    """Rows in the order of their largest entries, which are made positive."""
    largest = turn.abs().argmax(1)
    signs = turn.gather(1, largest[:, None]).sign()
    return (turn * signs)[largest.argsort(stable=True)]
