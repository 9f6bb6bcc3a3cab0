"""Memory that is free and that the process still holds."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers of its options
_MOST, _MOST_BEFORE = 2**31 - 1, 2**25  # older versions take no more


def hold_free() -> bool:
    """Let the C library (glibc) hold what is freed until `give_back`, for what comes next; False where it cannot.

    By default it gives large pieces back at once, and every tensor of a forward pass is made of new pages, which the
    system has to clear: a tenth of the time of a pass on a CPU. This is for a process of our own, not for a library.
    """
    choose = _function("mallopt")
    if choose is None or not choose(_TRIM_THRESHOLD, _MOST):
        return False
    return any(choose(_MMAP_THRESHOLD, most) for most in (_MOST, _MOST_BEFORE))


def give_back(*, collect: bool = True) -> None:
    """Give free memory back to the system where the C library (glibc) keeps it: what comes next adds nothing to it.

    Small things that a piece of work leaves all over the heap would hold the free pages between them, so what only
    refers to itself is collected first, which takes a fifth of a second. The rest takes milliseconds.
    """
    if trim := _function("malloc_trim"):
        if collect:
            gc.collect()
        trim(0)


def _function(name: str) -> Any:
    """A function of the C library, if it has it."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
