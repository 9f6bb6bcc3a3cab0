"""The study: the grid of heads, what is found in them, and where it ends (paper, sections 2 to 4).

    found = study("runs/toy")
    found.accuracy(), found.misses("energy"), found.swaps()

One folder; every part of it is a run of its own, and parts that are there are not computed again:

    heads        trained heads with the maps of their tasks
    trained      ranks, swaps and attributions of these
    untrained    ranks of the same heads before training
    rebased      the trained heads after a change of basis that leaves all logits as they were
    limits       errors under correlation and with few examples
    clouds       keys and queries in the subspace of z1
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from qkprism.errors import QKPrismError
from qkprism.runs.files import is_unused, path_of
from qkprism.runs.folder import json_value
from qkprism.runs.store import Parts
from qkprism.toy.cells import Cell, ToyHead, paper_grid, untrained
from qkprism.toy.clouds import Point, clouds
from qkprism.toy.contrasts import Sampling
from qkprism.toy.interventions import Swap
from qkprism.toy.limits import Limit, limits
from qkprism.toy.portrait import KINDS, QUICK_SWAPS, Depth, PartError, Portrait, portray
from qkprism.toy.recovery import Recovery
from qkprism.toy.results import Study
from qkprism.toy.stack import Protocol, protocol_named
from qkprism.toy.store import TABLES, VERSION, Kinds, Tables, load_heads
from qkprism.toy.task import ToyTask, Variant
from qkprism.toy.training import TrainingProgress, check_cells, checkpoint_of, train
from qkprism.toy.truth import CONDITION, rebased

PORTRAIT: Kinds = {"recovered": Recovery, "swaps": Swap, "parts": PartError}
LIMITS: Kinds = {"limits": Limit}
CLOUDS: Kinds = {"clouds": Point}
PORTRAITS = ("trained", "untrained", "rebased")
PARTS = {**dict.fromkeys(PORTRAITS, PORTRAIT), "limits": LIMITS, "clouds": CLOUDS}


def load_study(folder: str | os.PathLike[str]) -> Study:
    """A finished study, as it is in its folder; nothing is computed."""
    place = Path(folder)
    loaded = {name: Tables.load(kinds, place / name) for name, kinds in PARTS.items()}
    stored = load_heads(place / "heads")
    cells = dict.fromkeys(Cell.from_json(state) for state, *_ in loaded["trained"].job["heads"])
    _check(place, {name: part.job for name, part in loaded.items()}, cells, stored)
    tables = {name: part.rows for name, part in loaded.items()}
    of_trained, of_untrained, of_rebased = (Portrait(**tables[name]) for name in PORTRAITS)
    heads = {cell: stored[cell] for cell in cells}
    return Study(heads, of_trained, of_untrained, of_rebased, **tables["limits"], **tables["clouds"])


def _check(
    place: Path, jobs: Mapping[str, Mapping[str, Any]], cells: Mapping[Cell, None], stored: Mapping[Cell, ToyHead]
) -> None:
    """Refuse parts that were made of other heads, or drawn otherwise, than the first."""
    trained = {str(json_value(asdict(cell))): json_value([head.steps, head.loss]) for cell, head in stored.items()}
    for name, job in jobs.items():
        states = {str(state): told for state, *told in job["heads"]}
        of_all = name not in PORTRAITS or list(states) == [str(state) for state, *_ in jobs["trained"]["heads"]]
        same = name == "untrained" or all(trained.get(cell) == told for cell, told in states.items())
        if not of_all or not same or any(cell not in stored for cell in cells):
            raise QKPrismError(f"{place / name} is of other heads than {place / 'heads'}. Run the study again.")
        if job["sampling"] != jobs["trained"]["sampling"]:
            raise QKPrismError(f"{place / name} was drawn otherwise than {place / 'trained'}. Run the study again.")


MOST_REBASED = 12_800  # samples of a swap in a rebased head
Say = Callable[[str], None]

PICTURED = (3, 5)  # the paper's ranks at d_head 16, not of its grid
PROBED = {8: ((2, 3), (3, 3), (3, 4)), 16: ((4, 6), (6, 6), (7, 8))}


def study(
    folder: str | os.PathLike[str],
    *,
    cells: Sequence[Cell] | None = None,
    protocol: str | Protocol = "fast",
    sampling: Sampling | None = None,
    depth: Depth | None = None,
    progress: TrainingProgress | None = None,
    say: Say | None = None,
) -> Study:
    """Train the grid of the paper, or other cells, and measure all there is to know; what is in the folder is kept.

    `progress` is told the steps of the training and how many cells are still in it, `say` what is being done. Without a
    `depth` a swap has 51,200 samples, as in the paper, and 4,096 with the protocol `quick`.
    """
    _check_place(path_of(folder))
    chosen = tuple(cells) if cells is not None else paper_grid()
    check_cells(chosen)
    pictured = _pictured(chosen)
    every = (*chosen, *(cell for cell in pictured if cell not in chosen))
    told = say or _silent
    told(f"training {len(every)} heads")
    trained = train(every, protocol, folder=Path(folder) / "heads", progress=progress)
    usual = Depth(QUICK_SWAPS) if protocol_named(protocol).name == "quick" else Depth()
    work = _ToyWork(Path(folder), sampling or Sampling(), depth or usual, told)
    heads = {cell: trained[cell] for cell in chosen}
    return work.study(heads, [trained[cell] for cell in pictured])


@dataclass(frozen=True)
class _ToyWork:
    """The parts that follow the training, each kept in a folder of its own."""

    place: Path
    sampling: Sampling
    depth: Depth
    say: Say

    def study(self, heads: Mapping[Cell, ToyHead], pictured: Sequence[ToyHead]) -> Study:
        every = [*heads.values()]
        only_ranks = Depth(0, 0, parts=False)
        features_only = replace(self.depth, draws=0, swaps=min(self.depth.swaps, MOST_REBASED))
        return Study(
            heads=heads,
            trained=self.portrait("trained", every, self.depth),
            untrained=self.portrait("untrained", [untrained(cell) for cell in heads], only_ranks),
            rebased=self.portrait("rebased", [rebased(head) for head in every], features_only),
            **self.limits(_probed(every)),
            **self.kept("clouds", pictured, CLOUDS, lambda: {"clouds": clouds(pictured, self.sampling)}),
        )

    def portrait(self, name: str, heads: Sequence[ToyHead], depth: Depth) -> Portrait:
        def make() -> dict[str, Sequence[Any]]:
            found = portray(heads, self.sampling, depth, lambda done: self.say(f"{name} heads: {done} of {len(heads)}"))
            return {kind: getattr(found, kind) for kind in KINDS}

        counted = replace(depth, most=0)  # not what a portrait depends on
        more = {"depth": asdict(counted), "condition": CONDITION if name == "rebased" else 1}
        return Portrait(**self.kept(name, heads, PORTRAIT, make, more))

    def limits(self, heads: Sequence[ToyHead]) -> Mapping[str, Any]:
        def make() -> dict[str, Sequence[Any]]:
            self.say(f"correlated latents and few examples in {len(heads)} heads")
            return {"limits": limits(heads, self.sampling, self.depth.most)}

        return self.kept("limits", heads, LIMITS, make, {"most": self.depth.most})

    def kept(
        self,
        name: str,
        heads: Sequence[ToyHead],
        kinds: Kinds,
        make: Callable[[], dict[str, Sequence[Any]]],
        more: Mapping[str, Any] | None = None,
    ) -> Mapping[str, Any]:
        """Tables of some heads: the job is which heads, how they were trained, and how contrasts are drawn."""
        which = [[asdict(head.cell), head.steps, head.loss] for head in heads]
        job = {"version": VERSION, "heads": which, "sampling": asdict(self.sampling), **(more or {})}
        parts = Parts(self.place, TABLES, job)
        return parts.get(name, lambda: Tables(job, kinds, make()), partial(Tables.load, kinds)).rows


def _check_place(place: Path) -> None:
    """Refuse to write where something else is."""
    heads = place / "heads"
    if not any(kept.is_dir() for kept in (heads, checkpoint_of(heads))) and not is_unused(place):
        raise QKPrismError(f"{place} holds other files and is not a toy study. Choose another folder.")


def _silent(_: str) -> None:
    """Nobody is told."""


def _probed(heads: Sequence[ToyHead]) -> list[ToyHead]:
    """A few heads with room, of the first seed; in their absence any two."""
    first = min(head.cell.seed for head in heads)
    roomy = [head for head in heads if head.cell.task.ranks in PROBED.get(head.cell.d_head, ())]
    return [head for head in roomy if head.cell.seed == first] or [*heads[:2]]


def _pictured(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The paper's cells with its grid; else a cell of each variant, with three dimensions of z1 if there is one."""
    seed, preset = min(cell.seed for cell in cells), cells[0].task.preset
    if set(paper_grid(seeds=(seed,), preset=preset)) <= set(cells):
        return tuple(Cell(ToyTask(variant, *PICTURED, preset), 16, seed) for variant in get_args(Variant))
    ordered = sorted(cells, key=lambda cell: (cell.task.r1 != 3, cell.superposed))
    return tuple({cell.task.variant: cell for cell in reversed(ordered)}.values())
