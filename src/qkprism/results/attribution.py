"""`Attribution`: the attention logits of one query token, split into features (paper, section 5.3).

The terms of a logit are the parts of the features, the residual, and where the model has them what the soft cap
takes away and the position bias adds. They sum to the logit exactly.

    share of variance   Cov(term, logit) / Var(logit) over the tokens: signed, and the shares of all terms sum to 1
    share of a gap      (term of one token less term of another) / (their logits' difference)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.core.terms import RESIDUAL, variance_shares
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.options import show, whole_number
from qkprism.results.stored import Condition, ResultTable

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

STRONG = 0.1  # of the spread of the logits: from here on a sequential split depends strongly on its order


@dataclass(frozen=True, repr=False)
class Attribution(ResultTable, kind="attribution"):
    """Why one query token attends where it does: the terms of the logit of every token that it sees.

    A term is known up to a number that all tokens share, which moves no attention: compare tokens with each other.
    """

    head: Head
    tokens: tuple[str, ...]
    positions: tuple[int, ...]
    query: int
    terms: tuple[str, ...]
    values: Float64[Tensor, "term token"]
    logits: Float64[Tensor, " token"]
    attention: Float64[Tensor, " token"]
    method: str
    marks: Mapping[int, str] = field(default_factory=dict)
    angles: Mapping[str, Sequence[float]] = field(default_factory=dict)
    condition: Condition = 1.0
    order_spread: float | None = None
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def features(self) -> tuple[str, ...]:
        return self.terms[: self.terms.index(RESIDUAL)]

    def variance_shares(self) -> dict[str, float]:
        """How much of the variance of the logits over the tokens each term explains."""
        shares = variance_shares(self.values, torch.ones_like(self.logits, dtype=torch.bool))
        return dict(zip(self.terms, shares.tolist(), strict=True))

    def gap(self, first: int | str, second: int | str) -> dict[str, float]:
        """What each term adds to the logit of one token over another's.

        A token is given by its position in the text, or by what it says where only one token says so:
        `why.gap("Z", "O")`.
        """
        a, b = self._place(first), self._place(second)
        found = dict(zip(self.terms, (self.values[:, a] - self.values[:, b]).tolist(), strict=True))
        return found | {"logit": float(self.logits[a] - self.logits[b])}

    def _place(self, token: int | str) -> int:
        if isinstance(token, str):
            return self._said(token)
        position = whole_number(token, "position")
        if position not in self.positions:
            raise QKPrismError(
                f"The query at token {self.query} does not see a token {position}. "
                f"It sees tokens {self.positions[0]} to {self.positions[-1]}."
            )
        return self.positions.index(position)

    def _said(self, token: str) -> int:
        """The place of the one token that says this, with or without the spaces around it."""
        found = [place for place, said in enumerate(self.tokens) if said == token]
        if not found and _bare(token):
            found = [place for place, said in enumerate(self.tokens) if _bare(said) == _bare(token)]
        if len(found) == 1:
            return found[0]
        if found:
            places = ", ".join(str(self.positions[place]) for place in found)
            raise QKPrismError(f"{token!r} is said by {len(found)} tokens. Give the position of one: {places}.")
        raise QKPrismError(
            f"The query at token {self.query} sees no token {token!r}. It sees: {show(list(self.tokens), 200)}"
        )

    def to_frame(self) -> pd.DataFrame:
        """A row a token."""
        import pandas as pd

        frame = pd.DataFrame({"position": self.positions, "token": self.tokens})
        frame["mark"] = [self.marks.get(at, "") for at in self.positions]
        for name, values in zip(self.terms, self.values, strict=True):
            frame[name] = values.numpy()
        return frame.assign(logit=self.logits.numpy(), attention=self.attention.numpy())

    def plot(self) -> go.Figure:
        """Stacked bars a token, as in the paper's figure of logits."""
        from qkprism.figures.attribution import attribution_figure

        return attribution_figure(self)

    def __repr__(self) -> str:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in self.variance_shares().items())
        return f"Attribution({self.head}, token {self.query}, {self.method}; of the logits' variance: {shares})"


def _bare(token: str) -> str:
    """A token without the spaces around it, also as vocabularies write them."""
    return token.strip(" \t\nĠ▁")


@dataclass(frozen=True, repr=False)
class Attributions(ResultTable, kind="attributions"):
    """Over many examples: what each term is worth, in each head.

    gap               mean term of the positive keys less that of the negative ones; `gap_share` of the whole gap
    variance          share of the variance of the logits over all tokens that the query sees
    variance_marked   the same over the marked keys
    """

    heads: tuple[Head, ...]
    terms: tuple[str, ...]
    values: Mapping[str, Float64[Tensor, "head term"]]
    errors: Mapping[str, Float64[Tensor, "head term"]]
    n: int
    method: Mapping[Head, str]
    condition: Mapping[Head, Condition]
    order_spread: Mapping[Head, float | None]
    angles: Mapping[Head, Mapping[str, Sequence[float]]]
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def features(self) -> tuple[str, ...]:
        return self.terms[: self.terms.index(RESIDUAL)]

    def to_frame(self) -> pd.DataFrame:
        """A row a head and term: `feature` names it, also the residual."""
        import pandas as pd

        rows = []
        for i, head in enumerate(self.heads):
            for j, term in enumerate(self.terms):
                row: dict[str, Any] = {"head": str(head), "feature": term}
                for name in self.values:
                    row |= {name: float(self.values[name][i, j]), f"{name}_error": float(self.errors[name][i, j])}
                rows.append(row)
        return pd.DataFrame(rows).assign(n=self.n)

    def plot(self) -> go.Figure:
        """What each feature is worth in each head: stacked bars of the gap."""
        from qkprism.figures.attributions import attributions_figure

        return attributions_figure(self)

    def __repr__(self) -> str:
        return f"Attributions({', '.join(self.terms)}; {len(self.heads)} heads; {self.n} examples)"
