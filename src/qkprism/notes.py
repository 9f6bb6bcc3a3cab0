"""Notes on the examples that were given: they stand in results, and are a warning if they concern more than a few."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import NamedTuple

MANY = 0.05  # of the examples: a note on more of them is a warning too


class Note(NamedTuple):
    """What is to be said, and whether it is worth a warning."""

    text: str
    warns: bool = False


def counted(n: int, noun: str, several: str = "") -> str:
    """
    >>> counted(1, "example"), counted(256, "example")
    ('1 example', '256 examples')
    """
    return f"{n} {noun if n == 1 else several or f'{noun}s'}"


def warn_of(notes: Iterable[Note], stacklevel: int) -> None:
    """One warning of all notes that are worth it; `stacklevel` is counted from the caller."""
    if loud := dict.fromkeys(note.text for note in notes if note.warns):
        warnings.warn("\n".join(loud), stacklevel=stacklevel + 1)
