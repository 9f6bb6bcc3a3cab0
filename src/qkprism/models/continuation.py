"""Run texts once up to their queries, and what comes after again for each of many edits.

An edit in the row of the query changes nothing before it, so keys and values of all earlier tokens are computed once
and kept in the model's cache, and so is what the blocks in front of the first edited layer give; each edit then costs
the tokens from the query on and the layers from the edit on, instead of the whole text. Where the cache cannot be
trusted to give the same logits (tried on some texts), the whole text is run every time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DynamicCache

from qkprism.errors import QKPrismError
from qkprism.memory import give_back
from qkprism.models.batches import Batch, collate, pad_id
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import EncodedExample
from qkprism.models.model import Model
from qkprism.models.probe import accepted, distance, evaluating, tolerance
from qkprism.models.tap import Visitor, hold
from qkprism.options import Frame

TOKEN_BUDGET = {"cpu": 1024, "cuda": 16384}  # of a piece of the texts in front of their queries


@dataclass(frozen=True)
class Continuation:
    """Texts whose queries are edited again and again.

    `cache` is None where they are run whole. Blocks in front of the layers in `skips` are not run for edits from there
    on: what the last of them gives is kept in `noted` in the first run without an edit.
    """

    model: Model
    batch: Batch
    rope: Frame
    chat: bool
    tail: int
    cache: Any = None
    skips: frozenset[int] = frozenset()
    noted: dict[nn.Module, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def start(
        cls,
        model: Model,
        examples: Sequence[EncodedExample],
        *,
        rope: Frame,
        cached: bool,
        skips: Iterable[int] = (),
        chat: bool = False,
    ) -> Continuation:
        """Run the texts up to their queries if `cached`."""
        filler = 0 if model.tokenizer is None else pad_id(model.tokenizer)
        batch = collate(examples, filler, "left" if cached else "right")
        width = batch.input_ids.shape[1]
        tail = width - int(batch.query.min())
        if not cached or tail == width:
            return cls(model, batch, rope, chat, width)
        begun, cache = cls(model, batch, rope, chat, tail), DynamicCache(config=model.hf.config)
        for part in begun._pieces(width - tail):
            give_back(collect=False)  # what the piece before it left in the heap would come on top
            cache = begun._prefix(part, cache)
        return cls(model, batch, rope, chat, tail, cache, frozenset(skips))

    @property
    def rows(self) -> Int[Tensor, " example"]:
        """The rows of the queries in the calls that a visitor sees."""
        return self.batch.query - (self.batch.input_ids.shape[1] - self.tail if self.cache is not None else 0)

    def columns(self, call: AttentionCall, positions: Sequence[int]) -> Int[Tensor, " example"]:
        """The key columns of one token of each text in a call."""
        shift = self.batch.query - torch.tensor([e.text.query for e in self.batch.examples])
        return (torch.tensor(positions) + shift).to(call.key.device) - call.key_positions[0]

    @property
    def last(self) -> list[int]:
        """The token of each text that predicts what comes next: the last, without what a tokenizer adds after it."""
        special = set() if self.model.tokenizer is None or self.chat else set(self.model.tokenizer.all_special_ids)
        return [_last_word(e.text.ids, e.text.query, special) for e in self.batch.examples]

    def logits(
        self, visit: Visitor | None = None, layers: Iterable[int] | None = None
    ) -> Float[Tensor, "example vocabulary"]:
        """The vocabulary logits of the last word of each text."""
        layers = None if layers is None else tuple(layers)
        if self.cache is None:
            places, inverse = torch.tensor(self.last).unique(return_inverse=True)
            found = self.model.run(
                self.batch.input_ids, self.batch.attention_mask, visit,
                layers=layers, rope=self.rope, query_positions=self.batch.query, logits=True, logits_at=places,
            )  # fmt: skip
            assert found is not None
            return found[torch.arange(len(inverse)), inverse.to(found.device)]
        part = slice(self.batch.input_ids.shape[1] - self.tail, None)
        inputs = self._inputs(part) | {"past_key_values": forked(self.cache), "use_cache": True}
        tap = nullcontext() if visit is None else self.model.tap(visit, layers=layers)
        with evaluating(self.model.hf), torch.no_grad(), tap, self._blocks(visit, layers):
            found = self.model.hf(**inputs).logits
        before = torch.tensor([len(e.text.ids) - found.shape[1] for e in self.batch.examples], device=found.device)
        row = torch.tensor(self.last, device=found.device) - before
        return found[torch.arange(len(row), device=found.device), row]

    def _blocks(self, visit: Visitor | None, layers: Sequence[int] | None) -> AbstractContextManager[object]:
        """Note what is in front of the layers in `skips` where nothing is edited; skip it where it is known."""
        if visit is None:
            in_front = [_blocks_before(self.model, layer)[-1:] for layer in self.skips]
            return noting([block for blocks in in_front for block in blocks], self.noted)
        first = first_of(self.model, layers or self.model.layers)
        blocks = _blocks_before(self.model, first) if first in self.skips else ()
        if not blocks or blocks[-1] not in self.noted:
            return nullcontext()
        return skipping(dict.fromkeys(blocks, self.noted[blocks[-1]]))  # only what the last one gives is used

    def _pieces(self, width: int) -> list[slice]:
        """The columns in front of the queries in pieces, as a batch needs more memory when all are run at once.

        There are two at least, so that a trial of the cache is one of pieces too.
        """
        budget = TOKEN_BUDGET.get(self.model.device.type, TOKEN_BUDGET["cpu"])
        count = min(width, max(2, math.ceil(width * len(self.batch.input_ids) / budget)))
        borders = [width * place // count for place in range(count + 1)]
        return [slice(*ends) for ends in pairwise(borders)]

    def _prefix(self, part: slice, cache: Any) -> Any:
        inputs = self._inputs(part) | {"past_key_values": cache, "use_cache": True}
        with evaluating(self.model.hf), torch.no_grad():
            return self.model.hf.base_model(**inputs).past_key_values

    def _inputs(self, part: slice) -> dict[str, Tensor]:
        mask = self.batch.attention_mask
        inputs = {"input_ids": self.batch.input_ids[:, part], "attention_mask": mask[:, : part.stop]}
        if self.model.takes_positions:
            inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp_min(0)[:, part]
        return {name: value.to(self.model.device) for name, value in inputs.items()}


def forked(cache: Any) -> Any:
    """A cache that grows by itself and leaves this one as it is."""
    fork = copy.copy(cache)
    fork.layers = [copy.copy(layer) for layer in cache.layers]
    return fork


def first_of(model: Model, layers: Iterable[int]) -> int:
    """The layer that a model calls first."""
    wanted = set(layers)
    return next(number for number in model.layers if number in wanted)


def _blocks_before(model: Model, layer: int) -> Sequence[nn.Module]:
    return blocks_before(model.hf, model.layers[layer].name)


def _last_word(ids: Sequence[int], query: int, special: set[int]) -> int:
    return max(at for at in range(len(ids)) if at == query or ids[at] not in special)


def cache_is_exact(model: Model, examples: Sequence[EncodedExample], rope: Frame) -> bool:
    """Whether these texts give the same logits from the cache as run whole, and in the same frame."""
    if "past_key_values" not in accepted(model.hf) or model.rotation_varies or (rope != "post" and model.rotates):
        return False
    padded = len({len(example.text.ids) for example in examples}) > 1
    if padded and not model.takes_positions:
        return False
    whole = Continuation.start(model, examples, rope=rope, cached=False).logits()
    try:
        begun = Continuation.start(model, examples, rope=rope, cached=True)
        twice = [begun.logits() for _ in range(2)]  # the second time shows whether the first changed the cache
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return False
    return all(distance(found, whole) <= tolerance(model.dtype) for found in twice)


def skips_are_exact(model: Model, examples: Sequence[EncodedExample], rope: Frame, layers: Iterable[int]) -> bool:
    """Whether edits from these layers on give the same logits when the blocks before them are not run again.

    Really edited, because a block that runs once more after the edit would give what it gave without it.
    """
    chosen = tuple(layers)
    try:
        whole, begun = (
            Continuation.start(model, examples, rope=rope, cached=True, skips=skips) for skips in ((), chosen)
        )
        found = [(begun.logits(), whole.logits())]
        found += [(begun.logits(_blind, [layer]), whole.logits(_blind, [layer])) for layer in chosen]
    except (QKPrismError, AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return False
    return all(distance(*pair) <= tolerance(model.dtype) for pair in found)


def _blind(call: AttentionCall) -> None:
    """Take the query from a head, so that it attends to everything alike."""
    call.edit_head(0, query=torch.zeros_like(call.query[:, 0]))


# What the blocks in front of an edit compute is what they did without it: noted once, they are not run again. A block
# is an item of the list of layers that a model goes through. Only the thread that opened `noting` or `skipping` notes
# and skips; the model runs as ever for the others.


@dataclass(frozen=True)
class _Notes:
    noted: Mapping[nn.Module, Any]
    found: dict[nn.Module, Any]


_notes: ContextVar[_Notes | None] = ContextVar("qkprism_block_notes", default=None)


def blocks_before(hf: nn.Module, name: str) -> Sequence[nn.Module]:
    """The blocks in front of the one that a module is in."""
    above, parts = hf, name.split(".")
    for part in parts:
        if isinstance(above, nn.ModuleList):
            return list(above)[: int(part)]
        above = above.get_submodule(part)
    return ()


def noting(blocks: Iterable[nn.Module], found: dict[nn.Module, Any]) -> AbstractContextManager[None]:
    """Put down what each of these blocks gives while the model runs."""
    return _watching(blocks, _Notes({}, found))


def skipping(noted: Mapping[nn.Module, Any]) -> AbstractContextManager[None]:
    """These blocks give what is known, without a computation."""
    return _watching(noted, _Notes(noted, {}))


@contextmanager
def _watching(blocks: Iterable[nn.Module], notes: _Notes) -> Iterator[None]:
    with ExitStack() as undo:
        for block in blocks:
            undo.callback(hold(block, "forward", partial(_watched, block)))
        before = _notes.set(notes)
        undo.callback(_notes.reset, before)
        yield


def _watched(block: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
    """A block's forward that looks at the notes of its thread."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        notes = _notes.get()
        if notes is None:
            return original(*args, **kwargs)
        if block in notes.noted:
            return notes.noted[block]
        notes.found[block] = original(*args, **kwargs)
        return notes.found[block]

    return forward
