"""One streaming pass: examples through the model, vectors at the marked positions into moments.

The tap shows every layer's queries and keys; only those at marked positions are kept, for one chunk of examples, then
added to the moments. Memory does not grow with the number of prompts. A chunk is a fixed number of examples in a fixed
order (longest first), whatever the batch size, so that the sums do not depend on how the chunk was batched. A batch
that does not fit in memory is halved and run again: nothing was added for it yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate as running_sum

import torch
from jaxtyping import Float
from torch import Tensor

from qkprism.core.moments import Moments, Plan, accumulate, make_plan, reduce_keys
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.models.batches import Batch, bucket, collate, pad_id
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import EncodedExample
from qkprism.models.model import Frame, Model
from qkprism.passes import Marked, cell_of

TOKEN_BUDGET = {"cpu": 1024, "cuda": 16384}
CHUNK = {"cpu": 128, "cuda": 512}

Progress = Callable[[int], None]


@dataclass
class Batches:
    """Runs examples through a model in batches that fit: by tokens, or by number if the user says so."""

    model: Model
    layers: Sequence[int]
    rope: Frame = "post"
    batch_size: int | None = None
    scale: float = field(default=1.0, init=False)

    def run(self, examples: Sequence[EncodedExample], visit: Callable[[AttentionCall, Batch], None]) -> Iterator[Batch]:
        """Run examples in the order given; each batch comes out when its pass is complete."""
        waiting = [list(examples)] if examples else []
        while waiting:
            first, *rest = self._split(waiting.pop())
            waiting.extend(reversed(rest))
            try:
                yield self._pass(first, visit)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
                if len(first) == 1:
                    raise QKPrismError(
                        f"{first[0].source}: a single example of {first[0].length} tokens does not fit in memory. "
                        "Shorten it, or use a smaller dtype or a larger device."
                    ) from None
                self.scale /= 2
                waiting.append(first)

    def _split(self, examples: list[EncodedExample]) -> list[list[EncodedExample]]:
        if self.batch_size is not None:
            halved = max(1, int(self.batch_size * self.scale)) if self.scale < 1 else self.batch_size
            return bucket(examples, batch_size=halved)
        budget = TOKEN_BUDGET.get(self.model.device.type, TOKEN_BUDGET["cpu"])
        return bucket(examples, token_budget=max(1, int(budget * self.scale)))

    def _pass(self, examples: list[EncodedExample], visit: Callable[[AttentionCall, Batch], None]) -> Batch:
        filler = 0 if self.model.tokenizer is None else pad_id(self.model.tokenizer)
        batch = collate(examples, filler)
        self.model.run(
            batch.input_ids,
            batch.attention_mask,
            lambda call: visit(call, batch),
            layers=self.layers,
            rope=self.rope,
            query_positions=batch.query,
        )
        return batch


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error)


@dataclass(frozen=True)
class Site:
    """The chosen heads of one layer, and the key heads they use."""

    heads: tuple[Head, ...]
    kv_heads: tuple[int, ...]
    kv_index: tuple[int, ...]
    d_head: int
    scaling: float

    @classmethod
    def of(cls, model: Model, heads: Sequence[Head]) -> Site:
        layer = model.layers[heads[0].layer]
        kv = [model.kv_head(head) for head in heads]
        used = sorted(set(kv))
        return cls(tuple(heads), tuple(used), tuple(used.index(k) for k in kv), layer.d_head, layer.scaling)

    def gather(
        self, call: AttentionCall, batch: Batch
    ) -> tuple[Float[Tensor, "text head d_head"], Float[Tensor, "key kv_head d_head"]]:
        """The queries of a batch's texts and its marked keys, as they meet in this layer."""
        batch = batch.to(call.query.device)
        row = torch.arange(len(batch.query), device=call.query.device)
        query = call.query[row, :, batch.query][:, [head.index for head in self.heads]]
        return query, call.key[batch.key_row, :, batch.key_column][:, list(self.kv_heads)]


def sites_of(model: Model, heads: Sequence[Head]) -> dict[int, Site]:
    """The chosen heads by layer."""
    layers = sorted({head.layer for head in heads})
    return {layer: Site.of(model, [head for head in heads if head.layer == layer]) for layer in layers}


@dataclass(frozen=True)
class _Gathered:
    """Vectors of the current chunk in one layer: queries by text, keys in one flat row.

    One buffer a layer for the whole pass: small tensors kept between the large ones of a forward pass would pin the
    heap open, which costs many times their own size.
    """

    query: Float[Tensor, "text head d_head"]
    key: Float[Tensor, "key kv_head d_head"]

    def first(self, texts: int, keys: int) -> _Gathered:
        """What this chunk has filled."""
        return _Gathered(self.query[:texts], self.key[:keys])

    def pick(self, examples: Sequence[EncodedExample], chosen: Sequence[int]) -> _Gathered:
        """The vectors of some of the examples that were gathered."""
        if len(chosen) == len(examples):
            return self
        texts = _rows([len(e.texts) for e in examples], chosen)
        keys = _rows([sum(len(text.keys) for text in e.texts) for e in examples], chosen)
        return _Gathered(self.query[texts], self.key[keys])


