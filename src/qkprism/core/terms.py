"""The terms of attention logits, and their sums over examples (paper, section 5.3).

The terms of a logit are the parts of the features, the residual, and where the model has them what the soft cap
takes away and the position bias adds. They sum to the logit exactly.

    share of variance   Cov(term, logit) / Var(logit) over the tokens: signed, and the shares of all terms sum to 1
    share of a gap      (term of one token less term of another) / (their logits' difference)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from qkprism.core.means import Means
from qkprism.core.rows import Logits
from qkprism.core.splitting import Split

RESIDUAL, SOFT_CAP, POSITION_BIAS = "residual", "soft cap", "position bias"


def term_names(split: Split, logits: Logits) -> tuple[str, ...]:
    """The features, the residual, and the terms that this model has besides."""
    names = [*split.names, RESIDUAL]
    if logits.softcap is not None:
        names.append(SOFT_CAP)
    if bool((logits.bias.abs() > 0).any()):
        names.append(POSITION_BIAS)
    return tuple(names)


def terms_of(
    split: Split,
    logits: Logits,
    head: int,
    query: Float[Tensor, "example d_head"],
    key: Float[Tensor, "example token d_head"],
    scaling: float,
) -> Float64[Tensor, "term example token"]:
    """All terms of every logit of one head; those of tokens that may not be seen are 0."""
    product = logits.product[:, head]
    parts = split.parts(query, key, scaling)
    every = {RESIDUAL: product - parts.sum(0), SOFT_CAP: logits.capped[:, head] - product}
    every |= {POSITION_BIAS: logits.bias[:, head]}
    others = [every[name] for name in term_names(split, logits)[len(parts) :]]
    return torch.cat([parts, torch.stack(others)]).masked_fill(~logits.seen[:, head], 0.0)


def variance_shares(
    terms: Float[Tensor, "term *row token"], chosen: Bool[Tensor, "*row token"]
) -> Float[Tensor, " term *row"]:
    """Cov(term, logit) / Var(logit) over the chosen tokens; NaN where the logits do not vary."""
    weight = chosen / chosen.sum(-1, keepdim=True).clamp(min=1)
    centred = (terms - (terms * weight).sum(-1, keepdim=True)) * chosen
    total = centred.sum(0)
    variance = (total.square() * weight).sum(-1)
    shares = (centred * total * weight).sum(-1) / variance
    return shares.masked_fill(variance <= 0, torch.nan)


@dataclass
class AttributionSums:
    """Sums over examples of the gap between positive and negative keys and of the variance shares, term by term.

    `order` is of how much each feature's part depends on the order alone, where the split has one.
    """

    gap: Means
    product: Means
    variance: Means
    variance_marked: Means
    order: Means

    @classmethod
    def zeros(cls, n_heads: int, n_terms: int, n_features: int) -> AttributionSums:
        """Sums of nothing; the last gap is that of the whole logit."""
        size = (n_heads, n_terms)
        gap, product = Means.zeros(n_heads, n_terms + 1), Means.zeros(n_heads, n_terms + 1)
        return cls(gap, product, Means.zeros(*size), Means.zeros(*size), Means.zeros(n_heads, n_features))

    def add(
        self,
        gap: Float[Tensor, "example head term"],
        variance: Float[Tensor, "example head term"],
        variance_marked: Float[Tensor, "example head term"],
        order: Float[Tensor, "example head feature"] | None,
        weight: Float[Tensor, " example"],
    ) -> None:
        """Add some examples."""
        total = gap.sum(-1, keepdim=True)
        gap = torch.cat([gap, total], -1)
        self.gap.add(gap, weight)
        self.product.add(gap * total, weight)
        for means, shares in ((self.variance, variance), (self.variance_marked, variance_marked)):
            varies = shares.isfinite().flatten(1).all(1)  # logits of one token, or all equal, have no shares
            means.add(shares[varies], weight[varies])
        if order is not None:
            self.order.add(order, weight)

    def order_spread(self) -> list[float | None]:
        """Of each head, how much of the spread of the logits depends on the order alone: the most of any feature."""
        most: list[float] = self.order.mean().amax(-1).tolist()
        return [value if self.order.n else None for value in most]

    def gap_share(self) -> tuple[Float64[Tensor, "head term"], Float64[Tensor, "head term"]]:
        """mean(term) / mean(gap), with the standard error of a ratio of means."""
        mean, square, product = self.gap.mean(), self.gap.squares / self.gap.weight, self.product.mean()
        total = mean[:, -1:]
        share = mean / total
        variance = square - 2 * share * product + share.square() * product[:, -1:]
        effective = self.gap.weight**2 / self.gap.weight_square
        error = (variance.clamp(min=0) / (effective - 1)).sqrt() if effective > 1 else torch.full_like(mean, torch.nan)
        return share[:, :-1], (error / total.abs())[:, :-1]
