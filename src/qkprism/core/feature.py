"""`Feature`: the query-key subspace of one contrast in one head, with its rank and the evidence for it.

dC = query_basis diag(strengths) key_basis^T        in the feature's metric M (GAUGE.md)
coordinates: of a key key_basis^T M^-1 k, of a query query_basis^T M q
projector on keys: P = key_basis_r (M^-1 key_basis_r)^T, on queries P^T
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from html import escape
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from qkprism.core.evidence import chance_of, leading_p
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.options import CENTERS, METRICS, Center, Metric, Rank, checked_rank, checked_seed, choice

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

CLEAR = 3.0  # errors from which a logit gap is called significant
NO_EVIDENCE = "no evidence of a feature"
RARE = 0.01  # how often chance may show a direction that is told as one that holds
MOSTLY = 0.5  # a direction is a contrast's own if more of the metric along it is the contrast's than all else


class Frozen:
    """A frozen dataclass whose tensors, alone or in a dictionary, cannot be written in place.

    PyTorch has no read-only tensors, but those made in inference mode are: `feature.strengths[0] = 1` is an error that
    says to make a clone. Reading and computing with them is as always.
    """

    def __post_init__(self) -> None:
        for one in fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, one.name, read_only(getattr(self, one.name)))


def read_only(value: Any) -> Any:
    """A tensor that cannot be written in place (a copy, unless it is one already); other values as they are.

    >>> read_only(torch.zeros(2)).add_(1)
    Traceback (most recent call last):
    RuntimeError: Inplace update to inference tensor outside InferenceMode is not allowed...
    """
    if isinstance(value, Tensor):
        if value.is_inference():
            return value
        with torch.inference_mode():
            return value.clone()
    if isinstance(value, dict) and any(isinstance(item, Tensor) for item in value.values()):
        return {key: read_only(item) for key, item in value.items()}
    return value


@dataclass(frozen=True)
class Choices:
    """What was chosen where a definition leaves a choice; every result records it."""

    center: Center = "query"
    metric: Metric = "raw"
    rank: Rank = "own"
    energy: float = 0.99
    threshold: float = 4.5
    seed: int = 0

    def __post_init__(self) -> None:
        choice(self.center, CENTERS, "a way to centre")
        choice(self.metric, METRICS, "a metric")
        object.__setattr__(self, "rank", checked_rank(self.rank))
        object.__setattr__(self, "seed", checked_seed(self.seed))


@dataclass(frozen=True)
class Spectrum(Frozen):
    """The strengths of all directions beside their nulls, the held-out t, and the logit variance they explain.

    `strength` and its nulls are in the feature's metric. `null_*` come from random signs on the examples,
    `shuffled_*` from sides dealt anew among the marked keys. `*_agreement[r]` is the mean squared cosine between the
    spans of the first r + 1 directions of two halves of the examples (chance: (r + 1) / d_head). `explained[r]` is the
    share of the variance of logits (queries and keys drawn independently) that the first r + 1 directions explain,
    `ceiling[r]` the most that any r + 1 directions can. `own` is how much of the contrast metric along a direction
    the contrast's own differences make, beside those of the others and noise (NaN in the raw metric).
    """

    strength: Float64[Tensor, " d_head"]
    raw: Float64[Tensor, " d_head"]
    balanced: Float64[Tensor, " d_head"]
    null_mean: Float64[Tensor, " d_head"]
    null_high: Float64[Tensor, " d_head"]
    shuffled_mean: Float64[Tensor, " d_head"]
    shuffled_high: Float64[Tensor, " d_head"]
    t: Float64[Tensor, " d_head"]
    query_agreement: Float64[Tensor, " d_head"]
    key_agreement: Float64[Tensor, " d_head"]
    explained: Float64[Tensor, " d_head"]
    ceiling: Float64[Tensor, " d_head"]
    own: Float64[Tensor, " d_head"]

    def to_frame(self) -> pd.DataFrame:
        """A row a direction."""
        import pandas as pd

        columns = {name: value.numpy() for name, value in self.__dict__.items()}
        return pd.DataFrame({"direction": range(1, len(self.strength) + 1), **columns})


@dataclass(frozen=True)
class Gap:
    """The mean logit gap between positive and negative keys, in the model's logits, split in match and salience."""

    total: float
    error: float
    match: float
    salience: float


