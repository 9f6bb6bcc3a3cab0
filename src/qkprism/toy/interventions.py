"""Swaps in toy heads, measured as in the paper and against what really happens when latents change places (section 4).

The target is any other token, or one that differs from the original in one latent only: there that latent's feature
should move all attention and the other's none. `off_truth` is the total variation between the attention after an edit
and after a true exchange of the same latents:

    l_o += q.W_K A_f (z_t - z_o) / sqrt(d_head),   l_t -= the same

All logits but two stay, so a row is three numbers: original, target and the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.core.edits import Edit
from qkprism.core.effect_sums import Condition
from qkprism.heads import Head
from qkprism.subspaces.conditions import Conditions
from qkprism.subspaces.intervention import key_changes
from qkprism.toy.cells import Cell, ToyHead
from qkprism.toy.editable import Editable, Target, draw_editable
from qkprism.toy.recipes import feature_only, only
from qkprism.toy.samples import LATENTS
from qkprism.toy.task import stream
from qkprism.toy.truth import true_keys

BOTH = "z1+z2"
MOVED = (*LATENTS, BOTH)
FEWER = 4096  # samples of the targets and controls that the paper does not have
_CHUNK = 2048
_PLACE = Head(0, 0)


@dataclass(frozen=True)
class Swap:
    """What one edit does in one head: mean attention after it, draws of a control averaged.

    `none` has a row for each feature, because `off_truth` is the distance to the exchange of that feature.
    """

    cell: Cell
    target: Target
    method: str
    feature: str
    control: str
    rank: int
    on_original: float
    on_target: float
    off_truth: float


def swaps(head: ToyHead, conditions: Conditions, n: int) -> list[Swap]:
    """All edits of a head: every condition with any other token as target, the features alone with matched ones."""
    found = _rows(head, "given", only(conditions, _of_paper), n)
    if not all(map(_of_paper, conditions.names)):
        further = only(conditions, lambda name: not _of_paper(name))
        found += _rows(head, "given", further, min(n, FEWER))
    for latent in LATENTS:
        found += _rows(head, latent, only(conditions), min(n, FEWER))
    return found


def _of_paper(name: Condition) -> bool:
    """Features by every method, and the one control that the paper has."""
    return feature_only(name) or (name.control, name.method) == ("gaussian", "raw")


def _rows(head: ToyHead, target: Target, conditions: Conditions, n: int) -> list[Swap]:
    """A row for each method, feature and control."""
    places: dict[tuple[str, str, str], list[int]] = {}
    for i, name in enumerate(conditions.names):
        for feature in (name.feature,) if name.feature else MOVED:
            places.setdefault((name.method, feature, name.control), []).append(i)
    total = torch.zeros(3, len(places), dtype=torch.float64)
    for rows in _chunks(head, target, n):
        total += _measured(head, rows, conditions, places) * (len(rows) / n)
    return [
        Swap(head.cell, target, *key, conditions.ranks[place[0]], *total[:, i].tolist())
        for i, (key, place) in enumerate(places.items())
    ]


def _chunks(head: ToyHead, target: Target, n: int) -> Iterator[Editable]:
    for at in range(0, n, _CHUNK):
        yield draw_editable(head, target, min(_CHUNK, n - at), stream("swap", target, at, repr(head.cell)))


def _measured(
    head: ToyHead, rows: Editable, conditions: Conditions, places: Mapping[tuple[str, str, str], Sequence[int]]
) -> Float64[Tensor, "measure place"]:
    """Mean attention on the original and the target, and the distance to the exchange of the feature."""
    change = key_changes(rows.scene, {_PLACE: conditions}, Edit())[0][..., 0] * rows.scene.scaling
    after, truth = torch.stack(rows.attention(change)), true_attention(head, rows)
    found = []
    for (_, feature, _), place in places.items():
        moved = after[:, place]
        off = moved - truth[feature][:, None]
        distance = (off.abs().sum(0) + off.sum(0).abs()).mean() / 2
        found.append(torch.stack([*moved.mean((1, 2)), distance]))
    return torch.stack(found, 1)


def true_attention(head: ToyHead, rows: Editable) -> dict[str, Float64[Tensor, "2 sample"]]:
    """The attention on original and target after each latent, and both, really changed places."""
    scene = rows.scene
    changes: dict[str, Tensor] = {
        latent: (scene.query[:, 0] * (moved.double() @ true_keys(head, latent).mT)).sum(-1) * scene.scaling
        for latent, moved in rows.moved.items()
    }
    changes[BOTH] = changes["z1"] + changes["z2"]
    after = torch.stack(rows.attention(torch.stack([*changes.values()])))
    return {name: after[:, i] for i, name in enumerate(changes)}


def feature_condition(method: str, feature: str) -> Condition:
    """The condition that moves a feature by a method."""
    return Condition("feature", feature, method)
