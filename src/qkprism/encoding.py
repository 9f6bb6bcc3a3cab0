"""`Encoding`: how texts become the tokens and positions in which features are found.

Encoding(chat=True)                                       # texts are a user's messages
Encoding(chat={"answer_prefix": "It is in Box"})          # and the answer has begun
Encoding(token="first", rope="relative")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from qkprism.errors import QKPrismError
from qkprism.options import FRAMES, TOKENS, Frame, TokenChoice, by_name, choice, whole_number


class Chat(TypedDict, total=False):
    """How to wrap a text as the user's message: `{"system": "Be brief.", "answer_prefix": "It is in Box"}`."""

    system: str
    answer_prefix: str


@dataclass(frozen=True)
class Encoding:
    """How texts become tokens; features keep theirs, so that later texts are encoded as those they were found on.

    token        which token stands for a marked word of several: the `last`, the `first`, or `every` one as a key
    chat         True puts each text into the tokenizer's chat template as the user's message; a mapping adds a
                 `system` message and an `answer_prefix`; None (default) takes texts as they are
    max_length   cut longer texts to so many tokens, as the tokenizer would; None refuses what the model cannot take
    rope         the frame of positions: `post` takes queries and keys as the model rotates them; `relative` counts
                 positions from the query, for contrasts about distance
    """

    token: TokenChoice = "last"
    chat: bool | Chat | None = None
    max_length: int | None = None
    rope: Frame = "post"

    def __post_init__(self) -> None:
        choice(self.token, TOKENS, "a choice of a span's tokens")
        choice(self.rope, FRAMES, "a frame of positions (rope)")
        if self.max_length is not None:
            object.__setattr__(self, "max_length", whole_number(self.max_length, "max_length", 1))
        object.__setattr__(self, "chat", chat_of(self.chat))


def chat_of(chat: Any) -> Chat | None:
    """The options of a chat template, if texts go into one; `True` is without options."""
    if chat is None or chat is False:
        return None
    options: Mapping[str, Any] = {} if chat is True else by_name(chat, "chat")
    if unknown := set(options) - set(Chat.__annotations__):
        raise QKPrismError(f"chat has no option {sorted(unknown)[0]!r}; it takes system and answer_prefix.")
    return Chat(**options)  # type: ignore[typeddict-item]


def checked_encoding(encoding: Any) -> Encoding:
    """An encoding, and nothing that looks like one."""
    if not isinstance(encoding, Encoding):
        raise QKPrismError(f"encoding={encoding!r} is not an Encoding. Write it as qk.Encoding(chat=True).")
    return encoding
