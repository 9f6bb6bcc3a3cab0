"""A bank of heads as one computation: the exact loss and gradients of many single heads (paper, section 2).

A head computes q = W_Q x_q, k_i = W_K x_i, v_i = W_V x_i, attends by q.k_i / sqrt(d_head), and reads the payload off
W_O sum_i a_i v_i. Embeddings are linear in what was drawn, x_i = E u_i with u_i = [z1; z2; e(y); eps] and
E = [A1 A2 Ay sigma I]. With E folded into the weights every head sees the same u, drawn once for all:

    c = (W_K E)^T q,    q.k_i = c.u_i,    m = sum_i a_i u_i,    W_O sum_i a_i v_i = (W_O W_V E) m

No key and no value is ever formed. What is done with the T tokens of a sample are products of its u [entry, token]
with the c of all heads [cell, entry]: matrices where one head alone has vectors. The noise is one more block of u,
exact and shared like the rest. Ranks below the largest have zero columns in E. The gradients go the same way back.

The draws of a batch are shared by every cell of a bank: each takes the first coordinates of the same latents, and
discrete latents are the signs of the continuous ones. A draw depends on its key alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot, pad

from qkprism.toy.samples import to_variant
from qkprism.toy.task import Maps, ToyTask, Variant, stream


@dataclass(frozen=True)
class Weights:
    """The weights of the heads of a bank."""

    query: Float[Tensor, "cell d_head width"]
    key: Float[Tensor, "cell d_head width"]
    value: Float[Tensor, "cell d_head width"]
    output: Float[Tensor, "cell payload d_head"]

    def flat(self) -> Float[Tensor, "cell parameter"]:
        """All weights of a cell in one row, as the optimizer has them."""
        return torch.cat([part.flatten(1) for part in (self.query, self.key, self.value, self.output)], 1)


def unflatten(flat: Float[Tensor, "cell parameter"], d_head: int, width: int) -> Weights:
    """The weights in rows of parameters: views, not copies."""
    size = d_head * width
    query, key, value = (flat[:, i * size : (i + 1) * size].unflatten(1, (d_head, width)) for i in range(3))
    return Weights(query, key, value, flat[:, 3 * size :].unflatten(1, (-1, d_head)))


@dataclass(frozen=True)
class Embedding:
    """The maps E of all cells of a bank, padded with zeros to the largest rank."""

    key: Float[Tensor, "cell width entry"]
    query: Float[Tensor, "cell width query_entry"]

    @classmethod
    def of(cls, maps: Sequence[Maps], rank: int) -> Embedding:
        """[A1 A2 Ay sigma I] and [B1 B2 sigma I], with latents padded to a rank."""
        keys = [torch.cat([*_padded(m.key_1, m.key_2, rank), m.payload, _noise(m)], 1) for m in maps]
        queries = [torch.cat([*_padded(m.query_1, m.query_2, rank), _noise(m)], 1) for m in maps]
        return cls(torch.stack(keys), torch.stack(queries))

    def pick(self, cells: Tensor) -> Embedding:
        """Those of some cells."""
        return Embedding(self.key[cells], self.query[cells])


def _padded(first: Tensor, second: Tensor, rank: int) -> list[Tensor]:
    return [pad(part, (0, rank - part.shape[1])) for part in (first, second)]


def _noise(maps: Maps) -> Tensor:
    return maps.noise * torch.eye(len(maps.payload), dtype=maps.payload.dtype)


@dataclass(frozen=True)
class Draws:
    """What a batch is made of, the same for every cell: u of all tokens and of the selector, and the right payloads.

    The u of tokens are kept in both orders, because products with a transposed matrix take half as long again.
    """

    by_entry: Float[Tensor, "sample entry token"]
    by_token: Float[Tensor, "sample token entry"]
    selector: Float[Tensor, "sample query_entry"]
    answer: Int[Tensor, " sample"]


@dataclass(frozen=True)
class Folded:
    """Weights with the embedding maps folded in: W_Q E_q / sqrt(d_head), W_K E, W_V E and W_O W_V E."""

    query: Float[Tensor, "cell d_head query_entry"]
    key: Float[Tensor, "cell d_head entry"]
    value: Float[Tensor, "cell d_head entry"]
    output: Float[Tensor, "cell payload entry"]


def fold(weights: Weights, embedding: Embedding) -> Folded:
    """Fold the embedding maps into the weights."""
    value = weights.value @ embedding.key
    query = weights.query @ embedding.query * weights.query.shape[1] ** -0.5
    return Folded(query, weights.key @ embedding.key, value, weights.output @ value)


@dataclass(frozen=True)
class Workspace:
    """Memory for the two large arrays of a pass: fresh pages for them cost as much as the products."""

    by_cell: Float[Tensor, "cell sample entry"]
    by_sample: Float[Tensor, "sample cell entry"]

    @classmethod
    def of(cls, embedding: Embedding, draws: Draws) -> Workspace:
        cells, _, entries = embedding.key.shape
        samples, like = len(draws.answer), embedding.key
        return cls(like.new_empty(cells, samples, entries), like.new_empty(samples, cells, entries))

    def fits(self, embedding: Embedding, draws: Draws) -> bool:
        """Is it the memory for this pass?"""
        return self.by_sample.shape[:2] == (len(draws.answer), len(embedding.key))


@dataclass(frozen=True)
class Forward:
    """What a forward pass leaves: `mean` is m, and lies in the workspace."""

    query: Float[Tensor, "cell sample d_head"]
    attention: Float[Tensor, "sample cell token"]
    mean: Float[Tensor, "cell sample entry"]
    score: Float[Tensor, "cell payload sample"]


def forward(folded: Folded, draws: Draws, space: Workspace) -> Forward:
    """Attention and the scores of the payloads, for all cells."""
    query = draws.selector @ folded.query.mT
    c = torch.bmm(query, folded.key, out=space.by_cell).transpose(0, 1)
    attention = torch.bmm(c, draws.by_entry).softmax(-1)
    mean = torch.bmm(attention, draws.by_token, out=space.by_sample).transpose(0, 1)
    return Forward(query, attention, mean, folded.output @ mean.mT)


def losses(done: Forward, draws: Draws) -> Float[Tensor, " cell"]:
    """The mean cross-entropy of each cell."""
    return -done.score.log_softmax(1)[:, draws.answer, torch.arange(len(draws.answer))].mean(1)


def accuracies(done: Forward, draws: Draws) -> Float[Tensor, " cell"]:
    """How often the payload with the highest score is right."""
    return (done.score.argmax(1) == draws.answer).float().mean(1)


def gradients(weights: Weights, embedding: Embedding, draws: Draws, space: Workspace | None = None) -> Weights:
    """The gradient of each cell's mean loss."""
    folded = fold(weights, embedding)
    space = space or Workspace.of(embedding, draws)
    done = forward(folded, draws, space)
    of_score = done.score.softmax(1)
    of_score[:, draws.answer, torch.arange(len(draws.answer))] -= 1
    of_score /= len(draws.answer)
    of_output = of_score @ done.mean
    of_mean = torch.bmm(of_score.mT, folded.output, out=space.by_cell).transpose(0, 1)
    of_logit = _through_softmax(torch.bmm(of_mean, draws.by_entry), done.attention)
    of_c = torch.bmm(of_logit, draws.by_token, out=space.by_sample).transpose(0, 1)
    of_query = (of_c @ folded.key.mT).mT @ draws.selector
    return Weights(
        query=of_query @ embedding.query.mT * weights.query.shape[1] ** -0.5,
        key=done.query.mT @ of_c @ embedding.key.mT,
        value=weights.output.mT @ (of_output @ embedding.key.mT),
        output=of_output @ folded.value.mT,
    )


