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
import secrets
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
_OURS = re.compile(r"\w+-[0-9a-f]{12}\.safetensors|\.\w+(\.part)?")  # also what a killed process left


def write_run(
    folder: str | os.PathLike[str], kind: str, manifest: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]
) -> Path:
    """Write a run folder: the manifest and one safetensors file for each entry of `files`.

    Tensor files carry their digest in their name, so new ones never overwrite those of a former run; the manifest is
    replaced in one step, and what the former one named is removed after that. Other files in the folder stay.
    """
    target = check_place(folder, kind)
    try:
        target.mkdir(parents=True, exist_ok=True)
        listed = {name: _write_tensors(target, name, tensors) for name, tensors in files.items()}
        body = json_value({"qkprism": FORMAT, "kind": kind, "files": listed, **manifest})
        write_text(
            target / MANIFEST, json.dumps(body | {"digest": _body_digest(body)}, indent=1, allow_nan=False) + "\n"
        )
        for path in target.iterdir():
            if _OURS.fullmatch(path.name) and path.name not in {entry["file"] for entry in listed.values()}:
                path.unlink()
    except OSError as error:
        raise QKPrismError(f"{target} cannot be written: {error.strerror or error}. Choose another place.") from error
    return target


def _write_tensors(folder: Path, name: str, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".part", delete=False) as file:
        part = Path(file.name)
    try:
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        digest = file_digest(part)
        final = f"{name}-{digest[:12]}.safetensors"
        part.replace(folder / final)
    finally:
        part.unlink(missing_ok=True)
    return {"file": final, "sha256": digest}


def read_run(folder: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    """The manifest and the tensors of a run folder, after every digest has been checked."""
    place = Path(folder)
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


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a run folder, as it was written."""
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise QKPrismError(f"{folder} is not a qkprism run: it has no {MANIFEST}.") from None
    except (OSError, ValueError) as error:
        raise QKPrismError(f"{path} is damaged: it cannot be read as JSON ({error}). Make the run again.") from None
    if not isinstance(manifest, dict) or not {"qkprism", "kind", "files", "digest"} <= manifest.keys():
        raise QKPrismError(f"{path} is not the manifest of a qkprism run.")
    if manifest["qkprism"] != FORMAT:
        raise QKPrismError(f"{folder} has run format {manifest['qkprism']!r}; this version of qkprism reads {FORMAT}.")
    if manifest.pop("digest") != _body_digest(manifest):
        raise QKPrismError(f"{path} is damaged: it is not what was written. Make the run again.")
    return manifest


def _body_digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def check_place(folder: str | os.PathLike[str], kind: str) -> Path:
    """Refuse to write where something else is: only an absent or empty folder, or a run of the same kind."""
    target = Path(folder)
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise QKPrismError(f"{target} exists and is not a run folder. Choose another place.")
    others = [p for p in target.iterdir() if not _OURS.fullmatch(p.name)] if target.is_dir() else []
    if others:
        if not (target / MANIFEST).is_file():
            raise QKPrismError(f"{target} holds other files and is not a qkprism run. Choose another folder.")
        if (found := read_manifest(target)["kind"]) != kind:
            raise QKPrismError(f"{target} is a run of kind {found!r}, not {kind!r}. Choose another folder.")
    return target


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file so that it is there whole or not at all."""
    return write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], body: bytes) -> Path:
    """Write a file so that it is there whole or not at all."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("xb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise QKPrismError(f"{target} cannot be written: {error.strerror or error}. Choose another place.") from error
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
