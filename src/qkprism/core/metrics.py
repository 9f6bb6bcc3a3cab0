"""Metrics of a head's key space, in which directions, ranks and projectors are taken (GAUGE.md).

A head computes only q.k, so a basis change q -> A^T q, k -> A^-1 k changes nothing about the model. A metric S that
moves as S -> A^-1 S A^-T gives results that do not change either: with S = R R^T, R^T C R^-T only turns.

    raw        identity: the paper's choice, which depends on the basis
    contrast   M0 = mean_f S_f / size(S_f),  M1 = M0 + 1e-4 size(M0) Sigma_k
               M = M1 + 0.5 N / (tr(M1^-1 N) / d)      where label cells have noise in every direction
               M = M1 raised to at least tr(T^-1 M0) / (d F) T in every direction, where they have none (F contrasts)
    balanced   S Sigma_q S = Sigma_k: the best coordinates to truncate logits in; never for projectors

S_f = E[d d^T] of contrast f, Sigma_k the covariance of marked keys within their example, N within label cells, T over
all examples, size(X) = tr(Sigma_k^-1 X) / d. Why N or T: a factor that no contrast names and that is the same in all
keys of an example is in no difference, so M0 is nearly zero along it and its inverse blows up what a swap meets of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from qkprism.core.moments import Moments
from qkprism.errors import QKPrismError

CONDITIONING = 1e-4
CELL_LOADING = 0.5
SINGULAR = 1e-12
NOTHING = 1e-10  # the size of differences, and of noise within cells, that are rounding only

Matrix = Float64[Tensor, "*batch d_head d_head"]


class UnspannedError(QKPrismError):
    """Keys that do not span their space have no contrast metric."""


@dataclass(frozen=True)
class MetricRoot:
    """A metric M = R R^T by a factor R and its inverse: any factor will do, they differ by a rotation."""

    root: Matrix
    inverse: Matrix

    def whiten(self, covariance: Matrix) -> Matrix:
        """R^T C R^-T: C in coordinates in which the metric is the identity."""
        return self.root.mT @ covariance @ self.inverse.mT

    @property
    def dual(self) -> MetricRoot:
        """The factor of the metric in query space."""
        return MetricRoot(self.inverse.mT, self.root.mT)

    def pick(self, index: list[int]) -> MetricRoot:
        """The factors of some of a batch of metrics."""
        return MetricRoot(self.root[index], self.inverse[index])


def factor(metric: Matrix) -> MetricRoot:
    """The Cholesky factor of a metric."""
    root = torch.linalg.cholesky(metric)
    eye = torch.eye(metric.shape[-1], dtype=metric.dtype, device=metric.device)
    return MetricRoot(root, torch.linalg.solve_triangular(root, eye.expand_as(metric), upper=False))


def identity_like(matrix: Matrix) -> Matrix:
    """The raw metric."""
    return torch.eye(matrix.shape[-1], dtype=torch.float64, device=matrix.device).expand_as(matrix).contiguous()


def is_singular(covariance: Matrix) -> Bool[Tensor, "*batch"]:
    """Whether some direction of a covariance has no variance at all, up to rounding."""
    values = torch.linalg.eigvalsh(covariance)
    return values[..., 0] <= SINGULAR * values[..., -1]


def key_covariance(moments: Sequence[Moments]) -> Float64[Tensor, "kv_head d_head d_head"]:
    """Sigma_k: covariance of the marked keys within their example, pooled over contrasts."""
    total = torch.stack([m.key_within for m in moments]).sum(0)
    return total / torch.stack([m.weight.sum() for m in moments]).sum()


def total_covariance(moments: Sequence[Moments]) -> Float64[Tensor, "kv_head d_head d_head"]:
    """T: covariance of the marked keys over all examples of all contrasts."""
    weight = torch.stack([m.weight.sum() for m in moments]).sum()
    mean = torch.stack([m.key_mean for m in moments]).sum(0) / weight
    square = torch.stack([m.key_mean_square for m in moments]).sum(0) / weight
    return key_covariance(moments) + square - mean[:, :, None] * mean[:, None, :]


def cell_covariance(moments: Sequence[Moments]) -> Float64[Tensor, "kv_head d_head d_head"]:
    """N: scatter of marked keys within label cells, up to a factor; zero where no cell has two keys."""
    scatter = torch.zeros_like(moments[0].cell_square)
    for m in moments:
        filled = m.cell_weight > 0
        scaled = m.cell_sum[filled] / m.cell_weight[filled].sqrt()[:, None, None]
        scatter = scatter + m.cell_square - torch.einsum("ckd,cke->kde", scaled, scaled)
    weight = torch.stack([m.weight.sum() for m in moments]).sum()
    return (scatter + scatter.mT) / 2 / weight


def uncovered_share(
    moments: Sequence[Moments], queries: Float64[Tensor, "head d_head d_head"]
) -> Float64[Tensor, " head"]:
    """How much of the logit variance over keys of all examples lies where the keys of one example do not differ.

        C = sum_f T^-1/2 W_f T^-1/2,   share = tr(Sigma_q T^1/2 (1 - C)_+ T^1/2) / tr(Sigma_q T)

    W_f is the covariance of keys within the examples of contrast f, free of the bias of small examples. It does not
    depend on the basis; NaN where marked keys do not span the key space.
    """
    kv, total = list(moments[0].kv_index), total_covariance(moments)
    unknown = is_singular(total)
    root = factor(torch.where(unknown[:, None, None], identity_like(total), total))
    within = torch.stack([m.key_within / m.key_freedom.clamp(min=NOTHING) for m in moments]).sum(0)
    values, vectors = torch.linalg.eigh(root.inverse @ within @ root.inverse.mT)
    outside = root.root @ (vectors * (1 - values).clamp(min=0)[:, None, :]) @ vectors.mT @ root.root.mT
    share = (queries * outside[kv]).sum((1, 2)) / (queries * total[kv]).sum((1, 2))
    return share.masked_fill(unknown[kv], torch.nan)


def difference_square(moments: Moments) -> Float64[Tensor, "kv_head d_head d_head"]:
    """S_f = E[d d^T], never centred."""
    return moments.difference_square / moments.weight.sum()


def contrast_metric(
    differences: Sequence[Matrix], within: Matrix, cells: Matrix, total: Matrix
) -> tuple[Float64[Tensor, "*batch d_head d_head"], Float64[Tensor, "*batch d_head d_head"]]:
    """The contrast metric of contrasts that are decomposed together, and what it is before T comes in.

    The second is differences of all contrasts and noise, by which `own` is measured; T has the signal in it.
    """
    if bool(is_singular(within).any()):
        raise UnspannedError(
            "The marked keys do not span the head's key space (too few examples, or too few words in the first layer), "
            "so the contrast metric is not defined. Give more, leave the head out, or use metric='raw'."
        )
    shares = contrast_shares(differences, within)
    pooled = torch.stack(shares).sum(0)
    pooled = torch.where((pooled == 0).all(-1, keepdim=True).all(-2, keepdim=True), within, pooled)
    metric = pooled + CONDITIONING * _size(within, pooled) * within
    noisy = cells_have_noise(cells, total)[..., None, None]
    size = torch.where(noisy, _size(metric, cells), 1.0)
    unraised = metric + torch.where(noisy, CELL_LOADING * cells / size, 0.0)
    metric = _raised(unraised, total, _size(total, pooled) / len(differences))
    return (metric + metric.mT) / 2, (unraised + unraised.mT) / 2


def _raised(metric: Matrix, total: Matrix, least: Float64[Tensor, "*batch 1 1"]) -> Matrix:
    """The metric with at least this multiple of the total covariance along each of their common eigenvectors.

    A direction in which contrasts differ as much as they do on average over F contrasts stays as it is, so that the
    metric changes only where contrasts say nothing (benchmarks/loading.py compares it with adding a multiple of T).
    """
    of_total = factor(total)
    values, vectors = torch.linalg.eigh(of_total.inverse @ metric @ of_total.inverse.mT)
    raised = torch.maximum(values[..., None, :], least)
    return of_total.root @ (vectors * raised) @ vectors.mT @ of_total.root.mT


def cells_have_noise(cells: Matrix, total: Matrix) -> Bool[Tensor, "*batch"]:
    """Whether keys of one label cell differ by more than rounding, in every direction of each key head.

    In early layers keys whose labels name their token are identical: scaled up, rounding would be half the metric.
    """
    root = factor(total).inverse
    return torch.linalg.eigvalsh(root @ cells @ root.mT)[..., 0] > NOTHING


def contrast_shares(differences: Sequence[Matrix], within: Matrix) -> list[Float64[Tensor, "*batch d_head d_head"]]:
    """What each contrast adds to the metric: S_f / size(S_f) over the number of contrasts whose keys differ at all.

    In the first layer keys know nothing of other tokens, so a contrast can leave them as they are.
    """
    squares = torch.stack(list(differences))
    sizes = torch.stack([_size(within, square) for square in differences])
    differ = sizes > NOTHING
    return list(torch.where(differ, squares / sizes.clamp(min=NOTHING), 0.0) / differ.sum(0).clamp(min=1))


def _size(metric: Matrix, matrix: Matrix) -> Float64[Tensor, "*batch 1 1"]:
    """tr(metric^-1 matrix) / d: a size that does not depend on the basis."""
    ratio = torch.linalg.solve(metric, matrix).diagonal(dim1=-2, dim2=-1).mean(-1)
    return ratio[..., None, None]


def balanced_factor(queries: Matrix, within: Matrix) -> MetricRoot:
    """The metric S with S Sigma_q S = Sigma_k; NaN for a head of which a covariance is singular.

    With Sigma_q = L L^T, Sigma_k = K K^T and the SVD L^T K = U s V^T, the factor is R = K V s^-1/2 and its inverse
    s^-1/2 U^T L^T (the square-root method of balanced truncation, which never squares a condition number).
    """
    none = (is_singular(queries) | is_singular(within))[..., None, None]
    eye = identity_like(queries)
    of_queries = torch.linalg.cholesky(torch.where(none, eye, queries))
    of_keys = torch.linalg.cholesky(torch.where(none, eye, within))
    left, values, right = torch.linalg.svd(of_queries.mT @ of_keys)
    scale = values[..., None, :].rsqrt().masked_fill(none, torch.nan)
    return MetricRoot((of_keys @ right.mT) * scale, scale.mT * (left.mT @ of_queries.mT))
