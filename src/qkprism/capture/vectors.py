"""`Vectors` of one contrast that come from elsewhere, and the chunks of which they are summed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from hashlib import blake2b
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkprism.capture.source import Chunk, ContrastReading, Site, moments_of
from qkprism.core.by_value import MAX_VALUES
from qkprism.core.groups import Grouping
from qkprism.core.moments import Marks, Moments, assign_folds, group_weights
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.options import READINGS, Reading, checked_seed, choice, show
from qkprism.progress import Progress
from qkprism.ranks import ALONE, Ranks

_CHUNK = 1024
MAX_WEIGHT = 1e30
MOST_SORTED = 16_384  # examples that tell the spread of a coordinate
SAME = 1e-3  # of the spread of a coordinate: vectors that differ by far less are the same but for rounding
_SHIFTS = (0.0, 0.25, 0.5, 0.75)  # of a grid, in cells


@dataclass(frozen=True)
class Vectors:
    """The vectors of one contrast in one head, or in all heads of a layer.

    query        [example, d_head], or [example, head, d_head]
    positive     [example, d_head] or [example, key, d_head]; with heads [example, kv_head, d_head] or
                 [example, key, kv_head, d_head], where kv_head divides head as in grouped-query attention
    negative     likewise
    twin_query   of the twin of each example: then `positive` is the text's key and `negative` the twin's
    weight       of each example; 1 by default
    group        keeps related examples in one fold; examples with the same vectors, up to rounding, are one group by
                 themselves, but those of one text with other keys need it
    *_label      the number of the label cell of each key
    *_value      of twins: the number of the value that each key has of a label which may change how strong other
                 factors are, such as its place in the text (at most 16 values)

    Arrays of numpy and lists will do for tensors. Tensors of a file are read piece by piece.
    """

    query: Float[Tensor, "example *head d_head"]
    positive: Float[Tensor, "example *positive_key d_head"]
    negative: Float[Tensor, "example *negative_key d_head"]
    twin_query: Float[Tensor, "example *head d_head"] | None = None
    weight: Float[Tensor, " example"] | None = None
    group: Sequence[str | int] | None = None
    positive_label: Int[Tensor, " example *positive_mark"] | None = None
    negative_label: Int[Tensor, " example *negative_mark"] | None = None
    positive_value: Int[Tensor, " example *positive_mark"] | None = None
    negative_value: Int[Tensor, " example *negative_mark"] | None = None

    def __post_init__(self) -> None:
        for name in (one.name for one in fields(self) if one.name != "group"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _tensor(value, name, whole=name.endswith(("label", "value"))))
        if self.group is not None:
            object.__setattr__(self, "group", _groups(self.group))
        if self.query.ndim not in (2, 3):
            shape = tuple(self.query.shape)
            raise QKPrismError(
                f"The queries have shape {shape}; they need [example, d_head] or [example, head, d_head]."
            )

    @property
    def labels(self) -> tuple[Tensor | None, Tensor | None]:
        """Of positive and of negative keys."""
        return self.positive_label, self.negative_label

    @property
    def n_heads(self) -> int:
        return self.query.shape[1] if self.query.ndim == 3 else 1

    @property
    def n_kv_heads(self) -> int:
        return self.positive.shape[-2] if self.query.ndim == 3 else 1

    @property
    def d_head(self) -> int:
        return self.query.shape[-1]

    @property
    def keys_of_sides(self) -> tuple[int, int]:
        """How many positive and negative keys an example has."""
        return self._keys(self.positive).shape[1], self._keys(self.negative).shape[1]

    def _keys(self, side: Tensor) -> Float[Tensor, "example key kv_head d_head"]:
        """Keys with all their axes."""
        if self.query.ndim == 2:
            side = side[..., None, :]
        return side if side.ndim == 4 else side[:, None]

    def moments(self, reading: Reading | None = None, seed: int = 0) -> Moments:
        """Their sums, in one layer."""
        self.check()
        alone, ratio = ContrastReading("", self.reading_for(reading)), self.n_heads // self.n_kv_heads
        heads = [Head(0, index) for index in range(self.n_heads)]
        site = Site.of(heads, [head.index // ratio for head in heads], self.d_head, 1.0)
        places = range(self.n_heads), range(self.n_kv_heads)
        stream = VectorStream({"": {0: with_heads([self])}}, {0: site}, {0: places}, (alone,), checked_seed(seed))
        return moments_of(stream, seed=seed)[alone.name][0]

    def part(
        self, rows: slice
    ) -> tuple[Float[Tensor, "example text head d_head"], Float[Tensor, "example key kv_head d_head"]]:
        """The queries and keys of some examples: of the text, then of the twin."""
        texts = [self.query] if self.twin_query is None else [self.query, self.twin_query]
        query = torch.stack([text[rows] if text.ndim == 3 else text[rows, None] for text in texts], 1)
        return query, torch.cat([self._keys(side[rows]) for side in (self.positive, self.negative)], 1)

    def marks(self, seed: int, *, twins: bool) -> Marks:
        """What is known of the examples."""
        positive, negative = self.keys_of_sides
        n, is_positive = len(self.query), torch.arange(positive + negative) < positive
        weight = torch.ones(n) if self.weight is None else self.weight
        groups = self.grouping().group
        return Marks(
            side=torch.where(is_positive, 1, 1 if twins else -1).expand(n, -1),
            text=(~is_positive).long().expand(n, -1) * (1 if twins else 0),
            cell=_numbers(self.labels, ((n, positive), (n, negative))),
            weight=weight,
            group_weight=group_weights(groups, weight),
            fold=torch.tensor(assign_folds(groups, seed)),
            group=groups,
            value=_numbers(self.values, ((n, positive), (n, negative)))[..., None][..., : 1 if self.n_values else 0],
        )

    @property
    def values(self) -> tuple[Tensor | None, Tensor | None]:
        """By which keys are summed, of positive and of negative keys."""
        return self.positive_value, self.negative_value

    @property
    def n_values(self) -> int:
        """How many values there are; none without twins."""
        sides = [side for side in self.values if side is not None and side.numel()]
        return max(int(side.max()) for side in sides) + 1 if sides and self.twin_query is not None else 0

    def grouping(self) -> Grouping:
        """The groups that were given, joined where vectors are the same; of several heads the first is looked at."""
        first = self if self.query.ndim == 2 else _head(self, 0)
        queries = [first.query] if first.twin_query is None else [first.query, first.twin_query]
        steps = _steps(queries), _steps([first.positive, first.negative])
        if first.twin_query is None:
            texts = [_digests(steps, first.query, first.positive, first.negative)]
        else:
            texts = [_digests(steps, first.query, first.positive), _digests(steps, first.twin_query, first.negative)]
        named = [None] * len(self.query) if self.group is None else list(self.group)
        digests = [[digest for text in example for digest in text] for example in zip(*texts, strict=True)]
        return Grouping.of(named, digests)

    def reading_for(self, wanted: Reading | None) -> Reading:
        """How twins are read, if these vectors can be read so."""
        if wanted is not None:
            choice(wanted, READINGS, "a reading of twins")
        if self.twin_query is None:
            if wanted not in (None, "plain"):
                raise QKPrismError(f"The reading {wanted!r} needs twins: give twin_query.")
            return "plain"
        if wanted == "plain":
            raise QKPrismError("The reading 'plain' is of examples without twins: leave twin_query out.")
        return wanted or "symmetric"

    def check(self) -> None:
        """Refuse vectors that do not belong together."""
        n, queries = len(self.query), tuple(self.query.shape)
        with_heads = self.query.ndim == 3
        for name, side in (("positive", self.positive), ("negative", self.negative)):
            fits = side.ndim - self.query.ndim in (0, 1) and len(side) == n and side.shape[-1] == queries[-1]
            if not fits or 0 in self._keys(side).shape[1:]:
                shapes = "[example, kv_head, d_head] or [example, key, kv_head, d_head]"
                shapes = shapes if with_heads else "[example, d_head] or [example, key, d_head]"
                raise QKPrismError(
                    f"The {name} keys have shape {tuple(side.shape)}; with queries of shape {queries} "
                    f"they need one or more keys an example: {shapes}."
                )
        if n == 0:
            raise QKPrismError("There are no examples.")
        ours, theirs = self._keys(self.positive).shape[2], self._keys(self.negative).shape[2]
        if ours != theirs or self.n_heads % ours:
            raise QKPrismError(
                f"{self.n_heads} heads cannot use {ours} positive and {theirs} negative key heads: both sides need the "
                "same number, which divides that of the heads."
            )
        self._check_examples(n)

    def _check_examples(self, n: int) -> None:
        for name in ("weight", "group"):
            value = getattr(self, name)
            if value is not None and (len(value) != n or getattr(value, "ndim", 1) != 1):
                raise QKPrismError(f"{name} has {len(value)} entries for {n} examples; give one for each.")
        if self.twin_query is not None and self.twin_query.shape != self.query.shape:
            theirs, ours = tuple(self.twin_query.shape), tuple(self.query.shape)
            raise QKPrismError(f"twin_query has shape {theirs}; it needs that of query, {ours}.")
        for kind in ("label", "value"):
            for name, keys in zip((f"positive_{kind}", f"negative_{kind}"), self.keys_of_sides, strict=True):
                numbers, count = getattr(self, name), n * keys
                if numbers is not None and numbers.numel() != count:
                    raise QKPrismError(f"{name} has {numbers.numel()} entries for {count} keys; give one for each.")
        if self.n_values > MAX_VALUES:
            raise QKPrismError(
                f"Keys have {self.n_values} values (the largest number and 0 to it); give at most {MAX_VALUES}."
            )
        if self.weight is not None and not bool(((self.weight > 0) & (self.weight <= MAX_WEIGHT)).all()):
            raise QKPrismError(f"Weights are numbers above 0 and up to {MAX_WEIGHT:g}.")


def _numbers(
    sides: tuple[Tensor | None, Tensor | None], shapes: tuple[tuple[int, int], tuple[int, int]]
) -> Int[Tensor, "example key"]:
    """The numbers of positive and negative keys in one table, -1 where there is none."""
    tables = zip(sides, shapes, strict=True)
    return torch.cat(
        [torch.full(shape, -1) if side is None else side.reshape(shape).long() for side, shape in tables], 1
    )


def _head(vectors: Vectors, place: int) -> Vectors:
    """The vectors of one head of a layer."""
    kv = place // (vectors.n_heads // vectors.n_kv_heads)
    twin = None if vectors.twin_query is None else vectors.twin_query[:, place]
    return replace(
        vectors,
        query=vectors.query[:, place],
        positive=vectors._keys(vectors.positive)[:, :, kv],
        negative=vectors._keys(vectors.negative)[:, :, kv],
        twin_query=twin,
    )


def _tensor(values: Any, name: str, *, whole: bool) -> Tensor:
    """A tensor of what was given as one: of floats, or of whole numbers."""
    try:
        tensor = torch.as_tensor(values).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise QKPrismError(f"{name} is not a tensor of numbers: {show(values)}.") from error
    if tensor.ndim == 0 or tensor.is_complex() or tensor.device.type == "meta":
        raise QKPrismError(f"{name} is not a tensor of numbers with a row an example: {show(values)}.")
    if whole:
        if tensor.is_floating_point():
            raise QKPrismError(f"{name} numbers the cells of labels: give whole numbers, not {tensor.dtype}.")
        return tensor.long()
    return tensor if tensor.is_floating_point() else tensor.float()


def _groups(names: Any) -> list[Any]:
    """Names or numbers of groups, of Python's own types."""
    plain = names.tolist() if hasattr(names, "tolist") else names
    if isinstance(plain, str) or not isinstance(plain, Sequence):
        raise QKPrismError(f"group is a list of names or numbers, one for each example, not {show(names)}.")
    return [name.item() if hasattr(name, "item") else name for name in plain]


