"""How far attention rows are from each other: total variation, half the sum of absolute differences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor


@dataclass(frozen=True)
class MarkedRows:
    """Attention rows in logits: original, target, other marked keys (-inf where a text has fewer), and the rest."""

    marked: Float64[Tensor, "*row key"]
    rest: Float64[Tensor, "*row"]

    def attention(self) -> Float64[Tensor, "*row place"]:
        """The attention on each marked key and on all else."""
        return torch.softmax(torch.cat([self.marked, self.rest[..., None]], -1), -1)

    def pick(self, place: int) -> MarkedRows:
        """Those at one place of the last dimension of rows."""
        return MarkedRows(self.marked[..., place, :], self.rest[..., place])

    def with_pair(self, original: Float64[Tensor, "*row"], target: Float64[Tensor, "*row"]) -> MarkedRows:
        """The same rows with other logits of the original and the target."""
        return MarkedRows(torch.cat([torch.stack([original, target], -1), self.marked[..., 2:]], -1), self.rest)


def total_variation(first: MarkedRows, second: MarkedRows) -> Float64[Tensor, "*row"]:
    """The total variation over marked keys and the rest."""
    return variation_of(first.attention(), second.attention())


N_NEARNESS = 7


def nearness(
    before: MarkedRows, truth: MarkedRows, original: Float64[Tensor, "*row"], target: Float64[Tensor, "*row"]
) -> list[Float64[Tensor, "*row"]]:
    """How near rows with other logits of two keys come to the truth, each beside rows as they were.

    The mean absolute error of the two logits; the total variation to the truth in which only the two keys changed,
    which an edit of two keys can reach; that to the whole truth, which it cannot. Last the distance between the two
    truths: the floor of an edit of two keys, more or less.
    """
    edited, only_pair = before.with_pair(original, target), before.with_pair(*truth.marked[..., :2].unbind(-1))
    found = []
    for goal in (only_pair, truth):
        found += [total_variation(edited, goal), total_variation(before, goal)]
    off = [(rows.marked[..., :2] - truth.marked[..., :2]).abs().mean(-1) for rows in (edited, before)]
    return [*off, *found, total_variation(only_pair, truth)]


def variation_of(one: Float[Tensor, "*#row token"], other: Float[Tensor, "*#row token"]) -> Float[Tensor, "..."]:
    """The total variation of rows of attention: 0 if they are the same, 1 if they share nothing."""
    return (one - other).abs().sum(-1) / 2


def without_first(attention: Float[Tensor, "*row token"]) -> Float[Tensor, "*row later"]:
    """Rows of attention over all tokens but the first, made to add up to 1."""
    rest = attention[..., 1:]
    return rest / rest.sum(-1, keepdim=True).clamp(min=1e-30)
