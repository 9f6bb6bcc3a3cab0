"""Examples through a model in batches that fit.

Texts of an example that begin alike are run as one row where that saves tokens (`Forest`). A batch that does
not fit in memory is halved and run again: nothing was kept of it yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch

from qkprism.errors import QKPrismError
from qkprism.models.batches import Batch, Forest, bucket, collate, pad_id, row_size
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import EncodedExample, EncodedText
from qkprism.models.model import Model
from qkprism.models.tap import Visitor
from qkprism.options import FRAMES, Frame, choice, whole_number
from qkprism.ranks import holding_a_part, out_of_memory

TOKEN_BUDGET = {"cpu": 1024, "cuda": 16384}
LEAST_SAVED = 0.1  # of the tokens, if texts are to share rows
WIDEST = 1024  # tokens of a row that texts share: its mask is a square

Made = TypeVar("Made")
Visit = Callable[[AttentionCall, Batch], None]
RunPart = partial[Iterator[Batch]]  # of some examples: it wants a visit


@dataclass
class Batches:
    """Runs examples through a model in batches that fit: by tokens, or by number if the user says so."""

    model: Model
    layers: Sequence[int]
    rope: Frame = "post"
    batch_size: int | None = None
    budget: Mapping[str, int] = field(default_factory=lambda: TOKEN_BUDGET)  # tokens by kind of device
    scale: float = field(default=1.0, init=False)

    def __post_init__(self) -> None:
        choice(self.rope, FRAMES, "a frame of positions (rope)")
        self.batch_size = None if self.batch_size is None else whole_number(self.batch_size, "batch_size", 1)

    def plan(self, examples: Sequence[EncodedExample]) -> list[RunPart]:
        """What runs the examples, batch by batch, those with most tokens first; each can be run by itself."""
        in_rows = self._share(examples)
        return [partial(self.run, fitting, in_rows=in_rows) for fitting in self.split(examples, in_rows)]

    def run(self, examples: Sequence[EncodedExample], visit: Visit, *, in_rows: bool | None = None) -> Iterator[Batch]:
        """Run examples, those with most tokens first; each batch comes out when its pass is complete."""
        shared = self._share(examples) if in_rows is None else in_rows
        return self.each(examples, lambda fitting: self._pass(fitting, visit, shared), in_rows=shared)

    def each(
        self, examples: Sequence[EncodedExample], do: Callable[[list[EncodedExample]], Made], *, in_rows: bool = False
    ) -> Iterator[Made]:
        """What `do` makes of as many examples as fit at once; where memory runs out it is asked again for half."""
        waiting = [list(examples)] if examples else []
        while waiting:
            first, *rest = self.split(waiting.pop(), in_rows)
            waiting.extend(reversed(rest))
            try:
                with holding_a_part(len(first)):
                    made = do(first)
                yield made
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                if len(first) == 1:
                    texts = len(first[0].texts)
                    what = f"{texts} texts of up to {first[0].length}" if texts > 1 else f"{first[0].length}"
                    raise QKPrismError(
                        f"{first[0].source}: a single example of {what} tokens does not fit in memory. "
                        "Shorten it, or use a smaller dtype or a larger device."
                    ) from None
                self.scale /= 2
                waiting.append(first)

    def _share(self, examples: Sequence[EncodedExample]) -> bool:
        """Whether the texts of each example are run as one row: it must be exact, and save tokens."""
        if self.rope != "post" and self.model.rotates:  # positions are counted from the query of each text
            return False
        alone = sum(len(text.ids) for example in examples for text in example.texts)
        widths = [row_size(example) for example in examples]
        if not widths or sum(widths) > (1 - LEAST_SAVED) * alone:
            return False
        return max(widths) <= min(WIDEST, self.model.horizon or WIDEST) and self.model.shares_beginnings

    def split(self, examples: Sequence[EncodedExample], in_rows: bool = False) -> list[list[EncodedExample]]:
        """Batches that fit, as far as is known."""
        if self.batch_size is not None:
            halved = max(1, int(self.batch_size * self.scale)) if self.scale < 1 else self.batch_size
            return bucket(examples, batch_size=halved, in_rows=in_rows)
        budget = self.budget.get(self.model.device.type, self.budget["cpu"])
        return bucket(examples, token_budget=max(1, int(budget * self.scale)), in_rows=in_rows)

    def _pass(self, examples: list[EncodedExample], visit: Visit, in_rows: bool) -> Batch:
        filler = 0 if self.model.tokenizer is None else pad_id(self.model.tokenizer)
        batch = collate(examples, filler)
        seen: Visitor = lambda call: visit(call, batch)  # noqa: E731
        if in_rows:
            forest = Forest.of([[text.ids for text in example.texts] for example in examples], filler)
            self.model.run_forest(forest, seen, layers=self.layers)
            return batch
        self.model.run(
            batch.input_ids,
            batch.attention_mask,
            seen,
            layers=self.layers,
            rope=self.rope,
            query_positions=batch.query,
        )
        return batch


def numbers_of(example: EncodedExample, texts: dict[object, EncodedText]) -> tuple[int, ...]:
    """The numbers of an example's texts among those known, to which those are added that a pass can tell from them."""
    found = []
    for text in example.texts:
        what = seen_as(text)
        texts.setdefault(what, text)
        found.append([*texts].index(what))
    return tuple(found)


def seen_as(text: EncodedText) -> object:
    """What a pass knows of a text: its tokens, and where its query and its keys are."""
    return (text.ids, text.query, tuple(key.position for key in text.keys))
