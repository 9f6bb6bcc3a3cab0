"""Frames: counting positions from the query keeps every logit and takes the place in the text out of q and k."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from qkprism.errors import QKPrismError
from qkprism.models.calls import AttentionCall
from qkprism.models.model import Model
from qkprism.options import Frame
from tiny import VOCABULARY, one_thread, text_batch, tiny  # noqa: F401

ROTARY = [
    *("llama", "llama3", "llama_yarn", "llama_linear", "qwen2", "qwen3", "mistral", "phi", "stablelm", "gpt_neox"),
    *("gemma2", "gemma3", "olmo2", "cohere", "gpt_oss", "deepseek_v3", "modernbert", "esm", "qwen3_next"),
    *("llama_dynamic", "phi3_long", "qwen3_5", "olmo3", "granite", "lfm2"),
]
UNROTATED = ["gpt2", "opt", "bert", "roberta", "distilbert", "nemotron_h"]
QUERIES = torch.tensor([7, 4])


def captured(model: Model, rope: Frame, inputs: dict[str, Tensor], queries: Tensor = QUERIES) -> list[AttentionCall]:
    calls: list[AttentionCall] = []
    model.run(**inputs, visit=calls.append, rope=rope, query_positions=queries, stop=False)
    return calls


@pytest.mark.parametrize("name", ROTARY)
def test_relative__keeps_logits_and_moves_queries(name: str) -> None:
    hf = tiny(name)
    model, inputs = Model.wrap(hf), text_batch(hf)
    assert model.rotates
    for post, relative in zip(captured(model, "post", inputs), captured(model, "relative", inputs), strict=True):
        expected, found = post.logits(rows=QUERIES), relative.logits(rows=QUERIES)
        assert torch.equal(expected.isneginf(), found.isneginf())
        seen = expected.isfinite()
        scale = expected[seen].abs().max().clamp_min(1.0)
        assert (found - expected)[seen].abs().max() <= 1e-5 * scale
        assert (relative.query[0, :, 7] - post.query[0, :, 7]).abs().max() > 1e-2


@pytest.mark.parametrize("name", ROTARY)
def test_relative__keeps_the_output_of_the_model(name: str) -> None:
    hf = tiny(name)
    model, inputs = Model.wrap(hf), text_batch(hf)
    post = model.run(**inputs, logits=True)
    relative = model.run(**inputs, rope="relative", query_positions=QUERIES, logits=True)
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(relative[real], post[real], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", UNROTATED)
def test_relative__leaves_models_without_rotation_alone(name: str) -> None:
    hf = tiny(name)
    model, inputs = Model.wrap(hf), text_batch(hf)
    assert not model.rotates
    for post, relative in zip(captured(model, "post", inputs), captured(model, "relative", inputs), strict=True):
        assert torch.equal(relative.query, post.query)
        assert torch.equal(relative.key, post.key)


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi", "gpt_neox"])
def test_relative__queries_and_keys_do_not_know_how_long_the_prefix_is(name: str) -> None:
    hf = tiny(name, num_hidden_layers=1)
    model = Model.wrap(hf)
    text = torch.randint(5, VOCABULARY, (1, 6), generator=torch.Generator().manual_seed(0))
    prefix = torch.randint(5, VOCABULARY, (1, 11), generator=torch.Generator().manual_seed(1))
    found: dict[tuple[str, bool], tuple[Tensor, Tensor]] = {}
    frames: tuple[Frame, Frame] = ("post", "relative")
    for rope in frames:
        for long in (False, True):
            ids = torch.cat([prefix, text], 1) if long else text
            (call,) = captured(model, rope, {"input_ids": ids}, torch.tensor([ids.shape[1] - 1]))
            found[rope, long] = call.query[0, :, -1], call.key[0, :, -6:]
    for short, long in zip(found["relative", False], found["relative", True], strict=True):
        torch.testing.assert_close(short, long, atol=1e-5, rtol=1e-5)
    for short, long in zip(found["post", False], found["post", True], strict=True):
        assert (short - long).abs().max() > 1e-1


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "gemma2"])
def test_relative__padding_side_changes_nothing(name: str) -> None:
    hf = tiny(name)
    model = Model.wrap(hf)
    right = captured(model, "relative", text_batch(hf, "right"), torch.tensor([7, 4]))
    left = captured(model, "relative", text_batch(hf, "left"), torch.tensor([7, 7]))
    for one, other in zip(right, left, strict=True):
        torch.testing.assert_close(other.query[1, :, 3:9], one.query[1, :, :6], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(other.key[1, :, 3:9], one.key[1, :, :6], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_relative__holds_in_half_precision(dtype: torch.dtype) -> None:
    hf = tiny("llama", dtype=dtype)
    model, inputs = Model.wrap(hf), text_batch(hf)
    post, relative = captured(model, "post", inputs)[0], captured(model, "relative", inputs)[0]
    difference = (relative.logits(rows=QUERIES) - post.logits(rows=QUERIES)).nan_to_num().abs().max()
    assert difference < 0.05 * post.logits(rows=QUERIES)[0].abs().nan_to_num(posinf=0).max()


def test_relative__explicit_positions_are_counted_from_the_query() -> None:
    hf = tiny("llama")
    model, inputs = Model.wrap(hf), text_batch(hf)
    shifted = torch.arange(9).expand(2, 9) + 20
    plain = captured(model, "relative", inputs)
    calls: list[AttentionCall] = []
    model.run(**inputs, visit=calls.append, position_ids=shifted, rope="relative", query_positions=QUERIES, stop=False)
    for one, other in zip(plain, calls, strict=True):
        assert torch.equal(one.query, other.query)


@pytest.mark.parametrize(("name", "trained"), [("llama_dynamic", 64), ("phi3_long", 16)])
def test_relative__refuses_rotations_that_depend_on_length(name: str, trained: int) -> None:
    hf = tiny(name)
    model = Model.wrap(hf)
    ids = torch.randint(5, VOCABULARY, (1, trained + 1), generator=torch.Generator().manual_seed(0))
    captured(model, "relative", {"input_ids": ids[:, 1:]}, torch.tensor([trained - 1]))
    with pytest.raises(QKPrismError, match=rf'beyond {trained} tokens.*has {trained + 1}\. Use rope="post"'):
        captured(model, "relative", {"input_ids": ids}, torch.tensor([trained]))
    assert len(captured(model, "post", {"input_ids": ids}, torch.tensor([trained]))) == 2


def test_relative__refuses_positions_that_cannot_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = tiny("llama")
    model = Model.wrap(hf)
    monkeypatch.setattr("qkprism.models.model.accepted", lambda _: {"input_ids": None})
    with pytest.raises(QKPrismError, match=r'positions that cannot be set\. Use rope="post"'):
        captured(model, "relative", text_batch(hf))


def test_relative__refuses_logits_that_depend_on_more_than_distance() -> None:
    # It scales queries by the logarithm of their absolute position on top of the rotation.
    hf = tiny("ministral3")
    model = Model.wrap(hf)
    assert len(captured(model, "post", text_batch(hf))) == 2
    with pytest.raises(QKPrismError, match=r'depend on more than distances\. Use rope="post"'):
        captured(model, "relative", text_batch(hf))


def test_run__says_what_a_frame_needs() -> None:
    hf = tiny("llama")
    model = Model.wrap(hf)
    with pytest.raises(QKPrismError, match="query_positions"):
        model.run(**text_batch(hf), rope="relative")
    with pytest.raises(QKPrismError, match=r"'pre' is not a frame"):
        model._positions({}, None, "pre", None)  # what `run` calls first; under test its own types are checked before
