"""Training a bank: all cells take the same batches, each stops when its own validation loss no longer improves.

    heads = train(paper_grid(), "fast", folder="runs/toy/heads")

Cells of one variant and d_head are a stack, one computation; what they share is drawn once for all stacks. Batches
depend on the step alone, so training that was killed goes on to the identical result (`store.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkprism.errors import QKPrismError
from qkprism.runs.store import Unfinished
from qkprism.toy.bank import Deal, deal
from qkprism.toy.cells import Cell, ToyHead
from qkprism.toy.stack import Protocol, Stack, evaluate, largest_rank, one_core_each, protocol_named
from qkprism.toy.store import Store

TrainedHeads = Mapping[Cell, ToyHead]
TrainingProgress = Callable[[int, int], None]


def train(
    cells: Sequence[Cell],
    protocol: str | Protocol = "fast",
    *,
    folder: str | os.PathLike[str] | None = None,
    progress: TrainingProgress | None = None,
) -> TrainedHeads:
    """Train a head for each cell; `progress` is told the steps taken and the number of cells still in training.

    With a folder, the heads are saved there, finished ones are not trained again, and training that was cut short
    goes on where it was.
    """
    chosen = protocol_named(protocol)
    check_cells(cells)
    store = Store.open(folder, chosen) if folder is not None else None
    heads = dict(store.heads) if store else {}
    stacks = _stacks([cell for cell in cells if cell not in heads])
    if stacks:
        work = Unfinished(checkpoint_of(folder) if folder is not None else None, _job(stacks, chosen))
        with work.stoppable():
            _run(stacks, chosen, _taken_up(stacks, work), work, progress)
        heads |= (trained := _tested(stacks, chosen))
        if store:
            store.add(trained)
    if folder is not None:
        Unfinished(checkpoint_of(folder), {}).remove()
    return {cell: heads[cell] for cell in cells}


def checkpoint_of(folder: str | os.PathLike[str]) -> Path:
    """Where training that is not finished is kept, beside the heads."""
    return Path(folder).with_name(f"{Path(folder).name}.checkpoint")


def _job(stacks: Sequence[Stack], protocol: Protocol) -> dict[str, Any]:
    """What tells one training from another."""
    cells = [[asdict(cell) for cell in stack.cells] for stack in stacks]
    return {"cells": cells, "protocol": asdict(protocol), "torch": torch.__version__}


def _taken_up(stacks: Sequence[Stack], work: Unfinished) -> int:
    """Set the stacks to where a former training of the same cells was, and give the steps it had taken."""
    done, files = work.read()
    for number, stack in enumerate(stacks if done else ()):
        for name in stack.tensors():
            setattr(stack, name, files["stacks"][f"{number}/{name}"])
    return int(done.get("steps", 0))


def _state(stacks: Sequence[Stack]) -> dict[str, dict[str, Tensor]]:
    return {"stacks": {f"{i}/{name}": t for i, stack in enumerate(stacks) for name, t in stack.tensors().items()}}


def check_cells(cells: Sequence[Cell]) -> None:
    """Refuse cells that cannot be trained together."""
    if not cells:
        raise QKPrismError("There is no cell to train.")
    if len(set(cells)) < len(cells):
        raise QKPrismError("A cell is given twice. Give them other seeds.")
    if len({(cell.task.tokens, cell.task.payloads, cell.task.width) for cell in cells}) > 1:
        raise QKPrismError("Cells of one bank share their draws: they need the same tokens, payloads and width.")


def _stacks(cells: Sequence[Cell]) -> list[Stack]:
    kinds = dict.fromkeys((cell.task.variant, cell.d_head) for cell in cells)
    found = [Stack.of([cell for cell in cells if (cell.task.variant, cell.d_head) == kind]) for kind in kinds]
    return sorted(found, key=lambda stack: -stack.parameter.numel())  # the longest work first


def _run(
    stacks: Sequence[Stack], protocol: Protocol, taken: int, work: Unfinished, progress: TrainingProgress | None
) -> None:
    everyone = [cell for stack in stacks for cell in stack.cells]
    task, rank = everyone[0].task, largest_rank(everyone)
    validation = _batches(everyone, protocol, protocol.check_batches, "validation")
    with one_core_each() as pool:
        for step in range(taken, protocol.steps):
            dealt = deal(task, rank, protocol.batch, "training", step)
            list(pool.map(partial(Stack.step, dealt=dealt, protocol=protocol, number=step), stacks))
            if (step + 1) % protocol.check_every and step + 1 < protocol.steps:
                continue
            list(pool.map(partial(_validate, batches=validation, protocol=protocol, taken=step + 1), stacks))
            left = sum(len(stack.active) for stack in stacks)
            if progress:
                progress(step + 1, left)
            work.note({"steps": step + 1}, partial(_state, stacks), f"Training up to step {step + 1:,}")
            if not left:
                return


def _validate(stack: Stack, batches: Sequence[Deal], protocol: Protocol, taken: int) -> None:
    if len(stack.active):
        stack.note(evaluate(stack, batches).loss, protocol, taken)


def _batches(cells: Sequence[Cell], protocol: Protocol, n: int, key: str) -> list[Deal]:
    rank = largest_rank(cells)
    return [deal(cells[0].task, rank, protocol.check_batch, key, i) for i in range(n)]


def _tested(stacks: Sequence[Stack], protocol: Protocol) -> dict[Cell, ToyHead]:
    """The best weights of every cell with their accuracy on fresh samples."""
    fresh = _batches([cell for stack in stacks for cell in stack.cells], protocol, protocol.test_batches, "test")
    found = {}
    for stack in stacks:
        accuracy = evaluate(stack, fresh, best=True).accuracy
        for head, share in zip(stack.heads(), accuracy.tolist(), strict=True):
            found[head.cell] = replace(head, accuracy=share)
    return found
