"""What templates and their checks ask of a tokenizer: where its tokens stand, and one that is there at once.

The tokenizer of the packaged model is read without transformers, which takes seconds to import. It gives the same ids
and offsets. That is known of this model alone: others may have classes that change what their `tokenizer.json` says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qkprism.models.places import PACKAGES, converted_folder, packaged_gguf


@dataclass(frozen=True)
class QuickTokenizer:
    """As much of a tokenizer as templates and their checks ask for."""

    tokens: Any
    is_fast: bool = True

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of a text."""
        ids: list[int] = self.tokens.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def __call__(self, text: str, *, add_special_tokens: bool, **_: Any) -> dict[str, Any]:
        """The ids of a text and where they stand in it."""
        found = self.tokens.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": found.ids, "offset_mapping": found.offsets}


def quick_tokenizer(model: str) -> QuickTokenizer | None:
    """That of a model that comes as a package and was converted before; None of every other."""
    if model not in PACKAGES:
        return None
    file = converted_folder(packaged_gguf(model), PACKAGES[model][2]) / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer

    return QuickTokenizer(Tokenizer.from_file(str(file)))


def word_offsets(tokenizer: Any) -> Callable[[str], list[tuple[int, int]]]:
    """What gives the tokens of a text as (start, end), each without the spaces before it."""

    def offsets(text: str) -> list[tuple[int, int]]:
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return [without_space(text, start, end) for start, end in encoded["offset_mapping"]]

    return offsets


def without_space(text: str, start: int, end: int) -> tuple[int, int]:
    """A token without the spaces before it, if it has anything else: a space before a word is not the word."""
    piece = text[start:end]
    return (end - len(piece.lstrip()), end) if piece.strip() else (start, end)
