"""A cache of keys and values from which many passes go on, each with a fork of it.

Layers of the usual kind grow by making all their tensors anew, which would cost the memory and the copying of the whole
cache in every pass. Here they have room for all tokens from the start: a fork writes its tokens behind those that are
there, over those of the fork before it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer


def cache_with_room(config: PreTrainedConfig, tokens: int) -> DynamicCache:
    """The cache that a model makes for itself, with room for so many tokens where layers grow by copying."""
    cache = DynamicCache(config=config)
    usual = [type(layer) is DynamicLayer for layer in cache.layers]  # windows and the like have rules of their own
    shelves = _CacheShelf(sum(usual), tokens), _CacheShelf(sum(usual), tokens)
    cache.layers = [
        _Roomy(*shelves) if is_usual else layer for is_usual, layer in zip(usual, cache.layers, strict=True)
    ]
    return cache


def forked(cache: Any) -> Any:
    """A cache that grows by itself and leaves this one as it is; only one fork is of use at a time."""
    fork = copy.copy(cache)
    fork.layers = [copy.copy(layer) for layer in cache.layers]
    return fork


@dataclass
class _CacheShelf:
    """Memory of all layers. On the CPU it is one piece: pieces among short-lived tensors pin the heap open."""

    layers: int
    tokens: int
    left: list[Tensor] | None = None

    def take(self, states: Tensor) -> Tensor:
        """Memory of one layer for states like these."""
        shape = (*states.shape[:-2], self.tokens, states.shape[-1])
        if states.device.type != "cpu":
            return states.new_empty(shape)
        if self.left is None:
            self.left = list(states.new_empty(self.layers, *shape))
        fits = self.left and (self.left[0].shape, self.left[0].dtype) == (shape, states.dtype)
        return self.left.pop() if fits else states.new_empty(shape)


class _Roomy(DynamicLayer):  # type: ignore[misc]
    """A layer with memory for tokens to come, which its forks share."""

    def __init__(self, keys: _CacheShelf, values: _CacheShelf) -> None:
        super().__init__()
        self.shelves = keys, values

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Take memory when it is known how much."""
        super().lazy_initialization(key_states, value_states)
        states = key_states, value_states
        self.memory = [shelf.take(state) for shelf, state in zip(self.shelves, states, strict=True)]
        self._show(0)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write new tokens behind those that are there, or grow as usual when there is no room left."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
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
