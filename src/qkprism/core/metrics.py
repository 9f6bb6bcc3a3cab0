"""Metrics of a head's key space, in which directions, ranks and projectors are taken (GAUGE.md).

A head computes only q.k, so a basis change q -> A^T q, k -> A^-1 k changes nothing about the model. A metric S that
moves as S -> A^-1 S A^-T gives results that do not change either: with S = R R^T, R^T C R^-T only turns.

    raw        identity: the paper's choice, which depends on the basis
    contrast   M0 = mean_f S_f / size(S_f),  M1 = M0 + 1e-4 size(M0) Sigma_k,  M = M1 + 0.5 N / (tr(M1^-1 N) / d)
    balanced   S Sigma_q S = Sigma_k: the best coordinates to truncate logits in; never for projectors

S_f = E[d d^T] of contrast f, Sigma_k the covariance of marked keys within their example, N within label cells,
size(X) = tr(Sigma_k^-1 X) / d.
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
NOTHING = 1e-10  # the size of differences that are rounding only

Matrix = Float64[Tensor, "*batch d_head d_head"]


@dataclass(frozen=True)
class Factor:
    """A metric M = R R^T by a factor R and its inverse: any factor will do, they differ by a rotation."""

    root: Matrix
    inverse: Matrix

    def whiten(self, covariance: Matrix) -> Matrix:
        """R^T C R^-T: C in coordinates in which the metric is the identity."""
        return self.root.mT @ covariance @ self.inverse.mT

    @property
    def dual(self) -> Factor:
        """The factor of the metric in query space."""
        return Factor(self.inverse.mT, self.root.mT)

    def pick(self, index: list[int]) -> Factor:
        """The factors of some of a batch of metrics."""
        return Factor(self.root[index], self.inverse[index])


def factor(metric: Matrix) -> Factor:
    """The Cholesky factor of a metric."""
    root = torch.linalg.cholesky(metric)
    eye = torch.eye(metric.shape[-1], dtype=metric.dtype, device=metric.device)
    return Factor(root, torch.linalg.solve_triangular(root, eye.expand_as(metric), upper=False))


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


def cell_covariance(moments: Sequence[Moments]) -> Float64[Tensor, "kv_head d_head d_head"] | None:
    """N: scatter of marked keys within label cells, up to a factor; None where no cell has two keys."""
    scatter = None
    for m in moments:
        filled = m.cell_weight > 0
        if not bool(filled.any()):
            continue
        scaled = m.cell_sum[filled] / m.cell_weight[filled].sqrt()[:, None, None]
        own = m.cell_square - torch.einsum("ckd,cke->kde", scaled, scaled)
        scatter = own if scatter is None else scatter + own
    return None if scatter is None else (scatter + scatter.mT) / 2


def difference_square(moments: Moments) -> Float64[Tensor, "kv_head d_head d_head"]:
    """S_f = E[d d^T], never centred."""
    return moments.difference_square / moments.weight.sum()


def contrast_metric(
    differences: Sequence[Matrix], within: Matrix, cells: Matrix | None
) -> Float64[Tensor, "*batch d_head d_head"]:
    """The contrast metric of contrasts that are decomposed together."""
    if len(differences) < 2:
        raise QKPrismError(
            "The contrast metric needs two or more contrasts: with one there is nothing to be orthogonal to. "
            "Use metric='raw', or decompose several contrasts in one call."
        )
    if bool(is_singular(within).any()):
        raise QKPrismError(
            "The marked keys do not span the head's key space (too few examples), so the contrast metric is not "
            "defined. Give more examples, or use metric='raw'."
        )
    shares = contrast_shares(differences, within)
    pooled = torch.stack(shares).sum(0)
    pooled = torch.where((pooled == 0).all(-1, keepdim=True).all(-2, keepdim=True), within, pooled)
    metric = pooled + CONDITIONING * _size(within, pooled) * within
    if cells is not None and bool((cells.diagonal(dim1=-2, dim2=-1).sum(-1) > 0).all()):
        metric = metric + CELL_LOADING * cells / _size(metric, cells)
    return (metric + metric.mT) / 2


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


def balanced_factor(queries: Matrix, within: Matrix) -> Factor:
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
    return Factor((of_keys @ right.mT) * scale, scale.mT * (left.mT @ of_queries.mT))
