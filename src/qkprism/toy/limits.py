"""Where finding features gets hard: latents that correlate in the data, few examples.

How wrong a projector is has a closed form. The logits that an edit of z1 should move are z_q^T G_1 z_1 (truth.py); with
K_f = W_K A_f, those that P moves are z_q^T B^T W_Q^T P [K_1 K_2] z. For independent latents of unit variance

    error = |B^T W_Q^T (P [K_1 K_2] - [K_1 0])| / |B^T W_Q^T K_1|

which counts what P misses of z1 and what it takes of z2, and does not depend on the basis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.subspaces.comparison import PROJECTING
from qkprism.subspaces.conditions import Conditions
from qkprism.toy.cells import Cell, ToyHead, by_size
from qkprism.toy.contrasts import Sampling, recipes_of
from qkprism.toy.interventions import feature_condition
from qkprism.toy.samples import LATENTS, Latent
from qkprism.toy.stack import one_core_each
from qkprism.toy.truth import true_keys, true_queries

CORRELATIONS = (0.0, 0.5, 0.9)
SIZES = (100, 200, 500, 1000, 4096)


@dataclass(frozen=True)
class Limit:
    """The error of a projector that was found in data of this size and correlation."""

    cell: Cell
    latent: Latent
    correlation: float
    n: int
    method: str
    error: float


def limits(heads: Sequence[ToyHead], sampling: Sampling, most: int = SIZES[-1]) -> list[Limit]:
    """Errors of every projector in heads of any size and data of each kind."""
    drawn = [replace(sampling, n=n) for n in SIZES if n <= most]
    drawn += [replace(sampling, correlation=correlation) for correlation in CORRELATIONS]
    jobs = [(same_size, each) for same_size in by_size(heads) for each in dict.fromkeys(drawn)]
    with one_core_each() as pool:
        return [row for rows in pool.map(lambda job: _limits(*job), jobs) for row in rows]


def _limits(heads: Sequence[ToyHead], sampling: Sampling) -> list[Limit]:
    return [
        Limit(head.cell, latent, sampling.correlation, sampling.n, method, _error_of(head, latent, conditions, method))
        for head, conditions in zip(heads, recipes_of(heads, sampling).conditions(1), strict=True)
        for latent in LATENTS
        for method in PROJECTING
    ]


def _error_of(head: ToyHead, latent: Latent, conditions: Conditions, method: str) -> float:
    at = conditions.names.index(feature_condition(method, latent))
    return projector_error(head, latent, conditions.subspace(at).projector)


def projector_error(head: ToyHead, latent: Latent, projector: Float64[Tensor, "d_head d_head"]) -> float:
    """How wrong the logits are that a projector moves."""
    keys = {name: true_keys(head, name) for name in LATENTS}
    queries = torch.cat([true_queries(head, name) for name in LATENTS], 1).mT
    wrong = [projector @ key - (key if name == latent else 0) for name, key in keys.items()]
    return float((queries @ torch.cat(wrong, 1)).norm() / (queries @ keys[latent]).norm())
