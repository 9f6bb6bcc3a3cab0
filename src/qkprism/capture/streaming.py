"""`ModelStream`: contrasts through the model, the vectors at their marks in chunks.

Contrasts of the same texts, or of some of the texts of another (a part of a pooled contrast), are one pass; their twins
may differ. What a pass runs for one text are its examples in all contrasts: each of their texts once.

The tap shows every layer's queries and keys; only those at marked positions are kept, for one chunk of examples, then
added to the moments. Memory does not grow with the number of prompts. A chunk is a fixed number of examples in a fixed
order (longest first), whatever the batch size, so that the sums do not depend on how the chunk was batched. Several
processes take whole chunks in turn, so that their batches are those that one would make. A batch that fails was not
added to anything yet, so it is halved and run again (`capture/batching.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate as running_sum

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkprism.capture.batching import Batches, numbers_of
from qkprism.capture.source import CHUNK, Chunk, Site
from qkprism.capture.texts import Census, cell_of
from qkprism.core.moments import Marks, assign_folds, group_weights
from qkprism.models.batches import Batch
from qkprism.models.calls import AttentionCall
from qkprism.models.devices import float64_device
from qkprism.models.encoding import EncodedExample, EncodedKey, EncodedText, Encodings
from qkprism.options import Reading
from qkprism.progress import Progress
from qkprism.ranks import Ranks, ranks

PlacesByText = dict[bytes, list[int]]  # where examples of these tokens stand in a pass


@dataclass(frozen=True)
class MarkedContrast:
    """The examples of one contrast in the order they are run, with their folds.

    order    the number of each example
    place    where each stands among the examples of its pass, which may be those of a larger contrast
    fold, group, group_weight    by the number of the example
    """

    name: str
    reading: Reading
    encodings: Encodings
    census: Census
    fold: Sequence[int]
    group: Sequence[int]
    group_weight: Sequence[float]
    order: Sequence[int]
    place: Sequence[int]

    @classmethod
    def of(cls, name: str, encodings: Encodings, census: Census, reading: Reading, seed: int) -> MarkedContrast:
        """Order examples (longest first) and assign folds."""
        groups = census.texts.grouping.group
        weight = group_weights(groups, torch.tensor(census.weights)).tolist()
        order = sorted(range(len(encodings)), key=lambda i: (-census.lengths[i], i))
        folds = assign_folds(groups, seed)
        return cls(name, reading, encodings, census, folds, groups, weight, order, range(len(order)))

    @property
    def tokens(self) -> list[bytes]:
        """A digest of the first text of each."""
        return [self.census.tokens[number] for number in self.order]

    def within(self, places: Sequence[int]) -> MarkedContrast:
        """The same contrast in a pass of others: its examples are at these places, and in their order."""
        moved = sorted(zip(places, self.order, strict=True))
        return replace(self, order=[number for _, number in moved], place=[place for place, _ in moved])

    def between(self, start: int, stop: int) -> slice:
        """Which of its examples stand between two places of the pass."""
        return slice(bisect_left(self.place, start), bisect_left(self.place, stop))

    def examples(self, part: slice) -> list[EncodedExample]:
        """Some of the examples in tokens."""
        return self.encodings.some(self.order[part])


@dataclass(frozen=True)
class Pass:
    """Contrasts that are run together: the first has all the texts, the others the same or some of them."""

    marked: tuple[MarkedContrast, ...]

    def __len__(self) -> int:
        return len(self.marked[0].order)

    def chunk(self, start: int, stop: int) -> tuple[list[EncodedExample], dict[str, list[tuple[int, ...]]]]:
        """What is run between two places, and for each contrast which of an example's texts are its own."""
        stop = min(stop, len(self))
        texts: list[dict[object, EncodedText]] = [{} for _ in range(start, stop)]
        texts_of: dict[str, list[tuple[int, ...]]] = {}
        for marked in self.marked:
            here = marked.between(start, stop)
            texts_of[marked.name] = [
                numbers_of(example, texts[place - start])
                for place, example in zip(marked.place[here], marked.examples(here), strict=True)
            ]
        sources = [example.source for example in self.marked[0].examples(slice(start, stop))]
        return [
            EncodedExample(start + i, first, None, 1.0, None, source, tuple(more))
            for i, (source, (first, *more)) in enumerate(zip(sources, (one.values() for one in texts), strict=True))
        ], texts_of


def passes_of(marked: Sequence[MarkedContrast]) -> list[Pass]:
    """Which contrasts share a pass."""
    found: list[tuple[PlacesByText, list[MarkedContrast]]] = []
    for contrast in sorted(marked, key=lambda one: -len(one.order)):
        for places, group in found:
            if (at := _places(contrast.tokens, places)) is not None:
                group.append(contrast.within(at))
                break
        else:
            found.append((_all_places(contrast.tokens), [contrast]))
    return [Pass(tuple(group)) for _, group in found]


def _all_places(examples: Sequence[bytes]) -> PlacesByText:
    found: PlacesByText = defaultdict(list)
    for place, tokens in enumerate(examples):
        found[tokens].append(place)
    return found


def _places(wanted: Sequence[bytes], places: PlacesByText) -> list[int] | None:
    """A place of its own for each example, or None if one is not there."""
    if any(count > len(places.get(tokens, ())) for tokens, count in Counter(wanted).items()):
        return None
    left = {tokens: iter(places[tokens]) for tokens in wanted}
    return [next(left[tokens]) for tokens in wanted]


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
        texts = [(example, text) for example, numbers in zip(examples, wanted, strict=True) for text in numbers]
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
        keys = [tuple(running_sum(count, initial=start)) for count, start in zip([*counts, []], starts, strict=True)]
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


