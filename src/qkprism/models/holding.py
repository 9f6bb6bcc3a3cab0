"""An attribute of a model that is another for a while, also when several threads want that at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_ABSENT = object()


@dataclass
class _Held:
    original: object
    holders: int = 0


_held: dict[tuple[int, str], _Held] = {}
_lock = threading.Lock()


def hold(owner: object, attribute: str, make: Callable[[Any], object]) -> Callable[[], None]:
    """Set an attribute until the last holder, in any thread, lets go; returns the function that lets go.

    The first holder makes the value of the original one; those that come while it is held find it made.
    """
    place = (id(owner), attribute)
    with _lock:
        if place not in _held:
            value = make(getattr(owner, attribute, None))
            _held[place] = _Held(vars(owner).get(attribute, _ABSENT))
            setattr(owner, attribute, value)
        held = _held[place]
        held.holders += 1

    def release() -> None:
        with _lock:
            held.holders -= 1
            if held.holders == 0:
                _restore(owner, attribute, held.original)
                del _held[place]

    return release


def always(value: object) -> Callable[[Any], object]:
    """A value that does not depend on the original."""
    return lambda _: value


def _restore(owner: object, attribute: str, original: object) -> None:
    if original is _ABSENT:
        delattr(owner, attribute)  # what its class has shows again
    else:
        setattr(owner, attribute, original)
