"""A batch gathers each text's own tokens, whatever the padding; buckets lose nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkprism.contrasts import Example
from qkprism.errors import QKPrismError
from qkprism.models.batches import Batch, bucket, collate, pad_id
from qkprism.models.encoding import EncodedExample, EncodedKey, EncodedText, encode
from tokenizers_for_tests import byte_level, word_piece

slowly = settings(max_examples=50, deadline=None)
BOXES = "The hat is in Box [-O], the jam is in Box [+Z]. The jam is in [?Box]"


@st.composite
def drawn_texts(draw: st.DrawFn) -> tuple[list[int], int, list[tuple[int, bool]]]:
    """Ids, query, and keys of both sides."""
    length = draw(st.integers(2, 12))
    spots = draw(st.lists(st.integers(0, length - 1), min_size=2, max_size=length, unique=True))
    keys = [(spot, at == 0 or (at > 1 and draw(st.booleans()))) for at, spot in enumerate(spots)]
    return [draw(st.integers(1, 9)) for _ in range(length)], draw(st.integers(0, length - 1)), keys


drawn_examples = st.lists(st.tuples(drawn_texts(), st.one_of(st.none(), drawn_texts())), min_size=1, max_size=6)


def made(drawn: list[Any]) -> list[EncodedExample]:
    """Examples of what was drawn."""

    def text(ids: list[int], query: int, keys: list[tuple[int, bool]]) -> EncodedText:
        return EncodedText(tuple(ids), query, tuple(EncodedKey(spot, sign, {}, False) for spot, sign in keys))

    pairs = [(text(*first), second and text(*second)) for first, second in drawn]
    return [EncodedExample(at, *pair, float(at + 1), None, f"f:{at}") for at, pair in enumerate(pairs)]


def positions_of(batch: Batch) -> torch.Tensor:
    """The place of each column in its own text."""
    return batch.attention_mask.cumsum(1) - 1


@slowly
@given(drawn_examples, st.sampled_from(["left", "right"]), st.integers(0, 9))
def test_collate__gathers_each_texts_own_tokens(drawn: list[Any], side: Any, pad: int) -> None:
    examples = made(drawn)
    batch = collate(examples, pad, side)
    texts = [text for example in examples for text in example.texts]
    assert [
        tuple(ids[mask.bool()].tolist()) for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    ] == [text.ids for text in texts]
    assert (batch.input_ids[batch.attention_mask == 0] == pad).all()
    row = torch.arange(len(texts))
    assert batch.input_ids[row, batch.query].tolist() == [text.ids[text.query] for text in texts]
    assert positions_of(batch)[row, batch.query].tolist() == [text.query for text in texts]
    keys = [(at, key.position, key.positive) for at, text in enumerate(texts) for key in text.keys]
    positions = positions_of(batch)[batch.key_row, batch.key_column]
    assert list(zip(batch.key_row.tolist(), positions.tolist(), batch.key_positive.tolist(), strict=True)) == keys
    assert batch.weight.tolist() == [examples[place].weight for place, _ in batch.rows]
    assert [examples[place].texts[which] for place, which in batch.rows] == texts


@slowly
@given(drawn_examples, st.sampled_from(["left", "right"]))
def test_collate__means_are_the_means_of_each_side(drawn: list[Any], side: Any) -> None:
    examples = made(drawn)
    batch = collate(examples, padding_side=side)
    values = (positions_of(batch) ** 2)[batch.key_row, batch.key_column].float()
    for row, text in enumerate(text for example in examples for text in example.texts):
        for means, places in ((batch.positive_mean, text.positive), (batch.negative_mean, text.negative)):
            assert (means @ values)[row].item() == pytest.approx(sum(place**2 for place in places) / len(places))


def test_collate__a_twin_without_negative_keys_has_zero_there() -> None:
    batch = collate(encode(byte_level(), [Example.parse("Box [+Z] Box", twin="Box [+O] Box")]))
    assert batch.negative_mean.tolist() == [[0, 0], [0, 0]]
    assert batch.positive_mean.tolist() == [[1, 0], [0, 1]]


def test_collate__moves_to_a_device() -> None:
    batch = collate(encode(byte_level(), [Example.parse(BOXES)]))
    assert batch.to("meta").input_ids.device.type == "meta"
    assert batch.to("meta").rows == batch.rows


def test_pad_id__falls_back_to_any_id() -> None:
    assert pad_id(word_piece()) == word_piece().pad_token_id
    assert pad_id(byte_level()) == 0


@slowly
@given(drawn_examples, st.integers(1, 8), st.integers(1, 60))
def test_bucket__is_a_partition_within_bounds(drawn: list[Any], size: int, budget: int) -> None:
    examples = made(drawn)
    batches = bucket(examples, batch_size=size, token_budget=budget)
    assert sorted((example for batch in batches for example in batch), key=lambda example: example.index) == examples
    lengths = [example.length for batch in batches for example in batch]
    assert lengths == sorted(lengths, reverse=True)
    for batch in batches:
        rows = sum(len(example.texts) for example in batch)
        assert len(batch) == 1 or (rows <= size and rows * batch[0].length <= budget)
    assert batches == bucket(examples[::-1], batch_size=size, token_budget=budget)


def test_bucket__without_bounds_is_one_batch_and_of_nothing_none() -> None:
    examples = encode(byte_level(), [Example.parse(BOXES)] * 3)
    assert bucket(examples) == [examples]
    assert bucket([]) == []
    with pytest.raises(QKPrismError, match="batch_size=0"):
        bucket(examples, batch_size=0)
