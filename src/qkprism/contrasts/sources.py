"""What a user may name a contrast by: a file of examples, a template, or a name of the shelf."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from qkprism.contrasts.contrast import Contrast
from qkprism.contrasts.fitting import Tokenizer
from qkprism.contrasts.tables import TABLES
from qkprism.errors import QKPrismError
from qkprism.options import Center, Frame

if TYPE_CHECKING:
    from qkprism.contrasts.tasks import Task
    from qkprism.encoding import Chat

TaskPart = Literal["contrast", "search", "test"]
FILES = (".jsonl", ".json", *TABLES)


@dataclass(frozen=True)
class Resolved:
    """A contrast, how its texts are to be run, and what was left out when it was drawn.

    held_out   whether its words are those that a template keeps for the test
    twins      the names by which the template has it with twins, such as `my.toml:order`
    """

    contrast: Contrast
    frame: Frame = "post"
    center: Center | None = None
    chat: Chat | None = None
    notes: tuple[str, ...] = ()
    held_out: bool = False
    twins: tuple[str, ...] = ()


def is_template(name: str | os.PathLike[str]) -> bool:
    """Whether a name is that of a template, perhaps with one of its twins: `my.toml`, `induction:before`."""
    if Path(name).suffix.lower() in FILES:
        return False  # without the template engine, which takes longer to import than a mistake should to be told
    stem = _parts(str(name))[0]
    return stem.endswith(".toml") or (stem in _shelf_names() and not Path(stem).is_file())


def resolve(
    name: str | os.PathLike[str],
    part: TaskPart = "contrast",
    *,
    tokenizer: Tokenizer | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Resolved:
    """The contrast that a name stands for.

    >>> resolve("induction", limit=10).contrast
    Contrast('induction', 10 examples)

    Of a file it is the first `limit` examples (all). A template draws `limit` of the part that is wanted: its contrast,
    examples to find heads with, or held-out words; `name:variable` is the contrast whose twins change that variable.
    """
    if not is_template(name):
        _check_file(str(name))
        contrast = Contrast.read(name)
        return Resolved(contrast if limit is None else contrast[:limit])
    stem, variable = _parts(str(name))
    drawn = _task(stem, part, tokenizer, limit, seed)
    if variable and variable not in drawn.template.twins:
        can = f"it has {', '.join(drawn.template.twins)}" if drawn.template.twins else "it has none"
        raise QKPrismError(f"{stem} has no twins of {variable!r}; {can}.")
    contrast = drawn.contrasts[variable] if variable and part == "contrast" else getattr(drawn, part)
    held_out = part == "test" and bool({*drawn.held_out} - {*drawn.template.shared})
    twins = tuple(f"{stem}:{one}" for one in drawn.template.twins)
    return Resolved(contrast, drawn.frame, drawn.center, drawn.chat, drawn.notes, held_out, twins)


def _task(name: str, part: TaskPart, tokenizer: Tokenizer | None, limit: int | None, seed: int) -> Task:
    from qkprism.contrasts.tasks import task

    sizes: dict[str, Any] = {"n_train": 1, "n_search": 1, "n_test": 1}
    size = {"contrast": "n_train", "search": "n_search", "test": "n_test"}[part]
    sizes[size] = limit or {"n_train": 300, "n_search": 256, "n_test": 128}[size]
    return task(name, seed=seed, tokenizer=tokenizer, **sizes)


def _parts(name: str) -> tuple[str, str]:
    """The name of a template, and of a variable after a colon."""
    stem, colon, variable = name.rpartition(":")
    return (stem, variable) if colon and (stem.endswith(".toml") or stem in _shelf_names()) else (name, "")


def _shelf_names() -> Sequence[str]:
    from qkprism.contrasts.templates import shelf_names

    return shelf_names()


def _check_file(name: str) -> None:
    if Path(name).exists() or Path(name).suffix.lower() in FILES:
        return
    import difflib

    near = difflib.get_close_matches(name, _shelf_names(), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    raise QKPrismError(
        f"{name} is no file and not on the shelf{hint} Give examples (.jsonl, .csv, .parquet), a template (.toml), or "
        "a name that `qkprism shelf` lists."
    )
