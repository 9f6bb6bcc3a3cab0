"""Queries and keys without their rotation: the model's own function, called with the angle turned back.

An attention module that rotates is handed cos and sin of its positions, and calls `apply_rotary_pos_emb` of its
modeling file on some dimensions of queries and keys. The same function with -sin undoes it, whatever pairs it rotates;
where cos and sin carry a factor m (YaRN), cos^2 + sin^2 = m^2 is divided out:

    q = turn(turn(q, cos, sin), cos, -sin) / m^2

Which dimensions a layer rotates, if any, is proved on a short text: moved by some positions, it must give the same
vectors without rotation in every layer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from qkprism.errors import QKPrismError
from qkprism.models.calls import AttentionCall
from qkprism.models.probe import distance, probe_text, tolerance

if TYPE_CHECKING:
    from qkprism.models.model import Model

MOVED_BY = 3  # positions, in the proof


@dataclass(frozen=True)
class RotatedSlice:
    """The dimensions of a head that a layer rotates, the `width` ones from `start` on."""

    start: int
    width: int


@dataclass(frozen=True)
class Rotation:
    """The rotation of the tokens of one call: `turn` puts it on vectors, `back` takes it off.

    Vectors are [batch, head, token, d_head]; with batch 1 they stand for every text of a batch of equal positions.
    """

    function: Callable[..., Any]
    cos: Float[Tensor, "batch token angle"]
    sin: Float[Tensor, "batch token angle"]
    part: RotatedSlice

    @classmethod
    def of(cls, call: AttentionCall, rotated: RotatedSlice | None) -> Rotation | None:
        """The rotation of a call in a layer that rotates these dimensions; None where it rotates none."""
        if rotated is None:
            return None
        function = _function(call)
        if call.angles is None or function is None:
            raise QKPrismError(f"The rotation of {call.name} cannot be read in this pass.")
        return cls(function, *call.angles, rotated)

    def at(self, tokens: slice | list[int]) -> Rotation:
        """The rotation of some of the tokens."""
        return replace(self, cos=self.cos[:, tokens], sin=self.sin[:, tokens])

    def turn(self, vectors: Float[Tensor, "batch head token d_head"]) -> Float[Tensor, "batch head token d_head"]:
        """Vectors as they stand at their positions."""
        return self._apply(vectors, self.cos, self.sin)

    def back(self, vectors: Float[Tensor, "batch head token d_head"]) -> Float[Tensor, "batch head token d_head"]:
        """Vectors without the rotation of their positions."""
        factor = (self.cos.square() + self.sin.square()).mean()
        return self._apply(vectors, self.cos / factor, -self.sin / factor)

    def _apply(self, vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, last = self.part.start, self.part.start + self.part.width
        turned = _call(self.function, vectors[..., first:last], cos.to(vectors), sin.to(vectors))
        if self.part.width == vectors.shape[-1]:
            return turned
        return torch.cat([vectors[..., :first], turned, vectors[..., last:]], -1)


def _function(call: AttentionCall) -> Callable[..., Any] | None:
    """The modeling file's own function."""
    home = inspect.unwrap(type(call.module).forward).__globals__
    found: Callable[..., Any] | None = home.get("apply_rotary_pos_emb")
    return found


def _call(function: Callable[..., Any], vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Call it for one tensor, also where it takes queries and keys together."""
    if list(inspect.signature(function).parameters)[1] in ("k", "key"):
        turned, _ = function(vectors, vectors[:, :1], cos, sin)
    else:
        turned = function(vectors, cos, sin)
    return turned


def rotated_slices(model: Model) -> dict[int, RotatedSlice | None]:
    """For every layer the dimensions that it rotates, None where it rotates none; each proved.

    A model whose rotation cannot be undone is refused.
    """
    if not model.rotates:
        return dict.fromkeys(model.layers)
    if not model.takes_positions:
        raise QKPrismError(
            f"{model.name} rotates queries and keys by positions that cannot be set, so its rotation cannot be proved."
        )
    here, moved = _read(model, 0), _read(model, MOVED_BY)
    return {layer: _proved(model, layer, here[layer], moved[layer]) for layer in model.layers}


def _read(model: Model, shift: int) -> dict[int, AttentionCall]:
    text, found = probe_text(model.hf), {}
    count = torch.arange(text["input_ids"].shape[1], device=model.device).expand_as(text["input_ids"]) + shift

    def visit(call: AttentionCall) -> None:
        few = {name: getattr(call, name)[:, :, :5].clone() for name in ("query", "key", "value")}
        found[call.layer] = replace(call, **few)

    model.run(text["input_ids"], text["attention_mask"], visit, position_ids=count)
    return found


def _proved(model: Model, layer: int, here: AttentionCall, moved: AttentionCall) -> RotatedSlice | None:
    for candidate in _candidates(here):
        try:
            pair = [_vectors(call, candidate) for call in (here, moved)]
        except (RuntimeError, ValueError, IndexError, TypeError):  # of dimensions that do not fit this function
            continue
        if distance(pair[1], pair[0]) <= tolerance(model.dtype) and _there_and_back(here, candidate, model.dtype):
            return candidate
    raise QKPrismError(
        f"The rotation of {model.name} in layer {layer} cannot be undone by its own `apply_rotary_pos_emb`, so "
        "there is no split by position; the contrasts of this model can be used as ever."
    )


def _candidates(call: AttentionCall) -> list[RotatedSlice | None]:
    """No rotation; the first, the last dimensions; twice as many as there are angles (GPT-OSS)."""
    if call.angles is None or _function(call) is None:
        return [None]
    d_head, width = call.query.shape[-1], call.angles[0].shape[-1]
    slices = [RotatedSlice(0, width), RotatedSlice(d_head - width, width), RotatedSlice(0, 2 * width)]
    return [None, *(one for one in dict.fromkeys(slices) if one.start >= 0 and one.start + one.width <= d_head)]


def _vectors(call: AttentionCall, candidate: RotatedSlice | None) -> Tensor:
    """Queries and keys of the first tokens without rotation, in a row."""
    rotation = Rotation.of(call, candidate)
    both = (call.query, call.key)
    if rotation is None:
        return torch.cat([x.flatten() for x in both])
    first = rotation.at(slice(0, call.query.shape[2]))
    return torch.cat([first.back(x).flatten() for x in both])


def _there_and_back(call: AttentionCall, candidate: RotatedSlice | None, dtype: torch.dtype) -> bool:
    rotation = Rotation.of(call, candidate)
    if rotation is None:
        return True
    first = rotation.at(slice(0, call.query.shape[2]))
    return distance(first.turn(first.back(call.key)), call.key) <= tolerance(dtype)


Slices = Mapping[int, RotatedSlice | None]
