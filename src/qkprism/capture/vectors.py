"""Vectors that come from elsewhere: TransformerLens, nnsight, a file, a toy.

    source   = qk.VectorSource({"order": qk.Vectors(query, positive, negative)})
    features = qk.decompose(source)

A source holds any number of layers and heads. What needs the texts or a new forward pass needs a model: a source says
so. Only marked keys are known, so attention is that among the marked keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkprism.capture.source import Chunk, ContrastReading, Marks, Outline, Site, moments_of
from qkprism.core.by_value import MAX_VALUES
from qkprism.core.groups import Grouping
from qkprism.core.moments import Moments, assign_folds, group_weights
from qkprism.encoding import Encoding
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike, check_heads
from qkprism.options import READINGS, Reading, checked_seed, choice, finite, show
from qkprism.progress import Progress
from qkprism.ranks import ALONE, Ranks

_CHUNK = 1024
MAX_WEIGHT = 1e30
MOST_SORTED = 16_384  # examples that tell the spread of a coordinate
VALUE = "value"  # what the label is called whose values vectors have
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
        alone = ContrastReading("", self.reading_for(reading))
        stream = VectorSource({"": self}).stream([alone], checked_seed(seed))
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


ByLayer = Mapping[int, Vectors] | Mapping[HeadLike, Vectors]


@dataclass(frozen=True)
class VectorSource:
    """Contrasts whose vectors are known, in the place of a model and its texts.

    >>> import torch, qkprism as qk
    >>> query, positive, negative = torch.randn(3, 40, 4).unbind()
    >>> qk.VectorSource({"order": {"L18H6": qk.Vectors(query, positive, negative)}})
    VectorSource(order; 40 examples; 1 heads in 1 layers)

    contrasts    by name: `Vectors` of one head (which becomes L0H0); or by layer, `{18: Vectors}`, with all heads of
                 the layer; or by head, `{"L18H6": Vectors}`. All contrasts have the same heads.
    scaling      by which a head multiplies q.k: one number, or one for each layer; 1/sqrt(d_head) by default
    heads        some of the heads; all by default
    """

    contrasts: Mapping[str, Vectors | ByLayer]
    scaling: float | Mapping[int, float] | None = None
    wanted: tuple[Head, ...] | None = None
    _layers: Mapping[str, Mapping[int, Vectors]] = field(default_factory=dict, repr=False)
    _numbers: Mapping[int, tuple[int, ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.contrasts, Mapping) or not self.contrasts:
            raise QKPrismError(
                "No contrast was given. Give vectors by the name of their contrast: {'z1': Vectors(...)}."
            )
        found, numbers = {}, []
        for name, contrast in self.contrasts.items():
            found[name], of_contrast = _by_layer(name, contrast)
            numbers.append(of_contrast)
        if any(heads_of_one != numbers[0] for heads_of_one in numbers):
            raise QKPrismError("All contrasts of a source need the same layers and heads.")
        object.__setattr__(self, "_layers", found)
        object.__setattr__(self, "_numbers", numbers[0])

    def __repr__(self) -> str:
        sizes = ", ".join(str(len(next(iter(by_layer.values())).query)) for by_layer in self._layers.values())
        heads = sum(map(len, self._numbers.values()))
        return (
            f"VectorSource({', '.join(self.contrasts)}; {sizes} examples; {heads} heads in {len(self._numbers)} layers)"
        )

    @property
    def name(self) -> str:
        return "these vectors"

    @property
    def revision(self) -> None:
        return None

    @property
    def encoding(self) -> Encoding:
        return Encoding()

    @property
    def every_head(self) -> tuple[Head, ...]:
        return tuple(Head(layer, index) for layer, indices in sorted(self._numbers.items()) for index in indices)

    @property
    def heads(self) -> tuple[Head, ...]:
        return self.every_head if self.wanted is None else self.wanted

    def pick(self, heads: Any) -> VectorSource:
        """The same contrasts in some of the heads (None: in all)."""
        if heads is None:
            return self
        sizes = {layer: max(indices) + 1 for layer, indices in self._numbers.items()}
        chosen = check_heads(heads, sizes, self.name)
        if missing := [str(head) for head in chosen if head not in self.every_head]:
            raise QKPrismError(
                f"{missing[0]} is not in {self.name}. There are: {', '.join(map(str, self.every_head))}."
            )
        return replace(self, wanted=chosen)

    @cached_property
    def layers(self) -> dict[int, Site]:
        first = next(iter(self._layers.values()))
        found = {}
        for number in sorted({head.layer for head in self.heads}):
            vectors, chosen = first[number], [head for head in self.heads if head.layer == number]
            kv = [self._kv_head(number, head.index) for head in chosen]
            found[number] = Site.of(chosen, kv, vectors.d_head, self._scaling(number, vectors.d_head))
        return found

    def _is_whole(self, layer: int) -> bool:
        """Whether all heads of a layer are there: then they may share keys; else each has its own."""
        return self._numbers[layer] == tuple(range(len(self._numbers[layer])))

    def _kv_head(self, layer: int, head: int) -> int:
        vectors = next(iter(self._layers.values()))[layer]
        return head // (vectors.n_heads // vectors.n_kv_heads) if self._is_whole(layer) else head

    def places(self, layer: int) -> tuple[list[int], list[int]]:
        """Where the vectors of the chosen heads, and of the key heads that they use, stand in those of a layer."""
        site, numbers = self.layers[layer], self._numbers[layer]
        keys = site.kv_heads if self._is_whole(layer) else [numbers.index(head) for head in site.kv_heads]
        return [numbers.index(head.index) for head in site.heads], list(keys)

    def size(self, layer: int) -> tuple[int, int, int]:
        """Heads and key heads up to the last one that is there, and d_head."""
        vectors, last = next(iter(self._layers.values()))[layer], self._numbers[layer][-1] + 1
        return last, vectors.n_kv_heads if self._is_whole(layer) else last, vectors.d_head

    def example(
        self, contrast: int, example: int, layer: int
    ) -> tuple[Float[Tensor, "head d_head"], Float[Tensor, "kv_head key d_head"]]:
        """The query and the keys of one example, zero in heads that are not there."""
        (heads, kv_heads, d_head), numbers = self.size(layer), list(self._numbers[layer])
        query, key = [*self._layers.values()][contrast][layer].part(slice(example, example + 1))
        every_query, every_key = query.new_zeros(heads, d_head), key.new_zeros(kv_heads, key.shape[1], d_head)
        every_query[numbers] = query[0, 0]
        every_key[slice(None) if self._is_whole(layer) else numbers] = key[0].transpose(0, 1)
        return every_query, every_key

    def _scaling(self, layer: int, d_head: int) -> float:
        scaling = self.scaling.get(layer) if isinstance(self.scaling, Mapping) else self.scaling
        return d_head**-0.5 if scaling is None else finite(scaling, "scaling")

    def vectors(self, contrast: str) -> Mapping[int, Vectors]:
        """The vectors of a contrast by layer."""
        if contrast not in self._layers:
            raise QKPrismError(f"There is no contrast {show(contrast)}. There are: {', '.join(self._layers)}.")
        return self._layers[contrast]

    def deepest(self, contrast: str) -> Vectors:
        """The vectors in the last layer, which also say what is the same in all: weights, groups, labels.

        Whether two examples are the same is seen there: in the first layer a vector knows its token and place only.
        """
        return self.vectors(contrast)[max(self.vectors(contrast))]

    def twins(self, contrast: str) -> set[bool]:
        """Whether examples of a contrast have twins: all or none."""
        return {self.deepest(contrast).twin_query is not None}

    def outlines(self, contrasts: Sequence[str], *, progress: bool) -> dict[str, Outline]:  # noqa: ARG002  (it is quick)
        """What contrasts tell without their vectors in all layers."""
        outlines = {}
        for name in contrasts:
            vectors = self.deepest(name)
            grouping, keys, n = vectors.grouping(), sum(vectors.keys_of_sides), len(vectors.query)
            values = {VALUE: list(range(vectors.n_values))} if vectors.n_values else {}
            notes = partial(grouping.notes, what="vectors")
            outlines[name] = Outline(grouping, n * (keys - 1), notes, {"values": values})
        return outlines

    def stream(self, readings: Sequence[ContrastReading], seed: int) -> VectorStream:
        """The chunks of contrasts."""
        return VectorStream(self, tuple(readings), seed)

    def provenance(self) -> dict[str, Any]:
        """Nothing is known of where vectors are from."""
        return {}

    def __or__(self, other: VectorSource) -> VectorSource:
        """The contrasts of both."""
        return VectorSource({**self.contrasts, **other.contrasts}, self.scaling)

    @classmethod
    def from_safetensors(
        cls, file: str | os.PathLike[str], *, scaling: float | Mapping[int, float] | None = None
    ) -> VectorSource:
        """Of a file that may be larger than memory: its tensors are pages of the file.

        Tensors are named `contrast/layer/query`, `contrast/layer/positive`, `contrast/layer/negative` (and
        `twin_query`), with heads; what is the same in all layers is `contrast/weight`, `contrast/group` (numbers),
        `contrast/positive_label` and `contrast/negative_label`, `_value` likewise.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors = load_file(os.fspath(file))
        except (OSError, TypeError, SafetensorError) as error:
            raise QKPrismError(f"{file} is not a file of vectors: {error}. Write one with safetensors.") from error
        found: dict[str, dict[int, dict[str, Any]]] = {}
        shared: dict[str, dict[str, Any]] = {}
        for key, tensor in tensors.items():
            match key.split("/"):
                case [contrast, layer, part] if layer.isdecimal() and part in _BY_LAYER:
                    found.setdefault(contrast, {}).setdefault(int(layer), {})[part] = tensor
                case [contrast, part] if part in _SHARED:
                    shared.setdefault(contrast, {})[part] = tensor
                case _:
                    raise QKPrismError(f"{file}: {key!r} is no name of vectors. Write 'contrast/18/query' and so on.")
        if lacking := [f"{name}/{layer}" for name, one in found.items() for layer in one if len(one[layer]) < 3]:
            raise QKPrismError(f"{file}: {lacking[0]} needs query, positive and negative.")
        return cls(
            {
                name: {
                    layer: Vectors(**tensors_of_layer, **shared.get(name, {}))
                    for layer, tensors_of_layer in layers.items()
                }
                for name, layers in found.items()
            },
            scaling,
        )

    @classmethod
    def from_transformerlens(
        cls,
        cache: Any,
        contrast: str,
        *,
        query: Any,
        positive: Any,
        negative: Any,
        layers: Sequence[int] | None = None,
        scaling: float | None = None,
        **shared: Any,
    ) -> VectorSource:
        """Of an `ActivationCache` with `hook_q` and `hook_k`, or where positions rotate `hook_rot_q` and `hook_rot_k`.

        query       the position of each example's query: [example]
        positive    of its positive keys: [example, key]; `negative` likewise
        layers      those whose hooks are in the cache, by default
        shared      `weight`, `group`, `positive_label`, `negative_label` of `Vectors`
        """
        rotated = any("hook_rot_q" in str(name) for name in cache)
        name = "blocks.{}.attn.hook_" + ("rot_" if rotated else "") + "{}"
        if layers is None:
            end = name.format("", "q").removeprefix("blocks.")
            layers = sorted(int(str(one).split(".")[1]) for one in cache if str(one).endswith(end))
        if not layers:
            raise QKPrismError("The cache holds no queries. Run with names_filter that keeps hook_q and hook_k.")
        sides = {layer: (cache[name.format(layer, "q")], cache[name.format(layer, "k")]) for layer in layers}
        return cls._at_positions(contrast, sides, (query, positive, negative), scaling, shared)

    @classmethod
    def from_nnsight(
        cls,
        saved: Mapping[int, tuple[Any, Any]],
        contrast: str,
        *,
        query: Any,
        positive: Any,
        negative: Any,
        scaling: float | None = None,
        **shared: Any,
    ) -> VectorSource:
        """Of the queries and keys that nnsight saved where a layer calls attention, by layer.

        saved       {18: (query, key)}, each [example, head, token, d_head] as attention functions take them

        The others are those of `from_transformerlens`.
        """
        values = {layer: [getattr(side, "value", side) for side in pair] for layer, pair in saved.items()}
        sides = {layer: (pair[0].transpose(1, 2), pair[1].transpose(1, 2)) for layer, pair in values.items()}
        return cls._at_positions(contrast, sides, (query, positive, negative), scaling, shared)

    @classmethod
    def _at_positions(
        cls,
        contrast: str,
        sides: Mapping[int, tuple[Tensor, Tensor]],
        positions: tuple[Any, Any, Any],
        scaling: float | None,
        shared: Mapping[str, Any],
    ) -> VectorSource:
        """The vectors at some positions of all: [example, token, head, d_head]."""
        at, *keys = (torch.as_tensor(one).long() for one in positions)
        found = {}
        for layer, (query, key) in sides.items():
            row = torch.arange(len(query))
            positive, negative = (key[row[:, None], one.reshape(len(row), -1)] for one in keys)
            found[layer] = Vectors(query[row, at], positive, negative, **shared)
        return cls({contrast: found}, scaling)