def _digests(steps: tuple[Tensor, Tensor], query: Tensor, *keys: Tensor) -> list[tuple[bytes, ...]]:
    """Digests of each example's query and keys, in whichever order the keys are, one for each of some shifted grids.

    The same text in another batch gives vectors that differ in their last bits. They share a cell of one of the grids,
    unless a number lies at an edge of each.
    """
    pieces = zip(*(side.split(_CHUNK) for side in (query, *keys)), strict=True)  # a file may be larger than memory
    return [digest for piece in pieces for digest in _digests_of_piece(steps, *piece)]


def _digests_of_piece(steps: tuple[Tensor, Tensor], query: Tensor, *keys: Tensor) -> list[tuple[bytes, ...]]:
    n, d_head = query.shape
    sides = (query.reshape(n, 1, d_head), torch.cat([side.reshape(n, -1, d_head) for side in keys], 1))
    scaled = [side.detach().cpu().double() / step for side, step in zip(sides, steps, strict=True)]
    found = []
    for shift in _SHIFTS:
        cells = [((side + shift).floor() + 0.0).numpy() for side in scaled]  # + 0.0: of two zeros one
        bits = (
            one.tobytes() + b"".join(sorted(key.tobytes() for key in of_keys))
            for one, of_keys in zip(*cells, strict=True)
        )
        found.append([blake2b(row, digest_size=16, salt=str(shift).encode()).digest() for row in bits])
    return list(zip(*found, strict=True))


