"""The blocks in front of an edit compute what they did without it: noted once, they are not run again.

A block is an item of the list of layers that a model goes through. Only the thread that opened `noting` or `skipping`
notes and skips; the model runs as ever for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from qkprism.models.holding import hold


@dataclass(frozen=True)
class _Notes:
    known: Mapping[nn.Module, Any]
    found: dict[nn.Module, Any]


_notes: ContextVar[_Notes | None] = ContextVar("qkprism_block_notes", default=None)


def blocks_before(hf: nn.Module, name: str) -> Sequence[nn.Module]:
    """The blocks in front of the one that a module is in."""
    above, parts = hf, name.split(".")
    for part in parts:
        if isinstance(above, nn.ModuleList):
            return list(above)[: int(part)]
        above = above.get_submodule(part)
    return ()


def noting(blocks: Sequence[nn.Module], found: dict[nn.Module, Any]) -> AbstractContextManager[None]:
    """Put down what each of these blocks gives while the model runs."""
    return _watching(blocks, _Notes({}, found))


def skipping(known: Mapping[nn.Module, Any]) -> AbstractContextManager[None]:
    """These blocks give what is known, without a computation."""
    return _watching(list(known), _Notes(known, {}))


@contextmanager
def _watching(blocks: Sequence[nn.Module], notes: _Notes) -> Iterator[None]:
    undo = [hold(block, "forward", partial(_forward, block, block.forward)) for block in blocks]
    before = _notes.set(notes)
    try:
        yield
    finally:
        _notes.reset(before)
        for release in reversed(undo):
            release()


def _forward(block: nn.Module, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    notes = _notes.get()
    if notes is None:
        return original(*args, **kwargs)
    if block in notes.known:
        return notes.known[block]
    notes.found[block] = original(*args, **kwargs)
    return notes.found[block]
