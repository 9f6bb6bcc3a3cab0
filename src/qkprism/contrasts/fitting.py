"""Which words a tokenizer keeps whole.

A prompt is comparable with its counterfactual only if a word takes one token whatever it is: else every later position
moves. Words that do not fit are left out, and it is an error only if too few remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tokenizer(Protocol):
    """What is needed of a tokenizer; those of transformers have it."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        """The ids of a text."""
        ...


def fitting(
    words: Sequence[str], tokenizer: Tokenizer | None, *, before: str, after: Sequence[str] = (), space: str = " "
) -> tuple[str, ...]:
    """The words that are one known token each, no two the same, after `before` and a space, whatever comes `after`.

    The space is part of every word's token, or of none: else texts would differ in length. Without a tokenizer nothing
    is known and all words are taken.
    """
    words = tuple(dict.fromkeys(words))
    if tokenizer is None:
        return words
    starts = [_ids(tokenizer, before), _ids(tokenizer, f"{before}{space}")]
    fits: list[dict[int, str]] = [{}, {}]
    for word in words:
        ids, *longer = (_ids(tokenizer, f"{before}{space}{word}{end}") for end in ("", *after))
        if any(more[: len(ids)] != ids for more in longer) or ids[-1] == getattr(tokenizer, "unk_token_id", None):
            continue
        for start, fit in zip(starts, fits, strict=True):
            if ids[:-1] == start:
                fit.setdefault(ids[-1], word)
    return tuple(max(fits, key=len).values())


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))