_BY_LAYER = ("query", "positive", "negative", "twin_query")
_SHARED = ("weight", "group", "positive_label", "negative_label", "positive_value", "negative_value")


def _by_layer(name: Any, by_place: Any) -> tuple[dict[int, Vectors], dict[int, tuple[int, ...]]]:
    """Vectors by layer, each with an axis of heads, and the numbers of these heads."""
    if not isinstance(name, str) or not isinstance(by_place, Vectors | Mapping):
        raise QKPrismError(f"Give Vectors by the name of their contrast, not {show(name)}: {type(by_place).__name__}.")
    entries = by_place if isinstance(by_place, Mapping) else {0: by_place}
    wrong = [one for one in entries.values() if not isinstance(one, Vectors)]
    if wrong or not entries:
        raise QKPrismError(f"{name!r}: give Vectors by layer or head, not {show(wrong[0] if wrong else entries)}.")
    found: dict[int, Vectors] = {}
    numbers: dict[int, tuple[int, ...]] = {}
    heads: dict[int, dict[int, Vectors]] = {}
    for place, vectors in entries.items():
        vectors.check()
        if isinstance(place, int) and not isinstance(place, bool):
            found[place], numbers[place] = _with_heads([vectors]), tuple(range(vectors.n_heads))
        else:
            head = Head.parse(place)
            heads.setdefault(head.layer, {})[head.index] = vectors
    for layer, of_layer in heads.items():
        if layer in found or any(vectors.query.ndim == 3 for vectors in of_layer.values()):
            raise QKPrismError(f"{name!r}: give layer {layer} as a whole or head by head, not both.")
        numbers[layer] = tuple(sorted(of_layer))
        found[layer] = _with_heads([of_layer[index] for index in numbers[layer]])
    _check_alike(name, found)
    return found, numbers


