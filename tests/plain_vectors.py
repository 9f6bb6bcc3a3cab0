"""What editing the features of one head does to plain vectors: `intervene` without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from qkprism.core.edits import Edit
from qkprism.core.effect_sums import EffectSums, Table
from qkprism.core.rows import MEASURES
from qkprism.results.effects import GIVEN, Effects
from qkprism.results.features import Features
from qkprism.subspaces.comparison import DRAWS, methods_of
from qkprism.subspaces.conditions import layer_conditions
from qkprism.subspaces.intervention import Attending, measure_edits

_CHUNK = 4096


def intervene_vectors(
    vectors: Attending | Mapping[str, Attending],
    features: Features,
    *,
    edit: Edit | None = None,
    methods: Sequence[str] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
) -> Effects:
    """What editing the features of one head does to the attention of plain vectors, beside all controls.

    Several sets of vectors, by name, are several kinds of targets, such as one that differs in one feature only.
    """
    sets = {GIVEN: vectors} if isinstance(vectors, Attending) else vectors
    head, edit = features.heads[0], edit or Edit()
    number, layer = next(iter(features.layers.items()))
    conditions = layer_conditions(
        features, number, methods_of(features, methods, swaps=edit.kind == "swap"), draws=draws, seed=seed
    )
    of_head = {head: conditions[head]}
    ranks = torch.tensor([of_head[head].ranks])
    parts = {}
    for name, part in sets.items():
        sums = EffectSums.zeros(Table(of_head[head].names), MEASURES, "shift", 1)
        weight = torch.ones(len(part.query)) if part.weight is None else part.weight
        for at in range(0, len(part.query), _CHUNK):
            chunk = slice(at, at + _CHUNK)
            sums.add(measure_edits(part.scene(chunk, layer.scaling), of_head, edit), weight[chunk])
        parts[name] = [([head], sums, ranks)]
    provenance: dict[str, Any] = {"edit": str(edit), "seed": seed, "choices": vars(features.choices)}
    return Effects.read_all(parts, edit=edit, notes=of_head[head].notes, provenance=provenance)
