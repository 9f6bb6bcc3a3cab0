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


def silhouettes(points: Float64[Tensor, "point d"], label: Int[Tensor, " point"]) -> Float64[Tensor, " point"]:
    """The silhouette of each point; 0 for a label of one point."""
    labels, index = label.unique(return_inverse=True)
    if len(labels) < 2:
        raise QKPrismError("Silhouettes need points of two labels or more.")
    member = _membership(index, len(labels)).to(points)
    sums = torch.cat([torch.cdist(rows, points) @ member for rows in points.split(_ROWS)])
    size, each = member.sum(0), torch.arange(len(points))
    own = sums[each, index] / (size[index] - 1).clamp(min=1)
    other = (sums / size).index_put((each, index), torch.tensor(torch.inf, dtype=points.dtype)).amin(1)
    found = (other - own) / torch.maximum(own, other).clamp(min=1e-300)
    return torch.where(size[index] > 1, found, 0.0)


def _membership(index: Int[Tensor, " point"], count: int) -> Int[Tensor, "point label"]:
    return torch.nn.functional.one_hot(index, count)
