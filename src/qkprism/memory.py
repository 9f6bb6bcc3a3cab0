"""Memory that is free and that the process still holds."""

from __future__ import annotations

import ctypes
import gc
import sys


def give_back() -> None:
    """Give free memory back to the system where the C library (glibc) keeps it: what comes next adds nothing to it.

    Small things that a piece of work leaves all over the heap would hold the free pages between them.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        gc.collect()
        trim(0)
