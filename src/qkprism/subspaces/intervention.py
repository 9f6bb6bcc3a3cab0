"""Edits under all conditions at once, on vectors: what `intervene` does with every batch, and the toy with its tensors.

key edit      l_o += scaling q^T P delta,   l_t falls by as much in a swap
query edit    l_i += scaling k_i^T P^T delta   for every token i
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from qkprism.core.conditional import UNKNOWN
from qkprism.core.edits import Edit
from qkprism.core.rows import Logits, Places, after_key_edit, measure, read_row
from qkprism.heads import Head
from qkprism.subspaces.conditions import Conditions
from qkprism.subspaces.modulation import KeyLabels


@dataclass(frozen=True)
class EditRows:
    """The query rows of some examples in some heads, with all keys that they see and the two that are edited.

    `labels` are those of the two keys; None where they are not known.
    """

    logits: Logits
    places: Places
    query: Float[Tensor, "example head d_head"]
    key: Float[Tensor, "example head token d_head"]
    scaling: float
    labels: KeyLabels | None = None


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
        original, target = (change * scene.scaling for change in key_changes(scene, conditions, edit))
        after = after_key_edit(scene.logits, scene.places, before, (original, target))
    return measure(before, after).movedim(1, -1)


def key_changes(
    scene: EditRows, conditions: Mapping[Head, Conditions], edit: Edit
) -> tuple[Float64[Tensor, "condition example head"], Float64[Tensor, "condition example head"]]:
    """q^T (change of the original key) and of the target, under every condition."""
    each = torch.arange(len(scene.query), device=scene.query.device)
    original, target = (scene.key[each, :, place] for place in (scene.places.original, scene.places.target))
    sides: tuple[list[Tensor], list[Tensor]] = ([], [])
    for i, (head, on_keys) in enumerate(conditions.items()):
        change = meet_change(edit, on_keys, head, original[:, i], target[:, i], met=scene.query[:, i])
        both = change, edit.of_target(change)
        if on_keys.swaps:
            values = values_of(scene, on_keys)
            more = on_keys.exchange(scene.query[:, i], (original[:, i], target[:, i]), values)
            both = tuple(torch.cat(one, -1) for one in zip(both, more, strict=True))  # type: ignore[assignment]
        for side, one in zip(sides, both, strict=True):
            side.append(one)
    return tuple(torch.stack(side, -1).movedim(1, 0) for side in sides)  # type: ignore[return-value]


def values_of(scene: EditRows, conditions: Conditions) -> tuple[Int[Tensor, " example"], Int[Tensor, " example"]]:
    """The values that the two keys of each example have of the label that modulates, -1 where they are not known."""
    assert conditions.modulation is not None  # there are conditional exchanges
    if scene.labels is None:
        unknown = torch.full((len(scene.query),), UNKNOWN, device=scene.query.device)
        return unknown, unknown
    return conditions.modulation.numbers(scene.labels, scene.query.device)


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
    labels: KeyLabels | None = None

    def scene(self, part: slice, scaling: float) -> EditRows:
        """Some of the examples."""
        query, key = self.query[part, None].double(), self.key[part, None].double()
        product = einsum(query, key, "example head d, example head token d -> example head token") * scaling
        marked = torch.ones_like(product[:, 0], dtype=torch.bool) if self.marked is None else self.marked[part]
        places = Places(self.original[part], self.target[part], marked)
        labels = None if self.labels is None else self.labels[part]
        return EditRows(Logits.of(product, product), places, query, key, scaling, labels)
