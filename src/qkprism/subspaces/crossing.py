"""From which label to which: what a swap moves, for every label asked for and every label of the target.

The share of the attention on two keys that the target has depends on their two logits alone, so it follows from
queries and keys (but for a soft cap or a position bias), for every pair of a positive and a negative key:

    shift = sigmoid(l_t - l_o),    after a swap in the subspace of P    l_t - l_o - 2 q^T P (k_t - k_o)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from qkprism.heads import Head, HeadLike
from qkprism.results.projections import LabelOrNone, Projections


@dataclass(frozen=True)
class Crossing:
    """The mean shift before and after a swap: a row a label asked for, a column a label of the target.

    `error` is the standard error of the gain over examples, `n` the number of examples with such a pair.
    """

    head: Head
    labels: tuple[LabelOrNone, ...]
    before: Float64[Tensor, "asked target"]
    after: Float64[Tensor, "asked target"]
    error: Float64[Tensor, "asked target"]
    n: Int[Tensor, "asked target"]

    @property
    def gain(self) -> Float64[Tensor, "asked target"]:
        """How much more of the attention on the two keys the target has after the swap; NaN where there is no pair."""
        return self.after - self.before


def crossing(
    test: Projections, projector: Float64[Tensor, "d_head d_head"], scaling: float, head: HeadLike, label: str
) -> Crossing:
    """The shifts of all pairs of keys in the subspace of a projector."""
    labels = tuple(dict.fromkeys(test.labels[label]))
    key, query = test.vectors(head)
    asking = query[test.example] * scaling
    logit, part = (asking * key).sum(1), (asking @ projector * key).sum(1)
    index = torch.tensor([labels.index(value) for value in test.labels[label]])
    sums = torch.zeros(test.n, 3, len(labels) ** 2, dtype=torch.float64)
    for example in range(test.n):
        here = test.example == example
        o, t = (torch.nonzero(here & side)[:, 0] for side in (test.positive, ~test.positive))
        gap = logit[t][None] - logit[o][:, None]
        moved = gap - 2 * (part[t][None] - part[o][:, None])
        cell = (index[o][:, None] * len(labels) + index[t][None]).flatten()
        values = torch.stack([torch.ones_like(gap), gap.sigmoid(), moved.sigmoid()]).flatten(1)
        sums[example].index_add_(1, cell, values)
    count, *total = sums.sum(0)
    before, after = (sums / count for sums in total)
    error, n = _error(sums[:, 2] - sums[:, 1], sums[:, 0]), (sums[:, 0] > 0).sum(0)
    return Crossing(
        Head.parse(head), labels, *(tensor.unflatten(0, (len(labels), -1)) for tensor in (before, after, error, n))
    )


def _error(gain: Float64[Tensor, "example cell"], pairs: Float64[Tensor, "example cell"]) -> Float64[Tensor, " cell"]:
    """The standard error over examples of all gains by all pairs; NaN for fewer than two examples."""
    n, total = (pairs > 0).sum(0), pairs.sum(0)
    square = (gain - gain.sum(0) / total * pairs).square().sum(0)
    return torch.where(n > 1, (square * n / (n - 1)).sqrt() / total, torch.nan)
