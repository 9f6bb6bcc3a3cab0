"""Ranks and subspaces recovered against the true ones, a row a head and latent (paper, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.core.covariance import contrastive_covariance
from qkprism.core.feature import Feature
from qkprism.core.rank import energy_rank, leading_run
from qkprism.results.features import Features
from qkprism.toy.cells import Cell, ToyHead
from qkprism.toy.contrasts import Sampling, contrast_vectors
from qkprism.toy.samples import LATENTS, Latent
from qkprism.toy.truth import alignment, expected_covariance, overlap, true_keys, true_queries

Rule = Literal["energy", "balanced", "heldout"]
ALIGNED = 512  # pairs that are enough for a mean cosine


@dataclass(frozen=True)
class Recovery:
    """One latent of one head: its true rank, those found by each rule, and how well its subspaces were found.

    `energy` is the paper's rule (99% of the energy of the uncentred dC in raw coordinates), `balanced` and `heldout`
    are the library's. Overlaps with the true subspaces are those of the paper's singular vectors at the true rank,
    `aligned` is the mean cosine of queries and positive keys there, and `error` that of the sampled dC relative to
    its closed form (nan where latents correlate).
    """

    cell: Cell
    latent: Latent
    true: int
    energy: int
    balanced: int
    heldout: int
    key_overlap: float
    query_overlap: float
    aligned: float
    error: float

    @property
    def exact(self) -> bool:
        """Does the paper's rule find the true rank?"""
        return self.energy == self.true


def recovered(heads: Sequence[ToyHead], features: Features, sampling: Sampling) -> list[Recovery]:
    """What is recovered in each head, from features that were made of these heads in the metric `contrast`."""
    rows = []
    for latent in LATENTS:
        raw = contrastive_covariance(features.layers[0].moments[latent], None, centred=False)
        rows += [_row(head, latent, raw[i], features[latent, (0, i)], sampling) for i, head in enumerate(heads)]
    return rows


def _row(
    head: ToyHead, latent: Latent, raw: Float64[Tensor, "d_head d_head"], feature: Feature, sampling: Sampling
) -> Recovery:
    left, strengths, right = torch.linalg.svd(raw)
    task = head.cell.task
    true = task.r1 if latent == "z1" else task.r2
    queries, keys = left[:, :true], right[:true].mT
    return Recovery(
        cell=head.cell,
        latent=latent,
        true=true,
        energy=int(energy_rank(strengths, feature.choices.energy)),
        balanced=feature.with_rank("balanced").rank,
        heldout=int(leading_run(feature.spectrum.t, feature.choices.threshold)),
        key_overlap=overlap(keys, true_keys(head, latent)),
        query_overlap=overlap(queries, true_queries(head, latent)),
        aligned=alignment(queries, keys, contrast_vectors(head, latent, replace(sampling, n=ALIGNED)))[0],
        error=_error(head, latent, raw, sampling),
    )


def _error(head: ToyHead, latent: Latent, raw: Float64[Tensor, "d_head d_head"], sampling: Sampling) -> float:
    if sampling.correlation:
        return float("nan")
    truth = expected_covariance(head, latent, sampling.negatives)
    return float((raw - truth).norm() / truth.norm())
