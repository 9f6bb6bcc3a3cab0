"""What the library finds in some heads, all from one decomposition: ranks and subspaces, swaps, attributions.

Heads are taken a few at a time, side by side on the cores of the machine. Attributions are held against the true part
of a latent in q.k, which is q.W_K A_f z_f: errors and sizes are means of absolute values, in the logits of the softmax.
The library's features are split in the contrast and in the raw metric, the paper's in its own way: one after the other,
in the raw metric. In a superposed head features may have no joint projectors: its oblique split is nan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import nan

from jaxtyping import Float64
from torch import Tensor

from qkprism.core.feature import Feature
from qkprism.core.projectors import joint_projectors
from qkprism.core.splitting import Split, split_of
from qkprism.errors import QKPrismError
from qkprism.toy.cells import Cell, ToyHead, by_size
from qkprism.toy.contrasts import RecipeName, Recipes, Sampling, only, recipes_of
from qkprism.toy.interventions import Swap, swaps
from qkprism.toy.recovery import Recovery, recovered
from qkprism.toy.samples import LATENTS, Latent, draw_samples
from qkprism.toy.stack import one_core_each
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
    """The parts of every split beside the true ones, both less their mean over the tokens of a row.

    What all tokens of a row share moves no attention: it is the part of the mean key, which is hardly known.
    """
    samples, scaling = draw_samples(head.cell.task, PAIRS, stream("parts", repr(head.cell))), head.cell.d_head**-0.5
    query, key = head.queries(samples), head.keys(samples)
    true = {name: _within_rows(part * scaling) for name, part in logit_parts(head, samples).items()}
    rows = []
    for metric, split in SPLITS:
        found = _split(recipes.features(number, metric), split)
        parts = {} if found is None else dict(zip(found.names, found.parts(query, key, scaling), strict=True))
        for latent in LATENTS:
            error = float((_within_rows(parts[latent]) - true[latent]).abs().mean()) if parts else nan
            rows.append(PartError(head.cell, latent, metric, split, error, float(true[latent].abs().mean())))
    return rows


def _within_rows(part: Float64[Tensor, "sample token"]) -> Float64[Tensor, "sample token"]:
    return part - part.mean(-1, keepdim=True)


def _split(features: Sequence[Feature], method: str) -> Split | None:
    return None if method == "oblique" and joint_projectors(features).subspaces is None else split_of(features, method)


KINDS = ("recovered", "swaps", "parts")
SWAPS, QUICK_SWAPS = 51_200, 4096
TOGETHER = 9  # heads: enough to share what does not depend on the head, few enough to keep all cores at work


@dataclass(frozen=True)
class Depth:
    """How much is measured: samples of every swap (0: no swaps), draws of random controls (0: none), attributions.

    A swap has 51,200 samples, as in the paper. `most` is the largest number of examples where several are compared.
    """

    swaps: int = SWAPS
    draws: int = 2
    parts: bool = True
    most: int = 4096

    def __post_init__(self) -> None:
        if min(self.swaps, self.draws, self.most) < 0:
            raise QKPrismError(f"{self} is not possible: numbers start at 0.")


@dataclass(frozen=True)
class Portrait:
    """The rows of all heads."""

    recovered: tuple[Recovery, ...] = field(repr=False)
    swaps: tuple[Swap, ...] = field(repr=False, default=())
    parts: tuple[PartError, ...] = field(repr=False, default=())


def portray(
    heads: Sequence[ToyHead],
    sampling: Sampling,
    depth: Depth = Depth(),  # noqa: B008
    progress: Callable[[int], None] | None = None,
) -> Portrait:
    """The portrait of heads of any size; `progress` is told how many are done."""
    groups = [
        alike[at : at + TOGETHER]
        for alike in reversed(by_size(heads))  # the longest work first
        for at in range(0, len(alike), TOGETHER)
    ]
    done, found = 0, []
    with one_core_each() as pool:
        for group, one in zip(groups, pool.map(partial(_few, sampling=sampling, depth=depth), groups), strict=True):
            found.append(one)
            done += len(group)
            if progress:
                progress(done)
    return Portrait(*(tuple(row for one in found for row in getattr(one, kind)) for kind in KINDS))


def _few(heads: Sequence[ToyHead], sampling: Sampling, depth: Depth) -> Portrait:
    recipes = recipes_of(heads, sampling)
    rows = recovered(heads, recipes.ours, sampling)
    moved: list[Swap] = []
    if depth.swaps:
        for head, conditions in zip(heads, recipes.conditions(max(depth.draws, 1)), strict=True):
            moved += swaps(head, conditions if depth.draws else only(conditions), depth.swaps)
    parts = [row for i, head in enumerate(heads) if depth.parts for row in part_errors(head, recipes, i)]
    return Portrait(tuple(rows), tuple(moved), tuple(parts))
