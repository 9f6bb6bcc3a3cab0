"""From marked texts to token positions, in the very encoding that the model sees.

A span takes every token that it overlaps by the tokenizer's offset mapping; the key or the query is the last of them
unless asked otherwise. Two traps. The space before a word may be part of its token, or a token of its own: spaces at
the ends of a span do not count unless it is nothing but space, so "Box" and "Box " mark the same token. And where a
tokenizer puts a space in front of the text, its token may claim the first character: it overlaps nothing, and neither
does a special token. Token spans count the tokens of the whole encoding, special tokens and chat template included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice, pairwise

from transformers import PreTrainedTokenizerBase

from qkprism.contrasts import Example, Labels, Span, Text, located
from qkprism.contrasts.markup import SIDES
from qkprism.encoding import Encoding, chat_of
from qkprism.errors import QKPrismError
from qkprism.models.chat import ChatTemplate, Prompt
from qkprism.options import TokenChoice

_SPACES = ("▁", "Ġ")  # how vocabularies write a lone space
_CHUNK = 128  # examples a tokenizer call: offsets are large in Python


@dataclass(frozen=True, slots=True)
class EncodedKey:
    """One key token: its position in the ids, its side, and the labels of its span."""

    position: int
    positive: bool
    labels: Labels
    target: bool


@dataclass(frozen=True, slots=True)
class EncodedText:
    """The ids that the model is given, with the positions of the query and of the keys.

    `split` are the marked words that are several tokens. `on_first`: a mark is on the first token of a causal model's
    text, and that is a word of the text and not one that the tokenizer put in front.
    """

    ids: tuple[int, ...]
    query: int
    keys: tuple[EncodedKey, ...]
    split: tuple[str, ...] = field(default=(), compare=False)
    on_first: bool = field(default=False, compare=False)

    @property
    def positive(self) -> tuple[int, ...]:
        """Positions of the positive keys."""
        return tuple(key.position for key in self.keys if key.positive)

    @property
    def negative(self) -> tuple[int, ...]:
        """Positions of the negative keys."""
        return tuple(key.position for key in self.keys if not key.positive)


@dataclass(frozen=True, slots=True)
class EncodedExample:
    """An example in tokens; `index` is its place in what was encoded, `source` where it was written.

    `more` are further texts that are run together with it.
    """

    index: int
    text: EncodedText
    twin: EncodedText | None
    weight: float
    group: str | None
    source: str
    more: tuple[EncodedText, ...] = ()

    @property
    def texts(self) -> tuple[EncodedText, ...]:
        """The text, the twin if there is one, and further ones."""
        return (self.text, *(() if self.twin is None else (self.twin,)), *self.more)

    @property
    def length(self) -> int:
        """Tokens of the longer of its texts."""
        return max(len(text.ids) for text in self.texts)


@dataclass(frozen=True)
class Encoder:
    """A tokenizer, and how its tokens become positions."""

    tokenizer: PreTrainedTokenizerBase
    template: ChatTemplate | None
    token: TokenChoice
    max_length: int | None
    causal: bool

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        encoding: Encoding = Encoding(),  # noqa: B008  (it is frozen)
        *,
        causal: bool = True,
    ) -> Encoder:
        """Of an encoding, if this tokenizer can have it."""
        chat = chat_of(encoding.chat)
        template = None if chat is None else ChatTemplate.of(tokenizer, chat)
        return cls(tokenizer, template, encoding.token, encoding.max_length, causal)

    def encode(self, numbered: Iterable[tuple[int, Example]]) -> Iterator[EncodedExample]:
        """Find the marked tokens of examples, each given with its number."""
        waiting = iter(numbered)
        # Examples may be written when they are asked for: no more than a chunk of them is kept.
        while chunk := list(islice(waiting, _CHUNK)):
            yield from _encode_chunk(self, chunk)


@dataclass(frozen=True)
class Encodings:
    """Examples in tokens, encoded each time they are asked for and not kept.

    Only those that were asked for last are: contrasts that share them ask for them one after another.
    """

    examples: Sequence[Example]
    encoder: Encoder
    _last: dict[tuple[int, ...], list[EncodedExample]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[EncodedExample]:
        return self.encoder.encode(enumerate(self.examples))

    def some(self, numbers: Iterable[int]) -> list[EncodedExample]:
        """Those of some numbers, in that order."""
        wanted = tuple(numbers)
        if wanted not in self._last:
            self._last.clear()
            self._last[wanted] = list(self.encoder.encode((number, self.examples[number]) for number in wanted))
        return self._last[wanted]


def encode(
    tokenizer: PreTrainedTokenizerBase,
    examples: Iterable[Example],
    encoding: Encoding = Encoding(),  # noqa: B008  (it is frozen)
    *,
    causal: bool = True,
) -> list[EncodedExample]:
    """Find the marked tokens of every example.

    >>> encode(tokenizer, contrast, Encoding(chat={"answer_prefix": "It is in Box"}))  # doctest: +SKIP
    """
    encoder = Encoder.of(tokenizer, encoding, causal=causal)
    return list(encoder.encode(enumerate(examples)))


def _encode_chunk(encoder: Encoder, numbered: Sequence[tuple[int, Example]]) -> Iterator[EncodedExample]:
    if strange := [type(example).__name__ for _, example in numbered if not isinstance(example, Example)]:
        raise QKPrismError(f"Give examples, not {strange[0]}: Example.parse(text) reads a text with marks.")
    sources = [example.source or f"example {number}" for number, example in numbered]
    marked = [item for source, (_, example) in zip(sources, numbered, strict=True) for item in _marked(source, example)]
    texts = _encode_texts(encoder, marked)
    for source, (number, example) in zip(sources, numbered, strict=True):
        twin = example.twin is not None
        yield EncodedExample(number, next(texts), next(texts) if twin else None, example.weight, example.group, source)


def encode_text(
    tokenizer: PreTrainedTokenizerBase,
    text: Text,
    encoding: Encoding = Encoding(),  # noqa: B008  (it is frozen)
    *,
    causal: bool = True,
) -> EncodedText:
    """Find the marked tokens of one text, which may have no keys."""
    encoder = Encoder.of(tokenizer, encoding, causal=causal)
    return next(_encode_texts(encoder, [_SourcedText("the text", text)]))


def check_reach(encoded: Iterable[EncodedExample], window: int | None, *, causal: bool = True) -> None:
    """Refuse a key that a sliding window hides from its query; None is no window.

    As in transformers, a causal window counts the query itself and an encoder's window does not.
    """
    if window is None:
        return
    reach = window - 1 if causal else window
    for example in encoded:
        for text in example.texts:
            for key in text.keys:
                if abs(text.query - key.position) > reach:
                    raise QKPrismError(
                        f"{example.source}: the key at token {key.position} is outside the sliding window of {window} "
                        f"tokens of the query at token {text.query}; shorten the text or leave this layer out."
                    )


@dataclass(frozen=True, slots=True)
class _SourcedText:
    """A text to encode, and where it was written."""

    source: str
    text: Text


@dataclass(frozen=True, slots=True)
class _Tokens:
    """One encoding: ids, which of them the tokenizer added around the text, and offsets where it has them."""

    ids: list[int]
    added: list[int]
    offsets: list[tuple[int, int]] | None


def _marked(source: str, example: Example) -> list[_SourcedText]:
    return [_SourcedText(f"{source} (twin)" if which else source, text) for which, text in enumerate(example.texts)]


def _encode_texts(encoder: Encoder, marked: Sequence[_SourcedText]) -> Iterator[EncodedText]:
    tokenizer, template = encoder.tokenizer, encoder.template
    _require_offsets(tokenizer, marked)
    prompts = [_prompt(item, template) for item in marked]
    encodings = _tokenize(tokenizer, [prompt.string for prompt in prompts], special=template is None)
    for item, prompt, tokens in zip(marked, prompts, encodings, strict=True):
        with located(item.source):
            yield _encode_text(encoder, item.text, prompt, tokens)


def _tokenize(tokenizer: PreTrainedTokenizerBase, strings: list[str], *, special: bool) -> Iterator[_Tokens]:
    batch = tokenizer(
        strings,
        add_special_tokens=special,
        padding=False,
        truncation=False,
        return_offsets_mapping=tokenizer.is_fast,
        return_special_tokens_mask=True,
        return_attention_mask=False,
        verbose=False,
    )
    every = batch.get("offset_mapping") or [None] * len(strings)
    for string, ids, added, offsets in zip(
        strings, batch["input_ids"], batch["special_tokens_mask"], every, strict=True
    ):
        yield _Tokens(ids, added, None if offsets is None else _own_offsets(tokenizer, string, ids, offsets))


def _own_offsets(
    tokenizer: PreTrainedTokenizerBase, string: str, ids: list[int], offsets: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Offsets that are (0, 0), before any span, for empty tokens and for a space that the tokenizer put in front."""
    found = [offset if offset[0] < offset[1] else (0, 0) for offset in offsets]
    for index, ((start, end), following) in enumerate(pairwise(found)):
        if start < end and following[0] == start and not string[start:end].isspace():
            lone = tokenizer.convert_ids_to_tokens(ids[index])
            if lone in _SPACES and lone != string[start:end]:
                found[index] = (0, 0)
    return found


