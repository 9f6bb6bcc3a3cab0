"""What a name that a user gives stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from qkprism.errors import QKPrismError

Thing = TypeVar("Thing")


def named(given: str | Thing, known: Mapping[str, Thing], what: str, *, own: str = "") -> Thing:
    """One of the known things by its name; a thing of the user's own stands for itself, and `own` says that it may."""
    if own and isinstance(given, type(next(iter(known.values())))):
        return given
    if not isinstance(given, str) or given not in known:
        raise QKPrismError(f"unknown {what} {given!r}; use {', '.join([*known, *([f'or {own}'] if own else [])])}.")
    return known[given]
