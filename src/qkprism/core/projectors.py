"""Subspaces of a head's key or query space with the projectors on them: what an edit moves and an attribution counts.

    one feature       P_f = R V_r V_r^T R^-1                                                      (GAUGE.md)
    several at once   J = [V_1 V_2 ...], G = pinv(J), P_f = R J_f G_f R^-1: oblique, P_f P_g = 0
    their joint span  P = R W W^T R^-1, W an orthonormal basis of J

V are the whitened key directions of each feature, M = R R^T the metric they share. P acts on keys and P^T on queries.
In query space the same holds with the whitened query directions and R^-T in the place of R.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.core.feature import Feature
from qkprism.core.metrics import MetricRoot, factor
from qkprism.errors import QKPrismError
from qkprism.heads import Head

DEPENDENT = 1e-8
STRETCHED = 10.0  # from here on a projector is told as badly conditioned (docs/toy.md has what it was chosen from)

Columns = Float64[Tensor, "d_head _"]  # of any rank, each its own


@dataclass(frozen=True)
class Subspace:
    """A subspace and the projector on it, P = basis @ dual, by its factors: dual @ basis = 1."""

    basis: Float64[Tensor, "d_head rank"]
    dual: Float64[Tensor, "rank d_head"]

    @property
    def rank(self) -> int:
        return self.basis.shape[1]

    @property
    def projector(self) -> Float64[Tensor, "d_head d_head"]:
        return self.basis @ self.dual

    @property
    def mT(self) -> Subspace:
        """The same on the other side: P acts on keys, P^T on queries."""
        return Subspace(self.dual.mT, self.basis.mT)

    def to(self, device: torch.device) -> Subspace:
        """The same on a device."""
        return Subspace(self.basis.to(device), self.dual.to(device))

    def lead(self, direction: int) -> Float64[Tensor, " d_head"]:
        """One direction of the basis; zeros where there are fewer."""
        return self.basis[:, direction] if direction < self.rank else torch.zeros_like(self.basis[:, :1].sum(1))

    @classmethod
    def joined(cls, parts: Sequence[Subspace]) -> Subspace:
        """The sum of subspaces whose projectors annihilate each other."""
        return cls(torch.cat([part.basis for part in parts], 1), torch.cat([part.dual for part in parts]))


def orthogonal(shared: MetricRoot, columns: Columns) -> Subspace:
    """The subspace of orthonormal whitened columns, with the projector that is orthogonal in the metric."""
    return Subspace(shared.root @ columns, columns.mT @ shared.inverse)


def span(shared: MetricRoot, columns: Sequence[Columns]) -> Subspace:
    """The joint span of several subspaces: a sum of projections would count the overlap twice."""
    joint = torch.cat(list(columns), 1)
    left, values, _ = torch.linalg.svd(joint, full_matrices=False)
    kept = left[:, values > DEPENDENT * values.max()] if joint.shape[1] else left
    return orthogonal(shared, kept)


def oblique(shared: MetricRoot, columns: Sequence[Columns]) -> tuple[list[Subspace] | None, float]:
    """The subspaces with the projectors that annihilate each other, and the condition number of their directions.

    None where there are no such projectors: more directions than dimensions, or directions that depend on each other.
    """
    joint = torch.cat(list(columns), 1)
    if joint.shape[1] > joint.shape[0]:
        return None, math.inf
    values = torch.linalg.svdvals(joint)
    condition = float(values[0] / values[-1]) if len(values) else 1.0
    if len(values) and values[-1] < DEPENDENT * values[0]:
        return None, condition
    parts = torch.linalg.pinv(joint).split([column.shape[1] for column in columns])
    return [
        Subspace(shared.root @ column, rows @ shared.inverse) for column, rows in zip(columns, parts, strict=True)
    ], condition


def key_columns(feature: Feature, shared: MetricRoot) -> Columns:
    """The whitened key directions of a feature, up to its rank."""
    return shared.inverse @ feature.key_basis[:, : feature.rank]


def query_columns(feature: Feature, shared: MetricRoot) -> Columns:
    """The whitened query directions of a feature, up to its rank."""
    return shared.root.mT @ feature.query_basis[:, : feature.rank]


def shared_factor(features: Sequence[Feature]) -> MetricRoot:
    """The factor of the metric that features of one head share."""
    head, metric = features[0].head, features[0].metric
    if any(f.head != head or not torch.equal(f.metric, metric) for f in features):
        raise QKPrismError("Joint projectors need features of one head that were decomposed in one call.")
    return factor(metric)


def projector(feature: Feature) -> Float64[Tensor, "d_head d_head"]:
    """The projector of one feature on keys, orthogonal in its metric."""
    shared = factor(feature.metric)
    return orthogonal(shared, key_columns(feature, shared)).projector


@dataclass(frozen=True)
class Joint:
    """The oblique subspaces of several features of one head, with how far they are from overlapping.

    `subspaces` is None where the features have no joint projectors, and `reason` says why.
    """

    subspaces: Mapping[str, Subspace] | None
    condition: float
    reason: str = ""

    @property
    def projectors(self) -> dict[str, Float64[Tensor, "d_head d_head"]]:
        """The projectors of all features; empty where there are none."""
        return {name: one.projector for name, one in (self.subspaces or {}).items()}

    def __getitem__(self, name: str) -> Float64[Tensor, "d_head d_head"]:
        """The projector of one feature on keys, along all the others."""
        return self.subspace(name).projector

    def subspace(self, name: str) -> Subspace:
        """The subspace of one feature with its oblique projector."""
        if self.subspaces is None:
            raise QKPrismError(self.reason)
        return self.subspaces[name]


def stretch_of(projector: Float64[Tensor, "d_head d_head"]) -> float:
    """By how much a projector can lengthen a key, its condition number: 1 if it is orthogonal, 0 for no direction.

    In the head's own coordinates. It is large where what the feature is projected along is nearly the feature.
    """
    return float(torch.linalg.matrix_norm(projector, 2))


def stretch_notes(head: Head, projectors: Mapping[str, Float64[Tensor, "d_head d_head"]]) -> list[str]:
    """A note on a head in which projectors are badly conditioned."""
    every = {name: stretch_of(one) for name, one in projectors.items()}
    told = " and ".join(f"{name} {stretch:.0f} times" for name, stretch in every.items() if stretch > STRETCHED)
    if not told:
        return []
    return [
        f"{head}: joint projectors can lengthen a key ({told} at most; from {STRETCHED:g} on they are badly "
        "conditioned). What all keys of a row share is hardly known in parts of logits there: compare keys of one row."
    ]


def joint_projectors(features: Sequence[Feature], *, queries: bool = False) -> Joint:
    """The joint oblique projectors of several features of the same head and metric, on keys or on queries."""
    shared, head = shared_factor(features), features[0].head
    if queries:
        found, condition = oblique(shared.dual, [query_columns(f, shared) for f in features])
    else:
        found, condition = oblique(shared, [key_columns(f, shared) for f in features])
    if found is not None:
        return Joint({f.contrast: one for f, one in zip(features, found, strict=True)}, condition)
    if math.isinf(condition):
        ranks = " + ".join(str(f.rank) for f in features)
        why = f"ranks {ranks} exceed d_head {features[0].d_head}"
    else:
        why = "its features' directions depend on each other"
    return Joint(None, condition, f"{head} has no joint projectors: {why}. Give lower ranks: features.with_rank(...).")


def span_projector(features: Sequence[Feature]) -> Float64[Tensor, "d_head d_head"]:
    """The projector on keys onto the joint span of several features."""
    shared = shared_factor(features)
    return span(shared, [key_columns(f, shared) for f in features]).projector


def principal_angles(first: Feature, second: Feature, *, queries: bool = False) -> Float64[Tensor, " angle"]:
    """Angles between the key (or query) subspaces of two features in their metric, in degrees, smallest first."""
    shared = shared_factor([first, second])
    bases = [(query_columns if queries else key_columns)(f, shared) for f in (first, second)]
    return torch.rad2deg(torch.linalg.svdvals(bases[0].mT @ bases[1]).clamp(max=1).acos())


def overlap(first: Feature, second: Feature, *, queries: bool = False) -> float:
    """The mean squared cosine of the principal angles of two features, in their metric: 1 is one inside the other."""
    angles = principal_angles(first, second, queries=queries)
    return float(torch.cos(torch.deg2rad(angles)).square().mean()) if len(angles) else math.nan
