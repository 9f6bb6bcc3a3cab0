"""The runs below a folder: what they are, of which model, when, how large, finished or how far. No torch is needed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from qkprism.errors import QKPrismError
from qkprism.runs.files import file_digest, is_left_over, path_of
from qkprism.runs.folder import MANIFEST, read_manifest, remove_run
from qkprism.runs.store import STUDY

_DEPTH = 6
KEPT, TEXTS, SCORES = "kept.json", "contrast.jsonl", f"heads/{MANIFEST}"  # that stand beside a run, for its page
_OURS = ("report.html", "found.json")


@dataclass(frozen=True)
class RunEntry:
    """A run or a study as a list has it. `state` is `finished`, how far it is, or what is wrong."""

    folder: Path
    what: str
    model: str
    written: float
    size: int
    state: str

    def row(self, root: Path) -> dict[str, Any]:
        """As a row of a table."""
        when = datetime.fromtimestamp(self.written, UTC).strftime("%Y-%m-%d %H:%M")
        inside = self.folder.is_relative_to(root) and self.folder != root
        name = str(self.folder.relative_to(root)) if inside else str(self.folder)
        return {
            "run": name,
            "what": self.what,
            "model": self.model,
            "written": when,
            "size": told_size(self.size),
            "state": self.state,
        }


def runs_below(root: str | os.PathLike[str]) -> list[RunEntry]:
    """All runs and studies below a folder, the newest first; what is inside a study is part of it."""
    place = path_of(root)
    if not place.is_dir():
        raise QKPrismError(f"{place} is not a folder. Give one that runs were saved in, such as runs.")
    return sorted(_walk(place, _DEPTH), key=lambda entry: -entry.written)


def _walk(folder: Path, depth: int) -> Iterator[RunEntry]:
    if is_run(folder):
        yield entry_of(folder)
        return
    for inside in sorted(folder.iterdir()) if depth else ():
        if inside.is_dir() and not inside.is_symlink() and not is_left_over(inside) and os.access(inside, os.R_OK):
            yield from _walk(inside, depth - 1)


def is_run(folder: Path) -> bool:
    """Whether a folder says that it is a run, a study or a toy study of ours."""
    return any((folder / name).is_file() for name in (MANIFEST, STUDY)) or (folder / "heads" / MANIFEST).is_file()


def entry_of(folder: Path) -> RunEntry:
    """What a run folder says of itself."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    size, written = sum(f.stat().st_size for f in files), max((f.stat().st_mtime for f in files), default=0.0)
    try:
        what, model, state = _told(folder)
    except QKPrismError as error:
        what, model, state = "?", "-", f"damaged: {error}"
    return RunEntry(folder, what, model, written, size, state)


def _told(folder: Path) -> tuple[str, str, str]:
    if (folder / STUDY).is_file():
        return _told_study(folder)
    if not (folder / MANIFEST).is_file():
        return "toy study", "-", "finished" if (folder / "report.html").is_file() else "not finished"
    manifest = read_manifest(folder)
    kind = str(manifest["kind"])
    if kind.endswith("checkpoint"):
        return kind, "-", f"stopped after {_done(manifest.get('done'))}"
    return kind, _model(manifest), "finished"


def _told_study(folder: Path) -> tuple[str, str, str]:
    try:
        body = json.loads((folder / STUDY).read_text(encoding="utf-8"))
        kind, about = str(body["study"]), dict(body.get("about") or {})
        model = about.get("model") or body["job"].get("model") or "-"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise QKPrismError(f"{folder / STUDY} cannot be read.") from None
    parts = len(list(folder.glob("*.job")))
    ended = any((folder / name).is_file() for name in _OURS)
    return f"{kind} study", model if isinstance(model, str) else "-", "finished" if ended else f"{parts} parts"


def _done(done: Any) -> str:
    counts = [count for count in done.values() if isinstance(count, int)] if isinstance(done, Mapping) else []
    return f"{sum(counts):,} examples" if counts else "some steps"


def _model(manifest: Mapping[str, Any]) -> str:
    provenance = manifest.get("provenance")
    model = provenance.get("model") if isinstance(provenance, Mapping) else None
    return model if isinstance(model, str) else "-"


def told_size(size: float) -> str:
    """Bytes for a person: 12 kB, 3.4 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def damages(folder: str | os.PathLike[str]) -> tuple[int, list[str]]:
    """How many files of a run (also of the parts of a study) were checked, and what is wrong with some."""
    place = path_of(folder)
    if not place.is_dir() or not is_run(place):
        raise QKPrismError(f"{place} is not a qkprism run. `qkprism runs` lists those below a folder.")
    checked, wrong = 0, []
    for manifest in sorted({*place.rglob(MANIFEST)}):
        try:
            entries = read_manifest(manifest.parent)["files"].values()
        except QKPrismError as error:
            wrong.append(str(error))
            continue
        for entry in entries:
            path = manifest.parent / Path(entry["file"]).name
            checked += 1
            if not path.is_file():
                wrong.append(f"{path} is missing.")
            elif file_digest(path) != entry["sha256"]:
                wrong.append(f"{path} is not what was written.")
    return checked, wrong


def differences(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """What two runs or studies say otherwise: choices, provenance and the digests of results, a row each."""
    left, right = (_told_by(path_of(place)) for place in (first, second))
    names = [*left, *(name for name in right if name not in left)]
    return [
        {"what": name, "first": left.get(name, "-"), "second": right.get(name, "-")}
        for name in names
        if left.get(name, "-") != right.get(name, "-")
    ]


def _told_by(place: Path) -> dict[str, str]:
    """What a run says; of a study what each of its parts does."""
    if is_run(place) and not (place / MANIFEST).is_file():
        parts = [path.parent for path in sorted(place.rglob(MANIFEST))]
        return {f"{at.relative_to(place)}: {name}": one for at in parts for name, one in _told_by(at).items()}
    return _flat(read_manifest(place))


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """Nested values by their path; long lists by their length and digest, for a table."""
    if isinstance(value, Mapping):
        return {path: told for key, item in value.items() for path, told in _flat(item, f"{name}{key}.").items()}
    text = json.dumps(value, sort_keys=True)
    return {name.rstrip("."): text if len(text) <= 60 else f"{text[:48]}... ({len(text):,} characters)"}


def delete(folder: str | os.PathLike[str]) -> list[str]:
    """Remove a run and its report; other files stay, and their names are returned.

    A study is refused if anything in it is not ours.
    """
    place = path_of(folder)
    if place.is_symlink() or not (place / MANIFEST).is_file():
        raise QKPrismError(f"{place} is not a single run. Remove a study's folder by hand, or its runs one by one.")
    ours = written_beside(place)
    if SCORES in ours:
        remove_run((place / SCORES).parent)
    for name in ("report.html", *ours):
        (place / name).unlink(missing_ok=True)
    remove_run(place)
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


def written_beside(folder: Path) -> list[str]:
    """Files that were written beside a run for its page, and are still what was written."""
    try:
        told = json.loads((folder / KEPT).read_bytes())["beside"]
        kept = {name: str(told[name]) for name in (TEXTS, SCORES) if name in told}
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [KEPT, *(name for name in kept if (folder / name).is_file() and file_digest(folder / name) == kept[name])]


def choices_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """What a manifest says, by its path, without the digests of files."""
    return {name: told for name, told in _flat(manifest).items() if not name.startswith("files.")}