def _steps(vectors: Sequence[Tensor]) -> Float[Tensor, " d_head"]:
    """What counts as rounding in each coordinate: a thousandth of what the middle half of the vectors spans."""
    some = [side[:: -(-len(side) // MOST_SORTED)] for side in vectors]
    every = torch.cat([side.detach().cpu().double().reshape(-1, side.shape[-1]) for side in some])
    rows = every.sort(0).values
    middle = rows[3 * len(rows) // 4] - rows[len(rows) // 4]
    least = rows.abs().amax(0).clamp(min=1e-30) * 1e-6
    return SAME * torch.maximum(middle, least)


def with_heads(heads: Sequence[Vectors]) -> Vectors:
    """The vectors of heads with keys of their own as those of a layer; one that is a layer already stays as it is."""
    first = heads[0]
    if first.query.ndim == 3:
        return first
    twins = [one.twin_query for one in heads if one.twin_query is not None]
    return replace(
        first,
        query=_joined([one.query for one in heads], 1),
        positive=_joined([one._keys(one.positive)[:, :, 0] for one in heads], 2),
        negative=_joined([one._keys(one.negative)[:, :, 0] for one in heads], 2),
        twin_query=_joined(twins, 1) if twins else None,
    )


def _joined(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Side by side along a new axis; a single one is not copied."""
    return tensors[0].unsqueeze(axis) if len(tensors) == 1 else torch.stack([*tensors], axis)


@dataclass(frozen=True)
class VectorStream:
    """The chunks of contrasts whose vectors are known by layer: every process has all of them.

    places   where the vectors of the chosen heads, and of the key heads that they use, stand in those of each layer
    """

    contrasts: Mapping[str, Mapping[int, Vectors]]
    layers: Mapping[int, Site]
    places: Mapping[int, tuple[Sequence[int], Sequence[int]]]
    readings: tuple[ContrastReading, ...]
    seed: int
    ranks: Ranks = ALONE

    @property
    def names(self) -> dict[str, Reading]:
        return {one.name: one.reading for one in self.readings}

    def __len__(self) -> int:
        return sum(len(deepest_of(self.contrasts[name]).query) for name, _ in self.readings)

    def chunks(self, done: Mapping[str, int], progress: Progress | None = None) -> Iterator[Chunk]:
        """Every contrast, from where a former stream stopped."""
        for one in self.readings:
            deepest = deepest_of(self.contrasts[one.contrast])
            marks = deepest.marks(self.seed, twins=one.reading != "plain")
            sizes, n = (int(marks.cell.max()) + 1, deepest.n_values), len(marks.weight)
            for at in range(done.get(one.name, 0), n, _CHUNK):
                rows = slice(at, min(at + _CHUNK, n))
                read = partial(self._vectors, one.contrast, rows)
                yield Chunk(one.name, one.reading, *sizes, _rows_of(marks, rows), read, done=rows.stop)
                if progress:
                    progress(rows.stop - at)

    def _vectors(
        self, contrast: str, rows: slice, layer: int
    ) -> tuple[Float[Tensor, "example text head d_head"], Float[Tensor, "example key kv_head d_head"]]:
        """The vectors of some examples in the chosen heads of a layer."""
        query, key = self.contrasts[contrast][layer].part(rows)
        heads, kv_heads = self.places[layer]
        return query[:, :, list(heads)].cpu().double(), key[:, :, list(kv_heads)].cpu().double()


def deepest_of(by_layer: Mapping[int, Vectors]) -> Vectors:
    """The vectors in the last layer, which also say what is the same in all: weights, groups, labels.

    Whether two examples are the same is seen there: in the first layer a vector knows its token and place only.
    """
    return by_layer[max(by_layer)]


def _rows_of(marks: Marks, rows: slice) -> Marks:
    return Marks(*(getattr(marks, one.name)[rows] for one in fields(Marks)))
