"""What the blocks in front of an edit compute is what they did without it: noted once, they are not run again.

A block is an item of the list of layers that a model goes through. Only the thread that opened `noting` or `skipping`
notes and skips; the model runs as ever for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from qkprism.models.tap import hold


@dataclass(frozen=True)
class _Notes:
    noted: Mapping[nn.Module, Any]
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


def noting(blocks: Iterable[nn.Module], found: dict[nn.Module, Any]) -> AbstractContextManager[None]:
    """Put down what each of these blocks gives while the model runs."""
    return _watching(blocks, _Notes({}, found))


def skipping(noted: Mapping[nn.Module, Any]) -> AbstractContextManager[None]:
    """These blocks give what is known, without a computation."""
    return _watching(noted, _Notes(noted, {}))


@contextmanager
def _watching(blocks: Iterable[nn.Module], notes: _Notes) -> Iterator[None]:
    with ExitStack() as undo:
        for block in blocks:
            undo.callback(hold(block, "forward", partial(_watched, block)))
        before = _notes.set(notes)
        undo.callback(_notes.reset, before)
        yield


def _watched(block: nn.Module, original: Callable[..., Any]) -> Callable[..., Any]:
    """A block's forward that looks at the notes of its thread."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        notes = _notes.get()
        if notes is None:
            return original(*args, **kwargs)
        if block in notes.noted:
            return notes.noted[block]
        notes.found[block] = original(*args, **kwargs)
        return notes.found[block]

    return forward
