"""Where vectors are read: the chosen heads of a layer and the key heads that they use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from qkprism.heads import Head
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
    def of(cls, model: Model, heads: Sequence[Head]) -> Site:
        layer = model.layers[heads[0].layer]
        kv = [model.kv_head(head) for head in heads]
        used = sorted(set(kv))
        return cls(tuple(heads), tuple(used), tuple(used.index(k) for k in kv), layer.d_head, layer.scaling)

    def gather(
        self, call: AttentionCall, batch: Batch
    ) -> tuple[Float[Tensor, "text head d_head"], Float[Tensor, "key kv_head d_head"]]:
        """The queries of a batch's texts and its marked keys, as they meet in this layer."""
        batch = batch.to(call.query.device)
        row = torch.arange(len(batch.query), device=call.query.device)
        query = call.query[row, :, batch.query][:, [head.index for head in self.heads]]
        return query, call.key[batch.key_row, :, batch.key_column][:, list(self.kv_heads)]


def sites_of(model: Model, heads: Sequence[Head]) -> dict[int, Site]:
    """The chosen heads by layer."""
    layers = sorted({head.layer for head in heads})
    return {layer: Site.of(model, [head for head in heads if head.layer == layer]) for layer in layers}
