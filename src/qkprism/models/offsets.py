"""Where the tokens of a text stand in it, as a check of contrasts wants them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
