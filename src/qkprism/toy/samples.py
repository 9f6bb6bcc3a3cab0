"""Draws from the task: training and test samples, contrasts of one latent, and true counterfactuals.

A contrast of z1 is a sample of two tokens (paper, section 3): the positive shares z1 with the selector, the negative
does not, and both have one z2, drawn apart from the selector's. Payload and noise are each token's own. `exchange`
really exchanges one latent between two tokens: what an edit of keys is compared with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qkprism.errors import QKPrismError
from qkprism.toy.task import Samples, ToyTask, Variant

Latent = Literal["z1", "z2"]
LATENTS: tuple[Latent, ...] = get_args(Latent)
Negatives = Literal["differs", "redrawn"]
_BITS = 2 ** torch.arange(8, dtype=torch.uint8)


def draw_latents(
    variant: Variant, shape: tuple[int, ...], random: torch.Generator
) -> Float[Tensor, "*sample latent_rank"]:
    """Standard Gaussian vectors, or their signs."""
    return to_variant(variant, torch.randn(shape, generator=random))


def draw_signs(shape: tuple[int, ...], random: torch.Generator) -> Float[Tensor, "*sample latent_rank"]:
    """The sign vectors of `draw_latents`, a bit each: other numbers from the same stream, and a tenth of the time."""
    count = math.prod(shape)
    words = torch.randint(-(2**63), 2**63 - 1, (-(-count // 64),), generator=random)
    bits = words.view(torch.uint8)[:, None] & _BITS
    return bits.flatten()[:count].ne(0).float().mul_(2).sub_(1).view(shape)


def to_variant(variant: Variant, gaussian: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Gaussian draws as latents of a variant."""
    return torch.where(gaussian < 0, -1.0, 1.0) if variant == "discrete" else gaussian


def draw_given(
    variant: Variant,
    other: Float[Tensor, "*sample other_rank"],
    rank: int,
    correlation: float,
    random: torch.Generator,
) -> Float[Tensor, "*sample latent_rank"]:
    """A latent whose coordinates have this correlation with those of another latent, as far as both go."""
    check_correlation(correlation)
    fresh = draw_latents(variant, (*other.shape[:-1], rank), random)
    if correlation == 0:
        return fresh
    shared = min(rank, other.shape[-1])
    ours, theirs = fresh[..., :shared], other[..., :shared]
    if variant == "discrete":
        keep = torch.rand(ours.shape, generator=random) < (1 + correlation) / 2
        mixed = torch.where(keep, theirs, -theirs)
    else:
        mixed = correlation * theirs + math.sqrt(1 - correlation**2) * ours
    return torch.cat([mixed, fresh[..., shared:]], -1)


def check_correlation(correlation: float) -> None:
    """Refuse what is no correlation, and 1, with which no two latents differ."""
    if not -1 < correlation < 1:
        raise QKPrismError(f"correlation={correlation} is not possible. Use a number between -1 and 1, without these.")


def check_negatives(negatives: str) -> None:
    """Refuse a kind of negatives that there is not."""
    _known("negatives", negatives, get_args(Negatives))


def draw_samples(task: ToyTask, n: int, random: torch.Generator, *, correlation: float = 0.0) -> Samples:
    """Samples as the head is trained and tested on; the target is any other token."""
    z1 = draw_latents(task.variant, (n, task.tokens, task.r1), random)
    z2 = draw_given(task.variant, z1, task.r2, correlation, random)
    original = torch.randint(task.tokens, (n,), generator=random)
    further = torch.randint(1, task.tokens, (n,), generator=random)
    return Samples(
        z1=z1,
        z2=z2,
        payload=torch.randint(task.payloads, (n, task.tokens), generator=random),
        noise=torch.randn(n, task.tokens, task.width, generator=random),
        query_z1=take(z1, original),
        query_z2=take(z2, original),
        query_noise=torch.randn(n, task.width, generator=random),
        original=original,
        target=(original + further) % task.tokens,
    )


def draw_contrast(
    task: ToyTask,
    latent: Latent,
    n: int,
    random: torch.Generator,
    *,
    negatives: Negatives = "differs",
    correlation: float = 0.0,
) -> Samples:
    """Contrast pairs of one latent: token 0 is the positive key, token 1 the negative."""
    _known("latent", latent, LATENTS)
    check_negatives(negatives)
    own_rank, held_rank = task.ranks if latent == "z1" else task.ranks[::-1]
    values = draw_latents(task.variant, (n, own_rank), random)
    of_query = draw_given(task.variant, values, held_rank, correlation, random)
    held = draw_given(task.variant, values, held_rank, correlation, random)
    negative = draw_given(task.variant, held, own_rank, correlation, random)
    if negatives == "differs":
        make_differ(negative, values, lambda same: draw_given(task.variant, held[same], own_rank, correlation, random))
    tokens = {latent: torch.stack([values, negative], 1), _other(latent): torch.stack([held, held], 1)}
    return Samples(
        **tokens,
        # not shared: along what never differs between keys the contrast metric has only noise to go by
        payload=torch.randint(task.payloads, (n, 2), generator=random),
        noise=torch.randn(n, 2, task.width, generator=random),
        **{f"query_{latent}": values, f"query_{_other(latent)}": of_query},
        query_noise=torch.randn(n, task.width, generator=random),
        original=torch.zeros(n, dtype=torch.long),
        target=torch.ones(n, dtype=torch.long),
    )


def make_differ(
    drawn: Float[Tensor, "sample latent_rank"],
    other: Float[Tensor, "sample latent_rank"],
    again: Callable[[Bool[Tensor, " sample"]], Float[Tensor, "same latent_rank"]],
) -> Float[Tensor, "sample latent_rank"]:
    """Draw anew, in place, what is the same as the other, until nothing is."""
    while bool((same := (drawn == other).all(-1)).any()):
        drawn[same] = again(same)
    return drawn


def differ_in_sign(
    drawn: Float[Tensor, "sample latent_rank"], other: Float[Tensor, "sample latent_rank"], random: torch.Generator
) -> Float[Tensor, "sample latent_rank"]:
    """Latents drawn anew, in place, where they are the same as the other: signs, for Gaussian vectors never are."""
    return make_differ(drawn, other, lambda same: draw_signs((int(same.sum()), drawn.shape[1]), random))


def exchange(samples: Samples, latent: Latent) -> Samples:
    """The true counterfactual: original and target token exchange this latent; selector, noise and payloads stay."""
    _known("latent", latent, LATENTS)
    tokens = getattr(samples, latent)
    row = torch.arange(len(tokens))
    changed = tokens.clone()
    changed[row, samples.original] = tokens[row, samples.target]
    changed[row, samples.target] = tokens[row, samples.original]
    return replace(samples, **{latent: changed})


def take(
    tokens: Float[Tensor, "sample token latent_rank"], index: Int[Tensor, " sample"]
) -> Float[Tensor, "sample latent_rank"]:
    """What one token of each sample has."""
    return tokens[torch.arange(len(tokens)), index]


def _other(latent: Latent) -> Latent:
    return "z2" if latent == "z1" else "z1"


def _known(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise QKPrismError(f"{name}={value!r} is not known. Use {' or '.join(allowed)}.")
