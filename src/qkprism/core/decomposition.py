"""From moments to features: dC, its SVD in a metric, its ranks and their evidence (paper, section 3; GAUGE.md).

    M = R R^T,   R^T C R^-T = U s V^T,   key_basis = R V,   query_basis = R^-T U,   C = query_basis diag(s) key_basis^T

Everything is float64 and batched over the heads of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from qkprism.core.covariance import (
    contrastive_covariance,
    every_fold,
    flipped_covariances,
    fold_means,
    is_centred,
    mean_part,
    query_square,
    shuffled_covariances,
)
from qkprism.core.feature import CLEAR, Choices, Feature, Gap, Spectrum, read_only
from qkprism.core.metrics import (
    MetricRoot,
    balanced_factor,
    cell_covariance,
    cells_have_noise,
    contrast_metric,
    contrast_shares,
    difference_square,
    factor,
    identity_like,
    key_covariance,
    total_covariance,
    uncovered_share,
)
from qkprism.core.moments import Moments
from qkprism.core.rank import HeldOut, energy_rank, heldout_test, leading_run
from qkprism.errors import QKPrismError
from qkprism.heads import Head

ROUNDING = 1e-6  # of the size of queries times differences; activations are float32 at best
FREEDOM = 1e-9  # one example has no spread
FEW_EXAMPLES = 1.6  # a head: below about 100 examples at d_head 64 the contrast metric is noisy

MUCH = 0.2  # of the logit variance outside what the contrasts cover: enough to be told

_UNBALANCED = "queries or keys do not span the head's space (few examples, or unused dimensions): no balanced rank."
_CONSTANT = "queries or key differences are the same in all examples, up to rounding: there is nothing to match."


@dataclass(frozen=True)
class Share:
    """What one contrast adds to the metric, and what all contrasts and noise do."""

    contrast: Float64[Tensor, "head d_head d_head"]
    every: Float64[Tensor, "head d_head d_head"]


@dataclass(frozen=True)
class Space:
    """What the contrasts that are decomposed together share in one layer: metric and key covariance of each head."""

    metrics: tuple[Float64[Tensor, "d_head d_head"], ...]  # a head's is that of its key head, not a copy
    factor: MetricRoot
    within: Float64[Tensor, "head d_head d_head"]
    shares: Mapping[str, Share]  # of the contrasts in the metric; none if it is raw
    uncovered: Float64[Tensor, " head"]
    unlabelled: Bool[Tensor, " head"]  # where the contrast metric has the covariance of all keys for want of labels
    notes: tuple[str, ...]


def decompose_layer(
    moments: Mapping[str, Moments],
    heads: Sequence[Head],
    scaling: float,
    choices: Choices,
    provenance: Mapping[str, Any] | None = None,
) -> list[Feature]:
    """The features of every contrast in the given heads of one layer."""
    for name, of_contrast in moments.items():
        _check_finite(name, of_contrast, heads)
    try:
        space = shared_space(moments, choices)
    except QKPrismError as error:
        raise type(error)(f"{heads[0]} to {heads[-1]}: {error}") from error
    found = []
    for name, of_contrast in moments.items():
        found.extend(_decompose_contrast(name, of_contrast, heads, scaling, space, choices, provenance or {}))
    return found


def _check_finite(name: str, moments: Moments, heads: Sequence[Head]) -> None:
    if moments.n_examples == 0:
        raise QKPrismError(f"The contrast {name!r} has no examples.")
    broken = [str(head) for head, c in zip(heads, moments.product, strict=True) if not bool(c.isfinite().all())]
    if broken:
        raise QKPrismError(
            f"The vectors of {', '.join(broken[:3])} are not finite (NaN or infinity) in the contrast {name!r}. "
            "Check the weights, or run the model in float32."
        )


def shared_space(moments: Mapping[str, Moments], choices: Choices) -> Space:
    """The metric of one layer, from all contrasts that are decomposed together."""
    every = list(moments.values())
    kv, within = list(every[0].kv_index), key_covariance(every)
    queries = torch.stack([m.query_square for m in every]).sum(0) / sum(m.weight.sum() for m in every)
    uncovered = uncovered_share(every, queries)
    shares: dict[str, Share] = {}
    notes: list[str] = []
    unlabelled = torch.zeros(len(kv), dtype=torch.bool)
    if choices.metric == "raw":
        metric = identity_like(within)
        if choices.rank == "own":
            notes.append(
                "Raw metric: what is a contrast's own cannot be told, so features are cut by the balanced rank."
            )
    else:
        cells, total, differences = cell_covariance(every), total_covariance(every), [*map(difference_square, every)]
        metric, noise = contrast_metric(differences, within, cells, total)
        named = zip(moments, contrast_shares(differences, within), strict=True)
        shares = {name: Share(share[kv], noise[kv]) for name, share in named}
        unlabelled = ~cells_have_noise(cells, total)[kv].cpu()
        if (few := few_examples(every)) is not None:
            notes.append(few)
    roots = factor(metric).pick(kv)
    metrics = [read_only(one) for one in metric]  # once for each key head
    return Space(tuple(metrics[k] for k in kv), roots, within[kv], shares, uncovered, unlabelled, tuple(notes))


def few_examples(moments: Sequence[Moments]) -> str | None:
    """A warning if there are so few examples that the contrast metric is noisy."""
    smallest, d_head = min(m.n_effective for m in moments), moments[0].d_head
    if smallest >= FEW_EXAMPLES * d_head:
        return None
    return (
        f"Only {smallest:.0f} effective examples for d_head {d_head}: the contrast metric is noisy below about "
        f"{FEW_EXAMPLES * d_head:.0f}."
    )


def _decompose_contrast(
    name: str,
    moments: Moments,
    heads: Sequence[Head],
    scaling: float,
    space: Space,
    choices: Choices,
    provenance: Mapping[str, Any],
) -> list[Feature]:
    centred = is_centred(choices.center, moments)
    covariance, empty = _without_rounding(moments, contrastive_covariance(moments, None, centred=centred))
    left, strengths, right = torch.linalg.svd(space.factor.whiten(covariance))
    query_basis, key_basis = space.factor.inverse.mT @ left, space.factor.root @ right.mT
    sign = _signs(key_basis)
    heldout = heldout_test(moments, space.factor)
    spectra = _spectra(moments, space, covariance, strengths, right, heldout, centred=centred)
    spectra["own"] = _own(space, name, right)
    raw, balanced = (energy_rank(spectra[name], choices.energy) for name in ("raw", "balanced"))
    unbalanced = spectra["balanced"].isnan().any(1)
    run = None if heldout is None else leading_run(heldout.t, choices.threshold).masked_fill(empty, 0)
    salience = _salience_energy(moments, space)
    gaps = _gaps(moments, scaling)
    found = []
    for i, head in enumerate(heads):
        told = [f"{head}: {note}" for note, said in ((_UNBALANCED, unbalanced[i]), (_CONSTANT, empty[i])) if said]
        told += _gap_note(head, gaps[i] if gaps else None, None if run is None else int(run[i]))
        feature = Feature(
            contrast=name,
            head=head,
            query_basis=query_basis[i] * sign[i],
            strengths=strengths[i],
            key_basis=key_basis[i] * sign[i],
            metric=space.metrics[i],
            spectrum=Spectrum(**{key: value[i] for key, value in spectra.items()}),
            rank=0,
            rank_energy=int(raw[i]),
            rank_balanced=None if unbalanced[i] else int(balanced[i]),
            rank_heldout=None if run is None else int(run[i]),
            logit_gap=gaps[i] if gaps else None,
            salience_energy=float(salience[i]),
            salience_t=float("nan") if heldout is None else float(heldout.salience_t[i]),
            n=moments.n_examples,
            n_effective=moments.n_effective,
            uncovered=float(space.uncovered[i]),
            reading=moments.reading,
            choices=choices,
            notes=(*space.notes, *_notes_of(head, space, i), *told),
            provenance=provenance,
        ).with_rank(choices.rank)
        found.append(feature)
    return found


def _notes_of(head: Head, space: Space, place: int) -> list[str]:
    """What the metric of one head lacks."""
    share = float(space.uncovered[place])
    found = []
    if share > MUCH:
        found.append(
            f"{head}: {share:.0%} of the variance of its logits over keys of different examples lies in directions in "
            "which the keys of one example do not differ: something that no contrast names. Swaps leave it alone, and "
            "parts count it as residual."
        )
    if bool(space.unlabelled[place]):
        found.append(
            f"{head}: keys have no labels whose cells hold noise, so the contrast metric rests on the covariance of "
            "all marked keys where contrasts say nothing. Labels on the keys sharpen it."
        )
    return found


def _gap_note(head: Head, gap: Gap | None, held: int | None) -> list[str]:
    """What the logit gap says where the held-out test finds no rank."""
    if held != 0 or gap is None or not gap.error > 0 or abs(gap.total) <= CLEAR * gap.error:
        return []
    side = "positive" if gap.total > 0 else "negative"
    return [
        f"{head}: no direction holds by itself, but the head does prefer the {side} keys, by {gap.total:+.2f} ± "
        f"{gap.error:.2f} logits. Believe the gap: it is what the head does. The test asks whether the strongest "
        "direction alone can be told from chance; a preference that is spread over many, or that is salience, cannot."
    ]


def _without_rounding(moments: Moments, covariance: Tensor) -> tuple[Tensor, Bool[Tensor, " head"]]:
    """dC with zero where it is only rounding: a query that is the same in all examples leaves nothing to match."""
    queries = query_square(moments).diagonal(dim1=1, dim2=2).sum(-1)
    keys = difference_square(moments).diagonal(dim1=1, dim2=2).sum(-1)[list(moments.kv_index)]
    empty = covariance.flatten(1).norm(dim=1) <= ROUNDING * (queries * keys).sqrt()
    return covariance.masked_fill(empty[:, None, None], 0.0), empty


def _signs(key_basis: Float64[Tensor, "head d_head d_head"]) -> Float64[Tensor, "head 1 d_head"]:
    """Signs that make the largest entry of each key direction positive, so that results are deterministic."""
    largest = key_basis.abs().argmax(1, keepdim=True)
    return torch.where(key_basis.gather(1, largest) < 0, -1.0, 1.0).double()


def _spectra(
    moments: Moments,
    space: Space,
    covariance: Tensor,
    strengths: Tensor,
    right: Tensor,
    heldout: HeldOut | None,
    *,
    centred: bool,
) -> dict[str, Float64[Tensor, "head d_head"]]:
    flips = torch.linalg.svdvals(space.factor.whiten(flipped_covariances(moments, centred=centred)))
    shuffles = torch.linalg.svdvals(space.factor.whiten(shuffled_covariances(moments, centred=centred)))
    queries = query_square(moments)
    missing = torch.full_like(strengths, torch.nan)
    balanced = balanced_factor(queries, space.within).whiten(covariance)
    balanced_heads = ~balanced.isnan().any(-1).any(-1)
    balanced_strengths = missing.clone()
    balanced_strengths[balanced_heads] = torch.linalg.svdvals(balanced[balanced_heads])
    return {
        "strength": strengths,
        "raw": torch.linalg.svdvals(covariance),
        "balanced": balanced_strengths,
        "null_mean": flips.mean(0),
        "null_high": flips.amax(0),
        "shuffled_mean": shuffles.mean(0),
        "shuffled_high": shuffles.amax(0),
        "t": missing if heldout is None else heldout.t,
        "query_agreement": missing if heldout is None else heldout.query_agreement,
        "key_agreement": missing if heldout is None else heldout.key_agreement,
        "explained": _explained(queries, space, right),
        "ceiling": _ceiling(queries, space.within),
    }


def _own(space: Space, contrast: str, right: Tensor) -> Float64[Tensor, "head d_head"]:
    """How much of what keys differ by along each direction is the contrast's differences, beside others and noise."""
    if contrast not in space.shares:
        return torch.full(right.shape[:-1], torch.nan, dtype=right.dtype, device=right.device)
    dual = right @ space.factor.inverse
    share = space.shares[contrast]
    part, whole = (torch.einsum("hia,hab,hib->hi", dual, form, dual) for form in (share.contrast, share.every))
    return part / whole


