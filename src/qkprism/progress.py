"""What is being done, how far it is, and how long it will take: on standard error, one bar at a time.

    2/6 features  [=====>    ] 251/600 examples, 4.5/s, 1:17 left

On a terminal the line is drawn anew; elsewhere a line is written every 30 seconds. A bar inside another is not shown.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from qkprism.ranks import is_first

Progress = Callable[[int], None]
Listener = Callable[[str, int, int], None]
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)

FIRST, REDRAWN, LINES = 2.0, 0.1, 30.0  # seconds before a bar appears, between its drawings, between lines of a log
WIDTH = 20


@dataclass
class Speech:
    """What is said on standard error, and the part of the work that bars belong to."""

    quiet: bool = False
    verbose: bool = False
    part: str = ""
    busy: bool = False


SPEECH = Speech()


def speak(*, quiet: bool = False, verbose: bool = False) -> None:
    """Say nothing but results and errors, or also what other libraries say."""
    SPEECH.quiet, SPEECH.verbose = quiet, verbose


def say(line: str) -> None:
    """A line on standard error for whoever waits, unless they want quiet."""
    if not SPEECH.quiet and is_first():
        print(line, file=sys.stderr)


@contextmanager
def part(number: int, parts: int, name: str) -> Iterator[None]:
    """Bars in this block belong to a part of the work: `2/6 features`."""
    former, SPEECH.part = SPEECH.part, f"{number}/{parts} {name}"
    try:
        yield
    finally:
        SPEECH.part = former


@contextmanager
def bar(total: int, unit: str, shown: bool) -> Iterator[Progress]:
    """A progress bar that appears after two seconds; call what it gives with how much more is done.

    Who listens is told too, whether a bar is shown or not.
    """
    listener, line = _listener.get(), None
    if shown and not SPEECH.quiet and not SPEECH.busy and is_first():
        SPEECH.busy, line = True, _Line(total, unit, SPEECH.part)
    done = 0

    def tick(more: int) -> None:
        nonlocal done
        done += more
        if line is not None:
            line.add(more)
        if listener is not None:
            listener(unit, done, total)

    try:
        yield tick
    finally:
        if line is not None:
            SPEECH.busy = False
            line.clear()


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


@dataclass
class _Line:
    """One bar: what is done of how much, and when that was last said."""

    total: int
    unit: str
    part: str
    done: int = 0
    started: float = field(default_factory=lambda: time.monotonic())
    told: float | None = None

    def add(self, more: int) -> None:
        self.done += more
        now, live = time.monotonic(), sys.stderr.isatty()
        wait = (REDRAWN if live else LINES) if self.told is not None else (FIRST if live else LINES)
        if now - (self.told if self.told is not None else self.started) < wait:
            return
        self.told = now
        text = progress_line(self.done, self.total, self.unit, now - self.started, self.part)
        if live:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.told is not None and sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def progress_line(done: int, total: int, unit: str, seconds: float, part: str = "") -> str:
    """A bar with its numbers.

    >>> progress_line(251, 600, "examples", 251 / 4.5, "2/6 features")
    '2/6 features  [=======>            ] 251/600 examples, 4.5/s, 1:18 left'
    """
    filled = min(WIDTH, int(WIDTH * done / total)) if total else WIDTH
    arrow = ("=" * filled)[:-1] + (">" if 0 < filled < WIDTH else "=" * (filled > 0))
    told = f"[{arrow:<{WIDTH}}] {done:,}/{total:,} {unit}"
    rate = done / seconds if seconds > 0 else 0.0
    if rate > 0:
        told += f", {rate:.2g}/s" if rate < 10 else f", {rate:,.0f}/s"
        told += f", {duration((total - done) / rate)} left" if done < total else ""
    return f"{part}  {told}" if part else told


def duration(seconds: float) -> str:
    """Minutes and seconds, or hours too: 1:17, 2:05:00."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def is_coloured() -> bool:
    """Whether colours may be used on standard error: it is a terminal and NO_COLOR is not set."""
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR")
