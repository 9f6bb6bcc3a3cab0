"""Cells of the study: which heads there are (paper, section 4), their first weights, and what a trained one is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from qkprism.errors import QKPrismError
from qkprism.toy.task import (
    DEFAULT,
    Maps,
    NoisePreset,
    Samples,
    ToyTask,
    Variant,
    embed_payloads,
    embed_selector,
    stream,
)

RANKS = {8: range(2, 7), 16: range(4, 13)}


@dataclass(frozen=True)
class Cell:
    """One head to train: its task, size and seed."""

    task: ToyTask
    d_head: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("d_head", "seed"):
            value, least = getattr(self, name), int(name == "d_head")
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise QKPrismError(f"{name}={value!r} is not possible. Use a whole number from {least} on.")
        if self.d_head > self.task.width:
            raise QKPrismError(f"d_head={self.d_head} is more than the width {self.task.width} of the embeddings.")

    @property
    def superposed(self) -> bool:
        """Are there more latent dimensions than the head has?"""
        return sum(self.task.ranks) > self.d_head

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Cell:
        """The cell that `dataclasses.asdict` put in a manifest."""
        return cls(ToyTask(**state["task"]), state["d_head"], state["seed"])

    def __str__(self) -> str:
        task = self.task
        setting = f" {task.setting}" if task.setting else ""
        return f"{task.variant} r1={task.r1} r2={task.r2} d_head={self.d_head} seed={self.seed}{setting}"


def paper_grid(
    *,
    seeds: Sequence[int] = (0,),
    variants: Sequence[Variant] = get_args(Variant),
    d_heads: Sequence[int] = tuple(RANKS),
    preset: NoisePreset = DEFAULT,
) -> tuple[Cell, ...]:
    """The cells of the paper: 25 of d_head 8 and 81 of d_head 16, for each variant and seed."""
    if unknown := [d_head for d_head in d_heads if d_head not in RANKS]:
        sizes = " and ".join(map(str, RANKS))
        raise QKPrismError(f"The paper has no heads of d_head {unknown[0]}: its grid has {sizes}. Give cells instead.")
    return tuple(
        Cell(ToyTask(variant, r1, r2, preset), d_head, seed)
        for seed in seeds
        for variant in variants
        for d_head in d_heads
        for r1 in RANKS[d_head]
        for r2 in RANKS[d_head]
    )


def few_cells(seed: int = 0, preset: NoisePreset = DEFAULT) -> tuple[Cell, ...]:
    """A few small heads of both variants, with room, on the boundary and superposed: for a first look, in seconds."""
    ranks = ((2, 3), (3, 3), (3, 4), (4, 4), (5, 5))
    return tuple(Cell(ToyTask(variant, *pair, preset), 8, seed) for variant in get_args(Variant) for pair in ranks)


@dataclass(frozen=True)
class ToyHead:
    """A head with the maps of its task; `steps`, `loss` and `accuracy` (on fresh samples) tell how it was trained."""

    cell: Cell
    maps: Maps = field(repr=False)
    query: Float[Tensor, "d_head width"] = field(repr=False)
    key: Float[Tensor, "d_head width"] = field(repr=False)
    value: Float[Tensor, "d_head width"] = field(repr=False)
    output: Float[Tensor, "payload d_head"] = field(repr=False)
    steps: int = 0
    loss: float = float("nan")
    accuracy: float = float("nan")

    def queries(self, samples: Samples) -> Float[Tensor, "sample d_head"]:
        """q of the selectors."""
        return embed_selector(self.maps, samples) @ self.query.mT

    def keys(self, samples: Samples) -> Float[Tensor, "sample token d_head"]:
        """k of all tokens."""
        return embed_payloads(self.maps, samples) @ self.key.mT

    def attention(self, samples: Samples) -> Float[Tensor, "sample token"]:
        """How the selector attends to the tokens."""
        logits = (self.keys(samples) @ self.queries(samples)[:, :, None])[:, :, 0]
        return (logits * self.cell.d_head**-0.5).softmax(-1)


def untrained(cell: Cell) -> ToyHead:
    """The head as training finds it: every entry uniform within 1/sqrt(number of inputs), as in torch's Linear."""
    random, task = stream("weights", repr(cell)), cell.task

    def uniform(rows: int, inputs: int) -> Tensor:
        return (2 * torch.rand(rows, inputs, generator=random) - 1) * inputs**-0.5

    query, key, value = (uniform(cell.d_head, task.width) for _ in range(3))
    return ToyHead(cell, Maps.draw(task, cell.seed), query, key, value, uniform(task.payloads, cell.d_head))


def by_size(heads: Sequence[ToyHead]) -> list[list[ToyHead]]:
    """Heads of one d_head together."""
    return [[h for h in heads if h.cell.d_head == size] for size in sorted({h.cell.d_head for h in heads})]
