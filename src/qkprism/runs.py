"""Run folders: `manifest.json` beside safetensors files; written atomically, checked when read, never pickle.

The manifest says what kind of run it is and holds the SHA-256 of every other file, so that a foreign, damaged or
half-copied folder is refused. A folder appears under its name only when it is complete: it is written next to its
place and renamed, so a process that is killed leaves the former run as it was.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from qkprism.errors import QKPrismError

MANIFEST = "manifest.json"
FORMAT = 1


def write_run(
    folder: str | os.PathLike[str], kind: str, manifest: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]
) -> Path:
    """Write a run folder: the manifest and one safetensors file for each entry of `files`."""
    target = Path(folder)
    _refuse_foreign(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        digests = {}
        for name, tensors in files.items():
            save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, fresh / name)
            _flush(fresh / name)
            digests[name] = file_digest(fresh / name)
        body = {"qkprism": FORMAT, "kind": kind, "files": digests, **manifest}
        (fresh / MANIFEST).write_text(json.dumps(json_value(body), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        _flush(fresh / MANIFEST)
        _put_in_place(fresh, target)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return target


def read_run(folder: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """The manifest and the tensors of a run folder, after every digest has been checked."""
    place = Path(folder)
    manifest = read_manifest(place)
    if manifest["kind"] != kind:
        raise QKPrismError(f"{place} is a run of kind {manifest['kind']!r}, not {kind!r}.")
    files = {}
    for name, digest in manifest["files"].items():
        path = place / name
        if Path(name).name != name or not path.is_file():
            raise QKPrismError(f"{place} is damaged: the file {name!r} is missing. Make the run again.")
        if file_digest(path) != digest:
            raise QKPrismError(f"{place} is damaged: {name!r} is not the file that was written. Make the run again.")
        try:
            files[name] = load_file(path)
        except SafetensorError as error:
            raise QKPrismError(f"{place} is damaged: {name!r} cannot be read ({error}).") from error
    return manifest, files


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a run folder."""
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise QKPrismError(f"{folder} is not a qkprism run: it has no {MANIFEST}.") from None
    except (OSError, ValueError) as error:
        raise QKPrismError(f"{path} is damaged: it cannot be read as JSON ({error}). Make the run again.") from None
    if not isinstance(manifest, dict) or not {"qkprism", "kind", "files"} <= manifest.keys():
        raise QKPrismError(f"{path} is not the manifest of a qkprism run.")
    if manifest["qkprism"] != FORMAT:
        raise QKPrismError(f"{folder} has run format {manifest['qkprism']!r}; this version of qkprism reads {FORMAT}.")
    return manifest


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file so that it is there whole or not at all."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    os.replace(file.name, target)
    return target


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_value(value: Any) -> Any:
    """Values as JSON has them: no NaN (null instead), string keys, lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    return value if isinstance(value, (str, int, bool)) or value is None else str(value)


def _refuse_foreign(target: Path) -> None:
    """Never replace what is not ours: only an absent or empty folder or an older run."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise QKPrismError(f"{target} exists and is not a run folder. Choose another place.")
    if target.is_dir() and any(target.iterdir()) and not (target / MANIFEST).is_file():
        raise QKPrismError(f"{target} holds other files and is not a qkprism run. Choose another folder.")


def _put_in_place(fresh: Path, target: Path) -> None:
    if not target.exists():
        fresh.rename(target)
        return
    former = Path(tempfile.mkdtemp(prefix=f".{target.name}-former-", dir=target.parent))
    target.rename(former / "run")
    fresh.rename(target)
    shutil.rmtree(former, ignore_errors=True)


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
