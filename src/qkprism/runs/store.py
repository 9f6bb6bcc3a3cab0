"""Work that survives: a folder keeps what is done of a job, and whoever does the same job goes on there.

    parts = Parts.open(folder, "binding", job)
    scores = parts.get("heads", compute, HeadScores.load)      # finished work: made once, then read

    work = Unfinished(folder, job)                             # work on its way: what was added up, from time to time
    done, files = work.read()
    work.note(done, files)
    for made in work.in_turn(batches, run):                    # or all that was made of some items, in their order
        add(made)

A job is all that the result depends on (model, prompts, options, versions), told by its digest. Beside each part stands
a stamp with the digest of its job, written after the part: a part that was cut off is made again, from what its
unfinished work had kept. Of several processes the first writes, and the folder does not tell how many there were.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from qkprism.errors import QKPrismError
from qkprism.runs.files import is_unused, path_of, remove_left_overs, write_text
from qkprism.memory import give_back
from qkprism.packing import bytes_of, values_of
from qkprism.ranks import exchanged, in_turn, is_first, of_first, wait
from qkprism.runs.folder import MANIFEST, Tensors, check_place, json_value, read_manifest, read_run, remove_run, write_run
from qkprism.runs.stopping import Stopped, saving

STUDY = "study.json"
CHECKPOINT = "checkpoint"
EVERY = 30.0  # seconds between two checkpoints at least,
MOST = 50  # and so many times what the last one took: they cost at most 2% of a run

Files = Mapping[str, Tensors]
Item = TypeVar("Item")
Made = TypeVar("Made")


def job_digest(job: Mapping[str, Any]) -> str:
    """What tells one job from another."""
    return hashlib.sha256(json.dumps(json_value(job), sort_keys=True).encode()).hexdigest()


def check_checkpoint(folder: str | os.PathLike[str]) -> None:
    """Refuse a place for a checkpoint where something else is, or a damaged one."""
    with _said_of_checkpoint(folder):
        check_place(folder, CHECKPOINT)


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
class Unfinished:
    """The checkpoint of a job: what is done of it (JSON) and what was added up (tensors). Without a folder, nothing."""

    folder: Path | None
    job: Mapping[str, Any]
    stop: Callable[[], bool] | None = None  # whether Ctrl-C was pressed
    _written: float = field(default_factory=time.monotonic)
    _took: float = 0.0

    def read(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """What a former process left of this job, if anything: what is done for all, the tensors for the first one."""
        if self.folder is None:
            return {}, {}
        files: dict[str, dict[str, Any]] = {}
        return of_first(lambda: self._read(self.folder, files)), files  # type: ignore[arg-type]

    def _read(self, folder: Path, files: dict[str, dict[str, Any]]) -> dict[str, Any]:
        check_checkpoint(folder)
        if not (folder / MANIFEST).exists():
            return {}
        with _said_of_checkpoint(folder):
            manifest, found = read_run(folder, CHECKPOINT)
        if manifest["job"] != job_digest(self.job):
            raise QKPrismError(
                f"{folder} is the checkpoint of another job (other model, contrasts, texts, heads or options). "
                "Delete it or choose another place."
            )
        files.update(found)
        done: dict[str, Any] = manifest["done"]
        return done

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """A block in which Ctrl-C waits for the next `note`, which writes what is done."""
        if self.folder is None:
            yield
            return
        with saving() as self.stop:
            yield
        self.stop = None

    def note(self, done: Mapping[str, Any], files: Callable[[], Files], told: str = "What is done") -> bool:
        """Write what is done if it is time to, or if Ctrl-C was pressed; all processes come here together.

        It says whether it was written.
        """
        if self.folder is None:
            return False
        due = time.monotonic() - self._written >= max(EVERY, MOST * self._took)
        every = exchanged((self.stop is not None and self.stop(), due))
        stopped = any(pressed for pressed, _ in every)
        if stopped or every[0][1]:
            self.write(done, files())
        if stopped:
            raise Stopped(f"{told} is saved; the same command goes on from there.")
        return every[0][1]

    def in_turn(self, items: Sequence[Item], work: Callable[[Item], Made]) -> Iterator[Made]:
        """What is made of every item, in their order, on every process; what was made before is read.

        It is written in pieces, each of them once, so neither memory nor a write grows with what is there.
        """
        done, files = self.read()
        sizes: list[int] = done.get("items", [])
        for number in range(len(sizes)):
            yield from of_first(lambda number=number: unpacked(files.pop(str(number))))  # type: ignore[misc]
        fresh: list[Made] = []
        with self.stoppable():
            for made in in_turn(items[sum(sizes) :], work):
                yield made
                if self.folder is not None:
                    fresh.append(made)
                    if self.note({"items": [*sizes, len(fresh)]}, partial(self._pieces, str(len(sizes)), fresh)):
                        sizes, fresh = [*sizes, len(fresh)], []

    def _pieces(self, name: str, made: Sequence[Any]) -> Files:
        """The pieces that were written, as they are, and a new one."""
        if not is_first():
            return {}
        assert self.folder is not None
        former = read_manifest(self.folder)["files"] if (self.folder / MANIFEST).exists() else {}
        return former | {name: packed(made)}

    def write(self, done: Mapping[str, Any], files: Files) -> None:
        """Write what is done."""
        if self.folder is None:
            return
        began = time.monotonic()
        write_run(self.folder, CHECKPOINT, {"job": job_digest(self.job), "done": done}, files)
        self._written = time.monotonic()
        self._took = self._written - began

    def remove(self) -> None:
        """The job is finished, and its result is kept elsewhere."""
        if self.folder is not None:
            remove_run(self.folder)


def packed(values: Sequence[Any]) -> Tensors:
    """Values as a file of tensors has them."""
    import torch

    return {"values": torch.frombuffer(bytearray(bytes_of(values)), dtype=torch.uint8)}


def unpacked(file: Tensors) -> list[Any]:
    """What was `packed`."""
    values: list[Any] = values_of(file["values"].numpy().tobytes())
    return values


class Saved(Protocol):
    """What can be a part."""

    def save(self, folder: str | os.PathLike[str]) -> Path: ...


SavedPart = TypeVar("SavedPart", bound=Saved)
Known = TypeVar("Known")


@dataclass(frozen=True)
class Parts:
    """The folder of a study of one kind, for one job: each part of it is a run of its own, made once."""

    folder: Path
    kind: str
    job: Mapping[str, Any]

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], kind: str, job: Mapping[str, Any], about: Mapping[str, Any] | None = None
    ) -> Parts:
        """A new folder, or one of a study of the same kind; parts of another job in it are replaced.

        `about` is what a reader wants to know of the study beside its parts.
        """
        place = path_of(folder).resolve()
        of_first(lambda: check_study(place, kind))
        body = {"study": kind, "job": json_value(job), "about": json_value(about or {})}
        write_text(place / STUDY, json.dumps(body, indent=1) + "\n")
        remove_left_overs(place)
        wait()
        return cls(place, kind, job)

    def get(
        self,
        name: str,
        compute: Callable[[], SavedPart],
        load: Callable[[Path], SavedPart],
        more: Mapping[str, Any] | None = None,
    ) -> SavedPart:
        """A part from the folder if it is of this job, else computed and kept; `more` is what it alone depends on.

        It is read from the folder in either case: a study that goes on has what one that was taken up has, and tensors
        of files are pages that the system can take back.
        """
        place, stamp = self.folder / name, self.folder / f"{name}.job"
        digest = job_digest({**self.job, **(more or {})})
        kept = None
        if _is_stamped(stamp, digest):
            with suppress(QKPrismError):  # a part that was deleted or damaged is computed again
                kept = load(place)
        if not of_first(lambda: kept is not None):
            if is_first():
                stamp.unlink(missing_ok=True)
            compute().save(place)
            write_text(stamp, digest + "\n")
            give_back()
            wait()
            kept = None
        return load(place) if kept is None else kept

    @contextmanager
    def keeping(self, name: str) -> Iterator[Unfinished]:
        """The unfinished work of a part, kept until the block ends; not that of other jobs."""
        place = self.folder / f"{name}.{job_digest(self.job)[:12]}.checkpoint"
        for former in self.folder.glob(f"{name}.*.checkpoint"):
            if former != place:
                remove_run(former)
        work = Unfinished(place, self.job)
        yield work
        work.remove()

    def get_all(
        self,
        names: Mapping[str, str],
        compute: Callable[[], Mapping[str, Any]],
        load: Callable[[Path], Any] | Mapping[str, Callable[[Path], Any]],
    ) -> dict[str, Any]:
        """Parts that one computation gives, each by its name and its folder's; it is done once if any is missing."""
        made = cache(compute)
        loads = load if isinstance(load, Mapping) else dict.fromkeys(names, load)
        found = {name: self.get(folder, lambda name=name: made()[name], loads[name]) for name, folder in names.items()}  # type: ignore[misc]
        made.cache_clear()
        give_back()
        return found


