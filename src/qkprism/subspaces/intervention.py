"""Edits under all conditions at once, on vectors: what `intervene` does with every batch, and the toy with its tensors.

key edit      l_o += scaling q^T P delta,   l_t falls by as much in a swap
query edit    l_i += scaling k_i^T P^T delta   for every token i
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import einsum
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from qkprism.core.edits import Edit
from qkprism.core.effect_sums import EffectSums, Table
from qkprism.core.rows import MEASURES, Logits, Places, after_key_edit, measure, read_row
from qkprism.heads import Head
from qkprism.results.effects import GIVEN, Effects
from qkprism.results.features import Features
from qkprism.subspaces.conditions import DRAWS, Conditions, layer_conditions, methods_of

_CHUNK = 4096


@dataclass(frozen=True)
class EditRows:
    """The query rows of some examples in some heads, with all keys that they see and the two that are edited."""

    logits: Logits
    places: Places
    query: Float[Tensor, "example head d_head"]
    key: Float[Tensor, "example head token d_head"]
    scaling: float


def measure_edits(
    scene: EditRows, conditions: Mapping[Head, Conditions], edit: Edit
) -> Float64[Tensor, "measure example head condition"]:
    """Every measure of `core/rows.py` for every example, head and condition."""
    before = read_row(scene.logits.final, scene.places, scene.logits.sink)
    if edit.side == "query":
        after = read_row(
            scene.logits.changed(query_changes(scene, conditions, edit) * scene.scaling),
            scene.places,
            scene.logits.sink,
        )
    else:
        change = key_changes(scene, conditions, edit) * scene.scaling
        after = after_key_edit(scene.logits, scene.places, before, (change, edit.of_target(change)))
    return measure(before, after).movedim(1, -1)


def key_changes(
    scene: EditRows, conditions: Mapping[Head, Conditions], edit: Edit
) -> Float64[Tensor, "condition example head"]:
    """q^T (change of the original key) under every condition."""
    each = torch.arange(len(scene.query), device=scene.query.device)
    original, target = (scene.key[each, :, place] for place in (scene.places.original, scene.places.target))
    changes = [
        meet_change(edit, on_keys, head, original[:, i], target[:, i], met=scene.query[:, i])
        for i, (head, on_keys) in enumerate(conditions.items())
    ]
    return torch.stack(changes, -1).movedim(1, 0)


def query_changes(
    scene: EditRows, conditions: Mapping[Head, Conditions], edit: Edit
) -> Float64[Tensor, "condition example head token"]:
    """(change of the query)^T k for every key, under every condition."""
    changes = [
        meet_change(edit, on_keys.mT, head, scene.query[:, i, None], None, met=scene.key[:, i])
        for i, (head, on_keys) in enumerate(conditions.items())
    ]
    return torch.stack(changes, 1).movedim(-1, 0)


def meet_change(
    edit: Edit, conditions: Conditions, head: Head, vector: Tensor, partner: Tensor | None, *, met: Tensor
) -> Float64[Tensor, "*row condition"]:
    """met^T P delta under every condition, where P acts on the side that is edited."""
    if edit.follows_subspace:
        return conditions.meet_each(met, edit.delta(vector, head, lead=conditions.leads(edit.direction)))
    return conditions.meet(met, edit.delta(vector, head, partner=partner))


@dataclass(frozen=True)
class Attending:
    """Plain vectors of one head to intervene on: queries that each see some keys, two of which are edited."""

    query: Float[Tensor, "example d_head"]
    key: Float[Tensor, "example token d_head"]
    original: Int[Tensor, " example"]
    target: Int[Tensor, " example"]
    marked: Bool[Tensor, "example token"] | None = None
    weight: Float[Tensor, " example"] | None = None

    def scene(self, part: slice, scaling: float) -> EditRows:
        """Some of the examples."""
        query, key = self.query[part, None].double(), self.key[part, None].double()
        product = einsum(query, key, "example head d, example head token d -> example head token") * scaling
        marked = torch.ones_like(product[:, 0], dtype=torch.bool) if self.marked is None else self.marked[part]
        places = Places(self.original[part], self.target[part], marked)
        return EditRows(Logits.of(product, product), places, query, key, scaling)


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
    conditions = layer_conditions(features, number, methods_of(features, methods), draws=draws, seed=seed)
    of_head = {head: conditions[head]}
    ranks = torch.tensor([of_head[head].ranks])
    parts = {}
    for name, part in sets.items():
        sums = EffectSums.zeros(Table(of_head[head].names), MEASURES, "shift", 1)
        weight = torch.ones(len(part.query)) if part.weight is None else part.weight
        for at in range(0, len(part.query), _CHUNK):
            chunk = slice(at, at + _CHUNK)
            sums.add(measure_edits(part.scene(chunk, layer.scaling), of_head, edit), weight[chunk])
        parts[name] = [([str(head)], sums, ranks)]
    provenance: dict[str, Any] = {"edit": str(edit), "seed": seed, "choices": vars(features.choices)}
    return Effects.read_all(parts, edit=edit, notes=of_head[head].notes, provenance=provenance)
