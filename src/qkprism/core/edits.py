"""What an intervention does to vectors: pure functions on tensors (paper, section 4).

    swap      k_o + P (k_t - k_o)  and  k_t + P (k_o - k_t)     the paper's: exchange coordinates in the subspace of P
    ablate    x - P x                                           project out
    replace   x + P (y - x)                                     take the coordinates of y
    steer     x + a P y                                         add a multiple of a direction of the subspace

P acts on keys; on queries it is P^T (give `projector.mT`). In logits an edit of one key adds q^T (its change).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.options import finite, show, whole_number

Kind = Literal["swap", "ablate", "replace", "steer"]
KINDS: tuple[Kind, ...] = ("swap", "ablate", "replace", "steer")
Side = Literal["key", "query"]

Vectors = Float[Tensor, "... d_head"]
Projector = Float[Tensor, "d_head d_head"]


def swap(original: Vectors, target: Vectors, projector: Projector) -> tuple[Vectors, Vectors]:
    """Exchange the coordinates of two vectors in a subspace."""
    change = (target - original) @ projector.mT
    return original + change, target - change


def ablate(vector: Vectors, projector: Projector) -> Vectors:
    """Project a subspace out."""
    return vector - vector @ projector.mT


def replace(vector: Vectors, other: Vectors, projector: Projector) -> Vectors:
    """Give a vector the coordinates that another has in a subspace."""
    return vector + (other - vector) @ projector.mT


def steer(vector: Vectors, direction: Vectors, projector: Projector, amount: float) -> Vectors:
    """Add a multiple of what a direction has in a subspace."""
    return vector + amount * (direction @ projector.mT)


@dataclass(frozen=True)
class Edit:
    """Which edit `intervene` makes, and on which side.

    `swap` exchanges the original and the target key; the others change the original key alone, or the query. `replace`
    needs a `vector`; `steer` takes one, or without it the `direction`-th direction of each subspace. A vector is of
    d_head numbers, one for all heads or one a head.

    >>> Edit("steer", side="query", amount=2.0).kind
    'steer'
    """

    kind: Kind = "swap"
    side: Side = "key"
    amount: float = 1.0
    direction: int = 0
    vector: Float[Tensor, " d_head"] | Mapping[Head, Float[Tensor, " d_head"]] | Any = None  # or lists, arrays

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise QKPrismError(f"{self.kind!r} is not an edit. Use one of {', '.join(KINDS)}.")
        if self.side not in ("key", "query"):
            raise QKPrismError(f"side={self.side!r} is not known. Use 'key' or 'query'.")
        if self.kind == "swap" and self.side == "query":
            raise QKPrismError("A swap exchanges two keys; a query has no partner. Use replace with a vector.")
        if self.kind == "replace" and self.vector is None:
            raise QKPrismError("To replace, give the vector whose coordinates are taken: Edit('replace', vector=...).")
        object.__setattr__(self, "vector", _vectors(self.vector))
        finite(self.amount, "amount")
        whole_number(self.direction, "direction")

    def changed(self, vector: Vectors, projector: Projector, head: Head, direction: Vectors) -> Vectors:
        """A vector after an edit that needs no partner; `direction` is what `steer` adds where no vector is given."""
        if self.kind == "ablate":
            return ablate(vector, projector)
        given = self.vector_of(head)
        if self.kind == "replace":
            assert given is not None  # refused above
            return replace(vector, given.to(vector), projector)
        return steer(vector, direction if given is None else given.to(vector), projector, self.amount)

    def vector_of(self, head: Head) -> Float[Tensor, " d_head"] | None:
        """The vector for one head."""
        if not isinstance(self.vector, Mapping):
            return self.vector
        if head not in self.vector:
            raise QKPrismError(f"The edit has no vector for {head}.")
        return self.vector[head]

    def __str__(self) -> str:
        return f"{self.kind} {'keys' if self.side == 'key' else 'queries'}" + (
            f" by {self.amount:g}" if self.kind == "steer" else ""
        )


def _vectors(given: Any) -> Any:
    """Vectors as tensors, by head where they were given so."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        return {Head.parse(head): _vectors(vector) for head, vector in given.items()}
    try:
        vector = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise QKPrismError(f"The vector of an edit is a row of d_head finite numbers, not {show(given)}.") from None
    if vector.ndim != 1 or not bool(vector.isfinite().all()):
        raise QKPrismError("The vector of an edit is a row of d_head finite numbers.")
    return vector.double()
