"""An attention row before and after an edit, without another forward pass (paper, section 4).

An edit of two keys changes two logits of the row; the others, the sink among them, only share what is left:

    l' = softcap(scaling (q.k + change)) + bias       a' = exp(l') / (sum of exp of all logits)

So a row is kept as five numbers: the logits of the original and the target key, and of all other tokens the log of
their sum, their largest, and the largest of the other marked keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

MEASURES = ("attention_original", "attention_target", "shift", "flip", "flip_all", "logit_change")


@dataclass(frozen=True)
class Row:
    """Attention rows as far as an edit needs them, of any shape."""

    original: Float[Tensor, "*row"]
    target: Float[Tensor, "*row"]
    rest: Float[Tensor, "*row"]
    best_marked: Float[Tensor, "*row"]
    best_other: Float[Tensor, "*row"]

    @property
    def total(self) -> Float[Tensor, "*row"]:
        """The log of the sum over the whole row."""
        return torch.logaddexp(torch.logaddexp(self.original, self.target), self.rest)

    def attention(self) -> tuple[Float[Tensor, "*row"], Float[Tensor, "*row"]]:
        """The attention on the original and on the target key."""
        total = self.total
        return (self.original - total).exp(), (self.target - total).exp()

    def leads(self) -> tuple[Bool[Tensor, "*row"], Bool[Tensor, "*row"]]:
        """Whether the target is the most attended of the marked keys, and of all tokens."""
        return tuple(self.target > torch.maximum(self.original, best) for best in (self.best_marked, self.best_other))  # type: ignore[return-value]


@dataclass(frozen=True)
class Logits:
    """The logits of attention rows, in the steps that the model takes: product = scaling q.k, soft cap, bias."""

    product: Float64[Tensor, "example head token"]
    capped: Float64[Tensor, "example head token"]
    final: Float64[Tensor, "example head token"]
    softcap: float | None
    sink: Float64[Tensor, " head"] | None

    @classmethod
    def of(
        cls,
        product: Float[Tensor, "example head token"],
        final: Float[Tensor, "example head token"],
        softcap: float | None = None,
        sink: Float[Tensor, " head"] | None = None,
    ) -> Logits:
        """From products and final logits, capped as the model does it, so that no rounding looks like a bias."""
        capped = cap(product, softcap)
        return cls(product.double(), capped.double(), final.double(), softcap, None if sink is None else sink.double())

    def pick(self, rows: list[int]) -> Logits:
        """The logits of some of the examples."""
        return Logits(self.product[rows], self.capped[rows], self.final[rows], self.softcap, self.sink)

    @property
    def seen(self) -> Bool[Tensor, "example head token"]:
        """Which tokens the query may see."""
        return self.final.isfinite()

    @property
    def bias(self) -> Float64[Tensor, "example head token"]:
        """What the model adds after the cap, such as a position bias; 0 where a token may not be seen."""
        return torch.where(self.seen, self.final - self.capped, 0.0)

    def changed(self, shift: Float[Tensor, "*more example head token"]) -> Float[Tensor, "*more example head token"]:
        """The final logits if the products were larger by `shift`."""
        new = cap(self.product + shift, self.softcap) + self.bias
        return new.masked_fill(~self.seen, -torch.inf)


def cap(logits: Float[Tensor, "*row"], softcap: float | None) -> Float[Tensor, "*row"]:
    """The soft cap of the model, where it has one."""
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap


@dataclass(frozen=True)
class Places:
    """Which tokens of each row are the original, the target and the other marked keys."""

    original: Int[Tensor, " example"]
    target: Int[Tensor, " example"]
    marked: Bool[Tensor, "example token"]

    def to(self, device: torch.device) -> Places:
        """The same on a device."""
        return Places(self.original.to(device), self.target.to(device), self.marked.to(device))


def read_row(final: Float[Tensor, "*more example head token"], places: Places, sink: Tensor | None) -> Row:
    """Take down rows of final logits."""
    original, target = (_at(final, place) for place in (places.original, places.target))
    pair = torch.zeros_like(places.marked)
    pair.scatter_(1, torch.stack([places.original, places.target], 1), True)
    others = final.masked_fill(pair[:, None], -torch.inf)
    rest = others.logsumexp(-1)
    if sink is not None:
        rest = torch.logaddexp(rest, sink.to(rest).expand_as(rest))
    marked = others.masked_fill(~places.marked[:, None], -torch.inf)
    return Row(original, target, rest, marked.amax(-1), others.amax(-1))


def after_key_edit(
    logits: Logits,
    places: Places,
    before: Row,
    change: tuple[Float[Tensor, "condition example head"], Float[Tensor, "condition example head"]],
) -> Row:
    """Rows in which the products of the original and of the target key grew by `change`."""
    new = [
        cap(_at(logits.product, place) + shift, logits.softcap) + _at(logits.bias, place)
        for place, shift in zip((places.original, places.target), change, strict=True)
    ]
    same = [part.expand_as(new[0]) for part in (before.rest, before.best_marked, before.best_other)]
    return Row(new[0], new[1], *same)


def measure(before: Row, after: Row) -> Float[Tensor, " measure *row"]:
    """Every measure of `MEASURES`.

    shift         target / (target + original)
    flip          the target is the most attended marked key now and was not before; `flip_all`: of all tokens
    logit_change  of the target's logit less the original's
    """
    original, target = after.attention()
    flips = [now & ~was for now, was in zip(after.leads(), before.leads(), strict=True)]
    shift = torch.sigmoid(after.target - after.original)
    gap = (after.target - after.original) - (before.target - before.original)
    return torch.stack([original, target, shift, *(flip.to(original.dtype) for flip in flips), gap])


def _at(values: Float[Tensor, "*more example head token"], place: Int[Tensor, " example"]) -> Tensor:
    """The values at one token of each example."""
    index = place.view(-1, 1, 1).expand(*values.shape[:-1], 1)
    return values.gather(-1, index)[..., 0]
