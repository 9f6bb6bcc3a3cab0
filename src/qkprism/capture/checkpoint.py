"""The sums of a stream as unfinished work (`store.py`): a pass that was killed goes on to the identical result.

The moments are additive and chunks have fixed borders, so what has been added up to a chunk's end, and how many
examples that were, is all there is to keep. Of several processes the sums of all are written; any number can go on.
What readers read is kept batch by batch, as `Unfinished.in_turn` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from qkprism.capture.source import Stream, Sums, over_all
from qkprism.core.moments import Moments, pack, unpack
from qkprism.models.encoding import EncodedExample
from qkprism.ranks import exchanged, ranks
from qkprism.runs import Tensors
from qkprism.store import Files, Unfinished, job_digest, packed, unpacked

_FILE, _SEEN = "moments", "seen"


@dataclass
class Checkpoint:
    """What a pass has summed so far, and of how many examples of each contrast; `seen` is what else it saw of them."""

    work: Unfinished
    done: dict[str, int] = field(default_factory=dict)
    sums: Sums = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)  # contrasts that every process has sums of
    seen: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, work: Unfinished, stream: Stream) -> Checkpoint:
        """What a former pass of the same job has summed, if there was one: the first process has the sums."""
        done, files = work.read()
        sums = {
            name: {
                layer: unpack(files[_FILE], f"{name}/{layer}", reading, site.kv_index)
                for layer, site in stream.layers.items()
            }
            for name, reading in stream.names.items()
            if files and done.get(name)
        }
        return cls(work, done, sums, seen=unpacked(files[_SEEN]) if _SEEN in files else [])

    def note(self, done: int, sums: Mapping[str, Mapping[int, Moments]]) -> None:
        """Note that a chunk of some contrasts is complete."""
        for name, total in sums.items():
            self.done[name], self.sums[name] = done, dict(total)
            self.begun.add(name)
        self.work.note(self.done, self._summed, f"What was added up of {max(self.done.values()):,} examples")

    def _summed(self) -> Files:
        sums = self.sums | over_all(ranks(), {name: self.sums[name] for name in sorted(self.begun)})
        seen = [one for every in exchanged(self.seen) for one in every]
        return _files(sums) | ({_SEEN: packed(seen)} if seen else {})

    def finish(self, totals: Sums) -> None:
        """Write the sums of the whole stream."""
        self.work.write(self.done, _files(totals))


def _files(totals: Sums) -> dict[str, Tensors]:
    named = {f"{name}/{layer}": total for name, layers in totals.items() for layer, total in layers.items()}
    return {_FILE: pack(named)}


def of_texts(work: Unfinished | None, texts: Sequence[Sequence[EncodedExample]], sizes: Sequence[int]) -> Unfinished:
    """The same work on these texts, in batches of so many; without any, nothing is kept."""
    if work is None:
        return Unfinished(None, {})
    return replace(
        work, job={**work.job, "texts": [job_digest({"of": list(map(repr, some))}) for some in texts], "batches": sizes}
    )
