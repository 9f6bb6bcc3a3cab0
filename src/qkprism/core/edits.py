"""What an intervention does to vectors (paper, section 4): every edit is x + P delta, with one delta for each kind.

    swap      delta = k_t - k_o for the original key, and as much is taken from the target: the paper's
    ablate    delta = -x                project out
    replace   delta = y - x             take the coordinates of y
    steer     delta = a y               add a multiple of y, or of a direction of the subspace

P acts on keys; on queries it is P^T (`subspace.mT`). An edit of one key adds q^T P delta to its logit, so vectors
(`Edit.change`) and logits (`subspaces/intervention.py`) are two uses of one delta.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from qkprism.core.projectors import Subspace
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.options import finite, show, whole_number

EditKind = Literal["swap", "ablate", "replace", "steer"]
KINDS: tuple[EditKind, ...] = get_args(EditKind)
Side = Literal["key", "query"]

HeadVectors = Float[Tensor, "... d_head"]


@dataclass(frozen=True)
class Operands:
    """What a delta is made of: the vector, the target of a swap, the y of the formulas; None where there is none."""

    vector: HeadVectors
    partner: HeadVectors | Any
    other: HeadVectors | Any
    amount: float


DELTAS: Mapping[str, Callable[[Operands], HeadVectors]] = {
    "swap": lambda x: x.partner - x.vector,
    "ablate": lambda x: -x.vector,
    "replace": lambda x: x.other - x.vector,
    "steer": lambda x: x.amount * x.other,
}


@dataclass(frozen=True)
class Edit:
    """Which edit `intervene` makes, and on which side.

    `swap` exchanges the original and the target key; the others change the original key alone, or the query. `replace`
    needs a `vector`; `steer` takes one, or without it the `direction`-th direction of each subspace. A vector is of
    d_head numbers, one for all heads or one a head.

    >>> Edit("steer", side="query", amount=2.0).kind
    'steer'
    """

    kind: EditKind = "swap"
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

    @property
    def follows_subspace(self) -> bool:
        """Whether it adds a direction of each subspace, and so another delta in each."""
        return self.kind == "steer" and self.vector is None

    def delta(
        self, vector: HeadVectors, head: Head, *, partner: HeadVectors | None = None, lead: HeadVectors | None = None
    ) -> HeadVectors:
        """What is projected and added to a vector.

        `partner` is the target that a swap exchanges it with; `lead` is what a steer without a vector follows.
        """
        if self.kind not in DELTAS:
            raise QKPrismError(f"{self.kind!r} is not an edit. Use one of {', '.join(KINDS)}.")
        steered = self.vector_of(head)
        other = lead if steered is None else steered.to(vector)
        return DELTAS[self.kind](Operands(vector, partner, other, self.amount))

    def change(
        self, vector: HeadVectors, head: Head, space: Subspace, *, partner: HeadVectors | None = None
    ) -> HeadVectors:
        """By how much an edit in a subspace changes a vector: P delta."""
        space = space.to(vector.device)
        delta = self.delta(vector, head, partner=partner, lead=space.lead(self.direction))
        return delta @ space.projector.mT

    def of_target(self, change: Tensor) -> Tensor:
        """By how much the target changes, or its logit, where the original changes by `change`."""
        return -change if self.kind == "swap" else torch.zeros_like(change)

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


def _vectors(vector_of: Any) -> Any:
    """Vectors as tensors, by head where they were given so."""
    if vector_of is None:
        return None
    if isinstance(vector_of, Mapping):
        return {Head.parse(head): _vectors(vector) for head, vector in vector_of.items()}
    try:
        vector = torch.as_tensor(vector_of)
    except (TypeError, ValueError, RuntimeError):
        raise QKPrismError(f"The vector of an edit is a row of d_head finite numbers, not {show(vector_of)}.") from None
    if vector.ndim != 1 or not bool(vector.isfinite().all()):
        raise QKPrismError("The vector of an edit is a row of d_head finite numbers.")
    return vector.double()