def _explained(queries: Tensor, space: Space, right: Tensor) -> Float64[Tensor, "head d_head"]:
    """1 - E[(q^T (I - P_r) k)^2] / E[(q^T k)^2] for q and k drawn independently, P_r on the first r directions.

    In the whitened basis of the directions what is left is the sum of Q * K over the trailing block.
    """
    q = right @ space.factor.root.mT @ queries @ space.factor.root @ right.mT
    k = right @ space.factor.inverse @ space.within @ space.factor.inverse.mT @ right.mT
    trailing = (q * k).flip((-1, -2)).cumsum(-1).cumsum(-2).diagonal(dim1=-2, dim2=-1).flip(-1)
    total = trailing[..., :1]
    left_over = torch.cat([trailing[..., 1:], torch.zeros_like(total)], -1)
    return 1 - left_over / total


def _ceiling(queries: Tensor, within: Tensor) -> Float64[Tensor, "head d_head"]:
    """The most that any r directions explain: the leading eigenvalues of Sigma_q Sigma_k (balanced truncation)."""
    values, vectors = torch.linalg.eigh(queries)
    root = vectors * values.clamp(min=0).sqrt()[..., None, :]
    values = torch.linalg.eigvalsh(root.mT @ within @ root).flip(-1).clamp(min=0)
    return values.cumsum(-1) / values.sum(-1, keepdim=True)


