"""Run folders: `manifest.json` beside safetensors files; written atomically, checked when read, never pickle.

The manifest says what kind of run it is and holds the SHA-256 of itself and of every tensor file, so that a foreign,
damaged or half-copied folder is refused. It is written last and replaced in one step, so a process that is killed
leaves the former run as it was.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from qkprism.errors import QKPrismError
from qkprism.runs.files import (
    file_digest,
    is_left_over,
    part_of,
    path_of,
    remove_left_overs,
    remove_part,
    write_text,
    writing,
)
from qkprism.ranks import is_first

Tensors = Mapping[str, Any]  # of torch, which is slow to import: a place is checked before it is needed
MANIFEST = "manifest.json"
FORMAT = 1
_TENSORS = re.compile(r"\w+-([0-9a-f]{12})\.safetensors")  # with the beginning of its digest


def write_run(
    folder: str | os.PathLike[str], kind: str, manifest: Mapping[str, Any], files: Mapping[str, Tensors]
) -> Path:
    """Write a run folder: the manifest and one safetensors file for each entry of `files`, or its former one again.

    Tensor files carry their digest in their name, so new ones never overwrite those of a former run; the manifest is
    replaced in one step, and what the former one named is removed after that. Other files in the folder stay.
    """
    target = check_place(folder, kind)
    if not is_first():
        return target
    with writing(target):
        target.mkdir(parents=True, exist_ok=True)
        former = _tensor_files(target)
        listed = {
            name: tensors if _is_entry(tensors) else _write_tensors(target, name, tensors)
            for name, tensors in files.items()
        }
        body = json_value({"qkprism": FORMAT, "kind": kind, "files": listed, **manifest})
        write_text(
            target / MANIFEST, json.dumps(body | {"digest": _body_digest(body)}, indent=1, allow_nan=False) + "\n"
        )
        for name in former - {entry["file"] for entry in listed.values()}:
            (target / name).unlink(missing_ok=True)
        remove_left_overs(target)
    return target


def remove_run(folder: Path) -> None:
    """Remove a run, if it is there, and its folder if nothing else is in it."""
    if not is_first() or not folder.is_dir():
        return
    with writing(folder):
        tensors = _tensor_files(folder)
        for name in (MANIFEST, *tensors):
            (folder / name).unlink(missing_ok=True)
        remove_left_overs(folder)
        if not any(folder.iterdir()):
            folder.rmdir()


def _tensor_files(folder: Path) -> set[str]:
    """The tensor files in a folder that we wrote: the manifest names them, or their name tells their digest."""
    entries = read_manifest(folder)["files"].values() if is_run(folder) else ()
    named = {Path(entry["file"]).name for entry in entries}
    files = [path for path in folder.iterdir() if path.is_file() and not path.is_symlink()]
    return {path.name for path in files if path.name in named or _tells_its_digest(path)}


def _tells_its_digest(path: Path) -> bool:
    """Whether a file is one of ours that no manifest names: a process was killed before it wrote the manifest."""
    match = _TENSORS.fullmatch(path.name)
    return match is not None and path.is_file() and file_digest(path).startswith(match[1])


def _write_tensors(folder: Path, name: str, tensors: Tensors) -> dict[str, str]:
    from safetensors.torch import save_file

    part = part_of(folder)  # a folder: safetensors writes under a name of its own first
    try:
        part.mkdir()
        whole = part / "tensors"
        whole.touch()
        permissions = whole.stat().st_mode  # safetensors makes files that only their owner can read
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, whole)
        whole.chmod(permissions)
        with whole.open("rb") as file:
            os.fsync(file.fileno())
        digest = file_digest(whole)
        final = f"{name}-{digest[:12]}.safetensors"
        whole.replace(folder / final)
    except SafetensorError as error:  # a full disk, for one
        told = f"{folder} cannot be written: {error}. Free some space, and give the same command."
        raise QKPrismError(told) from error
    finally:
        remove_part(part)
    return {"file": final, "sha256": digest}


def read_run(folder: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The manifest and the tensors of a run folder, after every digest has been checked."""
    from safetensors.torch import load_file

    place = path_of(folder)
    manifest = read_manifest(place)
    if manifest["kind"] != kind:
        raise QKPrismError(f"{place} is a run of kind {manifest['kind']!r}, not {kind!r}.")
    files = {}
    for name, entry in manifest["files"].items():
        path = place / Path(entry["file"]).name
        if not path.is_file():
            raise QKPrismError(f"{place} is damaged: the file {path.name!r} is missing. Make the run again.")
        if file_digest(path) != entry["sha256"]:
            raise QKPrismError(f"{place} is damaged: {path.name!r} is not what was written. Make the run again.")
        try:
            files[name] = load_file(path)
        except SafetensorError as error:
            raise QKPrismError(f"{place} is damaged: {path.name!r} cannot be read ({error}).") from error
    return manifest, files


def is_run(folder: Path) -> bool:
    """Whether a run was written here to its end; one that was killed before leaves no manifest."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a run folder, as it was written."""
    path = path_of(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise QKPrismError(f"{folder} is not a qkprism run: it has no {MANIFEST}.") from None
    except (OSError, ValueError) as error:
        raise QKPrismError(f"{path} is damaged: it cannot be read as JSON ({error}). Make the run again.") from None
    if not isinstance(manifest, dict) or not {"qkprism", "kind", "files", "digest"} <= manifest.keys():
        raise QKPrismError(f"{path} is not the manifest of a qkprism run.")
    if not isinstance(manifest["files"], dict) or not all(map(_is_entry, manifest["files"].values())):
        raise QKPrismError(f"{path} is not the manifest of a qkprism run: it does not say which files there are.")
    if manifest["qkprism"] != FORMAT:
        raise of_another_version(folder, f"its format is {manifest['qkprism']!r}, and {FORMAT} is read")
    if manifest.pop("digest") != _body_digest(manifest):
        raise QKPrismError(f"{path} is damaged: it is not what was written. Make the run again.")
    return manifest


def of_another_version(folder: object, why: str) -> QKPrismError:
    """What to do about a run that is whole, and yet cannot be read."""
    return QKPrismError(f"{folder} was written by another version of qkprism ({why}). Make it again with this one.")


def _is_entry(entry: object) -> bool:
    """Whether a manifest tells a file's name and digest."""
    return isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in ("file", "sha256"))


def _body_digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def check_place(folder: str | os.PathLike[str], kind: str) -> Path:
    """Refuse to write where something else is: only an absent or empty folder, or a run of the same kind."""
    target = path_of(folder)
    with writing(target):
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            raise QKPrismError(f"{target} exists and is not a run folder. Choose another place.")
        if target.is_dir() and not is_run(target):
            if any(not (is_left_over(path) or _tells_its_digest(path)) for path in target.iterdir()):
                raise QKPrismError(f"{target} holds other files and is not a qkprism run. Choose another folder.")
            return target
    if target.is_dir() and (found := read_manifest(target)["kind"]) != kind:
        raise QKPrismError(f"{target} is a run of kind {found!r}, not {kind!r}. Choose another folder.")
    return target


def json_value(value: Any) -> Any:
    """Values as JSON has them: no NaN (null instead), string keys, lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    return value if isinstance(value, (str, int, bool)) or value is None else str(value)
