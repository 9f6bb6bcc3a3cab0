"""Attributions of toy heads against the true parts of their logits (paper, section 5; truth from section 2).

The true part of a latent in q.k is q.W_K A_f z_f. Errors and sizes are means of absolute values, in the logits of the
softmax. The library's features are split in the contrast and in the raw metric, the paper's in its own way: one after
the other, in the raw metric. In a superposed head features may have no joint projectors: its oblique split is nan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from qkprism.core.feature import Feature
from qkprism.core.projectors import joint_projectors
from qkprism.core.splitting import Split, split_of
from qkprism.toy.cells import Cell, ToyHead
from qkprism.toy.recipes import RecipeName, Recipes
from qkprism.toy.samples import LATENTS, Latent, draw_samples
from qkprism.toy.task import stream
from qkprism.toy.truth import logit_parts

SPLITS: tuple[tuple[RecipeName, str], ...] = (
    ("contrast", "oblique"),
    ("contrast", "sequential"),
    ("contrast", "shapley"),
    ("raw", "oblique"),
    ("raw", "shapley"),
    ("paper", "sequential"),
)
PAIRS = 256  # samples of 16 tokens


@dataclass(frozen=True)
class PartError:
    """How far the part that a split gives a latent is from the true one; `metric` is `paper` for its own features."""

    cell: Cell
    latent: Latent
    metric: RecipeName
    split: str
    error: float
    size: float

    @property
    def share(self) -> float:
        """The error relative to the size of the true part."""
        return self.error / self.size


def part_errors(head: ToyHead, recipes: Recipes, number: int) -> list[PartError]:
    """The parts of every split beside the true ones."""
    samples, scaling = draw_samples(head.cell.task, PAIRS, stream("parts", repr(head.cell))), head.cell.d_head**-0.5
    query, key = head.queries(samples), head.keys(samples)
    true = {name: part * scaling for name, part in logit_parts(head, samples).items()}
    rows = []
    for metric, split in SPLITS:
        found = _split(recipes.features(number, metric), split)
        parts = {} if found is None else dict(zip(found.names, found.parts(query, key, scaling), strict=True))
        for latent in LATENTS:
            error = float((parts[latent] - true[latent]).abs().mean()) if parts else nan
            rows.append(PartError(head.cell, latent, metric, split, error, float(true[latent].abs().mean())))
    return rows


def _split(features: Sequence[Feature], method: str) -> Split | None:
    return None if method == "oblique" and joint_projectors(features).subspaces is None else split_of(features, method)