def _encode_text(encoder: Encoder, text: Text, prompt: Prompt, tokens: _Tokens) -> EncodedText:
    if all(tokens.added):
        raise QKPrismError(f"the text {text.text!r} has no tokens")
    cut = _Cut.of(encoder, tokens)
    found = _query(encoder, text, prompt, tokens)
    marked, split = [found[0 if encoder.token == "first" else -1]], [text.query] if len(found) > 1 else []
    query = cut.position(marked[0], "the query")
    keys, target = [], text.target
    for sign, span in text.marks:
        if sign != "?":
            name = f"the {SIDES[sign]} {_name(text, span)}"
            found = _find(span, prompt, tokens, name)
            chosen = _choose(found, encoder.token)
            places = [cut.position(at, name) for at in chosen]
            keys += [EncodedKey(position, sign == "+", span.labels, span is target) for position in places]
            marked += chosen
            split += [span] if len(found) > 1 else []
    _check_keys(keys, query, causal=encoder.causal)
    # In the order of the text, so that contrasts of one text with other sides gather the same keys.
    in_order = tuple(sorted(keys, key=lambda key: key.position))
    on_first = encoder.causal and any(not tokens.added[at] and cut.position(at, "") == 0 for at in marked)
    ids = tuple(map(_shared, cut.ids(tokens.ids)))
    return EncodedText(ids, query, in_order, tuple(_word_of(text, span) for span in split if span), on_first)


