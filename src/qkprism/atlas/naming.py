"""Named features in the match of a head: what each explains of a row, beside what permuted labels would.

Contrasts that were decomposed together are told apart by their joint projectors, as in `attribute`. Features of
several runs may overlap; then each gets its Shapley share of the joint span of their key directions, which has no
order. In both cases the parts add up with the rest:

    part_f = scaling dq^T F_f dk           rest = match - sum of the parts

A feature is offered for a head only where it is significant there, and for an edge only where it moves the edge's lead
by more than features from permuted labels do, which come out of the same pass and the same projectors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from qkprism.atlas.rows import RotatedRows
from qkprism.core.feature import Feature
from qkprism.heads import Head
from qkprism.results.features import Features
from qkprism.subspaces.conditions import Method, layer_conditions

MOST = 5  # features of several runs in one head: the strongest evidence first
SIGNIFICANT = 0.05
DRAWS = 8  # of permuted labels


@dataclass(frozen=True)
class NamedForms:
    """The features of one head as bilinear forms on keys that differ from the mean, beside those of permuted labels."""

    names: tuple[str, ...]
    forms: Float64[Tensor, "feature d_head d_head"]
    permuted: Float64[Tensor, "feature draw d_head d_head"]
    relative: tuple[bool, ...]  # whether a feature's frame counts positions from the query

    def parts(
        self, rows: RotatedRows, head: int
    ) -> tuple[Float64[Tensor, "feature token"], Float64[Tensor, "feature draw token"]]:
        """The part of each feature in the logits of one row, and of each permuted one."""
        found = [self._part(rows, head, form, place) for place, form in enumerate(self.forms)]
        nulls = [self._part(rows, head, forms, place) for place, forms in enumerate(self.permuted)]
        return torch.stack(found), torch.stack(nulls)

    def _part(self, rows: RotatedRows, head: int, form: Tensor, place: int) -> Tensor:
        split, rotation = rows.split, rows.rotation if self.relative[place] else None
        query = split.query_change[:1, head : head + 1]
        plain = query if rotation is None else rotation.back(query)
        asked = torch.einsum("d,...de->...e", plain[0, 0, 0].double(), form.to(plain.device))
        if rotation is not None:
            asked = rotation.turn(asked.reshape(1, -1, 1, asked.shape[-1])).reshape(asked.shape)
        group = split.query.shape[1] // split.key.shape[1]
        return (asked @ split.key_change[0, head // group].double().mT * split.scaling).cpu()


def named_forms(sets: Mapping[str, Features], heads: Sequence[Head]) -> dict[Head, NamedForms]:
    """The significant features of each head, from one or more runs by name."""
    found: dict[Head, NamedForms] = {}
    for head in heads:
        offered = [
            _Offered(features, contrast, _told(run, contrast))
            for run, features in sets.items()
            for contrast in features.contrasts
            if (contrast, head) in features and _holds(features[contrast, head])
        ]
        if offered:
            found[head] = _forms(offered, head)
    return found


def _told(run: str, contrast: str) -> str:
    """What a feature is called: by its run where that has another name."""
    return contrast if run in ("", contrast) else f"{run}: {contrast}"


def _holds(feature: Feature) -> bool:
    return feature.rank > 0 and feature.p < SIGNIFICANT


@dataclass(frozen=True)
class _Offered:
    """A feature of a run, and what it is called."""

    features: Features
    contrast: str
    name: str

    def t(self, head: Head) -> float:
        return float(self.features[self.contrast, head].spectrum.t[0])

    def projectors(self, head: Head) -> tuple[Tensor, Tensor]:
        """The feature's projector on keys, along the other contrasts of its run, and those of permuted labels."""
        method: Method = "contrast" if self.features.choices.metric == "contrast" else "raw oblique"
        groups = {self.contrast: [self.contrast]}
        spaces = layer_conditions(self.features, head.layer, [method], heads=[head], draws=0, groups=groups)[head]
        kinds = [condition.control for condition in spaces.names]
        real = spaces.subspace(kinds.index("feature")).projector
        null = [spaces.subspace(place).projector for place, kind in enumerate(kinds) if kind == "permuted"]
        return real, torch.stack(null[:DRAWS])


def _forms(offered: Sequence[_Offered], head: Head) -> NamedForms:
    """As in `attribute` for contrasts of one run; Shapley shares for features of several."""
    if len({id(one.features) for one in offered}) > 1:
        offered = sorted(offered, key=lambda one: -one.t(head))[:MOST]
    pairs = [one.projectors(head) for one in offered]
    forms, null = torch.stack([real for real, _ in pairs]), torch.stack([null for _, null in pairs])
    if len({id(one.features) for one in offered}) > 1:
        forms, null = _shared(forms, null)
    relative = tuple(one.features.encoding.rope == "relative" for one in offered)
    return NamedForms(tuple(one.name for one in offered), forms, null, relative)


def _shared(forms: Float64[Tensor, "feature d d"], null: Float64[Tensor, "feature draw d d"]) -> tuple[Tensor, Tensor]:
    """Shapley shares of the joint span; permuted labels take the place of one feature at a time."""
    columns = [_columns(form) for form in forms]
    shares = torch.stack([_share(columns, place) for place in range(len(columns))])
    drawn = [
        torch.stack([_share([*columns[:place], _columns(form), *columns[place + 1 :]], place) for form in draws])
        for place, draws in enumerate(null)
    ]
    return shares, torch.stack(drawn)


def _share(columns: Sequence[Tensor], player: int) -> Float64[Tensor, "d d"]:
    """What one subspace adds to the joint span of those before it, over all orders."""
    others, n = [place for place in range(len(columns)) if place != player], len(columns)
    found = torch.zeros(len(columns[0]), len(columns[0]), dtype=torch.float64)
    for size in range(n):
        for group in combinations(others, size):
            weight = 1 / (n * math.comb(n - 1, size))
            found += weight * (_span([columns[i] for i in (*group, player)]) - _span([columns[i] for i in group]))
    return found


def _span(columns: Sequence[Tensor]) -> Tensor | float:
    """The orthogonal projector on all columns together."""
    if not columns:
        return 0.0
    basis = _columns(torch.cat(list(columns), 1))
    return basis @ basis.mT


def _columns(matrix: Float[Tensor, "d column"]) -> Tensor:
    """An orthonormal basis of what the columns of a matrix span."""
    left, strength, _ = torch.linalg.svd(matrix, full_matrices=False)
    return left[:, strength > 1e-6 * strength[0]]
