"""Progress bars, and what is told how far something is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

Progress = Callable[[int], None]


@contextmanager
def bar(total: int, unit: str, shown: bool) -> Iterator[Progress]:
    """A progress bar that appears after two seconds."""
    with tqdm(total=total, unit=f" {unit}", disable=not shown, delay=2.0, file=sys.stderr, leave=False) as bar:
        yield lambda n: bar.update(n) and None
