"""The conditional edit: exchange a factor between two keys where factors do not add up (GAUGE.md, "When factors
interact").

A label L modulates: at its values v other features g are more or less strong. Keys are standardised within their value,
exchanged, and put back; a and b are the values of the original and of the target.

    gamma_v     amplitude of g at v:  gamma_v^2 = tr[(G S G^T)^-1 G S_v G^T] / r,   P_g = B G,   S = mean_v S_v
    A_v         1 + sum_g (gamma_v - 1) P_g,   z = A_v^-1 (k - m_v)
    exchange    z_o' = z_o + F (z_t - z_o),  z_t' = z_t - F (z_t - z_o),  put back at its own value, or at the other's
                if L is exchanged:  k_o' = m_b + A_b z_o'
    F           S_f C^-1 with eigenvalues in [0, 1]:  S_f = E[A_v^-1 d d^T A_v^-T] over f's twins of one value v,
                C = 2 mean_v A_v^-1 S_v A_v^-T
    W           P_V + F (1 - P_V): F for attribution, which does not shrink what lies along f's key directions V

All of it moves with the basis, so logits do not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from qkprism.core.metrics import factor
from qkprism.core.projectors import Subspace

Matrix = Float64[Tensor, "d_head d_head"]
Keys = Float[Tensor, "*row d_head"]
UNKNOWN = -1
CONDITIONING = 1e-6  # of the covariance of all keys


@dataclass(frozen=True)
class KeysByValue:
    """Mean and covariance of the keys of each value of a label, in one key head."""

    weight: Float64[Tensor, " value"]
    mean: Float64[Tensor, "value d_head"]
    covariance: Float64[Tensor, "value d_head d_head"]

    @classmethod
    def of(cls, weight: Tensor, total: Tensor, square: Tensor) -> KeysByValue:
        """From sums."""
        mean = total / weight[:, None]
        covariance = square.double() / weight[:, None, None] - mean[:, :, None] * mean[:, None, :]
        share = (weight / weight.sum())[:, None]
        apart = (mean - (share * mean).sum(0)) * share.sqrt()
        every = (share[..., None] * covariance).sum(0) + apart.mT @ apart
        covariance = covariance + CONDITIONING * every  # keys of one value need not differ in every direction
        return cls(weight, mean, (covariance + covariance.mT) / 2)


@dataclass(frozen=True)
class Twins:
    """E[d d^T] of a contrast's twins that share a value, for every value, with their weights."""

    weight: Float64[Tensor, " value"]
    square: Float64[Tensor, "value d_head d_head"]


def amplitudes(covariance: Float64[Tensor, "value d_head d_head"], space: Subspace) -> Float64[Tensor, " value"]:
    """gamma_v of a feature: how strong it is at each value beside its mean over values; 1 if it has no direction."""
    if space.rank == 0:
        return torch.ones(len(covariance), dtype=torch.float64)
    within = space.dual @ covariance @ space.dual.mT
    ratio = torch.linalg.solve(within.mean(0), within).diagonal(dim1=-2, dim2=-1).mean(-1)
    return ratio.clamp(min=0).sqrt()


@dataclass(frozen=True)
class Standard:
    """How keys of one head are standardised within the values of the label that modulates."""

    mean: Float64[Tensor, "value d_head"]
    scale: Float64[Tensor, "value d_head d_head"]
    inverse: Float64[Tensor, "value d_head d_head"]
    precision: Matrix

    @classmethod
    def of(
        cls, keys: KeysByValue, spaces: Mapping[str, Subspace], gammas: Mapping[str, Float64[Tensor, " value"]]
    ) -> Standard:
        """From the amplitudes of features whose projectors annihilate each other."""
        eye = torch.eye(keys.mean.shape[-1], dtype=torch.float64)
        scale, inverse = eye.repeat(len(keys.mean), 1, 1), eye.repeat(len(keys.mean), 1, 1)
        for name, gamma in gammas.items():
            projector = spaces[name].projector
            scale += (gamma - 1)[:, None, None] * projector
            inverse += (1 / gamma - 1)[:, None, None] * projector
        return cls(keys.mean, scale, inverse, torch.linalg.inv(keys.covariance.mean(0)))

    def known(self, key: Keys, value: Int[Tensor, " *row"]) -> Int[Tensor, " *row"]:
        """The values of keys; where one is not known that of the nearest mean."""
        apart = key.double()[..., None, :] - self.mean
        distance = torch.einsum("...d,de,...e->...", apart, self.precision, apart)
        return torch.where(value == UNKNOWN, distance.argmin(-1), value)

    def standardise(self, key: Keys, value: Int[Tensor, " *row"]) -> Float64[Tensor, "*row d_head"]:
        """z = A_v^-1 (k - m_v)."""
        return _apply(self.inverse[value], key.double() - self.mean[value])

    def put_back(self, z: Keys, value: Int[Tensor, " *row"]) -> Float64[Tensor, "*row d_head"]:
        """m_v + A_v z."""
        return self.mean[value] + _apply(self.scale[value], z)

    def to(self, device: torch.device) -> Standard:
        """The same on a device."""
        return Standard(*(one.to(device) for one in (self.mean, self.scale, self.inverse, self.precision)))


