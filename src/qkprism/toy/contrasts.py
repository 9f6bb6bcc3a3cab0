"""Toy heads through the library: their contrasts of z1 and z2 as moments, and from these the same features as anywhere.

    features = decompose_heads(heads)           # features["z1", "L0H3"] is that of heads[3]

Heads of one d_head are taken as the heads of one layer, each with keys of its own. The study compares three recipes
from the same sums:

contrast      the library's: centred, balanced rank, joint oblique projectors in the contrast metric
raw oblique   the same, at the same rank, in the raw metric
raw           the paper's: not centred, 99% of the energy, an orthogonal projector for each feature
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch

from qkprism.capture.vectors import Vectors
from qkprism.controls import BY_NAME
from qkprism.core.effect_sums import Condition
from qkprism.core.feature import Choices, Feature
from qkprism.core.moments import Moments
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.results.features import Features, LayerMoments
from qkprism.subspaces.conditions import Conditions, layer_conditions
from qkprism.toy.cells import ToyHead
from qkprism.toy.samples import LATENTS, Latent, Negatives, check_correlation, check_negatives, draw_contrast
from qkprism.toy.task import stream

FEWEST = 10
OURS = Choices(center="query", metric="contrast", rank="balanced")
PAPER = Choices(center="none", metric="raw", rank="energy")


@dataclass(frozen=True)
class Sampling:
    """How contrasts are drawn: how many pairs, which negatives, and how the two latents correlate."""

    n: int = 4096
    negatives: Negatives = "differs"
    correlation: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_correlation(self.correlation)
        check_negatives(self.negatives)
        if self.n < FEWEST:
            raise QKPrismError(f"n={self.n} examples are too few for a contrast. Use at least {FEWEST}.")


def contrast_vectors(head: ToyHead, latent: Latent, sampling: Sampling = Sampling()) -> Vectors:  # noqa: B008
    """Queries, positive and negative keys of one head for the contrast of one latent."""
    random = stream("contrast", latent, sampling.seed, repr(head.cell))
    samples = draw_contrast(
        head.cell.task, latent, sampling.n, random, negatives=sampling.negatives, correlation=sampling.correlation
    )
    keys = head.keys(samples)
    return Vectors(head.queries(samples), keys[:, 0], keys[:, 1])


def decompose_heads(
    heads: Sequence[ToyHead],
    sampling: Sampling = Sampling(),  # noqa: B008
    choices: Choices = OURS,
) -> Features:
    """The features of z1 and z2 in every head; heads[i] is L0Hi."""
    if len({head.cell.d_head for head in heads}) != 1:
        raise QKPrismError("Heads that are decomposed together need one d_head.")
    moments: dict[str, Moments] = {
        latent: stacked([contrast_vectors(head, latent, sampling) for head in heads]).moments() for latent in LATENTS
    }
    names = tuple(Head(0, i) for i in range(len(heads)))
    layer = LayerMoments(names, heads[0].cell.d_head ** -0.5, moments)
    return Features.from_moments({0: layer}, choices, {"contrasts": {name: {} for name in LATENTS}})


def stacked(vectors: Sequence[Vectors]) -> Vectors:
    """The vectors of several heads as those of one layer."""
    query, positive, negative = (
        torch.stack([getattr(head, side) for head in vectors], 1) for side in ("query", "positive", "negative")
    )
    return Vectors(query, positive, negative)


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
