"""Where vectors are read: the chosen heads of a layer and the key heads that they use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from qkprism.heads import Head

if TYPE_CHECKING:
    from qkprism.capture.vectors import VectorSource
    from qkprism.models.batches import Batch
    from qkprism.models.calls import AttentionCall
    from qkprism.models.model import Model


@dataclass(frozen=True)
class Site:
    """The chosen heads of one layer, and the key heads they use."""

    heads: tuple[Head, ...]
    kv_heads: tuple[int, ...]
    kv_index: tuple[int, ...]
    d_head: int
    scaling: float

    @classmethod
    def of(cls, heads: Sequence[Head], kv: Sequence[int], d_head: int, scaling: float) -> Site:
        """From the key head that each head uses."""
        used = sorted(set(kv))
        return cls(tuple(heads), tuple(used), tuple(used.index(k) for k in kv), d_head, scaling)

    def gather(
        self, call: AttentionCall, batch: Batch
    ) -> tuple[Float[Tensor, "text head d_head"], Float[Tensor, "key kv_head d_head"]]:
        """The queries of a batch's texts and its marked keys, as they meet in this layer."""
        batch = batch.to(call.query.device)
        row = torch.arange(len(batch.query), device=call.query.device)
        query = call.query[row, :, batch.query][:, [head.index for head in self.heads]]
        return query, call.key[batch.key_row, :, batch.key_column][:, list(self.kv_heads)]


def sites_of(model: Model | VectorSource, heads: Sequence[Head]) -> dict[int, Site]:
    """The chosen heads by layer."""
    if not hasattr(model, "kv_head"):  # vectors know their heads
        return model.pick(heads).layers
    found = {}
    for number in sorted({head.layer for head in heads}):
        chosen, layer = [head for head in heads if head.layer == number], model.layers[number]
        found[number] = Site.of(chosen, [model.kv_head(head) for head in chosen], layer.d_head, layer.scaling)
    return found
