"""Many small computations on several cores: side by side, each on one.

torch's own threads share one product and wait for each other after it, which costs more than it gives on matrices of
this size, and far more on a machine with other work.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch


@contextmanager
def one_core_each() -> Iterator[ThreadPoolExecutor]:
    """As many workers as torch has threads, each with one."""
    cores = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(cores) as pool:
            yield pool
    finally:
        torch.set_num_threads(cores)
