"""What a study found, to be read as tables and shown in figures: every row knows its cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qkprism.toy.ceiling import bayes_ceiling, dot_product_ceiling
from qkprism.toy.cells import Cell, ToyHead
from qkprism.toy.clouds import Point
from qkprism.toy.interventions import Swap
from qkprism.toy.limits import Limit
from qkprism.toy.portrait import PartError, Portrait
from qkprism.toy.recovery import Recovery, Rule
from qkprism.toy.task import DEFAULT
from qkprism.toy.truth import Interaction, interaction

if TYPE_CHECKING:
    import pandas as pd


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
        ceilings = bayes_ceiling(task), dot_product_ceiling(task, head.cell.d_head)
        numbers = {name: value for name, value in _values(found).items() if name != "matrix"}
        return cls(head.cell, head.accuracy, *ceilings, head.loss, head.steps, **numbers)


ROOM = ("below", "equal", "above")  # r1 + r2, compared with d_head
HeadKind = tuple[str, str, int, int]


def summarise(study: Study) -> list[dict[str, Any]]:
    """A row for every kind of head: accuracy, exact ranks and errors of the swap of z1, before and after `rebased`."""
    scores, several = study.scores(), any(cell.task.setting for cell in study.heads)
    return [
        {
            **({"preset": kind[0] or DEFAULT} if several else {}),
            "variant": kind[1],
            "d_head": kind[2],
            "room": ROOM[kind[3]],
            **_accuracy([score for score in scores if _kind(score.cell) == kind]),
            "ranks": _exact(study.trained, kind, "balanced"),
            "ranks_rebased": _exact(study.rebased, kind, "balanced"),
            "paper_ranks": _exact(study.trained, kind, "energy"),
            "paper_ranks_rebased": _exact(study.rebased, kind, "energy"),
            "swap_error": _off(study.trained, kind, "contrast"),
            "swap_error_rebased": _off(study.rebased, kind, "contrast"),
            "paper_swap_error": _off(study.trained, kind, "raw"),
            "paper_swap_error_rebased": _off(study.rebased, kind, "raw"),
        }
        for kind in sorted({_kind(cell) for cell in study.heads})
    ]


def _kind(cell: Cell) -> HeadKind:
    over = sum(cell.task.ranks) - cell.d_head
    return cell.task.setting, cell.task.variant, cell.d_head, (over >= 0) + (over > 0)


def _accuracy(scores: Sequence[HeadScore]) -> dict[str, float]:
    means = {name: average(getattr(score, name) for score in scores) for name in ("accuracy", "ceiling")}
    return {"heads": len(scores), **means}


def _exact(portrait: Portrait, kind: HeadKind, rule: str) -> str:
    hits = [getattr(row, rule) == row.true for row in portrait.recovered if _kind(row.cell) == kind]
    return f"{sum(hits)}/{len(hits)}"


def _off(portrait: Portrait, kind: HeadKind, method: str) -> float:
    wanted = ("given", "feature", method, "z1")
    return average(
        row.off_truth
        for row in portrait.swaps
        if _kind(row.cell) == kind and (row.target, row.control, row.method, row.feature) == wanted
    )


def average(values: Iterable[float]) -> float:
    """The mean of what is known; nan if nothing is."""
    finite = [value for value in values if value == value]
    return sum(finite) / len(finite) if finite else float("nan")


@dataclass(frozen=True, repr=False)
class Study:
    """Trained heads and what is found in them, in untrained ones, and in the same heads after a change of basis."""

    heads: Mapping[Cell, ToyHead]
    trained: Portrait
    untrained: Portrait
    rebased: Portrait
    limits: tuple[Limit, ...]
    clouds: tuple[Point, ...]

    def __repr__(self) -> str:
        return f"Study({len(self.heads)} heads; summary() tells what was found)"

    @property
    def recovered(self) -> tuple[Recovery, ...]:
        """Ranks and subspaces of trained heads."""
        return self.trained.recovered

    @property
    def controls(self) -> tuple[Recovery, ...]:
        """Ranks and subspaces of untrained heads."""
        return self.untrained.recovered

    def summary(self) -> pd.DataFrame:
        """A row for every kind of head: variant, d_head, and r1 + r2 below, equal to or above it."""
        import pandas as pd

        return pd.DataFrame(summarise(self))

    def scores(self) -> list[HeadScore]:
        """Every head's accuracy and interactions."""
        return [HeadScore.of(head) for head in self.heads.values()]

    def interaction(self, cell: Cell) -> Interaction:
        """G of a head."""
        return interaction(self.heads[cell])

    def accuracy(self) -> pd.DataFrame:
        """A row a head: accuracy, how far it is below the ceiling of its task, and its interactions G as numbers."""
        import pandas as pd

        return pd.DataFrame([{**_flat(score), "below": score.ceiling - score.accuracy} for score in self.scores()])

    def ranks(self) -> pd.DataFrame:
        """A row a head and latent: ranks by every rule beside the true one, of trained and untrained heads."""
        import pandas as pd

        kinds = ((True, self.recovered), (False, self.controls))
        return pd.DataFrame([{"trained": kind, **_flat(row)} for kind, rows in kinds for row in rows])

    def swaps(self) -> pd.DataFrame:
        """A row a head, target, method, feature and control: attention after the edit, and how far from the truth."""
        return _both(self.trained.swaps, self.rebased.swaps)

    def parts(self) -> pd.DataFrame:
        """A row a head, latent, metric and split: the error of attributions against the true parts."""
        return _both(self.trained.parts, self.rebased.parts)

    def misses(self, rule: Rule = "energy") -> list[Recovery]:
        """The latents of heads with room for all (r1 + r2 <= d_head) whose rank a rule does not find."""
        return [row for row in self.recovered if getattr(row, rule) != row.true and not row.cell.superposed]


def _both(before: Iterable[Swap | PartError], after: Iterable[Swap | PartError]) -> pd.DataFrame:
    import pandas as pd

    kinds = ((False, before), (True, after))
    return pd.DataFrame([{"rebased": kind, **_flat(row)} for kind, rows in kinds for row in rows])


def _flat(row: HeadScore | Recovery | Swap | PartError) -> dict[str, Any]:
    """A row with its cell spelled out."""
    cell, task = row.cell, row.cell.task
    place = {"variant": task.variant, "d_head": cell.d_head, "r1": task.r1, "r2": task.r2, "seed": cell.seed}
    return {
        **place,
        "preset": task.setting or task.preset,
        **{name: value for name, value in _values(row).items() if name != "cell"},
    }


def _values(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}
