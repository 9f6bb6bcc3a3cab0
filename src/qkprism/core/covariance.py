"""The one estimator of the contrastive covariance dC = C+ - C- (paper, section 3), from moments.

    E[q d^T] = q_mean d_mean^T + E[(q - q_mean) d^T]

The mean part is salience: the head likes such keys whatever the query says. The centred part is match: query and key
agree on a value. Each is taken over all folds or over some of them.
"""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.core.moments import Moments


def contrastive_covariance(
    moments: Moments, folds: Tensor | None, *, centred: bool
) -> Float64[Tensor, "head d_head d_head"]:
    """dC over some folds (None: all), centred with the means of those folds."""
    if folds is None:
        product, folds = moments.product, every_fold(moments)
    else:
        product = moments.fold_product[folds].double().sum(0)
    weight = moments.weight[folds].sum()
    return product / weight - (mean_part(moments, folds) if centred else 0.0)


def is_centred(center: str, moments: Moments) -> bool:
    """Whether dC is centred; a double difference is not centred again."""
    return center == "query" and moments.reading != "symmetric"


def mean_part(moments: Moments, folds: Tensor) -> Float64[Tensor, "head d_head d_head"]:
    """The part of dC that the mean query and the mean difference make: salience."""
    query, difference = fold_means(moments, folds)
    return torch.einsum("shi,shj->hij", query, difference[:, list(moments.kv_index)])


def fold_means(moments: Moments, folds: Tensor) -> tuple[Tensor, Tensor]:
    """The mean query and the mean difference of each slot over some folds."""
    weight = moments.weight[folds].sum()
    return moments.query[:, folds].sum(1) / weight, moments.difference[:, folds].sum(1) / weight


def every_fold(moments: Moments) -> Tensor:
    """The index of all folds."""
    return torch.arange(len(moments.weight), device=moments.weight.device)


def query_square(moments: Moments) -> Float64[Tensor, "head d_head d_head"]:
    """Sigma_q = E[q q^T] over the queries as the model has them, never centred."""
    return moments.query_square / moments.weight.sum()


def flipped_covariances(moments: Moments, *, centred: bool) -> Float64[Tensor, "flip head d_head d_head"]:
    """dC with a random sign on each example: the same vectors, no agreement of queries and differences.

    Centred on both sides, sum e (q - q_mean)(d - d_mean)^T: with signs, centring the query alone leaves noise along
    d_mean that the real dC does not have.
    """
    weight, kv = moments.weight.sum(), list(moments.kv_index)
    flipped = moments.flip_product.double() / weight
    if not centred:
        return flipped
    query, difference = fold_means(moments, every_fold(moments))
    of_query, of_difference = moments.flip_query / weight, moments.flip_difference[:, :, kv] / weight
    flipped = flipped - torch.einsum("shi,fshj->fhij", query, of_difference)
    flipped = flipped - torch.einsum("fshi,shj->fhij", of_query, difference[:, kv])
    return flipped + (moments.flip_weight / weight)[:, None, None, None] * mean_part(moments, every_fold(moments))


def shuffled_covariances(moments: Moments, *, centred: bool) -> Float64[Tensor, "shuffle head d_head d_head"]:
    """dC with the sides of each example dealt anew among its marked keys: the permuted-label null."""
    weight, kv = moments.weight.sum(), list(moments.kv_index)
    shuffled = moments.shuffle_product.double() / weight
    if not centred:
        return shuffled
    query, _ = fold_means(moments, every_fold(moments))
    return shuffled - torch.einsum("shi,fshj->fhij", query, moments.shuffle_difference[:, :, kv] / weight)
