"""One process writes a folder at a time; of several that share a job, the first.

The lock is a file beside the folder, `.NAME.lock`, held by the system for the process that took it: when the process
ends in whatever way the lock is free, and the file that a killed one leaves is no lock.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from qkprism.errors import QKPrismError
from qkprism.runs.files import remove_left_overs, writing
from qkprism.ranks import is_first

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None


def lock_file(folder: Path) -> Path:
    """Where the lock of a folder is."""
    place = folder.resolve()
    return place.with_name(f".{place.name}.lock")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process, or say who does."""
    if fcntl is None or not is_first():
        yield
        return
    place = lock_file(folder)
    with writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        file = _taken(place, folder)
        for held in (folder, *folder.glob("*/")):  # nobody else writes there now
            if held.is_dir():
                remove_left_overs(held)
    try:
        yield
    finally:
        place.unlink(missing_ok=True)  # while it is held: whoever opened it meanwhile sees that it is gone
        file.close()


def _taken(place: Path, folder: Path) -> BinaryIO:
    while True:
        file = open(place, "a+b")  # noqa: SIM115  (it stays open as long as the lock is held)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().decode(errors="replace").strip() or "another process"
            file.close()
            raise QKPrismError(
                f"{folder} is being written by {holder}. Wait until that ends, or choose another folder."
            ) from None
        if _is_still(place, file):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
            file.flush()
            return file
        file.close()  # its former holder has just removed it


def _is_still(place: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(place.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
