"""What commands take: checked without torch, then the same for every step of a command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkprism.encoding import Encoding
from qkprism.errors import QKPrismError
from qkprism.options import Frame, check_one_place, checked_dtype
from qkprism.progress import say

if TYPE_CHECKING:  # a command imports what it needs, so that help is quick
    from qkprism.contrasts.sources import Resolved, TaskPart
    from qkprism.heads import Head
    from qkprism.models.model import Model


def like(encoding: Encoding, chat: Any, rope: Frame | None = None) -> Encoding:
    """An encoding with the chat template and frame that a template of prompts wants, where the user says nothing."""
    return replace(encoding, chat=chat if encoding.chat is None else encoding.chat, rope=rope or encoding.rope)


def fitting_contrasts(
    encoding: Encoding, names: Sequence[str], part: TaskPart, model: str, limit: int | None
) -> list[Resolved]:
    """The contrasts of these names, whose marks are known to fit the model's tokens before the model is loaded."""
    from qkprism.contrasts.sources import resolve
    from qkprism.models.encoding import Encoder
    from qkprism.models.loading import load_tokenizer

    tokenizer, causal = load_tokenizer(model)
    found = [resolve(name, part, tokenizer=tokenizer, limit=limit) for name in names]
    for note in (note for one in found for note in one.notes):
        say(f"Note: {note}")
    if tokenizer is not None and causal:
        for one in found:
            for _ in Encoder.of(tokenizer, like(encoding, one.chat)).encode(enumerate(one.contrast)):
                pass  # each is checked, and none is kept
    return found


@dataclass(frozen=True)
class Loading:
    """Which model, and how it is loaded; None where a preset or the device decides."""

    model: str | None
    dtype: str | None
    device: str | None
    device_map: str | None

    def __post_init__(self) -> None:
        check_one_place(self.device, self.device_map)
        if self.dtype is not None:
            checked_dtype(self.dtype)
        if self.model is not None:
            from qkprism.models.places import check_name

            check_name(self.model)

    @property
    def name(self) -> str:
        """The model's name."""
        assert self.model is not None  # a preset has been asked
        return self.model

    def load(self) -> Model:
        import qkprism as qk

        options: dict[str, Any] = {"dtype": self.dtype, "device": self.device, "device_map": self.device_map}
        loaded = qk.load(self.name, **options, quiet=True)
        if self.dtype is None or (self.device is None and self.device_map is None):
            say(f"{loaded.in_words()} (change with --device, --dtype)")
        return loaded


def source_named(name: str) -> str:
    """A contrast as a file, also if it comes by standard input (`-`): it is read more than once."""
    if name != "-":
        return name
    import atexit
    import shutil
    import sys
    import tempfile

    if sys.stdin is None or not (body := sys.stdin.read()).strip():
        raise QKPrismError("Nothing came by standard input. Pipe JSON lines into the command, or give a file.")
    folder = Path(tempfile.mkdtemp(prefix="qkprism-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "stdin.jsonl"
    file.write_text(body, encoding="utf-8")
    return str(file)


def check_sources(names: Sequence[str], part: TaskPart) -> None:
    """Say what is wrong with files and templates by themselves, before a library is imported."""
    from qkprism.contrasts.sources import resolve

    found = [resolve(name, part, limit=1).contrast.name for name in names]
    if len(set(found)) < len(found):
        raise QKPrismError("Two of the files hold contrasts of the same name.")


def heads_named(text: str | None) -> list[Head] | None:
    """Heads between commas."""
    from qkprism.heads import Head

    return None if text is None else [Head.parse(name) for name in text.split(",")]


def place_for(folder: Path | None, kind: str) -> Path | None:
    """Where a run is saved, if it can be."""
    from qkprism.runs.folder import check_place

    return None if folder is None else check_place(folder.resolve(), kind)


def checkpoint_of(save: Path | None) -> Path | None:
    """Where a run that is not finished is kept: beside its folder."""
    return save.with_name(f".{save.name}.checkpoint") if save else None


def check_there(places: Iterable[Path]) -> None:
    """Refuse what does not exist."""
    if missing := [place for place in places if not place.exists()]:
        raise QKPrismError(f"{missing[0]} does not exist.")


def check_folders(places: Iterable[Path]) -> None:
    """Refuse what is no run folder."""
    for place in places:
        if not place.is_dir():
            raise QKPrismError(f"{place} is not a run folder. `qkprism runs` lists those there are.")


def check_run(folder: Path, kind: str) -> None:
    """Say what is wrong with a run folder's manifest before a library is imported."""
    from qkprism.runs.folder import read_manifest

    if (found := read_manifest(folder)["kind"]) != kind:
        raise QKPrismError(f"{folder} is a run of kind {found!r}, not {kind!r}.")


def check_text(text: str) -> None:
    """Say what is wrong with the marks of a text."""
    from qkprism.contrasts.markup import Text

    Text.parse(text)
