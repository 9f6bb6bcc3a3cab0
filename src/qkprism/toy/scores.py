"""A head's accuracy beside what is possible, and how its latents meet, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

from qkprism.toy.ceiling import bayes_ceiling, dot_product_ceiling
from qkprism.toy.cells import Cell, ToyHead
from qkprism.toy.truth import interaction


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
    crowding: float

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
            crowding=found.crowding,
        )
