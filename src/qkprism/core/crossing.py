"""From which label to which: what a swap moves, for every label asked for and every label of the target.

The share of the attention on two keys that the target has depends on their two logits alone, so it follows from
queries and keys (but for a soft cap or a position bias), for every pair of a positive and a negative key:

    shift = sigmoid(l_t - l_o),    after a swap in the subspace of P    l_t - l_o - 2 q^T P (k_t - k_o)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.core.projection import Label, Projections
from qkprism.heads import HeadLike


@dataclass(frozen=True)
class Crossing:
    """The mean shift before and after a swap: a row a label asked for, a column a label of the target."""

    head: str
    labels: tuple[Label, ...]
    before: Float64[Tensor, "asked target"]
    after: Float64[Tensor, "asked target"]

    @property
    def gain(self) -> Float64[Tensor, "asked target"]:
        """How much more of the attention on the two keys the target has after the swap; NaN where there is no pair."""
        return self.after - self.before


def crossing(
    test: Projections, projector: Float64[Tensor, "d_head d_head"], scaling: float, head: HeadLike, label: str
) -> Crossing:
    """The shifts of all pairs of keys in the subspace of a projector."""
    labels = tuple(dict.fromkeys(test.labels[label]))
    key, query = test.key[str(head)].double(), test.query[str(head)].double()
    asking = query[test.example] * scaling
    logit, part = (asking * key).sum(1), (asking @ projector * key).sum(1)
    index = torch.tensor([labels.index(value) for value in test.labels[label]])
    sums = torch.zeros(3, len(labels) ** 2, dtype=torch.float64)
    for example in range(test.n):
        own = test.example == example
        o, t = (torch.nonzero(own & side)[:, 0] for side in (test.positive, ~test.positive))
        gap = logit[t][None] - logit[o][:, None]
        moved = gap - 2 * (part[t][None] - part[o][:, None])
        cell = (index[o][:, None] * len(labels) + index[t][None]).flatten()
        values = torch.stack([torch.ones_like(gap), gap.sigmoid(), moved.sigmoid()]).flatten(1)
        sums.index_add_(1, cell, values)
    before, after = (sums[1:] / sums[0]).unflatten(1, (len(labels), len(labels)))
    return Crossing(str(head), labels, before, after)