def _salience_energy(moments: Moments, space: Space) -> Float64[Tensor, " head"]:
    """|mean part|^2 / (|mean part|^2 + |centred part|^2) in the feature's metric."""
    folds = every_fold(moments)
    mean = space.factor.whiten(mean_part(moments, folds)).square().sum((1, 2))
    centred = space.factor.whiten(contrastive_covariance(moments, None, centred=True)).square().sum((1, 2))
    return mean / (mean + centred)


def _gaps(moments: Moments, scaling: float) -> list[Gap] | None:
    """tr dC in the model's logits with its standard error over examples; the matched reading has no gap in a prompt.

    Examples of one group count as copies of each other.
    """
    if moments.reading == "matched":
        return None
    weight = moments.weight.sum()
    total = moments.product.diagonal(dim1=1, dim2=2).sum(-1) / weight * scaling
    query, difference = fold_means(moments, every_fold(moments))
    salience = torch.einsum("shd,shd->h", query, difference[:, list(moments.kv_index)]) * scaling
    variance = (moments.gap_square / weight * scaling**2 - total.square()).clamp(min=0)
    freedom = moments.n_independent - 1
    error = (variance / freedom).sqrt() if freedom > FREEDOM else torch.full_like(total, torch.nan)
    return [
        Gap(float(total[i]), float(error[i]), float(total[i] - salience[i]), float(salience[i]))
        for i in range(len(total))
    ]
