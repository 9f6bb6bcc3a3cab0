"""Samples as far as an edit of two keys needs them: two tokens whole, of all others their logits.

Tokens are drawn alike, so the original may always be token 0 and the target token 1. The noise of the others meets the
query in one Gaussian number each, which saves most of the drawing:

    l_i = (A1 z1_i + A2 z2_i + Ay e(y_i)).u + sigma |u| xi_i        u = W_K^T q
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from qkprism.core.intervention import Attending, Scene
from qkprism.core.rows import Logits, Places
from qkprism.toy.cells import ToyHead
from qkprism.toy.samples import LATENTS, Latent, draw_latents, take
from qkprism.toy.task import Samples

Target = Literal["given", "z1", "z2"]
PAIR = 2


@dataclass(frozen=True)
class Editable:
    """Attention rows of one head, and by how much the latents of original and target differ."""

    scene: Scene
    moved: Mapping[Latent, Float[Tensor, "sample latent_rank"]]

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
    z1, z2 = (draw_latents(task.variant, (n, task.tokens, rank), random) for rank in task.ranks)
    if target != "given":
        same = z2 if target == "z1" else z1
        same[:, 1] = same[:, 0]
    both = torch.cat([z1, z2], -1)
    payload = torch.randint(task.payloads, (n, task.tokens), generator=random)
    selector = both[:, 0] @ maps.query.mT + maps.noise * torch.randn(n, task.width, generator=random)
    query = selector @ head.query.mT
    met = query @ head.key
    noise = torch.randn(n, PAIR, task.width, generator=random)
    of_others = met.norm(dim=1, keepdim=True) * torch.randn(n, task.tokens - PAIR, generator=random)
    of_noise = torch.cat([_meet(noise, met), of_others], 1)
    logits = _meet(both, met @ maps.key) + (met @ maps.payload).gather(1, payload) + maps.noise * of_noise
    pair = both[:, :PAIR] @ maps.key.mT + maps.payload.mT[payload[:, :PAIR]] + maps.noise * noise
    scene = _scene(query, pair @ head.key.mT, logits, head.cell.d_head**-0.5)
    return Editable(scene, {"z1": z1[:, 1] - z1[:, 0], "z2": z2[:, 1] - z2[:, 0]})


def _meet(tokens: Float[Tensor, "sample token d"], vector: Float[Tensor, "sample d"]) -> Float[Tensor, "sample token"]:
    return (tokens @ vector[:, :, None])[..., 0]


def _scene(query: Tensor, key: Tensor, logits: Tensor, scaling: float) -> Scene:
    product = logits[:, None].double() * scaling
    first = torch.zeros(len(query), dtype=torch.long)
    places = Places(first, first + 1, torch.ones(logits.shape, dtype=torch.bool))
    return Scene(Logits.of(product, product), places, query[:, None].double(), key[:, None].double(), scaling)
