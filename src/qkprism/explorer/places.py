"""Where the page may write: a new folder below the one that the explorer was started in, and nowhere else."""

from __future__ import annotations

from pathlib import Path

from qkprism.errors import QKPrismError
from qkprism.files import is_unused, path_of

LONGEST = 200  # characters


def place_below(root: Path, name: str) -> Path:
    """The folder that a name means, if it is new and below the root; links do not lead out of it.

    >>> place_below(Path("."), "../elsewhere")
    Traceback (most recent call last):
    qkprism.errors.QKPrismError: '../elsewhere' leads out of the folder that the explorer was started in. ...
    """
    text = name.strip()
    if not text or len(text) > LONGEST:
        raise QKPrismError(f"Name a folder to save in, such as runs/mine, of up to {LONGEST} letters.")
    path, home = path_of(text), root.resolve()
    place = (home / path).resolve()
    if path.is_absolute() or ".." in path.parts or not place.is_relative_to(home) or place == home:
        raise QKPrismError(
            f"{text!r} leads out of the folder that the explorer was started in. Name one below it: runs/mine."
        )
    if not is_unused(place):
        raise QKPrismError(f"{text} is there already. Name another folder.")
    return place
