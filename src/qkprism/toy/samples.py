"""Draws from the task: training and test samples, contrasts of one latent, and true counterfactuals.

A contrast of z1 is a sample of two tokens (paper, section 3): the positive shares z1 with the selector, the negative
does not, and both have one z2, drawn apart from the selector's. Payload and noise are each token's own. `exchange`
really exchanges one latent between two tokens: what an edit of keys is compared with.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkprism.errors import QKPrismError
from qkprism.toy.task import Samples, Task, Variant

Latent = Literal["z1", "z2"]
LATENTS: tuple[Latent, ...] = get_args(Latent)
Negatives = Literal["differs", "redrawn"]


def draw_latents(
    variant: Variant, shape: tuple[int, ...], random: torch.Generator
) -> Float[Tensor, "*sample latent_rank"]:
    """Standard Gaussian vectors, or their signs."""
    return to_variant(variant, torch.randn(shape, generator=random))


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


def draw_samples(task: Task, n: int, random: torch.Generator, *, correlation: float = 0.0) -> Samples:
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
    task: Task,
    latent: Latent,
    n: int,
    random: torch.Generator,
    *,
    negatives: Negatives = "differs",
    correlation: float = 0.0,
) -> Samples:
    """Contrast pairs of one latent: token 0 is the positive key, token 1 the negative."""
    _known("latent", latent, LATENTS)
    _known("negatives", negatives, get_args(Negatives))
    own_rank, held_rank = task.ranks if latent == "z1" else task.ranks[::-1]
    own = draw_latents(task.variant, (n, own_rank), random)
    of_query = draw_given(task.variant, own, held_rank, correlation, random)
    held = draw_given(task.variant, own, held_rank, correlation, random)
    negative = draw_given(task.variant, held, own_rank, correlation, random)
    while negatives == "differs" and bool((same := (negative == own).all(-1)).any()):
        negative[same] = draw_given(task.variant, held[same], own_rank, correlation, random)
    tokens = {latent: torch.stack([own, negative], 1), _other(latent): torch.stack([held, held], 1)}
    return Samples(
        **tokens,
        # not shared: along what never differs between keys the contrast metric has only noise to go by
        payload=torch.randint(task.payloads, (n, 2), generator=random),
        noise=torch.randn(n, 2, task.width, generator=random),
        **{f"query_{latent}": own, f"query_{_other(latent)}": of_query},
        query_noise=torch.randn(n, task.width, generator=random),
        original=torch.zeros(n, dtype=torch.long),
        target=torch.ones(n, dtype=torch.long),
    )


def match_target(samples: Samples, latent: Latent) -> Samples:
    """The same samples with a target that differs from the original in this latent only."""
    name = _other(latent)
    tokens = getattr(samples, name).clone()
    tokens[torch.arange(len(tokens)), samples.target] = take(tokens, samples.original)
    return replace(samples, **{name: tokens})


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


def _known(name: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise QKPrismError(f"{name}={given!r} is not known. Use {' or '.join(allowed)}.")