def _with_heads(heads: Sequence[Vectors]) -> Vectors:
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


def _check_alike(name: str, layers: Mapping[int, Vectors]) -> None:
    first = next(iter(layers.values()))
    for layer, vectors in layers.items():
        same = len(vectors.query) == len(first.query) and vectors.keys_of_sides == first.keys_of_sides
        if not same or (vectors.twin_query is None) != (first.twin_query is None):
            raise QKPrismError(f"{name!r}: layer {layer} has other examples or keys than the first layer.")


@dataclass(frozen=True)
class VectorStream:
    """The chunks of contrasts whose vectors are known: every process has all of them."""

    source: VectorSource
    readings: tuple[ContrastReading, ...]
    seed: int
    ranks: Ranks = ALONE

    @property
    def layers(self) -> Mapping[int, Site]:
        return self.source.layers

    @property
    def names(self) -> dict[str, Reading]:
        return {one.name: one.reading for one in self.readings}

    def __len__(self) -> int:
        return sum(len(self.source.deepest(name).query) for name, _ in self.readings)

    def chunks(self, done: Mapping[str, int], progress: Progress | None = None) -> Iterator[Chunk]:
        """Every contrast, from where a former stream stopped."""
        for one in self.readings:
            vectors, deepest = self.source.vectors(one.contrast), self.source.deepest(one.contrast)
            marks = deepest.marks(self.seed, twins=one.reading != "plain")
            sizes, n = (int(marks.cell.max()) + 1, deepest.n_values), len(marks.weight)
            for at in range(done.get(one.name, 0), n, _CHUNK):
                rows = slice(at, min(at + _CHUNK, n))
                read = _VectorReader(vectors, self.source, rows)
                yield Chunk(one.name, one.reading, *sizes, _rows_of(marks, rows), read.vectors, done=rows.stop)
                if progress:
                    progress(rows.stop - at)


@dataclass(frozen=True)
class _VectorReader:
    """Reads the vectors of some examples in the chosen heads."""

    by_layer: Mapping[int, Vectors]
    source: VectorSource
    rows: slice

    def vectors(
        self, layer: int
    ) -> tuple[Float[Tensor, "example text head d_head"], Float[Tensor, "example key kv_head d_head"]]:
        query, key = self.by_layer[layer].part(self.rows)
        heads, kv_heads = self.source.places(layer)
        return query[:, :, heads].cpu().double(), key[:, :, kv_heads].cpu().double()


def _rows_of(marks: Marks, rows: slice) -> Marks:
    return Marks(*(getattr(marks, one.name)[rows] for one in fields(Marks)))
