"""A stack: the cells of one variant and d_head in training, as rows of parameters that are stepped together.

Each cell stops on its own (paper, appendix on training): its best weights are kept, and it leaves the computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkprism.toy.bank import Embedding, Weights, Workspace, accuracies, fold, forward, gradients, losses, unflatten
from qkprism.toy.cells import Cell, ToyHead, untrained
from qkprism.toy.draws import Deal, draws_of
from qkprism.toy.protocols import Protocol, adamw
from qkprism.toy.task import Variant


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
