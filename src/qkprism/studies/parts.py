"""A study's folder: every part of it is a run of its own, and parts that are there are not computed again.

Beside each part stands a stamp that says which job it is of (model, prompts, options, versions); it is written after
the part, so a part that was cut off is computed again, from the sums that it had kept if it keeps some.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from qkprism.errors import QKPrismError
from qkprism.files import is_unused, path_of, remove_left_overs, write_text
from qkprism.memory import give_back
from qkprism.ranks import is_first, of_first, wait
from qkprism.runs import json_value, remove_run

STUDY = "study.json"


class Saved(Protocol):
    """What can be a part."""

    def save(self, folder: str | os.PathLike[str]) -> Path: ...


SavedPart = TypeVar("SavedPart", bound=Saved)
Known = TypeVar("Known")


@dataclass(frozen=True)
class Parts:
    """The folder of a study of one kind, for one job."""

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
        digest = _digest({**self.job, **(more or {})})

        kept = None
        if stamp.is_file() and stamp.read_text(encoding="utf-8").strip() == digest:
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
    def keeping(self, name: str) -> Iterator[Path]:
        """Where a part keeps its sums until the block ends, so that it goes on if it is killed; not those of others."""
        place = self.folder / f"{name}.{_digest(self.job)[:12]}.checkpoint"
        for former in self.folder.glob(f"{name}.*.checkpoint"):
            if former != place:
                remove_run(former)
        yield place
        if place.is_dir():
            remove_run(place)

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


def _digest(job: Mapping[str, Any]) -> str:
    """What tells one job from another."""
    return hashlib.sha256(json.dumps(json_value(job), sort_keys=True).encode()).hexdigest()


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
    stamp = folder / f"{name}.job"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8").strip() != _digest({**job, **(more or {})}):
        raise QKPrismError(
            f"The study in {folder} is not finished: it has no {name} of this job. Start it there again."
        )
    try:
        return load(folder / name)
    except QKPrismError as error:
        raise QKPrismError(
            f"{error} Start the study in {folder} again: what can be read is not computed again."
        ) from error


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
