"""Under `generate`: key columns are the right tokens whatever the cache, and edits steer the text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qkprism.models.calls import AttentionCall
from qkprism.models.model import Model
from tiny import one_thread, text_batch, tiny  # noqa: F401


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gemma4"])
def test_generate__key_columns_are_the_right_tokens(name: str, cache: str, attention: str) -> None:
    hf = tiny(name, attention=attention)
    model, calls = Model.wrap(hf), []
    ids = text_batch(hf)["input_ids"][:1]
    settings: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": cache}
    settings |= {"attention_mask": torch.ones_like(ids), "eos_token_id": None}

    def keep(call: AttentionCall) -> None:
        # Caches are changed in place, so what is kept has to be copied.
        calls.append((call.layer, call.query_positions, call.key_positions, call.key.clone(), call.attention()))

    with model.tap(keep):
        tapped = hf.generate(ids, **settings)
    assert torch.equal(tapped, hf.generate(ids, **settings))
    whole: dict[int, AttentionCall] = {}
    model.run(tapped, visit=lambda call: whole.update({call.layer: call}))
    assert len(calls) == len(model.layers) * 6
    for layer, queries, columns, key, attention_seen in calls:
        filled = columns <= queries[-1]
        torch.testing.assert_close(key[:, :, filled], whole[layer].key[:, :, columns[filled]], atol=1e-5, rtol=1e-4)
        expected = whole[layer].attention(rows=slice(int(queries[0]), int(queries[-1]) + 1))
        torch.testing.assert_close(attention_seen[..., filled], expected[..., columns[filled]], atol=1e-5, rtol=1e-4)
        assert (attention_seen[..., ~filled] == 0).all()
    assert [int(queries[0]) for _, queries, *_ in calls[:: len(model.layers)]] == [0, 9, 10, 11, 12, 13]


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_generate__cross_attention_counts_decoder_and_encoder_tokens(name: str) -> None:
    hf = tiny(name)
    model, calls = Model.wrap(hf), []
    inputs = text_batch(hf)
    with model.tap(lambda call: calls.append((call.layer, call.query_positions.tolist(), call.key_positions.tolist()))):
        hf.generate(**inputs, max_new_tokens=3, do_sample=False, eos_token_id=None)
    cross = [(queries, columns) for layer, queries, columns in calls if layer == 3]
    own = [(queries, columns) for layer, queries, columns in calls if layer == 2]
    assert cross == [([step], list(range(9))) for step in range(3)]
    assert own == [([step], list(range(step + 1))) for step in range(3)]


def test_generate__edits_steer_the_text() -> None:
    hf = tiny("llama")
    model, ids = Model.wrap(hf), text_batch(hf)["input_ids"][:1]
    settings = {"max_new_tokens": 5, "do_sample": False, "attention_mask": torch.ones_like(ids), "eos_token_id": None}
    plain = hf.generate(ids, **settings)

    def blur(call: AttentionCall) -> None:
        call.query = call.query * 0

    with model.tap(blur):
        steered = hf.generate(ids, **settings)
    assert not torch.equal(steered, plain)
    assert torch.equal(hf.generate(ids, **settings), plain)
