"""What features are made from: examples in chunks, with their vectors in every layer.

    sums = moments_of(stream, seed=0)          # sums["order/plain"][18] are the moments of layer 18

Two kinds of source give chunks: a model that runs marked texts (`ModelSource`), and vectors that were kept
(`VectorSource`). From the same vectors they give the same features, to the last digit: chunks have fixed borders, and
what is random depends on the seed and the example alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from qkprism.core.groups import Grouping
from qkprism.core.moments import Marks, Moments, accumulate, make_plan, pack, reduce_keys, unpack
from qkprism.encoding import Encoding
from qkprism.heads import Head
from qkprism.notes import Note
from qkprism.options import Reading
from qkprism.progress import Progress
from qkprism.ranks import Ranks, added, exchanged, failing_together, ranks, wait
from qkprism.runs.folder import Tensors
from qkprism.runs.store import Files, Unfinished, packed, unpacked

if TYPE_CHECKING:
    from qkprism.capture.vector_source import VectorSource
    from qkprism.models.batches import Batch
    from qkprism.models.calls import AttentionCall
    from qkprism.models.model import Model


@dataclass(frozen=True)
class Site:
    """The chosen heads of one layer, and the key heads they use."""

    heads: tuple[Head, ...]
    kv_heads: tuple[int, ...]
    kv_index: tuple[int, ...]
    d_head: int
    scaling: float

    @classmethod
    def of(cls, heads: Sequence[Head], kv: Sequence[int], d_head: int, scaling: float) -> Site:
        """From the key head that each head uses."""
        used = sorted(set(kv))
        return cls(tuple(heads), tuple(used), tuple(used.index(k) for k in kv), d_head, scaling)

    def gather(
        self, call: AttentionCall, batch: Batch
    ) -> tuple[Float[Tensor, "text head d_head"], Float[Tensor, "key kv_head d_head"]]:
        """The queries of a batch's texts and its marked keys, as they meet in this layer."""
        batch = batch.to(call.query.device)
        row = torch.arange(len(batch.query), device=call.query.device)
        query = call.query[row, :, batch.query][:, [head.index for head in self.heads]]
        return query, call.key[batch.key_row, :, batch.key_column][:, list(self.kv_heads)]


def sites_of(model: Model | VectorSource, heads: Sequence[Head]) -> dict[int, Site]:
    """The chosen heads by layer."""
    if not hasattr(model, "kv_head"):  # vectors know their heads
        return model.pick(heads).layers
    found = {}
    for number in sorted({head.layer for head in heads}):
        chosen, layer = [head for head in heads if head.layer == number], model.layers[number]
        found[number] = Site.of(chosen, [model.kv_head(head) for head in chosen], layer.d_head, layer.scaling)
    return found


Sums = dict[str, dict[int, Moments]]  # by stream name and layer
_FILE, _SEEN = "moments", "seen"  # what a checkpoint's files are called
CHUNK = {"cpu": 128, "cuda": 512}  # examples


class ContrastReading(NamedTuple):
    """A contrast, and how its twins are read: one contrast may be read in several ways."""

    contrast: str
    reading: Reading

    @property
    def name(self) -> str:
        """What its sums are called."""
        return "/".join(self)


@dataclass(frozen=True)
class Chunk:
    """Some examples of one contrast: their marks, and their vectors in a layer, which are there until the next chunk.

    vectors   None where this process has nothing to do while others have
    done      so many examples of the pass are complete, in all processes, with this chunk; None if others of the same
              pass follow
    """

    name: str
    reading: Reading
    n_cells: int
    n_values: int
    marks: Marks | None
    vectors: (
        Callable[[int], tuple[Float[Tensor, "example text head d_head"], Float[Tensor, "example key kv_head d_head"]]]
        | None
    )
    done: int | None = None


@dataclass(frozen=True)
class Outline:
    """What a contrast's texts or marks tell before its vectors are read.

    freedom      marked keys, less one for each example
    provenance   what features of it remember
    """

    grouping: Grouping
    freedom: int
    notes: Callable[[str], list[Note]]  # by the name that the contrast has in the results
    provenance: Mapping[str, Any] = field(default_factory=dict)


class Stream(Protocol):
    """Chunks of contrasts in some layers; `done` says how many examples of each were summed before.

    ranks    the processes that share the chunks, each with its own
    """

    @property
    def ranks(self) -> Ranks: ...
    @property
    def layers(self) -> Mapping[int, Site]: ...
    @property
    def names(self) -> Mapping[str, Reading]: ...
    def chunks(self, done: Mapping[str, int], progress: Progress | None = None) -> Iterator[Chunk]: ...
    def __len__(self) -> int: ...


class Source(Protocol):
    """Contrasts with their vectors in the layers of some heads."""

    @property
    def heads(self) -> tuple[Head, ...]: ...
    @property
    def layers(self) -> Mapping[int, Site]: ...
    @property
    def contrasts(self) -> Collection[str]: ...
    @property
    def encoding(self) -> Encoding: ...
    def twins(self, contrast: str) -> set[bool]:
        """Whether examples of a contrast have twins: all, none, or some."""
        ...

    def outlines(self, contrasts: Sequence[str], *, progress: bool) -> dict[str, Outline]: ...
    def stream(self, readings: Sequence[ContrastReading], seed: int) -> Stream: ...
    def provenance(self) -> dict[str, Any]: ...


