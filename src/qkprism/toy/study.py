"""The study: the grid of heads, and what is recovered in them beside untrained controls (paper, section 4).

    found = study("runs/toy")
    found.accuracy(), found.misses("energy")

One folder; every part of it is a run of its own, and parts that are there are not computed again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qkprism.runs import MANIFEST, check_place, json_value, read_run, write_run
from qkprism.toy.ceiling import bayes_ceiling, dot_product_ceiling
from qkprism.toy.cells import Cell, ToyHead, paper_grid, untrained
from qkprism.toy.contrasts import Sampling
from qkprism.toy.cores import one_core_each
from qkprism.toy.protocols import Protocol
from qkprism.toy.recovery import Recovery, recover
from qkprism.toy.training import Progress, train
from qkprism.toy.truth import interaction

if TYPE_CHECKING:
    import pandas as pd

KIND = "toy-table"
Rule = Literal["energy", "balanced", "heldout"]


@dataclass(frozen=True)
class HeadScore:
    """A head's accuracy beside the ceiling of its task and that of a dot product, and its interactions as numbers."""

    cell: Cell
    accuracy: float
    ceiling: float
    dot_product_ceiling: float
    loss: float
    steps: int
    diagonal: float
    within: float
    across: float
    symmetry: float
    dimensions: float

    @classmethod
    def of(cls, head: ToyHead) -> HeadScore:
        found, task = interaction(head), head.cell.task
        return cls(
            cell=head.cell,
            accuracy=head.accuracy,
            ceiling=bayes_ceiling(task),
            dot_product_ceiling=dot_product_ceiling(task, head.cell.d_head),
            loss=head.loss,
            steps=head.steps,
            diagonal=found.diagonal,
            within=found.within,
            across=found.across,
            symmetry=found.symmetry,
            dimensions=found.dimensions,
        )


@dataclass(frozen=True)
class Study:
    """Trained heads, and what is recovered in them and in untrained ones."""

    heads: Mapping[Cell, ToyHead] = field(repr=False)
    recovered: tuple[Recovery, ...] = field(repr=False)
    controls: tuple[Recovery, ...] = field(repr=False)

    def scores(self) -> list[HeadScore]:
        """Every head's accuracy and interactions."""
        return [HeadScore.of(head) for head in self.heads.values()]

    def accuracy(self) -> pd.DataFrame:
        """A row a head: accuracy, how far it is below the ceiling of its task, and its interactions G as numbers."""
        import pandas as pd

        return pd.DataFrame([{**_flat(score), "below": score.ceiling - score.accuracy} for score in self.scores()])

    def ranks(self) -> pd.DataFrame:
        """A row a head and latent: ranks by every rule beside the true one, of trained and untrained heads."""
        import pandas as pd

        kinds = ((True, self.recovered), (False, self.controls))
        return pd.DataFrame([{"trained": kind, **_flat(row)} for kind, rows in kinds for row in rows])

    def misses(self, rule: Rule = "energy") -> list[Recovery]:
        """The latents of heads with room for all (r1 + r2 <= d_head) whose rank a rule does not find."""
        return [row for row in self.recovered if getattr(row, rule) != row.true and not row.cell.superposed]


def study(
    folder: str | os.PathLike[str],
    *,
    cells: Sequence[Cell] | None = None,
    protocol: str | Protocol = "fast",
    sampling: Sampling | None = None,
    progress: Progress | None = None,
) -> Study:
    """Train the grid of the paper, or other cells, and recover their latents; what is in the folder is kept."""
    place, drawn = Path(folder), sampling or Sampling()
    chosen = tuple(cells) if cells is not None else paper_grid()
    heads = train(chosen, protocol, folder=place / "heads", progress=progress)
    job = {"cells": [asdict(cell) for cell in chosen], "sampling": asdict(drawn)}
    trained = {**job, "steps": [head.steps for head in heads.values()], "loss": [h.loss for h in heads.values()]}
    folders, jobs = (place / "recovered", place / "controls"), (trained, job)
    both = (list(heads.values()), [untrained(cell) for cell in chosen])
    with one_core_each() as pool:
        recovered, controls = pool.map(partial(_kept, sampling=drawn), folders, jobs, both)
    return Study(heads, recovered, controls)


def _kept(folder: Path, job: Mapping[str, Any], heads: Sequence[ToyHead], sampling: Sampling) -> tuple[Recovery, ...]:
    """What is recovered in some heads: from the folder if it is of this job, else computed and kept there."""
    check_place(folder, KIND)
    wanted = json_value(job)
    if (folder / MANIFEST).exists():
        manifest, _ = read_run(folder, KIND)
        if manifest["job"] == wanted:
            return tuple(map(_restored, manifest["rows"]))
    rows = tuple(recover(heads, sampling))
    write_run(folder, KIND, {"job": wanted, "rows": [asdict(row) for row in rows]}, {})
    return rows


def _restored(row: Mapping[str, Any]) -> Recovery:
    values: dict[str, Any] = {name: float("nan") if value is None else value for name, value in row.items()}
    return Recovery(**values | {"cell": Cell.from_json(row["cell"])})


def _flat(row: HeadScore | Recovery) -> dict[str, Any]:
    """A row with its cell spelled out."""
    cell, task = row.cell, row.cell.task
    place = {"variant": task.variant, "d_head": cell.d_head, "r1": task.r1, "r2": task.r2, "seed": cell.seed}
    return {**place, **{name: value for name, value in asdict(row).items() if name != "cell"}}
