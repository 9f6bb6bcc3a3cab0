"""Swaps in toy heads, measured as in the paper and against what really happens when latents change places (section 4).

The target is any other token, or one that differs from the original in one latent only: there that latent's feature
should move all attention and the other's none. `off_truth` is the total variation between the attention after an edit
and after a true exchange of the same latents:

    l_o += q.W_K A_f (z_t - z_o) / sqrt(d_head),   l_t -= the same

All logits but two stay, so two tokens are drawn whole, and of all others their logits. Tokens are drawn alike, so the
original may always be token 0 and the target token 1. The noise of the others meets the query in one Gaussian number
each, and so do Gaussian latents, which saves most of the drawing:

    l_i = (A1 z1_i + A2 z2_i + Ay e(y_i)).u + sigma |u| xi_i        u = W_K^T q
        = Ay e(y_i).u + (|A^T u|^2 + sigma^2 |u|^2)^(1/2) xi_i      continuous
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from qkprism.core.edits import Edit
from qkprism.core.effect_sums import Condition
from qkprism.core.rows import Logits, Places, Row, after_key_edit, read_row
from qkprism.heads import Head
from qkprism.subspaces.conditions import Conditions
from qkprism.subspaces.intervention import Attending, EditRows, key_changes
from qkprism.toy.cells import Cell, ToyHead
from qkprism.toy.contrasts import feature_only, only
from qkprism.toy.samples import LATENTS, Latent, differ_in_sign, draw_signs, take
from qkprism.toy.task import Maps, Samples, ToyTask, stream
from qkprism.toy.truth import true_keys

Target = Literal["given", "z1", "z2"]
PAIR = 2


@dataclass(frozen=True)
class Editable:
    """Attention rows of one head, and by how much the latents of original and target differ."""

    scene: EditRows
    moved: Mapping[Latent, Float[Tensor, "sample latent_rank"]]

    @cached_property
    def before(self) -> Row:
        """The rows as they are."""
        return read_row(self.scene.logits.final, self.scene.places, self.scene.logits.sink)

    def attention(
        self, change: Float64[Tensor, "change sample"]
    ) -> tuple[Float64[Tensor, "change sample"], Float64[Tensor, "change sample"]]:
        """The attention on original and target after logits of the original grew and of the target fell by so much."""
        change = change[:, :, None]
        after = after_key_edit(self.scene.logits, self.scene.places, self.before, (change, -change))
        on_original, on_target = after.attention()
        return on_original[..., 0], on_target[..., 0]

    def __len__(self) -> int:
        return len(self.scene.query)

    @classmethod
    def of(cls, head: ToyHead, samples: Samples) -> Editable:
        """The rows of samples that are there already."""
        vectors = Attending(head.queries(samples), head.keys(samples), samples.original, samples.target)
        latents = {latent: getattr(samples, latent) for latent in LATENTS}
        moved = {name: take(z, samples.target) - take(z, samples.original) for name, z in latents.items()}
        return cls(vectors.scene(slice(None), head.cell.d_head**-0.5), moved)


def draw_editable(head: ToyHead, target: Target, n: int, random: torch.Generator) -> Editable:
    """Rows as `draw_samples` would give them; `target` names the one latent in which the target differs."""
    task, maps = head.cell.task, head.maps
    z1, z2 = _pair(task, target, n, random)
    both, noise = torch.cat([z1, z2], -1), torch.randn(n, PAIR + 1, task.width, generator=random)
    payload = torch.randint(task.payloads, (n, task.tokens), generator=random)
    query = (both[:, 0] @ maps.query.mT + maps.noise * noise[:, PAIR]) @ head.query.mT
    pair = both @ maps.key.mT + maps.payload.mT[payload[:, :PAIR]] + maps.noise * noise[:, :PAIR]
    key = pair @ head.key.mT
    others = _others(task, maps, query @ head.key, payload[:, PAIR:], random)
    scene = _scene(query, key, torch.cat([_meet(key, query), others], 1), head.cell.d_head**-0.5)
    return Editable(scene, {"z1": z1[:, 1] - z1[:, 0], "z2": z2[:, 1] - z2[:, 0]})


def _pair(task: ToyTask, target: Target, n: int, random: torch.Generator) -> list[Tensor]:
    """z1 and z2 of original and target; a matched target differs in its latent and in nothing else."""
    found = [_latents(task, (n, PAIR, rank), random) for rank in task.ranks]
    if target != "given":
        moved, held = found if target == "z1" else found[::-1]
        held[:, 1] = held[:, 0]
        differ_in_sign(moved[:, 1], moved[:, 0], random)
    return found


def _latents(task: ToyTask, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
    return draw_signs(shape, random) if task.variant == "discrete" else torch.randn(shape, generator=random)


def _others(
    task: ToyTask, maps: Maps, met: Float[Tensor, "sample width"], payload: Tensor, random: torch.Generator
) -> Float[Tensor, "sample other"]:
    """The logits of all other tokens, which the query meets in u = `met`."""
    named, spread = met @ maps.key, maps.noise * met.norm(dim=1, keepdim=True)
    if task.variant == "continuous":
        spread = torch.hypot(spread, named.norm(dim=1, keepdim=True))
    logits = spread * torch.randn(payload.shape, generator=random) + (met @ maps.payload).gather(1, payload)
    if task.variant == "discrete":
        logits += _meet(draw_signs((*payload.shape, named.shape[1]), random), named)
    return logits


def _meet(tokens: Float[Tensor, "sample token d"], vector: Float[Tensor, "sample d"]) -> Float[Tensor, "sample token"]:
    return (tokens @ vector[:, :, None])[..., 0]


def _scene(query: Tensor, key: Tensor, logits: Tensor, scaling: float) -> EditRows:
    product = logits[:, None].double() * scaling
    first = torch.zeros(len(query), dtype=torch.long)
    places = Places(first, first + 1, torch.ones(logits.shape, dtype=torch.bool))
    return EditRows(Logits.of(product, product), places, query[:, None].double(), key[:, None].double(), scaling)


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
