"""Which label does a key have? How well subspaces keep it, on keys that they were not made from.

    accuracy     the share of held-out keys whose nearest centroid of training keys is of their label
    silhouette   how far apart the held-out keys of different labels lie

The table is that of an intervention: every group of features beside the controls of its rank, each mean with its error
over examples. Its targets are the two measures, `none` is a subspace of no dimension, `full` the whole key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from qkprism.core.clusters import nearest_centroid, silhouettes
from qkprism.core.conditions import DRAWS, Conditions, Groups, layer_conditions, methods_of
from qkprism.core.effect_sums import EffectSums, Table
from qkprism.core.effects import Effects, HeadSums
from qkprism.core.feature_set import Features
from qkprism.core.projection import Projections

ACCURACY, SILHOUETTE = "accuracy", "silhouette"
SCORE = "score"
_MOST = 1200  # keys whose distances to each other are taken


def separation(
    train: Projections,
    test: Projections,
    features: Features,
    label: str,
    *,
    groups: Groups | None = None,
    methods: Sequence[str] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Effects:
    """How well the subspaces of features, and of their controls, tell the labels of held-out keys apart."""
    known = {value: i for i, value in enumerate(dict.fromkeys((*train.labels[label], *test.labels[label])))}
    ours, theirs = (torch.tensor([known[value] for value in own.labels[label]]) for own in (train, test))
    chosen, few = methods_of(features, methods), _few(test)
    parts: dict[str, list[HeadSums]] = {ACCURACY: [], SILHOUETTE: []}
    for number, layer in features.layers.items():
        conditions = layer_conditions(features, number, chosen, draws=draws, seed=seed, groups=groups)
        for head in layer.heads:
            keys = [own.key[str(head)].double() for own in (train, test)]
            own = conditions[head]
            for name, values in zip(parts, _scores(own, keys[0], ours, keys[1], theirs, few), strict=True):
                parts[name].append(([str(head)], _summed(own, values, test.example), torch.tensor([own.ranks])))
    provenance: dict[str, Any] = {"label": label, "draws": draws, "seed": seed, "labels": len(set(test.labels[label]))}
    return Effects.read_all(parts, edit=f"telling {label} apart", provenance=provenance | dict(test.provenance))


def _few(test: Projections) -> int:
    """The keys that distances are taken of: those of the first examples."""
    return int((test.example <= test.example[:_MOST][-1]).sum())


def _scores(
    conditions: Conditions, train: Tensor, ours: Tensor, test: Tensor, theirs: Tensor, few: int
) -> tuple[Float64[Tensor, "key condition"], Float64[Tensor, "few condition"]]:
    """For each held-out key whether its nearest centroid is right, and for some their silhouettes."""
    right, apart = [], []
    for i in range(len(conditions.names)):
        dual = conditions.subspace(i).dual.mT
        right.append(nearest_centroid(train @ dual, ours, test @ dual) == theirs)
        apart.append(silhouettes(test[:few] @ dual, theirs[:few]))
    return torch.stack(right, 1).double(), torch.stack(apart, 1)


def _summed(
    conditions: Conditions, values: Float64[Tensor, "key condition"], example: Int[Tensor, " key"]
) -> EffectSums:
    """The sums over examples of the means over their keys."""
    example = example[: len(values)]
    count = torch.bincount(example)
    means = values.new_zeros(len(count), values.shape[1]).index_add_(0, example, values) / count[:, None]
    sums = EffectSums.zeros(Table(conditions.names), (SCORE,), SCORE, 1)
    sums.add(means[None, :, None], torch.ones(len(count)))
    return sums
