"""`Projections`: queries and marked keys of some examples, to be seen in the subspaces of features (paper, section 5).

Coordinates are those of the feature's metric: of a key key_basis^T M^-1 k, of a query query_basis^T M q. The alignment
of the two is a number: how often the positive key has the largest part q^T P k of all marked keys of its example, by
this feature alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from qkprism.core.means import Means
from qkprism.core.projectors import projector
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike
from qkprism.results.features import Features
from qkprism.results.stored import Result

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

FEWEST, NEIGHBOURS = 8, 15  # points that UMAP needs, neighbours that it looks at
LabelOrNone = str | int | float | bool | None


@dataclass(frozen=True, repr=False)
class Projections(Result, kind="projections"):
    """The vectors of some heads: a query an example, its marked keys one after another."""

    query: Mapping[Head, Float[Tensor, "example d_head"]]
    key: Mapping[Head, Float[Tensor, "key d_head"]]
    example: Int[Tensor, " key"]
    positive: Bool[Tensor, " key"]
    labels: Mapping[str, tuple[LabelOrNone, ...]]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def heads(self) -> tuple[Head, ...]:
        return tuple(self.key)

    @property
    def n(self) -> int:
        return len(next(iter(self.query.values())))

    def query_labels(self, name: str) -> tuple[LabelOrNone, ...]:
        """The label of each query: that of its first positive key."""
        of_keys = self._labels(name)
        first = {int(e): of_keys[i] for i, e in reversed([*enumerate(self.example.tolist())]) if bool(self.positive[i])}
        return tuple(first[e] for e in range(self.n))

    def _labels(self, name: str) -> tuple[LabelOrNone, ...]:
        if name not in self.labels:
            raise QKPrismError(f"Keys have no label {name!r}. There are: {', '.join(self.labels) or 'none'}.")
        return self.labels[name]

    def coordinates(
        self, features: Features, contrast: str, head: HeadLike
    ) -> tuple[Float64[Tensor, "key rank"], Float64[Tensor, "example rank"]]:
        """Where keys and queries lie in the subspace of a feature."""
        feature = features[contrast, head]
        key, query = self.vectors(feature.head)
        return feature.key_coordinates(key), feature.query_coordinates(query)

    def scaled_coordinates(
        self, features: Features, contrast: str, head: HeadLike
    ) -> tuple[Float64[Tensor, "key rank"], Float64[Tensor, "example rank"]]:
        """Keys and queries in the subspace, each centred and scaled to one size: a match lies in one place."""
        key, query = self.coordinates(features, contrast, head)
        return scaled(key), scaled(query)

    def vectors(self, head: HeadLike) -> tuple[Float64[Tensor, "key d_head"], Float64[Tensor, "example d_head"]]:
        """The keys and the queries of a head."""
        wanted = Head.parse(head)
        if wanted not in self.key:
            raise QKPrismError(f"There are no vectors of {wanted}. There are: {', '.join(map(str, self.heads))}.")
        return self.key[wanted].double(), self.query[wanted].double()

    def alignment(self, features: Features, contrast: str, head: HeadLike) -> tuple[float, float]:
        """How often the positive key has the largest part of its example by this feature alone, with its error."""
        feature = features[contrast, head]
        joint = features.joint(feature.head)
        return self.alignment_by(projector(feature) if joint.subspaces is None else joint[contrast], feature.head)

    def alignment_by(
        self, p: Float64[Tensor, "d_head d_head"], head: HeadLike, *, item: str | None = None
    ) -> tuple[float, float]:
        """How often the positive key has the largest part q^T P k of its example, with its error.

        `item` is the label that tells what a key is: errors then allow for examples whose two best keys are the same.
        """
        key, query = self.vectors(head)
        parts = torch.einsum("kd,de,ke->k", query[self.example], p, key)
        best = [_largest(parts, self.example, side, self.n) for side in (self.positive, ~self.positive)]
        parts = torch.cat([parts, torch.full((1,), -torch.inf)])  # of no key
        right = (parts[best[0]] > parts[best[1]]).double()[:, None]
        items = None if item is None else [[self._labels(item)[i] for i in pair] for pair in zip(*best, strict=True)]
        means = Means.zeros(1)
        means.add(right, torch.ones(self.n), items)
        return float(means.mean()), float(means.error())

    def components(
        self, features: Features, contrast: str, head: HeadLike, count: int = 3
    ) -> dict[str, tuple[Float64[Tensor, "point component"], Sequence[float]]]:
        """Principal components of keys and queries in the subspace, and without projection (`whole_key`, ...)."""
        return {
            name: principal_components(vectors, count)
            for name, vectors in self._points(features, contrast, head).items()
        }

    def together(
        self, features: Features, contrast: str, head: HeadLike
    ) -> dict[str, tuple[Float64[Tensor, "point component"], Sequence[float]]]:
        """Principal components of keys and queries together, neither centred on its own: the first tells them apart."""
        points, found = self._points(features, contrast, head), {}
        for key, query in (("key", "query"), ("whole_key", "whole_query")):
            both, shares = principal_components(torch.cat([points[key], points[query]]), 3)
            found[key], found[query] = (both[: len(points[key])], shares), (both[len(points[key]) :], shares)
        return found

    def umap(
        self, features: Features, contrast: str, head: HeadLike, *, most: int = 700
    ) -> dict[str, Float64[Tensor, "point 2"]]:
        """The same points by UMAP, keys and queries together; of keys the first `most`. Needs umap-learn.

        Both sides are centred and scaled to one size first, so that keys lie with the queries that they align with.
        """
        points = self._points(features, contrast, head)
        found = {}
        for key, query in (("key", "query"), ("whole_key", "whole_query")):
            sides = [scaled(points[key][:most]), scaled(points[query])]
            found[key], found[query] = umap_points(torch.cat(sides)).split([len(side) for side in sides])
        return found

    def _points(self, features: Features, contrast: str, head: HeadLike) -> dict[str, Float64[Tensor, "point d"]]:
        key, query = self.coordinates(features, contrast, head)
        whole_key, whole_query = self.vectors(features[contrast, head].head)
        return {"key": key, "query": query, "whole_key": whole_key, "whole_query": whole_query}

    def joint_components(
        self, features: Features, contrasts: Sequence[str], head: HeadLike, count: int = 3
    ) -> tuple[Float64[Tensor, "key component"], Float64[Tensor, "example component"], Sequence[float]]:
        """Principal components of keys and queries together, by their coordinates in some features side by side."""
        key, query = self._side_by_side(features, contrasts, head)
        points, shares = principal_components(torch.cat([key, query]), count)
        return points[: len(key)], points[len(key) :], shares

    def key_components(
        self, features: Features, contrasts: Sequence[str], head: HeadLike, count: int = 3
    ) -> tuple[Float64[Tensor, "key component"], Sequence[float]]:
        """Principal components of keys alone, by their coordinates in some features side by side."""
        return principal_components(self._side_by_side(features, contrasts, head)[0], count)

    def _side_by_side(self, features: Features, contrasts: Sequence[str], head: HeadLike) -> tuple[Tensor, ...]:
        found = [self.coordinates(features, name, head) for name in contrasts]
        return tuple(torch.cat(side, 1) for side in zip(*found, strict=True))

    def to_frame(self, features: Features) -> pd.DataFrame:
        """A row a feature: its alignment."""
        import pandas as pd

        rows = []
        for name, head in features:
            if head in self.key:
                right, error = self.alignment(features, name, head)
                rows.append({"feature": name, "head": str(head), "alignment": right, "error": error, "n": self.n})
        return pd.DataFrame(rows)

    def plot(
        self, features: Features, contrast: str, head: HeadLike, *, color: str | None = None, umap: bool = False
    ) -> go.Figure:
        """Keys and queries in the subspace and without projection, coloured by a label of the keys."""
        from qkprism.figures.clouds import projection_figure

        color = color or next(iter(self.labels), "")
        return projection_figure(self, features, contrast, Head.parse(head), color, umap=umap)

    def __repr__(self) -> str:
        return f"Projections({len(self.heads)} heads; {self.n} queries, {len(self.example)} keys)"


def _largest(
    parts: Float64[Tensor, " key"], example: Int[Tensor, " key"], side: Bool[Tensor, " key"], n: int
) -> list[int]:
    """The key with the largest part of each example, among those of one side; -1 where there is none."""
    found = [-1] * n
    for key in parts.argsort().tolist():
        if side[key]:
            found[int(example[key])] = key
    return found


def principal_components(
    vectors: Float64[Tensor, "point d"], count: int = 3
) -> tuple[Float64[Tensor, "point component"], Sequence[float]]:
    """The leading principal components of points, and the share of variance of each."""
    if not vectors.shape[1]:  # a feature of rank 0
        return vectors.new_zeros(len(vectors), count), [0.0] * count
    centred = vectors - vectors.mean(0)
    left, values, right = torch.linalg.svd(centred, full_matrices=False)
    largest = right.abs().argmax(1, keepdim=True)
    sign = torch.where(right.gather(1, largest) < 0, -1.0, 1.0)[:, 0]
    shares = values.square() / values.square().sum().clamp(min=1e-300)
    points = (left * values * sign)[:, :count]
    if points.shape[1] < count:
        points = torch.cat([points, points.new_zeros(len(points), count - points.shape[1])], 1)
    leading = shares[:count].tolist()
    return points, leading + [0.0] * (count - len(leading))


def scaled(vectors: Float64[Tensor, "point d"]) -> Float64[Tensor, "point d"]:
    """Points centred, with a mean square norm of 1."""
    centred = vectors - vectors.mean(0)
    return centred / centred.square().sum(1).mean().sqrt().clamp(min=1e-300)


def has_umap() -> bool:
    """Whether umap-learn is installed."""
    return find_spec("umap") is not None


def require_umap() -> None:
    """Say what is missing before anything is computed."""
    if not has_umap():
        raise QKPrismError(
            "UMAP needs umap-learn: pip install 'umap-learn>=0.5.12'. Principal components need nothing."
        )


def umap_points(vectors: Float64[Tensor, "point d"]) -> Float64[Tensor, "point 2"]:
    """Points in two dimensions that keep their neighbours; the same every time."""
    require_umap()
    if len(vectors) < FEWEST:
        raise QKPrismError(f"UMAP needs {FEWEST} points or more; there are {len(vectors)}.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TensorFlow is not there, that one seed means one thread
        return _umap(vectors)


def _umap(vectors: Float64[Tensor, "point d"]) -> Float64[Tensor, "point 2"]:
    from umap import UMAP  # type: ignore[import-not-found, import-untyped, unused-ignore]

    found = UMAP(n_neighbors=min(NEIGHBOURS, len(vectors) - 1), random_state=0, n_jobs=1, init="pca").fit_transform(
        vectors.numpy()
    )
    return torch.from_numpy(found).double()