@dataclass
class Checkpoint:
    """What a pass has summed so far, and of how many examples of each contrast; `seen` is what else it saw of them.

    Moments are additive and chunks have fixed borders, so that is all there is to keep (`store.py`): a pass that was
    killed goes on to the identical result. Of several processes the sums of all are written; any number can go on.
    """

    work: Unfinished
    done: dict[str, int] = field(default_factory=dict)
    sums: Sums = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)  # contrasts that every process has sums of
    seen: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, work: Unfinished, stream: Stream) -> Checkpoint:
        """What a former pass of the same job has summed, if there was one: the first process has the sums."""
        done, files = work.read()
        sums = {
            name: {
                layer: unpack(files[_FILE], f"{name}/{layer}", reading, site.kv_index)
                for layer, site in stream.layers.items()
            }
            for name, reading in stream.names.items()
            if files and done.get(name)
        }
        return cls(work, done, sums, seen=unpacked(files[_SEEN]) if _SEEN in files else [])

    def note(self, done: int, sums: Mapping[str, Mapping[int, Moments]]) -> None:
        """Note that a chunk of some contrasts is complete."""
        for name, total in sums.items():
            self.done[name], self.sums[name] = done, dict(total)
            self.begun.add(name)
        self.work.note(self.done, self._summed, f"What was added up of {max(self.done.values()):,} examples")

    def _summed(self) -> Files:
        sums = self.sums | over_all(ranks(), {name: self.sums[name] for name in sorted(self.begun)})
        seen = [one for every in exchanged(self.seen) for one in every]
        return _files(sums) | ({_SEEN: packed(seen)} if seen else {})

    def finish(self, totals: Sums) -> None:
        """Write the sums of the whole stream."""
        self.work.write(self.done, _files(totals))


def moments_of(
    stream: Stream, *, seed: int = 0, kept: Checkpoint | None = None, progress: Progress | None = None
) -> Sums:
    """The moments of every contrast of a stream in every layer; with `kept` it goes on where a former one stopped."""
    sums: Sums = {name: dict(kept.sums.get(name, {})) if kept else {} for name in stream.names}
    passing: list[str] = []
    with failing_together():
        for chunk in stream.chunks(kept.done if kept else {}, progress):
            add_chunk(sums[chunk.name], chunk, stream.layers, seed)
            passing.append(chunk.name)
            if chunk.done is not None:
                if kept:
                    kept.note(chunk.done, {name: sums[name] for name in passing})
                passing.clear()
    return over_all(stream.ranks, sums)


def over_all(ranks: Ranks, sums: Mapping[str, Mapping[int, Moments]]) -> Sums:
    """The sums of all processes, on the CPU."""
    if ranks.count > 1:
        wait()  # whoever has failed says so here, not between two sums

    def total(moments: Moments) -> Moments:
        return moments.with_tensors(added(moments.tensors())) if ranks.count > 1 else moments.to("cpu")

    return {name: {layer: total(moments) for layer, moments in of_name.items()} for name, of_name in sums.items()}


def _files(totals: Sums) -> dict[str, Tensors]:
    named = {f"{name}/{layer}": total for name, layers in totals.items() for layer, total in layers.items()}
    return {_FILE: pack(named)}


def add_chunk(sums: dict[int, Moments], chunk: Chunk, layers: Mapping[int, Site], seed: int) -> None:
    """Add the vectors of a chunk to the moments of each layer."""
    for number, site in layers.items():
        if chunk.vectors is None or chunk.marks is None:
            sums.setdefault(number, _zeros(chunk, site, "cpu"))
            continue
        query, key = chunk.vectors(number)
        if number not in sums:
            sums[number] = _zeros(chunk, site, str(key.device))
        elif sums[number].product.device != key.device:  # read from a checkpoint
            sums[number] = sums[number].to(key.device)
        if len(query):  # a small contrast may have no text in a chunk
            plan = plan_of(chunk.marks, chunk.reading, seed).to(key.device)
            accumulate(sums[number], query, reduce_keys(sums[number], key, plan), plan)


def _zeros(chunk: Chunk, site: Site, device: str) -> Moments:
    sizes = {"n_cells": chunk.n_cells, "n_values": chunk.n_values}
    return Moments.zeros(site.kv_index, site.d_head, reading=chunk.reading, device=device, **sizes)


plan_of = lru_cache(maxsize=8)(make_plan)  # the same in all layers and heads, and costly to make


def provenance_of(
    source: Source,
    readings: Mapping[str, ContrastReading],
    outlines: Mapping[str, Outline],
    notes: Mapping[str, Sequence[Note]],
) -> dict[str, Any]:
    """Where features of contrasts are from, and what is to be said of their examples."""
    contrasts = {
        name: {**outlines[contrast].provenance, "reading": reading, "notes": [note.text for note in notes[name]]}
        for name, (contrast, reading) in readings.items()
    }
    return {**source.provenance(), "contrasts": contrasts}
