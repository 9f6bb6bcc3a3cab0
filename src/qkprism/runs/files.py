"""Files that are there whole or not at all.

A file is written beside its place under a name such as `.qkprism-0a1b2c3d4e5f.part` and then put there in one step. A
process that is killed may leave such a part behind: its name says that it is ours and can be removed. Of several
processes that share a job the first one writes, and the others write nothing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from qkprism.errors import QKPrismError
from qkprism.ranks import is_first

_PART = re.compile(r"\.qkprism-[0-9a-f]{12}\.part")


def part_of(folder: Path) -> Path:
    """A new name in a folder for what is not complete yet."""
    return folder / f".qkprism-{secrets.token_hex(6)}.part"


def is_left_over(path: Path) -> bool:
    """Whether this is what a killed process of ours left."""
    return _PART.fullmatch(path.name) is not None and not path.is_symlink()


def is_unused(folder: Path) -> bool:
    """Whether a folder is absent, or holds nothing but what a killed process of ours left."""
    with writing(folder):
        if not folder.is_dir():
            return not (folder.exists() or folder.is_symlink())
        return all(map(is_left_over, folder.iterdir()))


def remove_left_overs(folder: Path) -> None:
    """Remove what killed processes of ours left in a folder."""
    for path in folder.iterdir() if is_first() else ():
        if is_left_over(path):
            remove_part(path)


def remove_part(path: Path) -> None:
    """Remove a part, a file or a folder, if it is still there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def path_of(name: str | os.PathLike[str]) -> Path:
    """A path of what the user gave as one."""
    if not isinstance(name, str | os.PathLike) or not isinstance(os.fspath(name), str) or "\0" in os.fspath(name):
        raise QKPrismError(f"{name!r} is not the name of a file or folder. Give a string or a Path.")
    return Path(name)


def check_figure_name(name: str | os.PathLike[str]) -> Path:
    """The path of a figure, if a figure can be saved so."""
    path = path_of(name)
    if path.suffix.lower() not in (".html", ".png", ".svg"):
        raise QKPrismError(f"A figure cannot be saved as {path.name!r}. End the name in .html, .png or .svg.")
    return path


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Let what the system says of a place be one sentence."""
    try:
        yield
    except OSError as error:
        what = "Free some space, and give the same command" if error.errno == errno.ENOSPC else "Choose another place"
        raise QKPrismError(f"{place} cannot be written: {error.strerror or error}. {what}.") from error


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write into, which takes its place when the block ends without an error."""
    target = path_of(path)
    if not is_first():
        yield BytesIO()
        return
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        part = part_of(target.parent)
        try:
            with part.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which takes its place, where nothing is yet, when the block ends without an error."""
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = part_of(folder.parent)
        try:
            part.mkdir()
            yield part
            if folder.is_dir():
                remove_left_overs(folder)
                folder.rmdir()
            part.rename(folder)
        finally:
            remove_part(part)


def write_bytes(path: str | os.PathLike[str], body: bytes) -> Path:
    """Write a file so that it is there whole or not at all."""
    with whole_file(path) as file:
        file.write(body)
    return Path(path)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file so that it is there whole or not at all."""
    return write_bytes(path, text.encode())


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
