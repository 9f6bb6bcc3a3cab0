"""`VectorSource`: vectors that come from elsewhere, such as TransformerLens, nnsight, a file or a toy.

    source   = qk.VectorSource({"order": qk.Vectors(query, positive, negative)})
    features = qk.decompose(source)

A source holds any number of layers and heads. What needs the texts or a new forward pass needs a model: a source says
so. Only marked keys are known, so attention is that among the marked keys.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from qkprism.capture.source import ContrastReading, Outline, Site
from qkprism.capture.vectors import Vectors, VectorStream, deepest_of, with_heads
from qkprism.encoding import Encoding
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike, check_heads
from qkprism.options import finite, show

VALUE = "value"  # what the label is called whose values vectors have
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

    def _places(self, layer: int) -> tuple[list[int], list[int]]:
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
        """The vectors in the last layer, which also say what is the same in all."""
        return deepest_of(self.vectors(contrast))

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
        places = {layer: self._places(layer) for layer in self.layers}
        return VectorStream(self._layers, self.layers, places, tuple(readings), seed)

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
            found[place], numbers[place] = with_heads([vectors]), tuple(range(vectors.n_heads))
        else:
            head = Head.parse(place)
            heads.setdefault(head.layer, {})[head.index] = vectors
    for layer, of_layer in heads.items():
        if layer in found or any(vectors.query.ndim == 3 for vectors in of_layer.values()):
            raise QKPrismError(f"{name!r}: give layer {layer} as a whole or head by head, not both.")
        numbers[layer] = tuple(sorted(of_layer))
        found[layer] = with_heads([of_layer[index] for index in numbers[layer]])
    _check_alike(name, found)
    return found, numbers


def _check_alike(name: str, layers: Mapping[int, Vectors]) -> None:
    first = next(iter(layers.values()))
    for layer, vectors in layers.items():
        same = len(vectors.query) == len(first.query) and vectors.keys_of_sides == first.keys_of_sides
        if not same or (vectors.twin_query is None) != (first.twin_query is None):
            raise QKPrismError(f"{name!r}: layer {layer} has other examples or keys than the first layer.")
