"""Where keys and queries lie in a feature: points in two and three dimensions, with their labels and texts.

Four ways to see them, keys and queries each centred and scaled to one size, so that a match lies in one place:

    directions   the feature's first three: what a query asks for is where the keys that have it are
    components   the principal components of all points in the feature's subspace
    whole key    those without projection, where the feature is one thing among many
    UMAP         neighbours in the subspace, where umap-learn is installed and it is asked for
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.core.projectors import projector
from qkprism.explorer.answers import FORMAT, number
from qkprism.heads import Head
from qkprism.results.features import Features
from qkprism.results.projections import Projections, principal_components, scaled

TOLD = 4  # examples of each kind
SEEN, DIGITS = 3, 3  # dimensions, and digits of a coordinate


def cloud_answer(
    found: Projections,
    features: Features,
    name: str,
    head: Head,
    *,
    texts: Sequence[Sequence[str]] = (),
    places: Sequence[int] = (),
    umap: bool = False,
) -> dict[str, Any]:
    """Points, labels and texts of one feature in one head, and the examples in which it is clearest and wrong.

    texts    the tokens of every text up to its query, and `places` of every key its place there; none where not kept
    """
    margins = _margins(found, _parts(found, features, name, head))
    right, error = found.alignment(features, name, head)
    return {
        "format": FORMAT,
        "views": [_view(*one) for one in _views(found, features, name, head, umap=umap)],
        "example": found.example.tolist(),
        "positive": found.positive.tolist(),
        "labels": [{"name": label, **_labels(found, label)} for label in found.labels],
        "places": list(places),
        "texts": [list(text) for text in texts],
        "n": found.n,
        "right": number(right),
        "error": number(error),
        **_told(margins),
    }


def _views(
    found: Projections, features: Features, name: str, head: Head, *, umap: bool
) -> list[tuple[str, list[str], Tensor, Tensor]]:
    key, query = found.scaled_coordinates(features, name, head)
    views = [("directions of the feature", [f"direction {i}" for i in (1, 2, 3)], key, query)]
    for told, sides in (
        ("principal components", (key, query)),
        ("without projection", tuple(map(scaled, found.vectors(head)))),
    ):
        points, shares = principal_components(torch.cat(sides), SEEN)
        axes = [f"component {i} ({share:.0%})" for i, share in enumerate(shares, 1)]
        views.append((told, axes, points[: len(key)], points[len(key) :]))
    if umap:
        near = found.umap(features, name, head, most=len(key))
        views.append(("UMAP", ["UMAP 1", "UMAP 2"], near["key"], near["query"]))
    return views


def _view(told: str, axes: Sequence[str], key: Tensor, query: Tensor) -> dict[str, Any]:
    return {"name": told, "axes": axes[: max(2, key.shape[1])], "keys": _points(key), "queries": _points(query)}


def _points(points: Float64[Tensor, "point d"]) -> list[list[float | None]]:
    padded = torch.cat([points[:, :SEEN], points.new_zeros(len(points), max(0, 2 - points.shape[1]))], 1)
    return [[number(value, DIGITS) for value in point] for point in padded.tolist()]


def _labels(found: Projections, label: str) -> Mapping[str, list[str | None]]:
    """The values of a label: of keys, and of queries that of the key they should find."""
    wanted = dict.fromkeys(range(found.n), None) | {
        int(e): v for e, v, right in zip(found.example, found.labels[label], found.positive, strict=True) if right
    }
    return {
        "keys": [_said(value) for value in found.labels[label]],
        "queries": [_said(wanted[e]) for e in range(found.n)],
    }


def _said(value: object) -> str | None:
    return None if value is None else str(value)


def _parts(found: Projections, features: Features, name: str, head: Head) -> Float64[Tensor, " key"]:
    """What the feature gives each key of its example's query, in logits."""
    feature, joint = features[name, head], features.joint(head)
    p = projector(feature) if joint.subspaces is None else joint[name]
    scaling = features.layers[head.layer].scaling
    key, query = found.vectors(head)
    return torch.einsum("kd,de,ke->k", query[found.example], p, key) * scaling


def _margins(found: Projections, parts: Float64[Tensor, " key"]) -> Float64[Tensor, " example"]:
    """By how much the best positive key is above the best negative one, by the feature alone."""
    least = torch.full((found.n,), -torch.inf, dtype=torch.float64)
    best = [
        least.scatter_reduce(0, found.example[side], parts[side], "amax") for side in (found.positive, ~found.positive)
    ]
    return best[0] - best[1]


def _told(margins: Float64[Tensor, " example"]) -> dict[str, Any]:
    order = margins.argsort(descending=True).tolist()
    right = [place for place in order if margins[place] > 0]
    wrong = [place for place in reversed(order) if margins[place] <= 0]
    chosen = {"strongest": right[:TOLD], "weakest": right[::-1][:TOLD], "wrong": wrong[:TOLD]}
    return {
        kind: [{"example": place, "margin": number(float(margins[place]))} for place in places]
        for kind, places in chosen.items()
    }
