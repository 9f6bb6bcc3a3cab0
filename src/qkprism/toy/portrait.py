"""What the library finds in some heads, all from one decomposition: ranks and subspaces, swaps, attributions.

Heads are taken a few at a time, side by side on the cores of the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from qkprism.errors import QKPrismError
from qkprism.toy.attributions import PartError, part_errors
from qkprism.toy.cells import ToyHead
from qkprism.toy.contrasts import Sampling
from qkprism.toy.cores import one_core_each
from qkprism.toy.interventions import Swap, swaps
from qkprism.toy.recipes import only, recipes_of
from qkprism.toy.recovery import Recovery, recovered

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
    ordered = sorted(heads, key=lambda head: -head.cell.d_head)  # the longest work first
    groups = [group for size in dict.fromkeys(h.cell.d_head for h in ordered) for group in _groups(ordered, size)]
    done, found = 0, []
    with one_core_each() as pool:
        for group, one in zip(groups, pool.map(partial(_few, sampling=sampling, depth=depth), groups), strict=True):
            found.append(one)
            done += len(group)
            if progress:
                progress(done)
    return Portrait(*(tuple(row for one in found for row in getattr(one, kind)) for kind in KINDS))


def _groups(heads: Sequence[ToyHead], d_head: int) -> list[Sequence[ToyHead]]:
    same_size = [head for head in heads if head.cell.d_head == d_head]
    return [same_size[at : at + TOGETHER] for at in range(0, len(same_size), TOGETHER)]


def _few(heads: Sequence[ToyHead], sampling: Sampling, depth: Depth) -> Portrait:
    recipes = recipes_of(heads, sampling)
    rows = recovered(heads, recipes.ours, sampling)
    moved: list[Swap] = []
    if depth.swaps:
        for head, conditions in zip(heads, recipes.conditions(max(depth.draws, 1)), strict=True):
            moved += swaps(head, conditions if depth.draws else only(conditions), depth.swaps)
    parts = [row for i, head in enumerate(heads) if depth.parts for row in part_errors(head, recipes, i)]
    return Portrait(tuple(rows), tuple(moved), tuple(parts))
