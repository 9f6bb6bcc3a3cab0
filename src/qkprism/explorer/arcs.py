"""Arcs of one head over a text: where every token attends most, and by which tokens it is attended most.

A few numbers a token: the rows are read one after another, and nothing of tokens x tokens leaves this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from qkprism.explorer.answers import FORMAT, number
from qkprism.heads import Head
from qkprism.models.calls import AttentionCall
from qkprism.models.model import Model

TOLD = 4  # arcs a token, each way
FAINT = 0.02  # attention that is no arc


def arcs_answer(model: Model, ids: Sequence[int], head: Head) -> dict[str, Any]:
    """`out` and `into`: the strongest arcs from each token and to it, as [token, attention]; none to the first."""
    seen: list[Tensor] = []

    def visit(call: AttentionCall) -> None:
        attention = call.attention([head.index])[0, 0].cpu()
        attention[:, 0] = 0  # where heads rest
        seen.append(attention.fill_diagonal_(0))

    model.run(torch.tensor([list(ids)]), None, visit, layers=[head.layer])
    return {"format": FORMAT, "head": str(head), "out": _strongest(seen[0]), "into": _strongest(seen[0].mT)}


def _strongest(rows: Float[Tensor, "token other"]) -> list[list[list[float | None]]]:
    shares, places = rows.topk(min(TOLD, rows.shape[1]))
    return [
        [[place, number(share, 3)] for share, place in zip(of_row, at, strict=True) if share >= FAINT]
        for of_row, at in zip(shares.tolist(), places.tolist(), strict=True)
    ]
