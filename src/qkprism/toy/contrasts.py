"""Toy heads through the library: their contrasts of z1 and z2 as moments, and from these the same features as anywhere.

    features = decompose_heads(heads)           # features["z1", "L0H3"] is that of heads[3]

Heads of one d_head are taken as the heads of one layer, each with keys of its own, so that what does not depend on the
head (folds, random signs, shuffles) is made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from qkprism.capture.sites import Site
from qkprism.capture.source import Chunk, Marks, add_chunk
from qkprism.capture.vectors import Vectors
from qkprism.core.feature import Choices
from qkprism.core.moments import Moments, assign_folds
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.results.features import Features, LayerMoments
from qkprism.toy.cells import ToyHead
from qkprism.toy.samples import LATENTS, Latent, Negatives, check_correlation, check_negatives, draw_contrast
from qkprism.toy.task import stream

_CHUNK = 512
FEWEST = 10
OURS = Choices(center="query", metric="contrast", rank="balanced")
PAPER = Choices(center="none", metric="raw", rank="energy")


@dataclass(frozen=True)
class Sampling:
    """How contrasts are drawn: how many pairs, which negatives, and how the two latents correlate."""

    n: int = 4096
    negatives: Negatives = "differs"
    correlation: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_correlation(self.correlation)
        check_negatives(self.negatives)
        if self.n < FEWEST:
            raise QKPrismError(f"n={self.n} examples are too few for a contrast. Use at least {FEWEST}.")


def contrast_vectors(head: ToyHead, latent: Latent, sampling: Sampling = Sampling()) -> Vectors:  # noqa: B008
    """Queries, positive and negative keys of one head for the contrast of one latent."""
    random = stream("contrast", latent, sampling.seed, repr(head.cell))
    samples = draw_contrast(
        head.cell.task, latent, sampling.n, random, negatives=sampling.negatives, correlation=sampling.correlation
    )
    keys = head.keys(samples)
    return Vectors(head.queries(samples), keys[:, 0], keys[:, 1])


def decompose_heads(
    heads: Sequence[ToyHead],
    sampling: Sampling = Sampling(),  # noqa: B008
    choices: Choices = OURS,
) -> Features:
    """The features of z1 and z2 in every head; heads[i] is L0Hi."""
    if len({head.cell.d_head for head in heads}) != 1:
        raise QKPrismError("Heads that are decomposed together need one d_head.")
    moments: dict[str, Moments] = {
        latent: stacked_moments([contrast_vectors(head, latent, sampling) for head in heads]) for latent in LATENTS
    }
    names = tuple(Head(0, i) for i in range(len(heads)))
    layer = LayerMoments(names, heads[0].cell.d_head ** -0.5, moments)
    return Features.from_moments({0: layer}, choices, {"contrasts": {name: {} for name in LATENTS}})


def stacked_moments(vectors: Sequence[Vectors], seed: int = 0) -> Moments:
    """The sums that `Vectors.moments` gives for each head, as those of one layer."""
    query = torch.stack([head.query for head in vectors], 1)[:, None]
    key = torch.stack([torch.stack([head.positive, head.negative], 1) for head in vectors], 2)
    d_head, numbers = query.shape[-1], range(len(vectors))
    site = Site.of([Head(0, i) for i in numbers], numbers, d_head, d_head**-0.5)
    sums: dict[int, Moments] = {}
    for rows, marks in _marks(len(query), seed):
        chunk = Chunk("", "plain", 0, 0, marks, lambda _, rows=rows: (query[rows], key[rows]))  # type: ignore[misc]
        add_chunk(sums, chunk, {0: site}, seed)
    return sums[0]


@lru_cache(maxsize=8)
def _marks(n: int, seed: int) -> tuple[tuple[slice, Marks], ...]:
    """The marks of every chunk of n pairs: the same in all heads, so that their plan is made once."""
    fold, found = torch.tensor(assign_folds(list(range(n)), seed)), []
    for at in range(0, n, _CHUNK):
        rows = slice(at, min(at + _CHUNK, n))
        size = rows.stop - at
        side, weight = torch.tensor([1, -1]).expand(size, -1), torch.ones(size)
        none = torch.full_like(side, -1)
        group = tuple(range(at, rows.stop))
        value = torch.full((*side.shape, 0), -1)
        found.append((rows, Marks(side, torch.zeros_like(side), none, weight, weight, fold[rows], group, value)))
    return tuple(found)
