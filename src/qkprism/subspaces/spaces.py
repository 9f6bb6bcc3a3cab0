"""`Spaces`: the key directions of features in many heads, small enough to keep for all of them.

    a feature in a head    an orthonormal basis of its key directions that hold on held-out examples: d_head x rank
    permuted labels        a basis of the same rank from every draw

A feature without directions that hold has none here. Both come out of the projectors that an edit would use, along the
other contrasts of the same call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkprism.core.feature import Feature
from qkprism.core.projectors import Subspace
from qkprism.heads import Head
from qkprism.results.features import Features
from qkprism.results.stored import Result
from qkprism.subspaces.comparison import Method
from qkprism.subspaces.conditions import layer_conditions

SIGNIFICANT = 0.05
DEPENDENT = 1e-6


@dataclass(frozen=True)
class Spaces(Result, kind="spaces"):
    """Bases by contrast, of one head after another, in each the feature's own first and then those of the draws.

    `relative` says whether positions were counted from the query; `ranks` has a row a head, a column a basis.
    """

    heads: tuple[Head, ...]
    columns: Mapping[str, Float[Tensor, "d_head column"]]
    ranks: Mapping[str, Int[Tensor, "head basis"]]
    relative: bool

    @classmethod
    def of(cls, features: Features, heads: Sequence[Head] | None = None) -> Spaces:
        """The spaces of the features of some heads, or of all."""
        wanted = tuple(head for head in features.heads if heads is None or head in heads)
        held = held_features(features)
        found = {head: head_subspaces(held, head) for head in wanted}
        columns, ranks = {}, {}
        for name in features.contrasts:
            bases = [[_orthonormal(space.basis) for space in found[head][name]] for head in wanted]
            nothing = torch.zeros(next(iter(features.values())).d_head, 0).double()
            columns[name] = torch.cat([nothing, *(basis for of_head in bases for basis in of_head)], 1).half()
            sizes = [[basis.shape[1] for basis in of_head] for of_head in bases]
            ranks[name] = torch.tensor(sizes, dtype=torch.long).view(len(wanted), len(sizes[0]) if sizes else 0)
        return cls(wanted, columns, ranks, features.encoding.rope == "relative")

    def joined(self, other: Spaces) -> Spaces:
        """Those of more heads."""
        columns = {name: torch.cat([self.columns[name], other.columns[name]], 1) for name in self.columns}
        ranks = {name: torch.cat([self.ranks[name], other.ranks[name]]) for name in self.ranks}
        return replace(self, heads=(*self.heads, *other.heads), columns=columns, ranks=ranks)

    def of_head(self, head: Head) -> Iterator[tuple[str, list[Tensor]]]:
        """The contrasts that hold in a head, each with its bases."""
        if head not in self.heads:
            return
        place = self.heads.index(head)
        for name, ranks in self.ranks.items():
            if int(ranks[place, 0]):
                start = int(ranks[:place].sum())
                columns = self.columns[name][:, start : start + int(ranks[place].sum())].double()
                yield name, list(columns.split(ranks[place].tolist(), 1))


def held_rank(feature: Feature) -> int:
    """How many of a feature's directions hold on held-out examples; none where chance would show the first."""
    return feature.rank_heldout or 0 if feature.p < SIGNIFICANT else 0


def held_features(features: Features) -> Features:
    """Features cut to the directions that hold."""
    return replace(features, features={key: one.with_rank(held_rank(one)) for key, one in features.items()})


def head_subspaces(features: Features, head: Head) -> dict[str, list[Subspace]]:
    """Of each contrast its subspace, with the projector along the others of its call, then those of permuted labels.

    One contrast has no others. Its projector is orthogonal: that of its metric knows the marked keys alone, and makes
    much of any other key's noise.
    """
    several = features.choices.metric == "contrast" and len(features.contrasts) > 1
    method: Method = "contrast" if several else "raw oblique"
    groups = {name: [name] for name in features.contrasts}
    spaces = layer_conditions(features, head.layer, [method], heads=[head], draws=0, whole=False, groups=groups)[head]
    found: dict[str, list[Subspace]] = {name: [] for name in groups}
    for kind in ("feature", "permuted"):
        for place, condition in enumerate(spaces.names):
            if condition.control == kind:
                found[condition.feature].append(spaces.subspace(place))
    return found


def _orthonormal(columns: Float[Tensor, "d column"]) -> Tensor:
    """Independent columns made orthonormal one after another: unlike singular vectors these do not turn by rounding."""
    basis, triangle = torch.linalg.qr(columns)
    return basis * triangle.diagonal().sign()


def basis_of(matrix: Float[Tensor, "d column"]) -> Tensor:
    """An orthonormal basis of what the columns of a matrix span."""
    left, strength, _ = torch.linalg.svd(matrix, full_matrices=False)
    return left[:, strength > DEPENDENT * strength[:1]]
