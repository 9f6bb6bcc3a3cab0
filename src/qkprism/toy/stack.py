"""A stack: the cells of one variant and d_head in training, as rows of parameters that are stepped together.

Each cell stops on its own (paper, appendix on training): its best weights are kept, and it leaves the computation.

The protocol `paper` is a constant rate of 1e-4 until the validation loss has not improved for more than 5 checks.
`fast` warms up to a much higher rate and decays it to zero along a cosine, which fixes the number of steps; the same
checks may end it sooner. `quick` does so in a fifth of the steps: enough for small ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkprism.errors import QKPrismError
from qkprism.toy.bank import (
    Deal,
    Embedding,
    Weights,
    Workspace,
    accuracies,
    draws_of,
    fold,
    forward,
    gradients,
    losses,
    unflatten,
)
from qkprism.toy.cells import Cell, ToyHead, untrained
from qkprism.toy.task import Variant


@contextmanager
def one_core_each() -> Iterator[ThreadPoolExecutor]:
    """As many workers as torch has threads, each with one: its threads wait for each other on matrices of this size."""
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(cores) as pool:
            yield pool
    finally:
        torch.set_num_threads(cores)


BETAS = (0.9, 0.999)
EPSILON = 1e-8


@dataclass(frozen=True)
class Protocol:
    """The rate of each step, the batch, and when to stop."""

    name: str
    rate: float
    steps: int
    warmup: int = 0
    decays: bool = False
    weight_decay: float = 0.01
    batch: int = 256
    check_every: int = 200
    patience: int = 5
    check_batches: int = 20
    check_batch: int = 512
    test_batches: int = 40

    def rate_at(self, step: int) -> float:
        """The rate of a step, counted from 0."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        if not self.decays:
            return self.rate
        done = (step - self.warmup) / (self.steps - self.warmup)
        return self.rate * (1 + math.cos(math.pi * done)) / 2


PROTOCOLS = {
    "paper": Protocol("paper", rate=1e-4, steps=400_000),
    "fast": Protocol("fast", rate=1e-2, steps=3000, warmup=300, decays=True),
    "quick": Protocol("quick", rate=2e-2, steps=600, warmup=100, decays=True, batch=128, check_batches=4),
}


def protocol_named(name: str | Protocol) -> Protocol:
    """A protocol by its name."""
    if isinstance(name, Protocol):
        return name
    if name not in PROTOCOLS:
        raise QKPrismError(f"{name!r} is not a protocol. Use {' or '.join(PROTOCOLS)}.")
    return PROTOCOLS[name]


def adamw(
    parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor, *, step: int, rate: float, weight_decay: float
) -> None:
    """One step of AdamW in place; `first` and `second` are its running moments, steps count from 0."""
    first.lerp_(gradient, 1 - BETAS[0])
    second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    corrections = [1 - beta ** (step + 1) for beta in BETAS]
    spread = torch.sqrt(second).div_(corrections[1] ** 0.5).add_(EPSILON)
    parameter.mul_(1 - rate * weight_decay).addcdiv_(first, spread, value=-rate / corrections[0])


