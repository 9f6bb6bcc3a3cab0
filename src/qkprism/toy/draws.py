"""The draws of a batch, made once and shared by every cell of a bank.

Cells differ in their ranks: each takes the first coordinates of the same latents. Discrete latents are the signs of
the continuous ones. A draw depends on its key alone, never on which cells are trained together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from qkprism.toy.bank import Draws
from qkprism.toy.samples import to_variant
from qkprism.toy.task import ToyTask, Variant, stream


@dataclass(frozen=True)
class Deal:
    """Gaussian latents of the largest rank, payloads and noise of a batch."""

    latents: Float[Tensor, "sample token factor rank"]
    payload: Float[Tensor, "sample token payload"]
    noise: Float[Tensor, "sample token width"]
    query_noise: Float[Tensor, "sample width"]
    original: Int[Tensor, " sample"]


def deal(task: ToyTask, rank: int, n: int, *key: int | str) -> Deal:
    """A batch of n samples for all tasks of one size with ranks up to `rank`."""
    of_latents, of_rest = stream("latents", *key), stream("rest", *key)
    # rank first: a larger bank only adds rows
    latents = torch.randn(rank, 2, n, task.tokens, generator=of_latents).permute(2, 3, 1, 0)
    payload = torch.randint(task.payloads, (n, task.tokens), generator=of_rest)
    return Deal(
        latents=latents,
        payload=one_hot(payload, task.payloads).float(),
        noise=torch.randn(n, task.tokens, task.width, generator=of_rest),
        query_noise=torch.randn(n, task.width, generator=of_rest),
        original=torch.randint(task.tokens, (n,), generator=of_rest),
    )


def draws_of(dealt: Deal, variant: Variant, rank: int) -> Draws:
    """The batch as cells of one variant with ranks up to `rank` see it."""
    latents = to_variant(variant, dealt.latents[..., :rank]).flatten(2)
    row = torch.arange(len(dealt.original))
    by_token = torch.cat([latents, dealt.payload, dealt.noise], 2)
    selector = torch.cat([latents[row, dealt.original], dealt.query_noise], 1)
    answer = dealt.payload[row, dealt.original].argmax(1)
    return Draws(by_token.mT.contiguous(), by_token, selector, answer)
