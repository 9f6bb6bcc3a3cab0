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

from qkprism.core.stored import load_result, save_result

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

KIND = "validation"
FEWEST = 10  # more examples than coefficients that a slope needs


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

    marked: Float64[Tensor, "pair key"]
    rest: Float64[Tensor, " pair"]

    def attention(self) -> Float64[Tensor, "pair place"]:
        """The attention on each marked key and on all else."""
        return torch.softmax(torch.cat([self.marked, self.rest[:, None]], 1), 1)

    def with_pair(self, original: Float64[Tensor, " pair"], target: Float64[Tensor, " pair"]) -> Rows:
        """The same rows with other logits of the original and the target."""
        return Rows(torch.cat([original[:, None], target[:, None], self.marked[:, 2:]], 1), self.rest)


def total_variation(first: Rows, second: Rows) -> Float64[Tensor, " pair"]:
    """Half the sum of absolute differences of attention."""
    return (first.attention() - second.attention()).abs().sum(1) / 2


def ratio_of_means(above: Float64[Tensor, " pair"], below: Float64[Tensor, " pair"]) -> tuple[float, float]:
    """mean(above) / mean(below) with its standard error."""
    n, whole = len(above), float(below.mean())
    if whole == 0:
        return math.nan, math.nan
    ratio = float(above.mean()) / whole
    spread = float((above - ratio * below).std()) if n > 1 else math.nan
    return ratio, spread / math.sqrt(n) / abs(whole)


def mean_and_error(values: Float64[Tensor, " pair"]) -> tuple[float, float]:
    """The mean and its standard error."""
    return float(values.mean()), float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def slopes(
    predicted: Float64[Tensor, " pair"], true: Float64[Tensor, "pair factor"]
) -> tuple[Float64[Tensor, " factor"], Float64[Tensor, " factor"]]:
    """The coefficients of a linear regression with intercept and their errors; NaN where they are not determined."""
    n, k = true.shape
    design = torch.cat([torch.ones(n, 1, dtype=torch.float64), true], 1)
    if n < k + 1 + FEWEST or int(torch.linalg.matrix_rank(design)) <= k:
        return torch.full((k,), torch.nan, dtype=torch.float64), torch.full((k,), torch.nan, dtype=torch.float64)
    gram = torch.linalg.pinv(design.mT @ design)
    found = gram @ (design.mT @ predicted)
    noise = float((predicted - design @ found).square().sum()) / (n - k - 1)
    return found[1:], (gram.diagonal() * noise).clamp(min=0).sqrt()[1:]


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