@dataclass
class Stack:
    """`parameter`, `first` and `second` (AdamW's moments) have a row for each active cell, the rest for every cell."""

    cells: tuple[Cell, ...]
    embedding: Embedding
    active: Int[Tensor, " active"]
    parameter: Float[Tensor, "active parameter"]
    first: Float[Tensor, "active parameter"]
    second: Float[Tensor, "active parameter"]
    best: Float[Tensor, "cell parameter"]
    best_loss: Float[Tensor, " cell"]
    stale: Int[Tensor, " cell"]
    steps: Int[Tensor, " cell"]
    _space: Workspace | None = field(default=None, repr=False)

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> Stack:
        """Untrained cells of one variant and size."""
        heads, n = [untrained(cell) for cell in cells], len(cells)
        parts = (torch.stack([getattr(h, name) for h in heads]) for name in ("query", "key", "value", "output"))
        parameter = Weights(*parts).flat()
        return cls(
            cells=tuple(cells),
            embedding=Embedding.of([head.maps for head in heads], largest_rank(cells)),
            active=torch.arange(n),
            parameter=parameter,
            first=torch.zeros_like(parameter),
            second=torch.zeros_like(parameter),
            best=parameter.clone(),
            best_loss=torch.full((n,), torch.inf),
            stale=torch.zeros(n, dtype=torch.long),
            steps=torch.zeros(n, dtype=torch.long),
        )

    @property
    def variant(self) -> Variant:
        return self.cells[0].task.variant

    @property
    def rank(self) -> int:
        """The rank that the latents of all cells are padded to."""
        return largest_rank(self.cells)

    def tensors(self) -> dict[str, Tensor]:
        """All that changes in training, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), Tensor)}

    def unflatten(self, rows: Float[Tensor, "row parameter"]) -> Weights:
        """Rows of parameters as weights."""
        return unflatten(rows, self.cells[0].d_head, self.cells[0].task.width)

    def heads(self) -> list[ToyHead]:
        """The best weights of every cell so far."""
        best, found = self.unflatten(self.best), []
        for i, cell in enumerate(self.cells):
            weights = (best.query[i], best.key[i], best.value[i], best.output[i])
            maps = untrained(cell).maps
            found.append(ToyHead(cell, maps, *weights, steps=int(self.steps[i]), loss=float(self.best_loss[i])))
        return found

    def step(self, dealt: Deal, protocol: Protocol, number: int) -> None:
        """One step of all active cells."""
        if not len(self.active):
            return
        embedding = self.active_embedding()
        draws = draws_of(dealt, self.variant, self.rank)
        weights = self.unflatten(self.parameter)
        if self._space is None or not self._space.fits(embedding, draws):
            self._space = Workspace.of(embedding, draws)
        gradient = gradients(weights, embedding, draws, self._space).flat()
        rate, decay = protocol.rate_at(number), protocol.weight_decay
        adamw(self.parameter, gradient, self.first, self.second, step=number, rate=rate, weight_decay=decay)

    def active_embedding(self) -> Embedding:
        """The maps of the active cells."""
        return self.embedding if len(self.active) == len(self.cells) else self.embedding.pick(self.active)

    def note(self, loss: Float[Tensor, " active"], protocol: Protocol, taken: int) -> None:
        """Take note of the validation losses of the active cells; those that no longer improve leave."""
        better = loss < self.best_loss[self.active]
        improved = self.active[better]
        self.best[improved], self.best_loss[improved] = self.parameter[better], loss[better]
        self.stale[self.active] += 1
        self.stale[improved] = 0
        self.steps[self.active] = taken
        staying = self.stale[self.active] <= protocol.patience
        if not bool(staying.all()):
            kept = (self.active, self.parameter, self.first, self.second)
            self.active, self.parameter, self.first, self.second = (rows[staying] for rows in kept)


def largest_rank(cells: Iterable[Cell]) -> int:
    """The largest rank of a latent in some cells."""
    return max(max(cell.task.ranks) for cell in cells)


@dataclass(frozen=True)
class Score:
    """Mean loss and accuracy over some batches."""

    loss: Float[Tensor, " cell"]
    accuracy: Float[Tensor, " cell"]


def evaluate(stack: Stack, batches: Sequence[Deal], *, best: bool = False) -> Score:
    """The score of the active cells, or of the best weights of all."""
    embedding = stack.embedding if best else stack.active_embedding()
    folded = fold(stack.unflatten(stack.best if best else stack.parameter), embedding)
    space, each = None, []
    for dealt in batches:
        draws = draws_of(dealt, stack.variant, stack.rank)
        space = space or Workspace.of(embedding, draws)
        done = forward(folded, draws, space)
        each.append(torch.stack([losses(done, draws), accuracies(done, draws)]))
    mean = torch.stack(each).mean(0)
    return Score(mean[0], mean[1])
