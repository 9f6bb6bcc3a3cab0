"""Where finding features gets hard: latents that correlate in the data, few examples, other thresholds.

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

from qkprism.core.feature import Feature
from qkprism.core.rank import THRESHOLD, energy_rank, leading_run
from qkprism.heads import Head
from qkprism.subspaces.comparison import PROJECTING
from qkprism.subspaces.conditions import Conditions
from qkprism.toy.cells import Cell, ToyHead
from qkprism.toy.contrasts import Recipes, Sampling, recipes_of
from qkprism.toy.interventions import feature_condition
from qkprism.toy.samples import LATENTS, Latent
from qkprism.toy.stack import one_core_each
from qkprism.toy.truth import true_keys, true_queries

CORRELATIONS = (0.0, 0.5, 0.9)
SIZES = (100, 200, 500, 1000, 4096)
ENERGIES = (0.95, 0.99, 0.999)
THRESHOLDS = (3.0, THRESHOLD)


@dataclass(frozen=True)
class Limit:
    """The error of a projector that was found in data of this size and correlation."""

    cell: Cell
    latent: Latent
    correlation: float
    n: int
    method: str
    error: float


@dataclass(frozen=True)
class RankAt:
    """The rank that a rule finds at a threshold with so many examples."""

    cell: Cell
    latent: Latent
    n: int
    rule: str
    threshold: float
    true: int
    found: int


@dataclass(frozen=True)
class Ends:
    """All rows of some heads."""

    limits: tuple[Limit, ...]
    ranks_at: tuple[RankAt, ...]


def ends(heads: Sequence[ToyHead], sampling: Sampling, most: int = SIZES[-1]) -> Ends:
    """Errors of every projector and ranks by every rule, in heads of any size and data of each kind."""
    drawn = [replace(sampling, n=n) for n in SIZES if n <= most]
    drawn += [replace(sampling, correlation=correlation) for correlation in CORRELATIONS]
    jobs = [(same_size, each) for same_size in by_size(heads) for each in dict.fromkeys(drawn)]
    with one_core_each() as pool:
        found = list(pool.map(lambda job: _ends(*job), jobs))
    return Ends(*(tuple(row for one in found for row in getattr(one, kind)) for kind in ("limits", "ranks_at")))


def _ends(heads: Sequence[ToyHead], sampling: Sampling) -> Ends:
    recipes = recipes_of(heads, sampling)
    wrong = [
        Limit(head.cell, latent, sampling.correlation, sampling.n, method, _error_of(head, latent, conditions, method))
        for head, conditions in zip(heads, recipes.conditions(1), strict=True)
        for latent in LATENTS
        for method in PROJECTING
    ]
    uncorrelated = [] if sampling.correlation else list(enumerate(heads))
    return Ends(
        tuple(wrong), tuple(row for i, head in uncorrelated for row in _ranks(head.cell, sampling.n, recipes, i))
    )


def _error_of(head: ToyHead, latent: Latent, conditions: Conditions, method: str) -> float:
    at = conditions.names.index(feature_condition(method, latent))
    return projector_error(head, latent, conditions.subspace(at).projector)


def projector_error(head: ToyHead, latent: Latent, projector: Float64[Tensor, "d_head d_head"]) -> float:
    """How wrong the logits are that a projector moves."""
    keys = {name: true_keys(head, name) for name in LATENTS}
    queries = torch.cat([true_queries(head, name) for name in LATENTS], 1).mT
    wrong = [projector @ key - (key if name == latent else 0) for name, key in keys.items()]
    return float((queries @ torch.cat(wrong, 1)).norm() / (queries @ keys[latent]).norm())


def _ranks(cell: Cell, n: int, recipes: Recipes, number: int) -> list[RankAt]:
    rows = []
    for latent, true in zip(LATENTS, cell.task.ranks, strict=True):
        ours, paper = (found[latent, Head(0, number)] for found in (recipes.ours, recipes.paper))
        found = {("energy", e): energy_rank(paper.spectrum.raw[None], e) for e in ENERGIES}
        found |= {("balanced", e): energy_rank(ours.spectrum.balanced[None], e) for e in ENERGIES}
        found |= {("heldout", t): _run(ours, t) for t in THRESHOLDS}
        rows += [RankAt(cell, latent, n, *key, true, int(rank)) for key, rank in found.items()]
    return rows


def _run(feature: Feature, threshold: float) -> Tensor:
    return leading_run(feature.spectrum.t[None], threshold)


def by_size(heads: Sequence[ToyHead]) -> list[list[ToyHead]]:
    """Heads of one d_head together."""
    return [[h for h in heads if h.cell.d_head == size] for size in sorted({h.cell.d_head for h in heads})]