def _apply(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector[..., None])[..., 0]


@dataclass(frozen=True)
class ConditionalSwap:
    """One exchange: of the label that modulates, of other factors by `share` (F), or of both."""

    standard: Standard
    share: Matrix
    moves_label: bool

    def changes(
        self, original: Keys, target: Keys, values: tuple[Int[Tensor, " *row"], Int[Tensor, " *row"]]
    ) -> tuple[Float64[Tensor, "*row d_head"], Float64[Tensor, "*row d_head"]]:
        """By how much the original and the target key change; their values are -1 where they are not known."""
        standard = self.standard.to(original.device)
        at = [standard.known(key, value) for key, value in zip((original, target), values, strict=True)]
        ours, theirs = (standard.standardise(key, v) for key, v in zip((original, target), at, strict=True))
        moved = (theirs - ours) @ self.share.to(original.device).mT
        new = at[::-1] if self.moves_label else at
        return (
            standard.put_back(ours + moved, new[0]) - original.double(),
            standard.put_back(theirs - moved, new[1]) - target.double(),
        )


def pooled_spread(keys: KeysByValue, standard: Standard) -> Matrix:
    """C: twice the mean covariance of standardised keys, which is that of differences of two."""
    return 2 * (standard.inverse @ keys.covariance @ standard.inverse.mT).mean(0)


def exchanged_share(twins: Sequence[Twins], standard: Standard, spread: Matrix) -> Matrix:
    """F of some factors together: how much of a difference between two keys is theirs, direction by direction."""
    total = torch.zeros_like(spread)
    for one in twins:
        within = standard.inverse @ one.square @ standard.inverse.mT
        total += (one.weight[:, None, None] * within).sum(0) / one.weight.sum()
    root = factor(spread)
    whitened = root.inverse @ total @ root.inverse.mT
    values, vectors = torch.linalg.eigh((whitened + whitened.mT) / 2)
    return root.root @ (vectors * values.clamp(0, 1)) @ vectors.mT @ root.inverse


def counted_share(share: Matrix, space: Subspace, spread: Matrix) -> Matrix:
    """W: all of what lies along the feature's key directions, and F of the rest."""
    if space.rank == 0:
        return share
    weighted = torch.linalg.solve(spread, space.basis)
    along = space.basis @ torch.linalg.solve(space.basis.mT @ weighted, weighted.mT)
    return along + share @ (torch.eye(len(share), dtype=torch.float64) - along)


@dataclass(frozen=True)
class ConditionalParts:
    """How the logits of one head are split: k = mean + (m_v - mean) + sum_f A_v W_f z + residual, exactly.

    names     of the features in order; those in `movers` share m_v - mean, every other has a W in `counted`
    """

    standard: Standard
    names: tuple[str, ...]
    movers: tuple[str, ...]
    counted: Mapping[str, Matrix]

    def parts(
        self,
        query: Float[Tensor, "*row d_head"],
        key: Float[Tensor, "*row token d_head"],
        scaling: float,
        value: Int[Tensor, "*row token"] | None = None,
    ) -> Float64[Tensor, "feature *row token"]:
        """The part of each feature in the logit of each key; its value is that of the nearest mean, unless given."""
        standard = self.standard.to(key.device)
        unknown = torch.full(key.shape[:-1], UNKNOWN, device=key.device) if value is None else value
        at = standard.known(key, unknown)
        z, apart = standard.standardise(key, at), standard.mean[at] - standard.mean.mean(0)
        found = []
        for name in self.names:
            if name in self.movers:
                vector = apart / len([one for one in self.names if one in self.movers])
            else:
                vector = _apply(standard.scale[at], z @ self.counted[name].to(key.device).mT)
            found.append(torch.einsum("...d,...td->...t", query.double(), vector) * scaling)
        return torch.stack(found)
