"""Sums of the effects of all conditions, over examples: additive, so that one streaming pass serves all.

A control that was drawn several times counts with the mean over its draws, example by example; the spread over draws
is kept beside it. Differences between a feature and its control are paired: taken in each example, then averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from qkprism.core.conditions import Condition
from qkprism.core.means import Means


@dataclass(frozen=True)
class Table:
    """Which conditions make which rows of the result: all draws of a control make one."""

    conditions: tuple[Condition, ...]

    @cached_property
    def rows(self) -> tuple[Condition, ...]:
        return tuple(c for c in self.conditions if c.draw == 0)

    @cached_property
    def row_of(self) -> Int[Tensor, " condition"]:
        places = {(c.control, c.feature, c.method): i for i, c in enumerate(self.rows)}
        return torch.tensor([places[c.control, c.feature, c.method] for c in self.conditions])

    @cached_property
    def draws(self) -> Int[Tensor, " row"]:
        return torch.bincount(self.row_of, minlength=len(self.rows))

    @cached_property
    def rival(self) -> Int[Tensor, " row"]:
        """The row that each row is compared with: a control with its feature, a feature with no edit."""
        none = next(i for i, c in enumerate(self.rows) if c.control == "none")
        real = {(c.feature, c.method): i for i, c in enumerate(self.rows) if c.control == "feature"}
        ours = ("feature", "none", "full")
        return torch.tensor([none if c.control in ours else real[c.feature, c.method] for c in self.rows])

    def average(self, values: Float[Tensor, "*more condition"]) -> Float[Tensor, "*more row"]:
        """The mean over the draws of each row."""
        found = values.new_zeros(*values.shape[:-1], len(self.rows))
        return found.index_add_(-1, self.row_of.to(values.device), values) / self.draws.to(values)


@dataclass
class EffectSums:
    """Running sums of the measures of some heads: by row, by single draw, and of paired differences."""

    table: Table
    measures: tuple[str, ...]
    compared: str
    by_row: Means
    by_draw: Means
    advantage: Means

    @classmethod
    def zeros(cls, table: Table, measures: Sequence[str], compared: str, n_heads: int) -> EffectSums:
        """Sums of nothing."""
        size, rows = len(measures), len(table.rows)
        return cls(
            table,
            tuple(measures),
            compared,
            Means.zeros(size, n_heads, rows),
            Means.zeros(n_heads, len(table.conditions)),
            Means.zeros(n_heads, rows),
        )

    def add(self, values: Float[Tensor, "measure example head condition"], weight: Float[Tensor, " example"]) -> None:
        """Add the measures of some examples."""
        compared = values[self.measures.index(self.compared)]
        rows = self.table.average(values)
        ours = rows[self.measures.index(self.compared)]
        difference = ours[..., self.table.rival.to(ours.device)] - ours
        control = torch.tensor([c.control not in ("feature", "none", "full") for c in self.table.rows])
        self.by_row.add(rows.movedim(1, 0), weight)
        self.by_draw.add(compared, weight)
        self.advantage.add(torch.where(control.to(ours.device), difference, -difference), weight)


def over_draws(table: Table, by_draw: Float64[Tensor, "head condition"]) -> tuple[Tensor, Tensor]:
    """The standard deviation (NaN for one draw) and the highest value over the draws of each row."""
    mean = table.average(by_draw)
    square = table.average((by_draw - mean[:, table.row_of]).square())
    draws = table.draws.double()
    spread = torch.where(draws > 1, (square * draws / (draws - 1).clamp(min=1)).sqrt(), torch.nan)
    empty = torch.full_like(mean, -torch.inf)
    return spread, empty.scatter_reduce(1, table.row_of.expand_as(by_draw), by_draw, "amax")