@cache
def _shared(token: int) -> int:
    """One object for every token id: tokenizers make a new one each time, which many texts would keep."""
    return token


def _query(encoder: Encoder, text: Text, prompt: Prompt, tokens: _Tokens) -> list[int]:
    """The tokens of the marked query, or the last token of the text."""
    if text.query is not None:
        return _find(text.query, prompt, tokens, f"the query {_name(text, text.query)}")
    if not encoder.causal:
        raise QKPrismError("no query is marked, and an encoder has no default; mark it with [?...]")
    if encoder.template is not None:
        return [len(tokens.ids) - 1]
    return [max(at for at, added in enumerate(tokens.added) if not added)]


def _find(span: Span, prompt: Prompt, tokens: _Tokens, name: str) -> list[int]:
    if span.unit == "token":
        if span.end > len(tokens.ids):
            raise QKPrismError(f"{name} reaches beyond the {len(tokens.ids)} tokens of the text")
        return list(range(span.start, span.end))
    assert tokens.offsets is not None  # slow tokenizers were refused
    start, end = _word(prompt.string, *prompt.characters(span))
    found = [at for at, (first, last) in enumerate(tokens.offsets) if first < end and start < last]
    if not found:
        raise QKPrismError(f"{name} covers no token; mark characters that the tokenizer or the chat template keeps")
    return found


def _word(string: str, start: int, end: int) -> tuple[int, int]:
    """A span without the spaces at its ends, if it has anything else."""
    piece = string[start:end]
    if not piece.strip():
        return start, end
    return end - len(piece.lstrip()), start + len(piece.rstrip())


def _choose(found: list[int], token: TokenChoice) -> list[int]:
    return {"last": found[-1:], "first": found[:1], "every": found}[token]


def _check_keys(keys: Sequence[EncodedKey], query: int, *, causal: bool) -> None:
    sides: dict[int, bool] = {}
    for key in keys:
        if key.position in sides:
            both = "a positive and a negative key" if sides[key.position] != key.positive else "two keys of one side"
            raise QKPrismError(
                f"{both} fall on the same token {key.position}; mark keys that the tokenizer tells apart"
            )
        sides[key.position] = key.positive
        if causal and key.position > query:
            raise QKPrismError(
                f"the key at token {key.position} comes after the query at token {query}, which cannot see it"
            )


def _name(text: Text, span: Span) -> str:
    return f"{span} {_word_of(text, span)!r}" if span.unit == "char" else str(span)


def _word_of(text: Text, span: Span) -> str:
    return text.text[span.start : span.end] if span.unit == "char" else str(span)


@dataclass(frozen=True, slots=True)
class _Cut:
    """The tokens that truncation takes out: from `start` up to but without `end`."""

    start: int
    end: int
    max_length: int | None

    @classmethod
    def of(cls, encoder: Encoder, tokens: _Tokens) -> _Cut:
        """Cut the text as the tokenizer would, and leave the special tokens around it."""
        surplus = 0 if encoder.max_length is None else max(len(tokens.ids) - encoder.max_length, 0)
        places = [at for at, added in enumerate(tokens.added) if not added]
        if surplus > len(places):
            raise QKPrismError(f"max_length={encoder.max_length} has no room for the special tokens around the text")
        start = places[0] if encoder.tokenizer.truncation_side == "left" else places[-1] + 1 - surplus
        return cls(start, start + surplus, encoder.max_length)

    def ids(self, ids: list[int]) -> list[int]:
        """What is left."""
        return ids[: self.start] + ids[self.end :]

    def position(self, at: int, name: str) -> int:
        """Where a token stands in what is left."""
        if self.start <= at < self.end:
            raise QKPrismError(
                f"max_length={self.max_length} cuts off {name} (token {at}); allow more or shorten the text"
            )
        return at if at < self.start else at - (self.end - self.start)


def _require_offsets(tokenizer: PreTrainedTokenizerBase, marked: Iterable[_SourcedText]) -> None:
    if tokenizer.is_fast:
        return
    for item in marked:
        if any(span.unit == "char" for _, span in item.text.marks):
            raise QKPrismError(
                f"{item.source}: {type(tokenizer).__name__} is a slow tokenizer and gives no character offsets; "
                'use its fast version, or mark tokens by number: {"tokens": [3, 4]}.'
            )


def _prompt(item: _SourcedText, template: ChatTemplate | None) -> Prompt:
    if template is None:
        return Prompt(item.text.text, 0, (0, len(item.text.text)))
    with located(item.source):
        return template.prompt(item.text.text)
