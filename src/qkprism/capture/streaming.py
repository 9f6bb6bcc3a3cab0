"""One streaming pass: examples through the model, vectors at the marked positions into moments.

The tap shows every layer's queries and keys; only those at marked positions are kept, for one chunk of examples, then
added to the moments. Memory does not grow with the number of prompts. A chunk is a fixed number of examples in a fixed
order (longest first), whatever the batch size, so that the sums do not depend on how the chunk was batched. Texts of an
example that begin alike are run as one row where that saves tokens (`models/forest.py`). A batch that does not fit in
memory is halved and run again: nothing was added for it yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate as running_sum

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkprism.capture.batching import Batches
from qkprism.capture.passes import MarkedContrast, Pass, cell_of
from qkprism.capture.sites import Site
from qkprism.core.moments import Moments, Plan, accumulate, make_plan, reduce_keys
from qkprism.models.batches import Batch
from qkprism.models.calls import AttentionCall
from qkprism.models.devices import float64_device
from qkprism.models.encoding import EncodedExample
from qkprism.progress import Progress

CHUNK = {"cpu": 128, "cuda": 512}


@dataclass(frozen=True)
class _Gathered:
    """Vectors of the current chunk in one layer: queries by text, keys in one flat row.

    One buffer a layer for the whole pass: small tensors kept between the large ones of a forward pass would pin the
    heap open, which costs many times their own size.
    """

    query: Float[Tensor, "text head d_head"]
    key: Float[Tensor, "key kv_head d_head"]

    def pick(self, places: _ChunkPlaces, wanted: Sequence[tuple[int, ...]], examples: Sequence[int]) -> _Gathered:
        """The vectors of some texts of each of some examples."""
        texts = [(example, text) for example, own in zip(examples, wanted, strict=True) for text in own]
        query = [places.text[example] + text for example, text in texts]
        key = [row for example, text in texts for row in places.keys(example, text)]
        return _Gathered(self.query[query], self.key[key])


@dataclass(frozen=True)
class _ChunkPlaces:
    """Where the vectors of a chunk's examples stand: the first text of each, and the first key of each of its texts."""

    text: tuple[int, ...]
    key: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, examples: Sequence[EncodedExample]) -> _ChunkPlaces:
        """One example after another, with a last one that marks the end."""
        texts = running_sum((len(example.texts) for example in examples), initial=0)
        counts = [[len(text.keys) for text in example.texts] for example in examples]
        starts = running_sum(map(sum, counts), initial=0)
        keys = [tuple(running_sum(own, initial=start)) for own, start in zip([*counts, []], starts, strict=True)]
        return cls(tuple(texts), tuple(keys))

    @property
    def size(self) -> tuple[int, int]:
        """How many texts and keys there are."""
        return self.text[-1], self.key[-1][0]

    def keys(self, example: int, text: int) -> range:
        """The keys of one text."""
        return range(self.key[example][text], self.key[example][text + 1])

    def rows(self, batch: Batch, first: int) -> tuple[Int[Tensor, " text"], Int[Tensor, " key"]]:
        """Where the texts and keys of a batch go; its examples are numbered from `first` on."""
        numbers = [example.index - first for example in batch.examples]
        texts = [row for number in numbers for row in range(self.text[number], self.text[number + 1])]
        keys = [row for number in numbers for row in range(self.key[number][0], self.key[number][-1])]
        return torch.tensor(texts), torch.tensor(keys)


def stream_moments(
    batches: Batches,
    sites: Mapping[int, Site],
    group: Pass,
    *,
    seed: int = 0,
    start: int = 0,
    moments: Mapping[str, Mapping[int, Moments]] | None = None,
    progress: Progress | None = None,
    on_chunk: Callable[[int, Mapping[str, dict[int, Moments]]], None] | None = None,
) -> dict[str, dict[int, Moments]]:
    """The moments of contrasts that are run together, in every chosen layer, by name.

    `start` and `moments` go on where a former pass stopped.
    """
    sums = {marked.name: dict((moments or {}).get(marked.name, {})) for marked in group.marked}
    if progress and start:
        progress(start)
    chunk_size = CHUNK.get(batches.model.device.type, CHUNK["cpu"])
    buffers: dict[int, _Gathered] = {}
    for at in range(start, len(group), chunk_size):
        examples, texts = group.chunk(at, at + chunk_size)
        places = _ChunkPlaces.of(examples)
        _run_chunk(batches, sites, examples, places, buffers, progress)
        for marked in group.marked:
            own = marked.between(at, at + chunk_size)
            chosen = [place - at for place in marked.place[own]]
            picked = {layer: buffer.pick(places, texts[marked.name], chosen) for layer, buffer in buffers.items()}
            _add_chunk(sums[marked.name], picked, sites, marked, own, seed)
        if on_chunk:
            on_chunk(at + len(examples), sums)
    return sums


