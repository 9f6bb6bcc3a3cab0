"""A streaming pass that can be killed and goes on where it was, to the identical result.

The moments are additive and chunks have fixed borders, so what has been added up to a chunk's end, and how many
examples that were, is all there is to keep. It is a run folder of its own, written at most every `interval` seconds.
Of several processes the sums of all are written, by the first; so any number of them can go on.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkprism.capture.source import Stream, Sums, over_all
from qkprism.core.moments import Moments, pack, unpack
from qkprism.errors import QKPrismError
from qkprism.ranks import exchanged, of_first, ranks
from qkprism.runs import MANIFEST, check_place, json_value, read_run, write_run
from qkprism.stopping import Stopped, saving

KIND = "checkpoint"
_FILE = "moments"


def check_checkpoint(folder: str | os.PathLike[str]) -> None:
    """Refuse a place for a checkpoint where something else is, or a damaged one."""
    with _said_of_checkpoint(folder):
        check_place(folder, KIND)


@contextmanager
def _said_of_checkpoint(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Of a damaged checkpoint, what to do."""
    try:
        yield
    except QKPrismError as error:
        told = str(error)
        if "is damaged" in told:
            told = f"{told.removesuffix(' Make the run again.')} Delete the folder {folder}; the command begins anew."
        raise QKPrismError(told) from error


@dataclass
class Checkpoint:
    """What a pass has summed so far, on disk. `job` says which pass it is: another one is refused."""

    folder: Path
    job: Mapping[str, Any]
    interval: float = 30.0
    done: dict[str, int] = field(default_factory=dict)
    sums: Sums = field(default_factory=dict)
    stop: Callable[[], bool] | None = None  # whether Ctrl-C was pressed
    begun: set[str] = field(default_factory=set)  # contrasts that every process has sums of
    _written: float = field(default_factory=time.monotonic)

    @property
    def digest(self) -> str:
        """What tells one job from another: model, contrasts, heads and options."""
        return hashlib.sha256(json.dumps(json_value(self.job), sort_keys=True).encode()).hexdigest()

    def read(self, stream: Stream) -> None:
        """Take up what a former pass of the same job has summed, if there was one: the first process has the sums."""
        self.done = of_first(lambda: self._read(stream))

    def _read(self, stream: Stream) -> dict[str, int]:
        check_checkpoint(self.folder)
        if not (self.folder / MANIFEST).exists():
            return {}
        with _said_of_checkpoint(self.folder):
            manifest, files = read_run(self.folder, KIND)
        if manifest["job"] != self.digest:
            raise QKPrismError(
                f"{self.folder} is the checkpoint of another job (other model, contrasts, heads or options). "
                "Delete it or choose another place."
            )
        done = {name: int(count) for name, count in manifest["done"].items()}
        for name, reading in stream.names.items():
            if done.get(name):
                self.sums[name] = {
                    layer: unpack(files[_FILE], f"{name}/{layer}", reading, site.kv_index)
                    for layer, site in stream.layers.items()
                }
        return done

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """A block in which Ctrl-C stops at the end of a chunk, when all that was summed has been written."""
        with saving() as self.stop:
            yield
        self.stop = None

    def note(self, done: int, sums: Mapping[str, Mapping[int, Moments]]) -> None:
        """Note that a chunk of some contrasts is complete; write if it is time."""
        for name, total in sums.items():
            self.done[name], self.sums[name] = done, dict(total)
            self.begun.add(name)
        due = time.monotonic() - self._written >= self.interval
        every = exchanged((self.stop is not None and self.stop(), due))
        if any(stopped for stopped, _ in every):
            self.write()
            raise Stopped(f"{max(self.done.values()):,} examples are saved; the same command goes on from there.")
        if every[0][1]:
            self.write()

    def write(self, totals: Sums | None = None) -> None:
        """Write all that has been summed, in all processes; `totals` is that, where it is known."""
        if totals is None:
            totals = self.sums | over_all(ranks(), {name: self.sums[name] for name in sorted(self.begun)})
        named = {f"{name}/{layer}": total for name, layers in totals.items() for layer, total in layers.items()}
        write_run(self.folder, KIND, {"job": self.digest, "done": self.done}, {_FILE: pack(named)})
        self._written = time.monotonic()
