"""`Validation`: edits and attributions against true counterfactuals, in which one factor was really exchanged.

A base text and a changed one, in which two keys o and t have exchanged one factor f. The changed text is the truth:

    logit error       of the two edited logits, mean absolute, divided by that of the unedited base: 1 is no better than
                      no edit, 0 is perfect. The main figure: it does not depend on how much attention the keys get
    total variation   of attention over the marked keys and the rest, edited base against truth, likewise divided:
                      against the truth in which only the two keys changed (0 can be reached), and against the whole
                      truth, in which other keys change too (its floor is what a perfect edit of two keys leaves)
    part              the feature's part of the logit gap l_o - l_t; exchanging f turns it around, so the true part is
                      half of what the gap loses
    slopes            of the predicted part on the true parts of all factors together: 1 for its own, 0 for the others

A factor *matters* in a head if its true part is clearly not 0 (`CLEAR` standard errors) and not tiny (`LEAST` logits).
Elsewhere there is next to nothing to exchange: a part of 0 is right whatever the method, and an edit is compared with
noise. So what is said of several heads is said first of those in which the factor matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

from qkprism.core.scatter import Scatter
from qkprism.core.variation import N_NEARNESS
from qkprism.heads import Head
from qkprism.results.stored import ResultTable

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

CLEAR = 3.0  # standard errors by which a true part must differ from 0
LEAST = 0.1  # logits: the exchange moves the gap by twice this, the odds of the two keys by a fifth
MATTERS, ALL = "matters", "all"


class TruthCheck(NamedTuple):
    """One feature in one head, edited and attributed by one method, against the truth."""

    features: str
    factor: str
    head: Head
    method: str
    tv: float
    tv_error: float
    part: float
    true_part: float
    true_part_error: float
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
    logit: float = math.nan
    logit_error: float = math.nan
    logit_off: float = math.nan
    logit_off_unedited: float = math.nan
    tv_pair: float = math.nan
    tv_pair_error: float = math.nan
    pair_distance: float = math.nan
    pair_distance_unedited: float = math.nan
    floor: float = math.nan
    moved_own: float = math.nan
    moved_other: float = math.nan
    moved_other_error: float = math.nan

    @property
    def matters(self) -> bool:
        """Whether the true part is clearly not 0 and not tiny, in either direction; never without an error."""
        size = abs(self.true_part)
        return size > CLEAR * self.true_part_error and size > LEAST

    @property
    def relative_part_error(self) -> float:
        """By how much the part is wrong, as a share of the true one."""
        return abs(self.part_error / self.true_part) if self.true_part else math.nan


@dataclass(frozen=True)
class TruthTally:
    """What a check is made of, over pairs: added up, so that pairs need not be kept.

    pairs    `nearness` of the edit to the truth (core/variation.py), predicted part, true part
    shared   of pairs whose base every factor changed: the true parts of all factors, and the predicted part
    moved    the same with what the edit moved, in the place of the predicted part
    """

    pairs: Scatter
    shared: Scatter
    moved: Scatter

    @classmethod
    def of(cls, n_factors: int) -> TruthTally:
        """Of no pairs yet."""
        return cls(Scatter.zeros(N_NEARNESS + 2), Scatter.zeros(n_factors + 1), Scatter.zeros(n_factors + 1))

    def check(self, features: str, factor: str, head: Head, method: str, place: int) -> TruthCheck:
        """The check of a factor, which has a place among all; the slope on the others is the largest of them."""
        logit, logit_before, pair, pair_before, after, before, floor, part, true = self.pairs.mean.tolist()
        off, error, rms = self.pairs.difference(N_NEARNESS, N_NEARNESS + 1)
        (slope, slope_error), (other, other_error) = _slopes(self.shared, place)
        (moved_own, _), (moved_other, moved_error) = _slopes(self.moved, place)
        ratios = [self.pairs.ratio(at, at + 1) for at in (0, 2, 4)]
        return TruthCheck(
            features, factor, head, method,
            *ratios[2], part, true, self.pairs.error(N_NEARNESS + 1), off, error, slope, slope_error,
            other, other_error,
            self.pairs.n, distance=after, distance_unedited=before, part_rms=rms,
            logit=ratios[0][0], logit_error=ratios[0][1], logit_off=logit, logit_off_unedited=logit_before,
            tv_pair=ratios[1][0], tv_pair_error=ratios[1][1], pair_distance=pair, pair_distance_unedited=pair_before,
            floor=floor / before if before else math.nan, moved_own=moved_own, moved_other=moved_other,
            moved_other_error=moved_error,
        )  # fmt: skip


def _slopes(scatter: Scatter, place: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """The slope on the factor's own true part and the largest on another's, each with its error."""
    value, spread = scatter.slopes()
    others = [i for i in range(len(value)) if i != place]
    if not others:
        return (float(value[place]), float(spread[place])), (math.nan, math.nan)
    other = max(others, key=lambda i: abs(float(value[i])))
    return (float(value[place]), float(spread[place])), (float(value[other]), float(spread[other]))


@dataclass(frozen=True, repr=False)
class Validation(ResultTable, kind="validation"):
    """How near every edit and attribution comes to the truth: a row a set of features, factor, head and method.

    logit       mean absolute error of the two edited logits relative to no edit (1: no better, 0: perfect);
                `logit_off` and `logit_off_unedited` are the two in logits
    tv_pair     total variation to the truth in which only the two keys changed, relative to no edit
    tv          total variation to the whole truth relative to no edit; `floor` is what the two keys alone would leave
    part        mean predicted part of the logit gap; `true_part` the true one, `part_error` their mean difference;
                `_error` after any of these names is its standard error over pairs
    part_rms    root mean square of that difference: how far off the part of a single pair is
    slope_own   of the predicted part on the true part of its own factor (truth: 1); `slope_other` the largest of the
                others (truth: 0); NaN where the factors' pairs do not start from the same texts
    moved_own   of what the edit moved, likewise, and `moved_other`
    distance    mean total variation to the truth, and without an edit: `tv` is their ratio
    """

    checks: tuple[TruthCheck, ...]
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def factors(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(check.factor for check in self.checks))

    def pick(self, *wanted: tuple[str, str]) -> Validation:
        """Only the checks of some sets of features by some methods, such as ("ours", "contrast")."""
        return replace(self, checks=tuple(c for c in self.checks if (c.features, c.method) in wanted))

    def summary(self) -> pd.DataFrame:
        """For each set of features, factor and method: first the heads in which the factor matters, then all.

        heads                 "matters" or "all"; `n_heads` of `of_heads` are in the row
        logit                 ratio of mean errors of the edited logits, after the edit over without; `logit_median`
                              the median of single heads, `logit_nearer` the number of heads in which it is below 1
        tv_pair, floor        ratios of mean distances likewise
        tv                    ratio of mean distances, after the edit over without; `tv_median` the median of the
                              ratios of single heads, `nearer` the number of heads in which it is below 1
        absolute_part_error   mean size of the error of a head's mean part; `true_part` mean size of the true part
        relative_part_error   the one over the other; `relative_part_error_median` the median of single heads
        error_by_chance       what `absolute_part_error` would be for parts that are right on average, from the number
                              of pairs alone
        part_rms, slope_own, slope_other   means over heads (of `slope_other` without sign)
        moved_other           likewise; `moved_other_by_chance` is what it would be if the edit moved nothing of the
                              other factor: a factor that hardly varies in a head has a slope of chance
        """
        import pandas as pd

        matters, every = self.over(MATTERS), self.over(ALL)
        names = ("set", "feature", "method")
        return pd.DataFrame(
            [dict(zip(names, key, strict=True)) | rows[key] for key in every for rows in (matters, every)]
        )

    def over(self, heads: str) -> dict[tuple[str, str, str], dict[str, Any]]:
        """The rows of `summary` for some heads, "matters" or "all", by set of features, factor and method."""
        found = {}
        for key, checks in self._groups().items():
            some = [check for check in checks if check.matters or heads == ALL]
            found[key] = {"heads": heads, "n_heads": len(some), "of_heads": len(checks)} | over_heads(some)
        return found

    def verdict(self) -> list[str]:
        """In words, of heads in which the factor matters: a sentence for each set of features, factor and method."""
        return [_sentence(checks) for checks in self._groups().values()]

    def _groups(self) -> dict[tuple[str, str, str], list[TruthCheck]]:
        """The heads of each set of features, factor and method."""
        groups: dict[tuple[str, str, str], list[TruthCheck]] = {}
        for check in self.checks:
            groups.setdefault((check.features, check.factor, check.method), []).append(check)
        return groups

    def to_frame(self) -> pd.DataFrame:
        """A row a check: `set` is the set of features, `feature` the one whose factor was exchanged."""
        import pandas as pd

        frame = pd.DataFrame(self.checks).astype({"head": str})
        return frame.rename(columns={"features": "set", "factor": "feature"})

    def plot(self) -> go.Figure:
        """Total variation, parts and slopes of every method, factor by factor."""
        from qkprism.figures.validation import validation_figure

        return validation_figure(self)

    def __repr__(self) -> str:
        heads = len({check.head for check in self.checks})
        return (
            f"Validation({', '.join(self.factors)}; {heads} heads; {max((c.n for c in self.checks), default=0)} pairs)"
        )


def over_heads(checks: Sequence[TruthCheck]) -> dict[str, float]:
    """What is said of some heads together; NaN where there is none."""
    true, error = _mean(abs(c.true_part) for c in checks), _mean(abs(c.part_error) for c in checks)
    after, before = _mean(c.distance for c in checks), _mean(c.distance_unedited for c in checks)
    logit, logit_before = _mean(c.logit_off for c in checks), _mean(c.logit_off_unedited for c in checks)
    pair, pair_before = _mean(c.pair_distance for c in checks), _mean(c.pair_distance_unedited for c in checks)
    return {
        "logit": logit / logit_before if logit_before else math.nan,
        "logit_median": _median(c.logit for c in checks),
        "logit_nearer": _below_one([c.logit for c in checks]),
        "tv_pair": pair / pair_before if pair_before else math.nan,
        "floor": _mean(c.floor * c.distance_unedited for c in checks) / before if before else math.nan,
        # One head whose truth hardly moves would rule a mean of ratios; many such heads would hide in a ratio of means.
        "tv": after / before if before else math.nan,
        "tv_median": _median(c.tv for c in checks),
        "nearer": _below_one([c.tv for c in checks]),
        "true_part": true,
        "absolute_part_error": error,
        "relative_part_error": error / true if true else math.nan,
        "relative_part_error_median": _median(c.relative_part_error for c in checks),
        "error_by_chance": _mean(c.part_error_error for c in checks) * math.sqrt(2 / math.pi),
        "part_rms": _mean(c.part_rms for c in checks),
        "slope_own": _mean(c.slope_own for c in checks),
        "slope_other": _mean(abs(c.slope_other) for c in checks),  # leaks of either sign must not cancel
        "moved_own": _mean(c.moved_own for c in checks),
        "moved_other": _mean(abs(c.moved_other) for c in checks),
        "moved_other_by_chance": _mean(c.moved_other_error for c in checks) * math.sqrt(2 / math.pi),
    }


def _below_one(ratios: Sequence[float]) -> float:
    """How many ratios are below 1; NaN if none is known."""
    return sum(ratio < 1 for ratio in ratios) if any(map(math.isfinite, ratios)) else math.nan


def _mean(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return fmean(finite) if finite else math.nan


def _median(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return median(finite) if finite else math.nan


def _sentence(checks: Sequence[TruthCheck]) -> str:
    first, some = checks[0], [check for check in checks if check.matters]
    name = " ".join(part for part in (first.factor, first.features and f"({first.features})") if part)
    heads = "1 head" if len(checks) == 1 else f"{len(checks)} heads"
    if not some:
        return f"{name}, {first.method}: the factor clearly matters in none of {heads}, so this tests nothing."
    found = over_heads(some)
    edit = ""
    if math.isfinite(found["tv_median"]):
        edit = (
            f"the edit leaves {found['logit']:.2f} of the error of the two logits (less than no edit in "
            f"{found['logit_nearer']} of {len(some)}), {found['tv_pair']:.2f} of the distance to the truth of the two "
            f"keys, and {found['tv']:.2f} of that to the whole truth (the two keys alone would leave "
            f"{found['floor']:.2f}); "
        )
    return (
        f"{name}, {first.method}: the factor matters in {len(some)} of {heads}. There {edit}the part is off by "
        f"{found['relative_part_error']:.0%} of the true part (median head {found['relative_part_error_median']:.0%})."
    )
