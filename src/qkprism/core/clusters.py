"""How well labelled points are apart: nearest centroids and silhouettes.

nearest centroid   the label whose training points have the nearest mean
silhouette         (b - a) / max(a, b), a the mean distance to the other points of one's own label, b the smallest mean
                   distance to those of another; 1 far apart, 0 mixed, below 0 nearer to another label's points
"""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from qkprism.errors import QKPrismError

_ROWS = 512  # of the table of distances at a time


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
