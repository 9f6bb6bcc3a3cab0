"""What a study found, to be read as tables and shown in figures: every row knows its cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qkprism.toy.attributions import PartError
from qkprism.toy.cells import Cell, ToyHead
from qkprism.toy.clouds import Point
from qkprism.toy.interventions import Swap
from qkprism.toy.limits import Limit, RankAt
from qkprism.toy.portrait import Portrait
from qkprism.toy.recovery import Recovery, Rule
from qkprism.toy.scores import HeadScore
from qkprism.toy.truth import Interaction, interaction

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Study:
    """Trained heads and what is found in them, in untrained ones, and in the same heads after a change of basis."""

    heads: Mapping[Cell, ToyHead]
    trained: Portrait
    untrained: Portrait
    rebased: Portrait
    limits: tuple[Limit, ...]
    ranks_at: tuple[RankAt, ...]
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

        from qkprism.toy.summary import summarise

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
