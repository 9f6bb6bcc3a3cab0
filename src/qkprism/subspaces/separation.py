"""Which label does a key have? How well subspaces keep it, on keys that they were not made from.

    accuracy     the share of held-out keys whose nearest centroid of training keys is of their label
    silhouette   how far apart the held-out keys of different labels lie: (b - a) / max(a, b), a the mean distance to
                 the other keys of one's own label, b the smallest mean distance to those of another; 1 far apart, 0
                 mixed, below 0 nearer to another label's keys

The table is that of an intervention: every group of features beside the controls of its rank, each mean with its error.
Its targets are the two measures, `none` is a subspace of no dimension, `full` the whole key. Examples that use the same
items again say nothing new of other items: where a label tells the items, errors are over items and not over examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from qkprism.core.effect_sums import EffectSums, Table
from qkprism.errors import QKPrismError
from qkprism.results.effects import Effects, HeadSums
from qkprism.results.features import Features
from qkprism.results.projections import LabelOrNone, Projections
from qkprism.subspaces.comparison import Comparison, methods_of
from qkprism.subspaces.conditions import Conditions, layer_conditions

ACCURACY, SILHOUETTE = "accuracy", "silhouette"
SCORE = "score"
_ROWS = 512  # of the table of distances at a time
_MOST = 1200  # keys whose distances to each other are taken


def separation(
    train: Projections,
    test: Projections,
    features: Features,
    label: str,
    compare: Comparison = Comparison(),  # noqa: B008  (it is frozen)
) -> Effects:
    """How well the subspaces of features, and of their controls, tell the labels of held-out keys apart.

    Its `item` is the label of keys that tells which of them are copies of one item: errors are then over items, and
    silhouettes leave copies out. Without it errors are over examples.
    """
    item, draws, seed = compare.item, compare.draws, compare.seed
    ours, theirs = numbered(train.labels[label], test.labels[label])
    copies = None if item is None else numbered(test.labels[item])[0]
    held = Heldout(theirs, test.example if copies is None else copies, copies, _few(test))
    chosen = methods_of(features, compare.methods)
    parts: dict[str, list[HeadSums]] = {ACCURACY: [], SILHOUETTE: []}
    for number, layer in features.layers.items():
        conditions = layer_conditions(features, number, chosen, draws=draws, seed=seed, groups=compare.groups)
        for head in layer.heads:
            keys = [part.vectors(head)[0] for part in (train, test)]
            of_head = conditions[head]
            for name, values in zip(parts, _scores(of_head, keys[0], ours, keys[1], held), strict=True):
                parts[name].append(([head], _summed(of_head, values, held.cluster), torch.tensor([of_head.ranks])))
    provenance: dict[str, Any] = {"label": label, "draws": draws, "seed": seed, "labels": len(theirs.unique())}
    provenance |= {"examples": test.n, "keys": len(theirs), "items": None if copies is None else len(copies.unique())}
    title = f"telling {label} apart"
    return Effects.read_all(parts, edit=None, title=title, provenance=provenance | dict(test.provenance))


@dataclass(frozen=True)
class Heldout:
    """Held-out keys: their labels, what errors are over, which are copies of one item, and how many have distances."""

    label: Int[Tensor, " key"]
    cluster: Int[Tensor, " key"]
    copies: Int[Tensor, " key"] | None
    few: int


def numbered(*values: Sequence[LabelOrNone]) -> list[Int[Tensor, " key"]]:
    """The same values by number, the same in all lists."""
    numbers = {value: i for i, value in enumerate(dict.fromkeys(value for column in values for value in column))}
    return [torch.tensor([numbers[value] for value in column]) for column in values]


def _few(test: Projections) -> int:
    """The keys that distances are taken of: those of the first examples."""
    return int((test.example <= test.example[:_MOST][-1]).sum())


def _scores(
    conditions: Conditions, train: Tensor, ours: Tensor, test: Tensor, held: Heldout
) -> tuple[Float64[Tensor, "key condition"], Float64[Tensor, "few condition"]]:
    """For each held-out key whether its nearest centroid is right, and for some their silhouettes."""
    right, apart, few = [], [], held.few
    copies = None if held.copies is None else held.copies[:few]
    for i in range(len(conditions.names)):
        dual = conditions.subspace(i).dual.mT
        right.append(nearest_centroid(train @ dual, ours, test @ dual) == held.label)
        apart.append(silhouettes(test[:few] @ dual, held.label[:few], copies))
    return torch.stack(right, 1).double(), torch.stack(apart, 1)


def _summed(
    conditions: Conditions, values: Float64[Tensor, "key condition"], cluster: Int[Tensor, " key"]
) -> EffectSums:
    """The sums over clusters of the means over their keys, each with as much weight as it has keys."""
    _, index, count = cluster[: len(values)].unique(return_inverse=True, return_counts=True)
    means = values.new_zeros(len(count), values.shape[1]).index_add_(0, index, values) / count[:, None]
    sums = EffectSums.zeros(Table(conditions.names), (SCORE,), SCORE, 1)
    sums.add(means[None, :, None], count.double())
    return sums


def nearest_centroid(
    train: Float64[Tensor, "train d"], label: Int[Tensor, " train"], test: Float64[Tensor, "test d"]
) -> Int[Tensor, " test"]:
    """The label whose training points have the nearest mean, for each test point."""
    labels, index = label.unique(return_inverse=True)
    member = _membership(index, len(labels)).to(train)
    centroids = member.mT @ train / member.sum(0)[:, None]
    return labels[torch.cdist(test, centroids).argmin(1)]


def silhouettes(
    points: Float64[Tensor, "point d"], label: Int[Tensor, " point"], item: Int[Tensor, " point"] | None = None
) -> Float64[Tensor, " point"]:
    """The silhouette of each point; 0 for a label of one point.

    With items, points of the same item are copies: one's own copies do not count among the other points of one's label.
    """
    labels, index = label.unique(return_inverse=True)
    if len(labels) < 2:
        raise QKPrismError("Silhouettes need points of two labels or more.")
    each = torch.arange(len(points))
    copies = _copies(index, each if item is None else item)
    sides = torch.cat([_membership(index, len(labels)), _membership(copies, int(copies.max()) + 1)], 1).to(points)
    sums = torch.cat([torch.cdist(rows, points) @ sides for rows in points.split(_ROWS)])
    size, copied = sides.sum(0).split([len(labels), sides.shape[1] - len(labels)])
    sums, own_copies = sums[:, : len(labels)], sums[each, len(labels) + copies]
    others = size[index] - copied[copies]
    within = (sums[each, index] - own_copies) / others.clamp(min=1)
    other = (sums / size).index_put((each, index), torch.tensor(torch.inf, dtype=points.dtype)).amin(1)
    found = (other - within) / torch.maximum(within, other).clamp(min=1e-300)
    return torch.where(others > 0, found, 0.0)


def _copies(index: Int[Tensor, " point"], item: Int[Tensor, " point"]) -> Int[Tensor, " point"]:
    """A number for each label and item."""
    return torch.stack([index, item], 1).unique(dim=0, return_inverse=True)[1]


def _membership(index: Int[Tensor, " point"], count: int) -> Int[Tensor, "point label"]:
    return torch.nn.functional.one_hot(index, count)
