"""The study: the grid of heads, and what is recovered in them beside untrained controls (paper, section 4).

    found = study("runs/toy")
    found.accuracy(), found.misses("energy")

One folder; every part of it is a run of its own, and parts that are there are not computed again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qkprism.runs import MANIFEST, check_place, json_value, read_run, write_run
from qkprism.toy.ceiling import bayes_ceiling
from qkprism.toy.cells import Cell, ToyHead, paper_grid, untrained
from qkprism.toy.contrasts import Sampling
from qkprism.toy.protocols import Protocol
from qkprism.toy.recovery import Recovery, recover
from qkprism.toy.training import Progress, train
from qkprism.toy.truth import interaction

if TYPE_CHECKING:
    import pandas as pd

KIND = "toy-table"
Rule = Literal["energy", "balanced", "heldout"]


@dataclass(frozen=True)
class Study:
    """Trained heads, and what is recovered in them and in untrained ones."""

    heads: Mapping[Cell, ToyHead] = field(repr=False)
    recovered: tuple[Recovery, ...] = field(repr=False)
    controls: tuple[Recovery, ...] = field(repr=False)

    def accuracy(self) -> pd.DataFrame:
        """A row a head: accuracy beside the ceiling of its task, steps taken, and its interactions G as numbers."""
        import pandas as pd

        return pd.DataFrame([_head_row(head) for head in self.heads.values()])

    def ranks(self) -> pd.DataFrame:
        """A row a head and latent: ranks by every rule beside the true one, of trained and untrained heads."""
        import pandas as pd

        kinds = ((True, self.recovered), (False, self.controls))
        return pd.DataFrame([{"trained": kind, **_recovery_row(row)} for kind, rows in kinds for row in rows])

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
    return Study(
        heads,
        _kept(place / "recovered", trained, lambda: recover(list(heads.values()), drawn)),
        _kept(place / "controls", job, lambda: recover([untrained(cell) for cell in chosen], drawn)),
    )


def _kept(folder: Path, job: Mapping[str, Any], compute: Callable[[], list[Recovery]]) -> tuple[Recovery, ...]:
    """Rows from the folder if they are of this job, else computed and kept there."""
    check_place(folder, KIND)
    wanted = json_value(job)
    if (folder / MANIFEST).exists():
        manifest, _ = read_run(folder, KIND)
        if manifest["job"] == wanted:
            return tuple(map(_restored, manifest["rows"]))
    rows = tuple(compute())
    write_run(folder, KIND, {"job": wanted, "rows": [asdict(row) for row in rows]}, {})
    return rows


def _restored(row: Mapping[str, Any]) -> Recovery:
    values: dict[str, Any] = {name: float("nan") if value is None else value for name, value in row.items()}
    return Recovery(**values | {"cell": Cell.from_json(row["cell"])})


def _cell_row(cell: Cell) -> dict[str, Any]:
    task = cell.task
    return {"variant": task.variant, "d_head": cell.d_head, "r1": task.r1, "r2": task.r2, "seed": cell.seed}


def _head_row(head: ToyHead) -> dict[str, Any]:
    found, ceiling = interaction(head), bayes_ceiling(head.cell.task)
    shares = {name: getattr(found, name) for name in ("diagonal", "within", "across", "symmetry", "dimensions")}
    numbers = {"accuracy": head.accuracy, "ceiling": ceiling, "below": ceiling - head.accuracy}
    return {**_cell_row(head.cell), **numbers, "loss": head.loss, "steps": head.steps, **shares}


def _recovery_row(row: Recovery) -> dict[str, Any]:
    numbers = {name: value for name, value in asdict(row).items() if name != "cell"}
    return {**_cell_row(row.cell), **numbers}
