"""Sums of the effects of all conditions, over examples: additive, so that one streaming pass serves all.

A control that was drawn several times counts with the mean over its draws, example by example; the spread over draws
is kept beside it. Differences between a feature and its control, and between each of them and no edit, are paired:
taken in each example, then averaged.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from qkprism.controls import BY_NAME, ControlName
from qkprism.core.means import Means


@dataclass(frozen=True)
class Condition:
    """One thing that is edited: the feature itself or a control; `none` and `full` belong to no feature."""

    control: ControlName
    feature: str = ""
    method: str = ""
    draw: int = 0


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
    def unedited(self) -> int:
        """The row of no edit."""
        return next(i for i, c in enumerate(self.rows) if c.control == "none")

    @cached_property
    def feature_of(self) -> Int[Tensor, " row"]:
        """The row of the feature that a control stands beside; other rows stand beside themselves."""
        real = {(c.feature, c.method): i for i, c in enumerate(self.rows) if c.control == "feature"}
        rivals = self.is_rival.tolist()
        return torch.tensor([real[c.feature, c.method] if rivals[i] else i for i, c in enumerate(self.rows)])

    @cached_property
    def is_rival(self) -> Bool[Tensor, " row"]:
        """Whether a row is a control of a feature."""
        return torch.tensor([BY_NAME[c.control].is_rival for c in self.rows])

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
    gain: Means
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
            Means.zeros(n_heads, rows),
        )

    def add(
        self,
        values: Float[Tensor, "measure example head condition"],
        weight: Float[Tensor, " example"],
        things: Sequence[Sequence[Hashable]] | None = None,
    ) -> None:
        """Add the measures of some examples; `things` are what they may share with others (`core/means.py`)."""
        compared = values[self.measures.index(self.compared)]
        rows = self.table.average(values)
        ours = rows[self.measures.index(self.compared)]
        self.by_row.add(rows.movedim(1, 0), weight, things)
        self.by_draw.add(compared, weight)
        self.gain.add(ours - ours[..., [self.table.unedited]], weight, things)
        self.advantage.add(ours[..., self.table.feature_of.to(ours.device)] - ours, weight, things)


def spread_over_draws(table: Table, by_draw: Float64[Tensor, "head condition"]) -> Float64[Tensor, "head row"]:
    """The standard deviation over the draws of each row; NaN for one draw."""
    mean = table.average(by_draw)
    square = table.average((by_draw - mean[:, table.row_of]).square())
    draws = table.draws.double()
    return torch.where(draws > 1, (square * draws / (draws - 1).clamp(min=1)).sqrt(), torch.nan)
