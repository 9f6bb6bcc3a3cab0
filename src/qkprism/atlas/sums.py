"""What one pass over plain text adds up for every head: all that the exact split and the scores are made of.

    counts, sums of queries and keys without rotation (the first key of a text apart), sums of q q^T
    covariance of R (k - centre) within rows, in the frame of the row's query; rows at the ends of equal stretches
    attention by kind of key (first token, distance, same token before, what followed the same token), and entropy

Additive: chunks, order and number of processes do not matter, but for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from qkprism.atlas.windows import WindowBatch
from qkprism.models.calls import AttentionCall
from qkprism.models.devices import float64_device
from qkprism.models.rotation import Rotation

DISTANCES = ((0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (9, 16), (17, 32), (33, 64), (65, 128), (129, 10**9))
KINDS = ("first token", "same token before", "after the same token", *(
    str(low) if low == high else f"{low} to {high}" if high < 10**9 else f"{low} and more" for low, high in DISTANCES
))  # fmt: skip
"""Kinds of keys: the first token; a token that is the query's own; one that followed the query's own; by distance."""

STRETCHES = 8  # of a window, at whose ends rows are taken for the covariance of keys
STRIDE = 8  # every so many rows are looked at for attention


@dataclass
class LayerSums:
    """The sums of one layer; everything adds."""

    tokens: Float64[Tensor, ""]
    texts: Float64[Tensor, ""]
    query: Float64[Tensor, "head d_head"]
    query_square: Float64[Tensor, "head d_head d_head"]
    key: Float64[Tensor, "kv_head d_head"]
    first_key: Float64[Tensor, "kv_head d_head"]
    row_covariance: Float64[Tensor, "kv_head d_head d_head"]
    rows: Float64[Tensor, ""]
    attention: Float64[Tensor, "head kind"]
    entropy: Float64[Tensor, " head"]
    attention_rows: Float64[Tensor, ""]

    @classmethod
    def zeros(cls, heads: int, kv_heads: int, d_head: int, device: torch.device) -> LayerSums:
        """Sums of nothing."""
        shapes: dict[str, tuple[int, ...]] = {
            "query": (heads, d_head),
            "query_square": (heads, d_head, d_head),
            "key": (kv_heads, d_head),
            "first_key": (kv_heads, d_head),
            "row_covariance": (kv_heads, d_head, d_head),
            "attention": (heads, len(KINDS)),
            "entropy": (heads,),
        }
        return cls(
            **{
                one.name: torch.zeros(shapes.get(one.name, ()), dtype=torch.float64, device=device)
                for one in fields(cls)
            }
        )

    def __add__(self, other: LayerSums) -> LayerSums:
        return LayerSums(**{name: value + vars(other)[name] for name, value in vars(self).items()})


@dataclass(frozen=True)
class Kinds:
    """Which keys of which rows are of which kind, for one batch: the same for all layers."""

    rows: slice
    there: Bool[Tensor, "window row"]
    table: Float[Tensor, "window kind row token"]

    @classmethod
    def of(cls, batch: WindowBatch, offset: int, device: torch.device) -> Kinds:
        """Rows from `offset` on; a row of the first token alone says nothing and is left out."""
        ids, width = batch.input_ids.to(device), batch.input_ids.shape[1]
        place = torch.arange(width, device=device)
        rows = slice(1 + offset % STRIDE, None, STRIDE)
        distance = place[rows, None] - place
        later = place > 0
        ids_here = ids[:, rows, None]
        before = torch.cat([ids.new_full((len(ids), 1), -1), ids[:, :-1]], 1)
        kinds = [
            (~later).expand(len(ids), *distance.shape),
            (ids[:, None] == ids_here) & later & (distance > 0),
            (before[:, None] == ids_here) & later & (distance >= 0),
            *(((distance >= low) & (distance <= high) & later).expand(len(ids), -1, -1) for low, high in DISTANCES),
        ]
        there = batch.there.to(device)
        return cls(rows, there[:, rows], torch.stack(kinds, 1).float())


def add_call(
    sums: LayerSums,
    call: AttentionCall,
    rotation: Rotation | None,
    batch: WindowBatch,
    kinds: Kinds,
    centre: Float[Tensor, "kv_head d_head"] | None,
) -> None:
    """Add what one layer shows of a batch. Without a centre there is no covariance of keys."""
    there = batch.there.to(call.query.device)
    later = there.clone()
    later[:, 0] = False
    _add_vectors(sums, call, rotation, later)
    if centre is not None:
        _add_covariance(sums, call, rotation, there, centre)
    _add_attention(sums, call, kinds)


def _add_vectors(sums: LayerSums, call: AttentionCall, rotation: Rotation | None, later: Tensor) -> None:
    query, key = (x.float() for x in (call.query, call.key))
    if rotation is not None:
        query, key = rotation.back(query), rotation.back(key)
    mask = later[:, None, :, None].to(query)
    sums.first_key += _home(key[:, :, 0].sum(0), sums)
    sums.texts += len(query)
    sums.tokens += float(later.sum())
    query = query * mask
    sums.query += _home(query.sum((0, 2)), sums)
    sums.key += _home((key * mask).sum((0, 2)), sums)
    flat = query.transpose(0, 1).flatten(1, 2)
    sums.query_square += _home(flat.mT @ flat, sums)


def _add_covariance(
    sums: LayerSums, call: AttentionCall, rotation: Rotation | None, there: Tensor, centre: Tensor
) -> None:
    """Rows at the ends of equal stretches of the window: sums over stretches, then over all before."""
    width = call.key.shape[2]
    size = max(1, (width - 1) // STRETCHES)
    count = (width - 1) // size
    spread = centre.to(call.key).float()[None, :, None].expand(1, -1, width, -1)
    keys = call.key.float() - (spread if rotation is None else rotation.turn(spread))
    keys = (keys * there[:, None, :, None])[:, :, 1 : 1 + count * size].unflatten(2, (count, size))
    n = torch.arange(1, count + 1, device=keys.device) * size
    total = keys.sum(3).cumsum(2)  # window kv stretch d
    square = (keys.mT @ keys).cumsum(2)
    mean = total / n[:, None]
    covariance = square / n[:, None, None] - mean.unsqueeze(-1) * mean.unsqueeze(-2)
    ends = n.tolist()
    whole = there[:, ends].to(keys)  # rows within the text
    covariance = (covariance * whole[:, None, :, None, None]).sum(0, keepdim=True)  # all windows stand alike
    if rotation is not None:
        at = rotation.at(ends)
        at = Rotation(at.function, at.cos[:1], at.sin[:1], at.part)
        for _ in range(2):  # both sides
            turned = at.back(covariance.permute(0, 1, 3, 2, 4).flatten(1, 2))
            covariance = turned.unflatten(1, covariance.shape[1:4:2]).permute(0, 1, 3, 4, 2)
    sums.row_covariance += _home(covariance[0].sum(1), sums)
    sums.rows += float(whole.sum())


def _add_attention(sums: LayerSums, call: AttentionCall, kinds: Kinds) -> None:
    attention = call.attention(rows=kinds.rows) * kinds.there[:, None, :, None]
    table = kinds.table.to(attention)
    mass = attention.transpose(0, 1).flatten(1) @ table.transpose(0, 1).flatten(1).mT
    sums.attention += _home(mass, sums)
    sums.entropy += _home(torch.special.entr(attention).sum((0, 2, 3)), sums)
    sums.attention_rows += float(kinds.there.sum())


def _home(value: Tensor, sums: LayerSums) -> Tensor:
    return value.to(sums.query.device, torch.float64)


def empty_sums(call: AttentionCall) -> LayerSums:
    """Sums for the heads of a call."""
    device = float64_device(call.query.device)
    return LayerSums.zeros(call.n_heads, call.n_kv_heads, call.query.shape[-1], device)


def by_layer(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Tensors that are stored as layer/name, by layer."""
    found: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        layer, _, what = name.partition("/")
        found.setdefault(int(layer), {})[what] = value.clone()
    return dict(sorted(found.items()))