@dataclass(frozen=True)
class ModelStream:
    """The chunks of contrasts as a model gives them: those that share a pass come one after another."""

    batches: Batches
    layers: Mapping[int, Site]
    passes: Sequence[Pass]
    ranks: Ranks = field(default_factory=ranks)

    @property
    def names(self) -> dict[str, Reading]:
        return {marked.name: marked.reading for group in self.passes for marked in group.marked}

    @property
    def sharing(self) -> list[list[str]]:
        """The names of contrasts that share a pass."""
        return [[marked.name for marked in group.marked] for group in self.passes]

    def __len__(self) -> int:
        return sum(map(len, self.passes))

    def chunks(self, done: Mapping[str, int], progress: Progress | None = None) -> Iterator[Chunk]:
        """The chunks of every pass, from where a former one stopped."""
        for group in self.passes:
            start = min(done.get(marked.name, 0) for marked in group.marked)
            if progress and start:
                progress(start)
            yield from self._chunks(group, start, progress)

    def _chunks(self, group: Pass, start: int, progress: Progress | None) -> Iterator[Chunk]:
        """This process's chunks; where it has none in the last turn, chunks of nothing."""
        here, size = self.ranks, self._chunk_size(len(group) - start)
        buffers: dict[int, _Gathered] = {}
        every_turn = range(start, len(group), size * here.count)
        for turn in every_turn if here.count == 1 else every_turn or [start]:
            at, end = turn + here.number * size, min(turn + size * here.count, len(group))
            n = max(0, min(at + size, end) - at)
            for marked, picked in self._run(group, slice(at, at + n), buffers, progress):
                done = end if marked is group.marked[-1] else None
                marks, vectors = (picked.marks(), picked.vectors) if picked else (None, None)
                sizes = len(marked.census.cells), sum(map(len, marked.census.values.values()))
                yield Chunk(marked.name, marked.reading, *sizes, marks, vectors, done=done)
            if progress and here.count > 1:
                progress(end - turn - n)

    def _chunk_size(self, left: int) -> int:
        """Examples of a chunk; fewer where there would be no chunk for some process."""
        size = CHUNK.get(self.batches.model.device.type, CHUNK["cpu"])
        return max(1, min(size, -(-left // self.ranks.count))) if self.ranks.count > 1 else size

    def _run(
        self, group: Pass, rows: slice, buffers: dict[int, _Gathered], progress: Progress | None
    ) -> Iterator[tuple[MarkedContrast, _Picked | None]]:
        """Run some examples of a pass, and pick the vectors of each of its contrasts; None if there are no examples."""
        if rows.start >= rows.stop:
            yield from ((marked, None) for marked in group.marked)
            return
        examples, texts = group.chunk(rows.start, rows.stop)
        places = _ChunkPlaces.of(examples)
        _run_chunk(self.batches, self.layers, examples, places, buffers, progress)
        for marked in group.marked:
            part = marked.between(rows.start, rows.stop)
            chosen = [place - rows.start for place in marked.place[part]]
            yield marked, _Picked(marked, part, buffers, places, texts[marked.name], chosen)


@dataclass(frozen=True)
class _Picked:
    """The examples of one contrast in a chunk, and where their vectors are."""

    marked: MarkedContrast
    part: slice
    buffers: Mapping[int, _Gathered]
    places: _ChunkPlaces
    texts: Sequence[tuple[int, ...]]
    examples: Sequence[int]

    @cached_property
    def keys(self) -> list[list[tuple[int, EncodedKey]]]:
        """The keys of each example, each with the number of its text."""
        return [
            [(which, key) for which, text in enumerate(example.texts) for key in text.keys]
            for example in self.marked.examples(self.part)
        ]

    @property
    def width(self) -> int:
        return max(map(len, self.keys), default=0)

    def marks(self) -> Marks:
        """What is known of the examples; keys are padded to one table."""
        marked, census, size = self.marked, self.marked.census, (len(self.keys), self.width)
        numbers = marked.order[self.part]
        side, text, cell = (torch.full(size, fill) for fill in (0, 0, -1))
        value = torch.full((*size, len(census.values)), -1)
        for i, keys in enumerate(self.keys):
            for j, (which, key) in enumerate(keys):
                side[i, j], text[i, j] = 1 if key.positive else -1, which
                cell[i, j] = census.cells.get(cell_of(key.labels), -1) if key.labels else -1
                for label, (label_name, of_label) in enumerate(census.values.items()):
                    value[i, j, label] = of_label.get(key.labels.get(label_name), -1)
        return Marks(
            side=side,
            text=text,
            cell=cell,
            weight=torch.tensor([census.weights[number] for number in numbers]),
            group_weight=torch.tensor([marked.group_weight[number] for number in numbers]),
            fold=torch.tensor([marked.fold[number] for number in numbers], dtype=torch.long),
            group=tuple(marked.group[number] for number in numbers),
            value=value,
        )

    def vectors(
        self, layer: int
    ) -> tuple[Float[Tensor, "example text head d_head"], Float[Tensor, "example key kv_head d_head"]]:
        """The queries of each text, and the keys of each example, on a device that has float64."""
        gathered = self.buffers[layer].pick(self.places, self.texts, self.examples)
        device = float64_device(gathered.query.device)
        query = gathered.query.to(device).unflatten(0, (-1, 1 if self.marked.reading == "plain" else 2))
        flat = gathered.key.to(device).double()
        table = [i * self.width + j for i, keys in enumerate(self.keys) for j in range(len(keys))]
        key = flat.new_zeros((len(self.keys) * self.width, *flat.shape[1:]))
        key[torch.tensor(table, dtype=torch.long, device=device)] = flat
        return query, key.unflatten(0, (len(self.keys), self.width))


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
