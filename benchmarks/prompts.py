"""Prompts for the benchmarks: about 85 tokens with nine marked keys, and texts in which they differ in one factor."""

from __future__ import annotations

import random

import qkprism as qk

THINGS = "hat jam pen cup key map ring coin book lamp bell rope drum fork shoe vase".split()  # noqa: SIM905
BATCH = 8


def contrast(n: int, name: str = "boxes", seed: int = 0) -> qk.Contrast:
    """Prompts of about 85 tokens with nine marked keys; `boxes` marks the asked one, `first` the first."""
    rng = random.Random(seed)
    examples = []
    for _ in range(n):
        things, boxes, asked = rng.sample(THINGS, 9), rng.sample("ABCDEFGHJKLMNOPQRSTUVWXYZ", 9), rng.randrange(9)
        right = 0 if name == "first" else asked
        marks = [
            f"the {t} is in Box [{'+' if i == right else '-'}{b}]"
            for i, (t, b) in enumerate(zip(things, boxes, strict=True))
        ]
        asking = f". So, as was said before and is still true now for everyone here, the {things[asked]} is in [?Box]"
        examples.append(qk.Example.parse(", ".join(marks) + asking))
    return qk.Contrast(name, tuple(examples))
