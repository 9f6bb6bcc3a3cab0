"""Attributions of toy heads against the true parts of their logits (paper, section 5; truth from section 2).

The true part of a latent in q.k is q.W_K A_f z_f. Errors and sizes are means of absolute values, in the logits of the
softmax. In a superposed head features may have no joint projectors; the oblique split is nan there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from qkprism.core.features import Feature
from qkprism.core.projectors import joint_projectors
from qkprism.core.splitting import Split, split_of
from qkprism.toy.cells import Cell, ToyHead
from qkprism.toy.samples import LATENTS, Latent, draw_samples
from qkprism.toy.task import stream
from qkprism.toy.truth import logit_parts
from qkprism.toy.ways import Ways

METRICS = ("contrast", "raw")
SPLITS = ("oblique", "sequential", "shapley")
PAIRS = 256  # samples of 16 tokens


@dataclass(frozen=True)
class PartError:
    """How far the part that a split gives a latent is from the true one."""

    cell: Cell
    latent: Latent
    metric: str
    split: str
    error: float
    size: float

    @property
    def share(self) -> float:
        """The error relative to the size of the true part."""
        return self.error / self.size


def part_errors(head: ToyHead, ways: Ways, number: int) -> list[PartError]:
    """Every split in every metric; the paper's is sequential and raw."""
    samples, scaling = draw_samples(head.cell.task, PAIRS, stream("parts", repr(head.cell))), head.cell.d_head**-0.5
    query, key = head.queries(samples), head.keys(samples)
    true = {name: part * scaling for name, part in logit_parts(head, samples).items()}
    rows = []
    for metric in METRICS:
        features = ways.features(number, metric)
        for split in SPLITS:
            found = _split(features, split)
            parts = {} if found is None else dict(zip(found.names, found.parts(query, key, scaling), strict=True))
            for latent in LATENTS:
                error = float((parts[latent] - true[latent]).abs().mean()) if parts else nan
                rows.append(PartError(head.cell, latent, metric, split, error, float(true[latent].abs().mean())))
    return rows


def _split(features: Sequence[Feature], method: str) -> Split | None:
    return None if method == "oblique" and joint_projectors(features).subspaces is None else split_of(features, method)