def read_finished(
    folder: Path, kind: str, read: Callable[[Mapping[str, Any]], Known]
) -> tuple[Known, Mapping[str, Any]]:
    """What a study of this kind is about, and its job."""
    study = read_study(folder)
    if study["study"] != kind:
        raise QKPrismError(f"{folder} holds a study of another kind: {study['study']!r}.")
    try:
        return read(study["about"]), study["job"]
    except (KeyError, TypeError, AttributeError):
        raise QKPrismError(f"{folder} is of another version. Start the study again with --save {folder}.") from None


def load_part(
    folder: Path,
    job: Mapping[str, Any],
    name: str,
    load: Callable[[Path], SavedPart],
    more: Mapping[str, Any] | None = None,
) -> SavedPart:
    """A finished part of a study, if it is of this job."""
    if not _is_stamped(folder / f"{name}.job", job_digest({**job, **(more or {})})):
        raise QKPrismError(
            f"The study in {folder} is not finished: it has no {name} of this job. Start it there again."
        )
    try:
        return load(folder / name)
    except QKPrismError as error:
        raise QKPrismError(
            f"{error} Start the study in {folder} again: what can be read is not computed again."
        ) from error


def _is_stamped(stamp: Path, digest: str) -> bool:
    return stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == digest


def check_study(folder: Path, kind: str) -> None:
    """Refuse to write where something else is."""
    if folder.exists() and not folder.is_dir():
        raise QKPrismError(f"{folder} exists and is not a folder. Choose another place.")
    if is_unused(folder):
        return
    if read_study(folder)["study"] != kind:
        raise QKPrismError(f"{folder} is a study of another kind. Choose another place.")


def read_study(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What a study's folder says it is."""
    try:
        body: dict[str, Any] = json.loads((Path(folder) / STUDY).read_text(encoding="utf-8"))
        return {"study": body["study"], "job": body["job"], "about": body.get("about", {})}
    except (OSError, ValueError, KeyError, TypeError):
        raise QKPrismError(f"{folder} is not the folder of a study: it has no readable {STUDY}.") from None