@dataclass(frozen=True)
class Feature(Frozen):
    """The features of one contrast in one head: both bases (all d_head columns), strengths, rank and evidence."""

    contrast: str
    head: Head
    query_basis: Float64[Tensor, "d_head d_head"] = field(repr=False)
    strengths: Float64[Tensor, " d_head"] = field(repr=False)
    key_basis: Float64[Tensor, "d_head d_head"] = field(repr=False)
    metric: Float64[Tensor, "d_head d_head"] = field(repr=False)
    spectrum: Spectrum = field(repr=False)
    rank: int
    rank_energy: int
    rank_balanced: int | None
    rank_heldout: int | None
    logit_gap: Gap | None
    salience_energy: float
    salience_t: float
    n: int
    n_effective: float
    uncovered: float  # share of the logit variance over examples in which the keys of one example do not differ
    reading: str
    choices: Choices
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def d_head(self) -> int:
        return len(self.strengths)

    @property
    def covariance(self) -> Float64[Tensor, "d_head d_head"]:
        """dC itself, put together from the bases."""
        return (self.query_basis * self.strengths) @ self.key_basis.mT

    @property
    def evidence(self) -> str:
        """One line: is there a feature at all? Where the held-out rank is 0, what else speaks for it or does not."""
        if self.rank_heldout is None:
            return "not tested: fewer than one group of examples a fold"
        if self.rank_heldout > 0:
            hold = "holds" if self.rank_heldout == 1 else "hold"
            return f"{self.rank_heldout} of {self.d_head} directions {hold} on held-out examples"
        late = self._late_direction()
        told = [f"no leading direction holds by itself (t = {float(self.spectrum.t[0]):.1f})", *late]
        if not math.isnan(self.gap_t):
            clear = "" if abs(self.gap_t) > CLEAR else "not "
            told.append(f"the logit gap is {clear}significant (t = {self.gap_t:.1f})")
        return "; ".join(told) + ("" if late or abs(self.gap_t) > CLEAR else f": {NO_EVIDENCE}")

    def _late_direction(self) -> list[str]:
        """The direction with the largest t, where it is above the threshold."""
        t = self.spectrum.t.nan_to_num(nan=-torch.inf)
        best = int(t.argmax())
        if t[best] <= self.choices.threshold:
            return []
        rare = float(chance_of(t[best])) * self.d_head < RARE
        does = "does" if rare else "alone reaches what chance lets one reach now and then"
        return [f"direction {best + 1} of {self.d_head} {does} (t = {float(t[best]):.1f})"]

    @property
    def gap_t(self) -> float:
        """The logit gap over its standard error; NaN where there is none."""
        return self.logit_gap.total / self.logit_gap.error if self.logit_gap and self.logit_gap.error > 0 else math.nan

    @property
    def p(self) -> float:
        """How often null data has a leading direction that holds as well on held-out examples; NaN if not tested."""
        return float(leading_p(self.spectrum.t[0]))

    @property
    def rank_own(self) -> int | None:
        """The leading directions that hold on held-out examples and are mostly this contrast's own.

        More examples let weaker directions hold, until nearly all do. Those in which keys differ more by the other
        contrasts than by this one do not count here, so this number settles. None if either is not known.
        """
        if self.rank_heldout is None or bool(self.spectrum.own.isnan().any()):
            return None
        mostly = int((self.spectrum.own > MOSTLY).long().cumprod(0).sum())
        return min(self.rank_heldout, mostly)

    @property
    def agreement(self) -> tuple[float, float]:
        """Split-half agreement of the query and the key subspace at the feature's rank; chance is rank / d_head."""
        if self.rank == 0:
            return float("nan"), float("nan")
        at = self.rank - 1
        return float(self.spectrum.query_agreement[at]), float(self.spectrum.key_agreement[at])

    def with_rank(self, rank: Rank) -> Feature:
        """The same feature cut at another rank: a number or a rule."""
        choices = replace(self.choices, rank=rank)  # refuses an unknown rule
        return replace(self, rank=self._rank_of(choices.rank), choices=choices)

    @property
    def rank_rule(self) -> str:
        """The rule that cut the rank in the end: where the rule that was chosen cannot be had, the next one is used."""
        rule = self.choices.rank
        if not isinstance(rule, str):
            return "number"
        if rule == "own" and self.rank_own is None:
            rule = "balanced"
        return "energy" if rule == "balanced" and self.rank_balanced is None else rule

    def _rank_of(self, rank: Rank) -> int:
        if not isinstance(rank, str):
            if not 0 <= rank <= self.d_head:
                raise QKPrismError(f"A rank of {rank} is not possible: {self.head} has d_head {self.d_head}.")
            return int(rank)
        if rank == "own":
            return max(self._rank_of("balanced"), self.rank_own or 0)
        found = {"balanced": self.rank_balanced, "energy": self.rank_energy, "heldout": self.rank_heldout}[rank]
        if found is None and rank == "heldout":
            raise QKPrismError(f"{self.contrast!r} was not tested on held-out examples ({self.evidence}).")
        return self.rank_energy if found is None else found

    def key_coordinates(self, key: Float[Tensor, "*batch d_head"]) -> Float64[Tensor, "*batch rank"]:
        """Where keys lie in the feature's subspace."""
        return key.double() @ torch.linalg.solve(self.metric, self.key_basis[:, : self.rank])

    def query_coordinates(self, query: Float[Tensor, "*batch d_head"]) -> Float64[Tensor, "*batch rank"]:
        """Where queries lie in the feature's subspace."""
        return query.double() @ (self.metric @ self.query_basis[:, : self.rank])

    def to_frame(self) -> pd.DataFrame:
        """The spectrum: a row a direction."""
        return self.spectrum.to_frame()

    def summary(self) -> dict[str, Any]:
        """The numbers of the feature as one flat row."""
        gap = asdict(self.logit_gap) if self.logit_gap else dict.fromkeys(("total", "error", "match", "salience"))
        null = self.spectrum.null_mean[0]
        return {
            "feature": self.contrast,
            "head": str(self.head),
            "rank": self.rank,
            "rank_rule": self.rank_rule,
            "rank_heldout": self.rank_heldout,
            "rank_balanced": self.rank_balanced,
            "rank_energy": self.rank_energy,
            "rank_own": self.rank_own,
            "t": float(self.spectrum.t[0]),
            "p": self.p,
            "strength_over_null": float(self.strengths[0] / null) if null > 0 else float("nan"),
            "logit_gap": gap["total"],
            "logit_gap_error": gap["error"],
            "gap_match": gap["match"],
            "gap_salience": gap["salience"],
            "salience_energy": self.salience_energy,
            "salience_t": self.salience_t,
            "query_agreement": self.agreement[0],
            "key_agreement": self.agreement[1],
            "uncovered": self.uncovered,
            "n": self.n,
            "n_effective": self.n_effective,
        }

    def plot(self) -> go.Figure:
        """Strengths beside their nulls, held-out t, and logit variance explained."""
        from qkprism.figures.spectrum import spectrum_figure

        return spectrum_figure(self)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(str(name))}</th><td>{escape(_short(value))}</td></tr>"
            for name, value in self.summary().items()
        )
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<table>{rows}</table><p>{escape(self.evidence)}</p>{notes}"


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
