"""`Validation`: edits and attributions against true counterfactuals, in which one factor was really exchanged.

A base text and a changed one, in which two keys o and t have exchanged one factor f. The changed text is the truth:

    total variation   of attention over the marked keys and the rest, edited base against truth, divided by that of the
                      unedited base against truth: 1 is no better than no edit, 0 is perfect
    part              the feature's part of the logit gap l_o - l_t; exchanging f turns it around, so the true part is
                      half of what the gap loses
    slopes            of the predicted part on the true parts of all factors together: 1 for its own, 0 for the others
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.core.scatter import Scatter
from qkprism.core.stored import load_result, save_result

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

KIND = "validation"


class Check(NamedTuple):
    """One feature in one head, edited and attributed by one method, against the truth."""

    features: str
    factor: str
    head: str
    method: str
    tv: float
    tv_error: float
    part: float
    true_part: float
    part_error: float
    part_error_error: float
    slope_own: float
    slope_own_error: float
    slope_other: float
    slope_other_error: float
    n: int
    distance: float = math.nan
    distance_unedited: float = math.nan
    part_rms: float = math.nan


@dataclass(frozen=True)
class Rows:
    """Attention rows in logits: original, target, other marked keys (-inf where a text has fewer), and the rest."""

    marked: Float64[Tensor, "*row key"]
    rest: Float64[Tensor, "*row"]

    def attention(self) -> Float64[Tensor, "*row place"]:
        """The attention on each marked key and on all else."""
        return torch.softmax(torch.cat([self.marked, self.rest[..., None]], -1), -1)

    def pick(self, place: int) -> Rows:
        """Those at one place of the last dimension of rows."""
        return Rows(self.marked[..., place, :], self.rest[..., place])

    def with_pair(self, original: Float64[Tensor, "*row"], target: Float64[Tensor, "*row"]) -> Rows:
        """The same rows with other logits of the original and the target."""
        return Rows(torch.cat([torch.stack([original, target], -1), self.marked[..., 2:]], -1), self.rest)


def total_variation(first: Rows, second: Rows) -> Float64[Tensor, "*row"]:
    """Half the sum of absolute differences of attention."""
    return (first.attention() - second.attention()).abs().sum(-1) / 2


@dataclass(frozen=True)
class Tally:
    """What a check is made of, over pairs: added up, so that pairs need not be kept.

    pairs    total variation to the truth after the edit and without it, predicted part, true part
    shared   of pairs whose base every factor changed: the true parts of all factors, and the predicted part
    """

    pairs: Scatter
    shared: Scatter

    @classmethod
    def of(cls, n_factors: int) -> Tally:
        """Of no pairs yet."""
        return cls(Scatter.zeros(4), Scatter.zeros(n_factors + 1))

    def check(self, features: str, factor: str, head: str, method: str, place: int) -> Check:
        """The check of a factor, which has a place among all; the slope on the others is the largest of them."""
        after, before, part, true = self.pairs.mean.tolist()
        off, error, rms = self.pairs.difference(2, 3)
        value, spread = self.shared.slopes()
        others = [i for i in range(len(value)) if i != place]
        other = max(others, key=lambda i: abs(float(value[i]))) if others else None
        return Check(
            features, factor, head, method,
            *self.pairs.ratio(0, 1), part, true, off, error,
            float(value[place]), float(spread[place]),
            math.nan if other is None else float(value[other]), math.nan if other is None else float(spread[other]),
            self.pairs.n, distance=after, distance_unedited=before, part_rms=rms,
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class Validation:
    """How near every edit and attribution comes to the truth: a row a set of features, factor, head and method.

    tv          total variation to the truth relative to no edit (1: no better than no edit, 0: perfect)
    part        mean predicted part of the logit gap; `true_part` the true one, `part_error` their mean difference
    part_rms    root mean square of that difference: how far off the part of a single pair is
    slope_own   of the predicted part on the true part of its own factor (truth: 1); `slope_other` the largest of the
                others (truth: 0); NaN where the factors' pairs do not start from the same texts
    distance    mean total variation to the truth, and without an edit: `tv` is their ratio
    """

    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def factors(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(check.factor for check in self.checks))

    def pick(self, *wanted: tuple[str, str]) -> Validation:
        """Only the checks of some sets of features by some methods, such as ("ours", "contrast")."""
        return replace(self, checks=tuple(c for c in self.checks if (c.features, c.method) in wanted))

    def summary(self) -> pd.DataFrame:
        """Means over heads: for each set of features, factor and method.

        `error_by_chance` is what `absolute_part_error` would be for parts that are right on average, from the number
        of pairs alone.
        """
        frame = self.to_frame()
        frame["absolute_part_error"] = frame["part_error"].abs()
        frame["slope_other"] = frame["slope_other"].abs()  # leaks of either sign must not cancel
        frame["error_by_chance"] = frame["part_error_error"] * math.sqrt(2 / math.pi)
        keys = ["features", "factor", "method"]
        values = ["tv", "absolute_part_error", "error_by_chance", "part_rms", "slope_own", "slope_other"]
        groups = frame.groupby(keys, sort=False)
        found: pd.DataFrame = groups[values].mean()
        # One head whose truth hardly moves would rule a mean of ratios.
        found["tv"] = groups["distance"].mean() / groups["distance_unedited"].mean()
        return found.reset_index()

    def to_frame(self) -> pd.DataFrame:
        """A row a check."""
        import pandas as pd

        return pd.DataFrame(self.checks)

    def plot(self) -> go.Figure:
        """Total variation, parts and slopes of every method, factor by factor."""
        from qkprism.figures.validation import validation_figure

        return validation_figure(self)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a run folder, from which `Validation.load` gives the same."""
        return save_result(self, folder, KIND)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Validation:
        """Read a run folder that `save` wrote."""
        return load_result(cls, folder, KIND, checks=lambda rows: tuple(map(_check, rows)))

    def __repr__(self) -> str:
        heads = len({check.head for check in self.checks})
        return (
            f"Validation({', '.join(self.factors)}; {heads} heads; {max((c.n for c in self.checks), default=0)} pairs)"
        )

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False, max_rows=40, float_format="{:.3g}".format, escape=True))


def _check(row: Sequence[Any]) -> Check:
    return Check._make(math.nan if value is None else value for value in row)
