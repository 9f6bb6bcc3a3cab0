"""A model's cache of keys and values, from which many passes go on, each with a fork of it.

Layers of the usual kind grow by making all their tensors anew, which would cost the memory and the copying of the whole
cache in every pass. So they are given room for the tokens to come: a fork writes them there, over those of the fork
before it.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicLayer


def with_room(cache: Any, tokens: int) -> Any:
    """The same cache, with room for so many tokens in each layer that would otherwise grow by copying."""
    for number, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.is_initialized:  # windows and the like have rules of their own
            cache.layers[number] = _Roomy(layer, tokens)
    return cache


def forked(cache: Any) -> Any:
    """A cache that grows by itself and leaves this one as it is; only one fork is of use at a time."""
    fork = copy.copy(cache)
    fork.layers = [copy.copy(layer) for layer in cache.layers]
    return fork


class _Roomy(DynamicLayer):  # type: ignore[misc]
    """A layer with memory for tokens to come, which its forks share."""

    def __init__(self, layer: DynamicLayer, tokens: int) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = layer.dtype, layer.device, True
        self.memory = _with_room(layer.keys, tokens), _with_room(layer.values, tokens)
        self._show(layer.keys.shape[-2])

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write new tokens behind those that are there, or grow as usual when there is no room left."""
        start = self.keys.shape[-2]
        end = start + key_states.shape[-2]
        if end > self.memory[0].shape[-2]:
            return super().update(key_states, value_states, *args, **kwargs)
        for memory, new in zip(self.memory, (key_states, value_states), strict=True):
            memory[..., start:end, :] = new
        self._show(end)
        return self.keys, self.values

    def _show(self, tokens: int) -> None:
        self.keys, self.values = (memory[..., :tokens, :] for memory in self.memory)


def _with_room(states: Tensor, tokens: int) -> Tensor:
    *before, present, width = states.shape
    memory = states.new_empty(*before, present + tokens, width)
    memory[..., :present, :] = states
    return memory
