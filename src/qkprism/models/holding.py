"""What is another for a while, such as an attribute of a model, also when several threads want that at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

_ABSENT = object()


@dataclass
class _Held:
    undo: Callable[[], None]
    holders: int = 0


_held: dict[Hashable, _Held] = {}
_lock = threading.Lock()


def share(what: Hashable, begin: Callable[[], Callable[[], None]]) -> Callable[[], None]:
    """Begin something, which lasts until the last holder, in any thread, lets go; returns the function that lets go.

    The first holder begins it; those that come while it lasts find it begun. `begin` returns what undoes it.
    """
    with _lock:
        if what not in _held:
            _held[what] = _Held(begin())
        held = _held[what]
        held.holders += 1

    def release() -> None:
        with _lock:
            held.holders -= 1
            if held.holders == 0:
                del _held[what]
                held.undo()

    return release


def hold(owner: object, attribute: str, make: Callable[[Any], object]) -> Callable[[], None]:
    """Set an attribute, made of the original one, until the last holder lets go; returns what lets go."""

    def begin() -> Callable[[], None]:
        value, original = make(getattr(owner, attribute, None)), vars(owner).get(attribute, _ABSENT)
        setattr(owner, attribute, value)
        return partial(_restore, owner, attribute, original)

    return share((id(owner), attribute), begin)


def always(value: object) -> Callable[[Any], object]:
    """A value that does not depend on the original."""
    return lambda _: value


def _restore(owner: object, attribute: str, original: object) -> None:
    if original is _ABSENT:
        delattr(owner, attribute)  # what its class has shows again
    else:
        setattr(owner, attribute, original)
