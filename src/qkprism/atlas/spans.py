"""What named features span together in every head: the part of the match that has a name, whoever it belongs to.

    named match = scaling dq^T P dk,     P the projector on the joint span of the features' key directions

Features of one's own runs count in every head in which they hold; those of the shelf in the heads that are right on
their contrast, since nearly every head holds a little of everything. The same with permuted labels is the control: any
subspace of keys rebuilds some of a row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.heads import Head
from qkprism.models.model import Model
from qkprism.results.features import Features
from qkprism.runs.files import path_of
from qkprism.studies.shelf_result import RIGHT, TABLE, Shelf
from qkprism.subspaces.spaces import Spaces, basis_of
from qkprism.verbs.inputs import check_features

FeatureRun = Features | Shelf | str | os.PathLike[str]
FeatureRuns = FeatureRun | Sequence[FeatureRun] | None
NAMED = ("+ named", "+ permuted labels")  # stages beside each other, each on top of what is not match


@dataclass(frozen=True)
class NamedSpans:
    """Projectors on what is named in the heads of a layer, and on what permuted labels span.

    Where features count positions in two ways, a head has those of the way that spans more.
    """

    forms: Mapping[bool, Float64[Tensor, "stage head d_head d_head"]]  # by whether positions count from the query
    rank: tuple[int, ...]


def listed(features: FeatureRuns) -> list[FeatureRun]:
    """One run or several, as a list."""
    return [features] if isinstance(features, Features | Shelf | str | os.PathLike) else list(features or ())


def read_run_of(run: FeatureRun, model: Model) -> Features | Shelf:
    """A run of features, or of the shelf, of this model."""
    if not isinstance(run, Features | Shelf):
        place: Path = path_of(run)
        run = Shelf.load(place) if (place / TABLE).is_dir() else Features.load(place)
    check_features(model, run.provenance)
    return run


def named_spans(model: Model, runs: Sequence[Features | Shelf]) -> dict[int, NamedSpans]:
    """The joint spans in every head, by layer."""
    sources = [one for run in runs for one in _sources(run)]
    return {layer: _of_layer(sources, layer, info.n_heads, info.d_head) for layer, info in model.layers.items()}


def _sources(run: Features | Shelf) -> Iterator[tuple[Spaces, frozenset[Head]]]:
    """Spaces, and the heads in which they count."""
    if isinstance(run, Features):
        yield Spaces.of(run), frozenset(run.heads)
        return
    for number, name in enumerate(run.contrasts):
        right = (head for head, accuracy in zip(run.heads, run.accuracy[number], strict=True) if accuracy >= RIGHT)
        yield run.spaces(name), frozenset(right)


def _of_layer(sources: Sequence[tuple[Spaces, frozenset[Head]]], layer: int, n_heads: int, d_head: int) -> NamedSpans:
    forms = {frame: torch.zeros(len(NAMED), n_heads, d_head, d_head, dtype=torch.float64) for frame in (False, True)}
    ranks = []
    for index in range(n_heads):
        head = Head(layer, index)
        spans = {frame: _span([one for one, heads in sources if head in heads and one.relative is frame], head)
                 for frame in forms}  # fmt: skip
        best = max(spans, key=lambda frame: spans[frame][0].shape[1])
        ranks.append(spans[best][0].shape[1])
        for stage, basis in enumerate(spans[best]):
            if basis.shape[1]:
                forms[best][stage, index] = basis @ basis.mT
    return NamedSpans(forms, tuple(ranks))


def _span(spaces: Sequence[Spaces], head: Head) -> tuple[Tensor, Tensor]:
    """Orthonormal bases of what features span, and of what the first draw of permuted labels does."""
    bases = [found for one in spaces for _, found in one.of_head(head)]
    none = torch.empty(0, 0, dtype=torch.float64)
    return tuple(  # type: ignore[return-value]
        basis_of(torch.cat([found[place] for found in bases], 1)) if bases else none for place in range(len(NAMED))
    )
