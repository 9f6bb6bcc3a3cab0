"""Keys and queries in the subspace of one latent, in three dimensions (paper, section 4).

Keys are projected onto the paper's key directions and queries onto its query directions, keys and queries scaled to
one length on average; then PCA of all points together. For sign vectors of rank 3 that is the cube, for Gaussian ones
the ball.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.core.feature import Feature
from qkprism.toy.cells import Cell, ToyHead, by_size
from qkprism.toy.contrasts import Sampling, recipes_of
from qkprism.toy.samples import Latent, draw_samples
from qkprism.toy.task import stream

POINTS = 400


@dataclass(frozen=True)
class Point:
    """A key or a query of a head; `value` is what z1 is: the number of a vertex, or its first coordinate."""

    cell: Cell
    latent: Latent
    side: Literal["key", "query"]
    value: float
    x: float
    y: float
    z: float


def clouds(heads: Sequence[ToyHead], sampling: Sampling) -> list[Point]:
    """Points of z1 in each head of any size."""
    rows = []
    for same_size in by_size(heads):
        recipes = recipes_of(same_size, sampling)
        for i, head in enumerate(same_size):
            rows += _cloud(head, recipes.features(i, "paper")[0])
    return rows


def _cloud(head: ToyHead, feature: Feature) -> list[Point]:
    samples = draw_samples(head.cell.task, POINTS, stream("cloud", repr(head.cell)))
    rank, row = feature.rank, torch.arange(POINTS)
    keys = head.keys(samples)[row, samples.target].double() @ feature.key_basis[:, :rank]
    queries = head.queries(samples).double() @ feature.query_basis[:, :rank]
    latents = {"key": samples.z1[row, samples.target], "query": samples.query_z1}
    places = _three(torch.cat([one / one.norm(dim=1).mean() for one in (keys, queries)]))
    found = []
    for side, points in zip(("key", "query"), places.split(POINTS), strict=True):
        values = _values(head.cell, latents[side])
        found += [
            Point(head.cell, "z1", side, value, *place)  # type: ignore[arg-type]
            for value, place in zip(values, points.tolist(), strict=True)
        ]
    return found


def _values(cell: Cell, latent: Tensor) -> list[float]:
    if cell.task.variant == "continuous":
        return latent[:, 0].tolist()
    return ((latent > 0).double() @ (2.0 ** torch.arange(latent.shape[1], dtype=torch.float64))).tolist()


def _three(points: Float64[Tensor, "point rank"]) -> Float64[Tensor, "point 3"]:
    """The first three principal components; zeros where there are fewer."""
    centred = points - points.mean(0)
    axes = torch.linalg.svd(centred, full_matrices=False)[2][:3]
    return torch.nn.functional.pad(centred @ axes.mT, (0, 3 - len(axes)))
