"""Projectors on the features of a head: what an edit moves and what an attribution counts (GAUGE.md).

    one feature       P_f = R V_r V_r^T R^-1
    several at once   J = [V_1 V_2 ...], G = pinv(J), P_f = R J_f G_f R^-1: oblique, P_f P_g = 0

P acts on keys, P^T on queries. V are the whitened key directions of each feature, M = R R^T
the metric they share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.core.features import Feature
from qkprism.core.metrics import factor
from qkprism.errors import QKPrismError

DEPENDENT = 1e-8


def projector(feature: Feature) -> Float64[Tensor, "d_head d_head"]:
    """The projector of one feature on keys, orthogonal in its metric."""
    basis = feature.key_basis[:, : feature.rank]
    return basis @ torch.linalg.solve(feature.metric, basis).mT


@dataclass(frozen=True)
class Joint:
    """The oblique projectors of several features of one head, with how far they are from overlapping.

    `projectors` is None where the features have no joint projectors, and `reason` says why.
    """

    projectors: Mapping[str, Float64[Tensor, "d_head d_head"]] | None
    condition: float
    reason: str = ""

    def __getitem__(self, name: str) -> Float64[Tensor, "d_head d_head"]:
        if self.projectors is None:
            raise QKPrismError(self.reason)
        return self.projectors[name]


def joint_projectors(features: Sequence[Feature]) -> Joint:
    """The joint oblique projectors of several features of the same head and metric."""
    head, metric = features[0].head, features[0].metric
    if any(f.head != head or not torch.equal(f.metric, metric) for f in features):
        raise QKPrismError("Joint projectors need features of one head that were decomposed in one call.")
    shared, d_head = factor(metric), features[0].d_head
    columns = [shared.inverse @ f.key_basis[:, : f.rank] for f in features]
    joint = torch.cat(columns, 1)
    if joint.shape[1] > d_head:
        ranks = " + ".join(str(f.rank) for f in features)
        return Joint(None, math.inf, f"{head} has no joint projectors: ranks {ranks} exceed d_head {d_head}.")
    values = torch.linalg.svdvals(joint)
    condition = float(values[0] / values[-1]) if len(values) else 1.0
    if len(values) and values[-1] < DEPENDENT * values[0]:
        return Joint(None, condition, f"{head} has no joint projectors: its features' directions depend on each other.")
    inverse = torch.linalg.pinv(joint)
    found, at = {}, 0
    for feature, own in zip(features, columns, strict=True):
        rows = inverse[at : at + own.shape[1]]
        found[feature.contrast] = shared.root @ own @ rows @ shared.inverse
        at += own.shape[1]
    return Joint(found, condition)


def span_projector(features: Sequence[Feature]) -> Float64[Tensor, "d_head d_head"]:
    """The projector on the joint span: a sum of projections would count the overlap twice."""
    shared = factor(features[0].metric)
    joint = torch.cat([shared.inverse @ f.key_basis[:, : f.rank] for f in features], 1)
    left, values, _ = torch.linalg.svd(joint, full_matrices=False)
    kept = left[:, values > DEPENDENT * values.max()] if joint.shape[1] else left
    return shared.root @ kept @ kept.mT @ shared.inverse


def principal_angles(first: Feature, second: Feature) -> Float64[Tensor, " angle"]:
    """Angles between the key subspaces of two features in their metric, in degrees, smallest first."""
    inverse = factor(first.metric).inverse
    bases = [inverse @ f.key_basis[:, : f.rank] for f in (first, second)]
    return torch.rad2deg(torch.linalg.svdvals(bases[0].mT @ bases[1]).clamp(max=1).acos())
