"""Ctrl-C while sums are added up: what is begun is finished, saved, and then the process stops.

with saving() as stop:          # the first Ctrl-C is remembered, the second stops at once
    for batch in batches:
        add(batch)
        if stop():
            write()
            raise Stopped("...")
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(KeyboardInterrupt):
    """Stopped by Ctrl-C after what was done has been saved; the message says how to go on."""


@contextmanager
def saving() -> Iterator[Callable[[], bool]]:
    """A block in which Ctrl-C waits for what is begun; what it gives tells whether to stop."""
    stops: list[bool] = []
    former = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or former is None or former is signal.SIG_IGN:
        yield lambda: False
        return

    def remember(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        signal.signal(signal.SIGINT, former)
        stops.append(True)
        print("\nFinishing what is begun, then saving. Ctrl-C again stops at once.", file=sys.stderr)

    signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: bool(stops)
    finally:
        signal.signal(signal.SIGINT, former)
