"""The recipes for finding and moving features that the study compares, in some toy heads and from the same sums.

contrast      the library's: centred, balanced rank, joint oblique projectors in the contrast metric
raw oblique   the same, at the same rank, in the raw metric
raw           the paper's: not centred, 99% of the energy, an orthogonal projector for each feature
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from qkprism.controls import BY_NAME
from qkprism.core.effect_sums import Condition
from qkprism.core.feature import Feature
from qkprism.heads import Head
from qkprism.results.features import Features
from qkprism.subspaces.conditions import Conditions, layer_conditions
from qkprism.toy.cells import ToyHead
from qkprism.toy.contrasts import PAPER, Sampling, decompose_heads
from qkprism.toy.samples import LATENTS

RecipeName = Literal["contrast", "raw", "paper"]


@dataclass(frozen=True)
class Recipes:
    """The features of heads by the library's choices and by the paper's; heads[i] is L0Hi."""

    ours: Features
    paper: Features

    @cached_property
    def raw(self) -> Features:
        """The library's features in the raw metric."""
        return self.ours.with_metric("raw")

    def features(self, number: int, made: RecipeName) -> list[Feature]:
        """z1 and z2 of a head: the library's in the contrast or in the raw metric, or the paper's."""
        found = self.ours if made == "contrast" else self.raw if made == "raw" else self.paper
        return [found[latent, Head(0, number)] for latent in LATENTS]

    def conditions(self, draws: int) -> list[Conditions]:
        """All that is moved in each head, with the controls of each method; `raw` is the paper's."""
        ours = layer_conditions(self.ours, 0, ("contrast", "raw oblique"), draws=draws)
        theirs = layer_conditions(self.paper, 0, ("raw",), draws=draws)
        return [_joined(ours[head], theirs[head]) for head in ours]


def recipes_of(heads: Sequence[ToyHead], sampling: Sampling) -> Recipes:
    """Decompose heads of one d_head."""
    ours = decompose_heads(heads, sampling)
    return Recipes(ours, Features.from_moments(ours.layers, PAPER, ours.provenance))


def _joined(*parts: Conditions) -> Conditions:
    """Conditions side by side; those that belong to no feature are the same in all."""
    return Conditions.of({name: part.subspace(i) for part in parts for i, name in enumerate(part.names)})


def only(conditions: Conditions, keep: Callable[[Condition], bool] | None = None) -> Conditions:
    """Some of the conditions: the features, and no and the whole edit, unless it is said which."""
    kept = [i for i, name in enumerate(conditions.names) if (keep or feature_only)(name)]
    return Conditions.of({conditions.names[i]: conditions.subspace(i) for i in kept})


def feature_only(name: Condition) -> bool:
    """Whether a condition is no control but the floor and the ceiling."""
    return not BY_NAME[name.control].is_rival
