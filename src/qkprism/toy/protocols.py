"""How heads are trained: the paper's protocol (its appendix on training) and a fast one; AdamW on rows of parameters.

`paper` is a constant rate of 1e-4 until the validation loss has not improved for more than 5 checks. `fast` warms up to
a much higher rate and decays it to zero along a cosine, which fixes the number of steps; the same checks may end it
sooner. `quick` does so in a fifth of the steps: enough for small ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from qkprism.errors import QKPrismError

BETAS = (0.9, 0.999)
EPSILON = 1e-8


@dataclass(frozen=True)
class Protocol:
    """The rate of each step, the batch, and when to stop."""

    name: str
    rate: float
    steps: int
    warmup: int = 0
    decays: bool = False
    weight_decay: float = 0.01
    batch: int = 256
    check_every: int = 200
    patience: int = 5
    check_batches: int = 20
    check_batch: int = 512
    test_batches: int = 40

    def rate_at(self, step: int) -> float:
        """The rate of a step, counted from 0."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        if not self.decays:
            return self.rate
        done = (step - self.warmup) / (self.steps - self.warmup)
        return self.rate * (1 + math.cos(math.pi * done)) / 2


PROTOCOLS = {
    "paper": Protocol("paper", rate=1e-4, steps=400_000),
    "fast": Protocol("fast", rate=1e-2, steps=3000, warmup=300, decays=True),
    "quick": Protocol("quick", rate=2e-2, steps=600, warmup=100, decays=True, batch=128, check_batches=4),
}


def protocol_named(name: str | Protocol) -> Protocol:
    """A protocol by its name."""
    if isinstance(name, Protocol):
        return name
    if name not in PROTOCOLS:
        raise QKPrismError(f"{name!r} is not a protocol. Use {' or '.join(PROTOCOLS)}.")
    return PROTOCOLS[name]


def adamw(
    parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor, *, step: int, rate: float, weight_decay: float
) -> None:
    """One step of AdamW in place; `first` and `second` are its running moments, steps count from 0."""
    first.lerp_(gradient, 1 - BETAS[0])
    second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    corrections = [1 - beta ** (step + 1) for beta in BETAS]
    spread = torch.sqrt(second).div_(corrections[1] ** 0.5).add_(EPSILON)
    parameter.mul_(1 - rate * weight_decay).addcdiv_(first, spread, value=-rate / corrections[0])