def _rows(sizes: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """The rows of some blocks that stand one after another."""
    starts = [0, *running_sum(sizes)]
    return [row for i in chosen for row in range(starts[i], starts[i + 1])]


def stream_moments(
    batches: Batches,
    sites: Mapping[int, Site],
    group: Sequence[Marked],
    *,
    seed: int = 0,
    start: int = 0,
    moments: Mapping[str, Mapping[int, Moments]] | None = None,
    progress: Progress | None = None,
    on_chunk: Callable[[int, Mapping[str, dict[int, Moments]]], None] | None = None,
) -> dict[str, dict[int, Moments]]:
    """The moments of contrasts that share their texts, in every chosen layer, by name, in one pass.

    The texts of the first are run; the others are made of the same, or of some of them. `start` and `moments` go on
    where a former pass stopped.
    """
    sums = {marked.name: dict((moments or {}).get(marked.name, {})) for marked in group}
    examples = group[0].examples
    if progress and start:
        progress(start)
    chunk_size = CHUNK.get(batches.model.device.type, CHUNK["cpu"])
    buffers: dict[int, _Gathered] = {}
    for at in range(start, len(examples), chunk_size):
        chunk = examples[at : at + chunk_size]
        gathered = _run_chunk(batches, sites, chunk, buffers, progress)
        for marked in group:
            own = marked.between(at, at + len(chunk))
            chosen = [place - at for place in marked.place[own]]
            picked = {layer: vectors.pick(chunk, chosen) for layer, vectors in gathered.items()}
            _add_chunk(sums[marked.name], picked, sites, marked, own, seed)
        if on_chunk:
            on_chunk(at + len(chunk), sums)
    return sums


def _add_chunk(
    sums: dict[int, Moments],
    gathered: Mapping[int, _Gathered],
    sites: Mapping[int, Site],
    marked: Marked,
    chunk: slice,
    seed: int,
) -> None:
    plan, table = _plan(marked, chunk, seed) if chunk.start < chunk.stop else (None, None)
    for layer, vectors in gathered.items():
        if layer not in sums:
            sums[layer] = _empty(sites[layer], marked, vectors)
        elif sums[layer].product.device != _home(vectors):  # read from a checkpoint
            sums[layer] = sums[layer].to(_home(vectors))
        if plan is not None and table is not None:  # a small contrast may have no text in a chunk
            _flush(sums[layer], vectors, plan, table, marked)


def _empty(site: Site, marked: Marked, vectors: _Gathered) -> Moments:
    where = str(_home(vectors))
    return Moments.zeros(site.kv_index, site.d_head, reading=marked.reading, n_cells=len(marked.cells), device=where)


def _home(vectors: _Gathered) -> torch.device:
    """Where sums are kept: with the layer, unless its device has no float64."""
    device = vectors.query.device
    return torch.device("cpu") if device.type == "mps" else device


def _run_chunk(
    batches: Batches,
    sites: Mapping[int, Site],
    examples: Sequence[EncodedExample],
    buffers: dict[int, _Gathered],
    progress: Progress | None,
) -> dict[int, _Gathered]:
    """Run a chunk; a batch that fails and is run again overwrites what it left."""
    size = (sum(len(e.texts) for e in examples), sum(len(text.keys) for e in examples for text in e.texts))
    texts = keys = 0

    def visit(call: AttentionCall, batch: Batch) -> None:
        query, key = sites[call.layer].gather(call, batch)
        buffer = buffers.get(call.layer)
        if buffer is None or len(buffer.query) < size[0] or len(buffer.key) < size[1]:
            buffer = _Gathered(query.new_empty(size[0], *query.shape[1:]), key.new_empty(size[1], *key.shape[1:]))
            buffers[call.layer] = buffer
        buffer.query[texts : texts + len(query)] = query
        buffer.key[keys : keys + len(key)] = key

    for batch in batches.run(examples, visit):
        texts, keys = texts + len(batch.query), keys + len(batch.key_row)
        if progress:
            progress(len(batch.examples))
    return {layer: buffer.first(texts, keys) for layer, buffer in buffers.items()}


def _plan(marked: Marked, chunk: slice, seed: int) -> tuple[Plan, Tensor]:
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
        fold=torch.tensor(marked.fold[chunk]),
        index=marked.group[chunk],
        reading=marked.reading,
        seed=seed,
    )
    table = torch.tensor([i * width + j for i, keys in enumerate(rows) for j in range(len(keys))])
    return plan, table


def _flush(moments: Moments, vectors: _Gathered, plan: Plan, table: Tensor, marked: Marked) -> None:
    device = moments.product.device
    plan = plan.to(device)
    texts = 1 if marked.reading == "plain" else 2
    query = vectors.query.to(device).unflatten(0, (-1, texts))
    flat = vectors.key.to(device).double()
    key = flat.new_zeros((plan.share.numel(), *flat.shape[1:]))
    key[table.to(device)] = flat
    key = key.unflatten(0, tuple(plan.share.shape))
    accumulate(moments, query, reduce_keys(moments, key, plan), plan)
