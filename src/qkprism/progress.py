"""Progress bars, and what is told how far something is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tqdm import tqdm

Progress = Callable[[int], None]
Listener = Callable[[str, int, int], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def bar(total: int, unit: str, shown: bool) -> Iterator[Progress]:
    """A progress bar that appears after two seconds; who listens is told too."""
    listener, done = _listener.get(), 0
    with tqdm(total=total, unit=f" {unit}", disable=not shown, delay=2.0, file=sys.stderr, leave=False) as drawn:

        def tick(n: int) -> None:
            nonlocal done
            done += n
            drawn.update(n)
            if listener is not None:
                listener(unit, done, total)

        yield tick


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Within this, every bar tells the listener its unit, what is done, and of how much.

    >>> told = []
    >>> with listening(lambda *step: told.append(step)), bar(3, "texts", False) as tick:
    ...     tick(2)
    >>> told
    [('texts', 2, 3)]
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
