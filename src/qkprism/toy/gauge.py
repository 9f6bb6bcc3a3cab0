"""The same head in other coordinates: q -> A^T q, k -> A^-1 k leaves every logit as it was.

W_Q -> A^T W_Q,  W_K -> A^-1 W_K: the same model. A result that changes with it is about coordinates.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.toy.cells import ToyHead
from qkprism.toy.task import stream

CONDITION = 30.0


def basis_change(
    d_head: int, random: torch.Generator, condition: float = CONDITION
) -> Float64[Tensor, "d_head d_head"]:
    """A random A with this condition number, its singular values evenly spread in the logarithm."""
    left, right = (
        torch.linalg.qr(torch.randn(d_head, d_head, generator=random, dtype=torch.float64))[0] for _ in range(2)
    )
    spread = condition ** -torch.linspace(-0.5, 0.5, d_head, dtype=torch.float64)
    return left @ torch.diag(spread) @ right


def rebased(head: ToyHead, condition: float = CONDITION) -> ToyHead:
    """The head after a random change of basis."""
    change = basis_change(head.cell.d_head, stream("gauge", repr(head.cell)), condition)
    query = (change.mT @ head.query.double()).to(head.query)
    key = torch.linalg.solve(change, head.key.double()).to(head.key)
    return replace(head, query=query, key=key)
