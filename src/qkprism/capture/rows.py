"""The query rows of a batch as one layer attends: logits in their steps, queries, and the keys each head uses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkprism.capture.source import Site
from qkprism.core.rows import Logits
from qkprism.models.calls import AttentionCall
from qkprism.models.devices import float64_device


@dataclass(frozen=True)
class QueryRows:
    """What the marked query rows of some heads see."""

    logits: Logits
    query: Float[Tensor, "example head d_head"]
    key: Float[Tensor, "example head token d_head"]
    scaling: float


def read_logits(call: AttentionCall, site: Site, rows: Int[Tensor, " example"]) -> QueryRows:
    """Read one query row of each text in the heads of a site; on a device that has float64, which is used from here."""
    index, rows = [head.index for head in site.heads], rows.to(call.query.device)
    home = float64_device(call.query.device)
    product = call.products(index, rows)
    final = call.finish(product, index, rows)
    sink = None if call.sinks is None else call.sinks[index].to(home)
    query = call.query[torch.arange(len(rows), device=rows.device), :, rows][:, index]
    key = call.key[:, [site.kv_heads[k] for k in site.kv_index]]
    logits = Logits.of(product[:, :, 0].to(home), final[:, :, 0].to(home), call.softcap, sink)
    return QueryRows(logits, query.to(home), key.to(home), float(call.scaling))
