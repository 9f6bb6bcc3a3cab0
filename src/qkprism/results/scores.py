"""`HeadScores`: how well each head finds the positive keys of some examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.core.evidence import LEVEL, Count, accuracy_p, count_found, q_values
from qkprism.heads import Head
from qkprism.options import HEAD_MEASURES as MEASURES
from qkprism.options import choice, finite, whole_number
from qkprism.results.stored import ResultTable

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


@dataclass(frozen=True, repr=False)
class HeadScores(ResultTable, kind="scores"):
    """A row a head, best first; each mean with its standard error over examples, in which a repeated text counts once.

    accuracy            how often the most attended marked key is positive
    accuracy_all        how often the most attended token of all is a positive key
    attention_positive  attention on all positive keys together
    attention_negative  attention on all negative keys together
    ratio               attention_positive / (attention_positive + attention_negative), example by example
    logit_gap           mean logit of positive minus mean logit of negative keys: the trace of dC
    chance              accuracy of a head that picks a marked key at random
    p                   how often such a head is right as often
    q                   Benjamini and Hochberg's, over all heads that were scored, also where only some are left
    n_independent       examples, in which a repeated text counts once (`n`, if it is not given)
    """

    heads: tuple[Head, ...]
    values: Mapping[str, Float64[Tensor, " head"]]
    errors: Mapping[str, Float64[Tensor, " head"]]
    n: int
    chance: float
    sorted_by: str = "accuracy"
    provenance: Mapping[str, Any] = field(default_factory=dict)
    n_independent: float | None = None
    p: Float64[Tensor, " head"] = None  # type: ignore[assignment]  # of the accuracy
    q: Float64[Tensor, " head"] = None  # type: ignore[assignment]  # made of p

    def __post_init__(self) -> None:
        if getattr(self, "p", None) is None:  # a new table, not some heads of another
            independent = self.n if self.n_independent is None else self.n_independent
            object.__setattr__(self, "p", accuracy_p(self.values["accuracy"], independent, self.chance))
            object.__setattr__(self, "q", q_values(self.p))
        super().__post_init__()

    def __len__(self) -> int:
        return len(self.heads)

    def __iter__(self) -> Iterator[Head]:
        return iter(self.heads)

    def sort(self, by: str) -> HeadScores:
        """The same table, highest `by` first."""
        choice(by, MEASURES, "a measure of heads")
        order = torch.argsort(torch.nan_to_num(self.values[by], nan=-torch.inf), descending=True, stable=True)
        return replace(self._pick(order.tolist()), sorted_by=by)

    def _pick(self, order: Sequence[int]) -> HeadScores:
        index = torch.tensor(order, dtype=torch.long)
        return replace(
            self,
            heads=tuple(self.heads[i] for i in order),
            values={name: value[index] for name, value in self.values.items()},
            errors={name: value[index] for name, value in self.errors.items()},
            p=self.p[index],
            q=self.q[index],
        )

    def top(self, n: int, by: str | None = None) -> tuple[Head, ...]:
        """The n best heads."""
        return (self if by is None else self.sort(by)).heads[: whole_number(n, "n", 1)]

    def above(self, **thresholds: float) -> HeadScores:
        """The heads that reach every threshold, such as the paper's `above(accuracy=0.3)`."""
        keep = torch.ones(len(self), dtype=torch.bool)
        for name, least in thresholds.items():
            choice(name, MEASURES, "a measure of heads")
            keep &= self.values[name] >= finite(least, name)
        return self._pick(keep.nonzero()[:, 0].tolist())

    def count_found(self, level: float = LEVEL) -> Count:
        """How many of these heads have a q up to a level, and how many chance alone would show."""
        return count_found(self.p, level, self.q)

    def to_frame(self) -> pd.DataFrame:
        """A row a head."""
        import pandas as pd

        columns: dict[str, Any] = {"head": [str(head) for head in self.heads]}
        for name in MEASURES:
            columns[name] = self.values[name].numpy()
            columns[f"{name}_error"] = self.errors[name].numpy()
        columns |= {"p": self.p.numpy(), "q": self.q.numpy()}
        return pd.DataFrame(columns)

    def plot(self, measure: str | None = None) -> go.Figure:
        """Layers against heads, coloured by a measure."""
        from qkprism.figures.maps import score_figure

        return score_figure(self, measure or self.sorted_by)

    def __repr__(self) -> str:
        best = ", ".join(f"{h} {v:.2f}" for h, v in zip(self.heads[:5], self.values[self.sorted_by], strict=False))
        return f"HeadScores({len(self)} heads, {self.n} examples; best {self.sorted_by}: {best})"
