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
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.core.conditions import Condition, Conditions
from qkprism.core.edits import Edit
from qkprism.core.intervention import Attending, Scene, measure_edits
from qkprism.core.rows import MEASURES, after_key_edit, read_row
from qkprism.heads import Head
from qkprism.toy.cells import Cell, ToyHead
from qkprism.toy.samples import LATENTS, draw_samples, match_target, take
from qkprism.toy.task import Samples, stream
from qkprism.toy.truth import true_keys
from qkprism.toy.ways import only

Target = Literal["given", "z1", "z2"]
BOTH = "z1+z2"
MOVED = (*LATENTS, BOTH)
MATCHED_SHARE = 4  # one matched sample for so many others
_CHUNK = 4096
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
    found = _rows(head, "given", conditions, n)
    for latent in LATENTS:
        found += _rows(head, latent, only(conditions), max(1, n // MATCHED_SHARE))
    return found


def _rows(head: ToyHead, target: Target, conditions: Conditions, n: int) -> list[Swap]:
    total = torch.zeros(3, len(MOVED), len(conditions.names), dtype=torch.float64)
    for samples in _chunks(head, target, n):
        total += _measured(head, samples, conditions) * (len(samples.original) / n)
    groups: dict[tuple[str, str, str], list[int]] = {}
    for i, name in enumerate(conditions.names):
        for feature in (name.feature,) if name.feature else MOVED:
            groups.setdefault((name.method, feature, name.control), []).append(i)
    return [_row(head.cell, target, key, total[:, :, own].mean(-1), conditions, own) for key, own in groups.items()]


def _row(
    cell: Cell, target: Target, key: tuple[str, str, str], mean: Tensor, conditions: Conditions, own: Sequence[int]
) -> Swap:
    original, attended, off = mean[:, MOVED.index(key[1])].tolist()
    return Swap(cell, target, *key, conditions.ranks[own[0]], original, attended, off)


def _chunks(head: ToyHead, target: Target, n: int) -> Iterator[Samples]:
    for at in range(0, n, _CHUNK):
        drawn = draw_samples(head.cell.task, min(_CHUNK, n - at), stream("swap", target, at, repr(head.cell)))
        yield drawn if target == "given" else match_target(drawn, target)


def scene_of(head: ToyHead, samples: Samples) -> Scene:
    """The attention of a head as the library's interventions take it."""
    vectors = Attending(head.queries(samples), head.keys(samples), samples.original, samples.target)
    return vectors.scene(slice(None), head.cell.d_head**-0.5)


def _measured(head: ToyHead, samples: Samples, conditions: Conditions) -> Float64[Tensor, "measure feature condition"]:
    """Mean attention on the original and the target, and the distance to the exchange of each feature."""
    scene = scene_of(head, samples)
    after = measure_edits(scene, {_PLACE: conditions}, Edit())[:, :, 0]
    original, target = (after[MEASURES.index(name)] for name in ("attention_original", "attention_target"))
    off = [
        ((original - o).abs() + (target - t).abs() + (original + target - o - t).abs()).mean(0) / 2
        for o, t in true_attention(head, samples, scene).values()
    ]
    means = [part.mean(0).expand(len(MOVED), -1) for part in (original, target)]
    return torch.stack([*means, torch.stack(off)])


def true_attention(
    head: ToyHead, samples: Samples, scene: Scene
) -> Mapping[str, tuple[Float64[Tensor, "sample 1"], Float64[Tensor, "sample 1"]]]:
    """The attention on original and target after each latent, and both, really changed places."""
    before = read_row(scene.logits.final, scene.places, scene.logits.sink)
    changes: dict[str, Tensor] = {}
    for latent in LATENTS:
        z = getattr(samples, latent)
        moved = (take(z, samples.target) - take(z, samples.original)).double() @ true_keys(head, latent).mT
        changes[latent] = (scene.query[:, 0] * moved).sum(-1) * scene.scaling
    changes[BOTH] = changes["z1"] + changes["z2"]
    change = torch.stack([*changes.values()])[:, :, None]
    original, target = after_key_edit(scene.logits, scene.places, before, (change, -change)).attention()
    return {name: (original[i], target[i]) for i, name in enumerate(changes)}


def feature_condition(method: str, feature: str) -> Condition:
    """The condition that moves a feature by a method."""
    return Condition("feature", feature, method)