def _add_chunk(
    sums: dict[int, Moments],
    gathered: Mapping[int, _Gathered],
    sites: Mapping[int, Site],
    marked: MarkedContrast,
    chunk: slice,
    seed: int,
) -> None:
    plan, table = _plan(marked, chunk, seed) if chunk.start < chunk.stop else (None, None)
    for layer, vectors in gathered.items():
        if layer not in sums:
            sums[layer] = _empty(sites[layer], marked, vectors)
        elif sums[layer].product.device != float64_device(vectors.query.device):  # read from a checkpoint
            sums[layer] = sums[layer].to(float64_device(vectors.query.device))
        if plan is not None and table is not None:  # a small contrast may have no text in a chunk
            _flush(sums[layer], vectors, plan, table, marked)


def _empty(site: Site, marked: MarkedContrast, vectors: _Gathered) -> Moments:
    where = str(float64_device(vectors.query.device))
    return Moments.zeros(site.kv_index, site.d_head, reading=marked.reading, n_cells=len(marked.cells), device=where)


def _run_chunk(
    batches: Batches,
    sites: Mapping[int, Site],
    examples: Sequence[EncodedExample],
    places: _ChunkPlaces,
    buffers: dict[int, _Gathered],
    progress: Progress | None,
) -> None:
    """Run a chunk; a batch that fails and is run again overwrites what it left."""
    texts, keys = places.size

    def visit(call: AttentionCall, batch: Batch) -> None:
        query, key = sites[call.layer].gather(call, batch)
        buffer = buffers.get(call.layer)
        if buffer is None or len(buffer.query) < texts or len(buffer.key) < keys:
            buffer = _Gathered(query.new_empty(texts, *query.shape[1:]), key.new_empty(keys, *key.shape[1:]))
            buffers[call.layer] = buffer
        text_rows, key_rows = (rows.to(query.device) for rows in places.rows(batch, examples[0].index))
        buffer.query[text_rows], buffer.key[key_rows] = query, key

    for batch in batches.run(examples, visit):
        if progress:
            progress(len(batch.examples))


def _plan(marked: MarkedContrast, chunk: slice, seed: int) -> tuple[Plan, Tensor]:
    """The plan of a chunk, and for each of its keys the place in the padded example by key table."""
    examples = marked.examples[chunk]
    rows = [[(which, key) for which, text in enumerate(e.texts) for key in text.keys] for e in examples]
    width = max(map(len, rows))
    side, text, cell = (torch.full((len(rows), width), fill) for fill in (0, 0, -1))
    for i, keys in enumerate(rows):
        for j, (which, key) in enumerate(keys):
            side[i, j], text[i, j] = 1 if key.positive else -1, which
            cell[i, j] = marked.cells.get(cell_of(key.labels), -1) if key.labels else -1
    plan = make_plan(
        side=side,
        text=text,
        cell=cell,
        weight=torch.tensor([e.weight for e in examples]),
        group_weight=torch.tensor(marked.group_weight[chunk]),
        fold=torch.tensor(marked.fold[chunk]),
        index=marked.group[chunk],
        reading=marked.reading,
        seed=seed,
    )
    table = torch.tensor([i * width + j for i, keys in enumerate(rows) for j in range(len(keys))])
    return plan, table


def _flush(moments: Moments, vectors: _Gathered, plan: Plan, table: Tensor, marked: MarkedContrast) -> None:
    device = moments.product.device
    plan = plan.to(device)
    texts = 1 if marked.reading == "plain" else 2
    query = vectors.query.to(device).unflatten(0, (-1, texts))
    flat = vectors.key.to(device).double()
    key = flat.new_zeros((plan.share.numel(), *flat.shape[1:]))
    key[table.to(device)] = flat
    key = key.unflatten(0, tuple(plan.share.shape))
    accumulate(moments, query, reduce_keys(moments, key, plan), plan)
