"""What verbs read of a forward pass, and how several of them share one.

A reader says which examples it wants run and which layers it wants to see. Examples of several readers that have the
same first text are run as one, each of their texts once, and every reader sees its own texts as if they were alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkprism.capture.batching import Batches, RunPart, numbers_of, seen_as
from qkprism.capture.source import Site
from qkprism.capture.vector_batches import VectorBatches
from qkprism.capture.vector_source import VectorSource
from qkprism.core.rows import Logits
from qkprism.models.batches import Batch, collate
from qkprism.models.calls import AttentionCall
from qkprism.models.devices import float64_device
from qkprism.models.encoding import EncodedExample, EncodedText
from qkprism.models.model import Model
from qkprism.options import Frame
from qkprism.progress import bar
from qkprism.runs.store import Unfinished, job_digest

MOST_TEXTS = 16  # that are run as one example


class Reader(Protocol):
    """Reads the calls of a batch (`visit`) and keeps what it read when the batch's pass is complete (`keep`).

    A pass that failed may have shown calls of texts that are run again: nothing counts before it is kept.

    current   what was read of the batch and is not kept yet, in a dict: processes that share a pass give it each other
    """

    @property
    def examples(self) -> Sequence[EncodedExample]: ...
    @property
    def layers(self) -> Sequence[int]: ...
    @property
    def rope(self) -> Frame: ...
    @property
    def current(self) -> dict[Any, Any]: ...
    def visit(self, call: AttentionCall, batch: Batch) -> None: ...
    def keep(self, batch: Batch) -> None: ...


def read_together(
    source: Model | VectorSource,
    readers: Sequence[Reader],
    *,
    batch_size: int | None = None,
    kept: Unfinished | None = None,
    unit: str = "examples",
    progress: bool,
) -> None:
    """One pass for all readers, which see the same frame; of vectors that were kept there is nothing to run.

    Processes that share it run batches in turn, and each keeps what all of them read, in one order: the result is that
    of one process. With `kept` a pass goes on where a former one stopped.
    """
    if len({reader.rope for reader in readers}) > 1:
        raise ValueError("readers of one pass must see queries and keys in one frame")
    bundles = _bundles(readers, MOST_TEXTS if batch_size is None else batch_size)
    layers = sorted({layer for reader in readers for layer in reader.layers})
    if isinstance(source, VectorSource):
        batches: Batches | VectorBatches = VectorBatches(source, layers)
    else:
        batches = Batches(source, layers, readers[0].rope, batch_size)
    views = [
        _ReaderView(reader, [bundle.members[number] for bundle in bundles]) for number, reader in enumerate(readers)
    ]

    def visit(call: AttentionCall, batch: Batch) -> None:
        for view in views:
            view.visit(call, batch)

    def read(run: RunPart) -> list[_ReadBatch]:
        return [_ReadBatch.of(batch, readers) for batch in run(visit)]

    examples = [bundle.example(number) for number, bundle in enumerate(bundles)]
    plan = batches.plan(examples)
    work = of_texts(kept, [reader.examples for reader in readers], [len(run.args[0]) for run in plan])
    with bar(len(examples), unit, progress) as tick:
        for every in work.in_turn(plan, read):
            for one in every:
                one.keep(collate([examples[place] for place in one.examples]), views)
                tick(len(one.examples))


def of_texts(work: Unfinished | None, texts: Sequence[Sequence[EncodedExample]], sizes: Sequence[int]) -> Unfinished:
    """The same work on these texts, in batches of so many; without any, nothing is kept."""
    if work is None:
        return Unfinished(None, {})
    return replace(
        work, job={**work.job, "texts": [job_digest({"of": list(map(repr, some))}) for some in texts], "batches": sizes}
    )


@dataclass(frozen=True)
class _ReadBatch:
    """What readers read of a batch: the places of its examples, and what each reader holds of it."""

    examples: list[int]
    current: list[dict[Any, Any]]

    @classmethod
    def of(cls, batch: Batch, readers: Sequence[Reader]) -> _ReadBatch:
        """Taken from the readers, which can then read the next batch."""
        taken = [dict(reader.current) for reader in readers]
        for reader in readers:
            reader.current.clear()
        return cls([example.index for example in batch.examples], taken)

    def keep(self, batch: Batch, views: Sequence[_ReaderView]) -> None:
        """Let every reader keep it."""
        for view, current in zip(views, self.current, strict=True):
            view.reader.current.update(current)
            view.keep(batch)
            view.reader.current.clear()


@dataclass(frozen=True)
class _Bundle:
    """Examples with the same first text: their different texts, and for each reader its examples with their texts."""

    source: str
    members: Sequence[list[tuple[EncodedExample, tuple[int, ...]]]]
    texts: dict[object, EncodedText] = field(default_factory=dict)

    def example(self, index: int) -> EncodedExample:
        """All texts as one example."""
        first, *more = self.texts.values()
        return EncodedExample(index, first, None, 1.0, None, self.source, tuple(more))


def _bundles(readers: Sequence[Reader], most: int) -> list[_Bundle]:
    """Bundles of at most so many texts (a batch cannot be split within one), unless a single example has more."""
    found: list[_Bundle] = []
    open_for: dict[tuple[int, ...], _Bundle] = {}
    for number, reader in enumerate(readers):
        for example in reader.examples:
            bundle = open_for.get(example.text.ids)
            if bundle is None or len({*bundle.texts, *map(seen_as, example.texts)}) > most:
                bundle = open_for[example.text.ids] = _Bundle(example.source, [[] for _ in readers])
                found.append(bundle)
            bundle.members[number].append((example, numbers_of(example, bundle.texts)))
    return found


@dataclass
class _ReaderView:
    """What one reader sees of a pass: its own examples, in the order of the batch."""

    reader: Reader
    members: Sequence[Sequence[tuple[EncodedExample, tuple[int, ...]]]]
    batch: Batch | None = None
    found: tuple[Batch, tuple[int, ...]] | None = None

    def visit(self, call: AttentionCall, batch: Batch) -> None:
        if call.layer in self.reader.layers and (found := self._own(batch)):
            seen, rows = found
            alone = rows == tuple(range(len(batch.query))) and seen.input_ids.shape == batch.input_ids.shape
            self.reader.visit(call if alone else call.pick(rows, seen.input_ids.shape[1]), seen)

    def keep(self, batch: Batch) -> None:
        if found := self._own(batch):
            self.reader.keep(found[0])

    def _own(self, batch: Batch) -> tuple[Batch, tuple[int, ...]] | None:
        """The reader's examples of a batch, and the rows of their texts; None if it has none there."""
        if self.batch is not batch:
            self.batch, self.found = batch, self._find(batch)
        return self.found

    def _find(self, batch: Batch) -> tuple[Batch, tuple[int, ...]] | None:
        starts = {place: row for row, (place, which) in enumerate(batch.rows) if which == 0}
        found = [
            (example, [starts[place] + number for number in numbers])
            for place, bundle in enumerate(batch.examples)
            for example, numbers in self.members[bundle.index]
        ]
        if not found:
            return None
        return collate([example for example, _ in found]), tuple(row for _, rows in found for row in rows)


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
