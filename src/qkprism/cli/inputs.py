"""What commands take: checked without torch, then the same for every step of a command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from qkprism.contrasts.sources import Resolved, TaskPart, resolve
from qkprism.encoding import Encoding
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.options import TOKENS, check_one_place, checked_dtype, choice

if TYPE_CHECKING:
    from qkprism.models.model import Model
    from qkprism.results.features import Features


@dataclass(frozen=True)
class TextOptions:
    """How texts become tokens, as the options of a command say it: for checking, searching and decomposing."""

    token: str = "last"
    chat: Any = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        choice(self.token, TOKENS, "a choice of a span's tokens")

    @classmethod
    def like(cls, features: Features) -> TextOptions:
        """As the texts of some features were encoded."""
        return cls(features.encoding.token, features.encoding.chat, features.encoding.max_length)

    def encoding(self, chat: Any = None, rope: Any = "post") -> Encoding:
        """With the chat template and the frame that a template of prompts wants, where the user says nothing."""
        token: Any = self.token
        return Encoding(token, chat if self.chat is None else self.chat, self.max_length, rope)

    def fit(self, names: Sequence[str], part: TaskPart, model: str, limit: int | None) -> list[Resolved]:
        """The contrasts of these names, whose marks are known to fit the model's tokens before the model is loaded."""
        from qkprism.models.encoding import encode
        from qkprism.models.loading import load_tokenizer

        tokenizer, causal = load_tokenizer(model)
        found = [resolve(name, part, tokenizer=tokenizer, limit=limit) for name in names]
        for note in (note for one in found for note in one.notes):
            typer.echo(f"Note: {note}", err=True)
        if tokenizer is not None and causal:
            for one in found:
                encode(tokenizer, one.contrast, self.encoding(one.chat))
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

    def load(self) -> Model:
        import qkprism as qk

        assert self.model is not None  # a preset has been asked
        return qk.load(self.model, dtype=self.dtype, device=self.device, device_map=self.device_map)


def check_sources(names: Sequence[str], part: TaskPart) -> None:
    """Say what is wrong with files and templates by themselves, before a library is imported."""
    found = [resolve(name, part, limit=1).contrast.name for name in names]
    if len(set(found)) < len(found):
        raise QKPrismError("Two of the files hold contrasts of the same name.")


def heads_named(text: str | None) -> list[Head] | None:
    """Heads between commas."""
    return None if text is None else [Head.parse(name) for name in text.split(",")]


def place_for(folder: Path | None, kind: str) -> Path | None:
    """Where a run is saved, if it can be."""
    from qkprism.runs import check_place

    return None if folder is None else check_place(folder.resolve(), kind)