def _through_softmax(gradient: Tensor, attention: Tensor) -> Tensor:
    """a * (g - a.g): the gradient by the logits from that by the attention."""
    return torch.ops.aten._softmax_backward_data(gradient, attention, -1, attention.dtype)


@dataclass(frozen=True)
class Deal:
    """Gaussian latents of the largest rank, payloads and noise of a batch."""

    latents: Float[Tensor, "sample token factor rank"]
    payload: Float[Tensor, "sample token payload"]
    noise: Float[Tensor, "sample token width"]
    query_noise: Float[Tensor, "sample width"]
    original: Int[Tensor, " sample"]


def deal(task: ToyTask, rank: int, n: int, *key: int | str) -> Deal:
    """A batch of n samples for all tasks of one size with ranks up to `rank`."""
    of_latents, of_rest = stream("latents", *key), stream("rest", *key)
    # rank first: a larger bank only adds rows
    latents = torch.randn(rank, 2, n, task.tokens, generator=of_latents).permute(2, 3, 1, 0)
    payload = torch.randint(task.payloads, (n, task.tokens), generator=of_rest)
    return Deal(
        latents=latents,
        payload=one_hot(payload, task.payloads).float(),
        noise=torch.randn(n, task.tokens, task.width, generator=of_rest),
        query_noise=torch.randn(n, task.width, generator=of_rest),
        original=torch.randint(task.tokens, (n,), generator=of_rest),
    )


def draws_of(dealt: Deal, variant: Variant, rank: int) -> Draws:
    """The batch as cells of one variant with ranks up to `rank` see it."""
    latents = to_variant(variant, dealt.latents[..., :rank]).flatten(2)
    row = torch.arange(len(dealt.original))
    by_token = torch.cat([latents, dealt.payload, dealt.noise], 2)
    selector = torch.cat([latents[row, dealt.original], dealt.query_noise], 1)
    answer = dealt.payload[row, dealt.original].argmax(1)
    return Draws(by_token.mT.contiguous(), by_token, selector, answer)
