"""On every architecture: attention rebuilt from the capture is the model's own, and reading changes nothing."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.models.calls import AttentionCall
from qkprism.models.model import Model
from tiny import batch, one_thread, tiny  # noqa: F401

CAUSAL = [
    *("llama", "llama3", "llama_yarn", "llama_linear", "qwen2", "qwen3", "qwen3_next", "qwen3_5", "qwen3_5_vision"),
    *("mistral", "mixtral", "gpt2", "gpt_neox", "opt", "phi", "phi3", "gemma2", "gemma3", "gemma4", "olmo2", "olmo3"),
    *("smollm3", "granite", "lfm2", "nemotron_h", "stablelm", "cohere", "gpt_oss", "deepseek_v3", "llava"),
]
ENCODERS = ["bert", "roberta", "modernbert", "distilbert", "albert", "esm"]
OTHERS = ["t5", "bart", "vit", "dinov2", "clip"]
BYPASSING = ["bloom", "gptj", "gpt_neo", "falcon", "mpt"]
COMPRESSING = ["deepseek_v4"]
EAGER_ONLY = {"gemma2", "gpt_oss"}
HYBRIDS = {"qwen3_next": [1, 3], "qwen3_5": [1, 3], "qwen3_5_vision": [1, 3], "lfm2": [1, 3], "nemotron_h": [2, 5]}
CASES = [
    (name, attention)
    for name in CAUSAL + ENCODERS + OTHERS
    for attention in (("eager",) if name in EAGER_ONLY else ("sdpa", "eager"))
]


@functools.cache
def wrapped(name: str, attention: str) -> Model:
    return Model.wrap(tiny(name, attention=attention))


def own_attention(hf: PreTrainedModel, inputs: dict[str, Tensor]) -> list[Tensor]:
    """What the model itself reports with eager attention, in the order of its calls."""
    before = hf.config._attn_implementation
    hf.set_attn_implementation("eager")
    with torch.no_grad():
        output = hf.base_model(**inputs, output_attentions=True)
    hf.set_attn_implementation(before)
    if hf.config.model_type == "clip":
        return [*output.vision_model_output.attentions, *output.text_model_output.attentions]
    if hf.config.is_encoder_decoder:
        pairs = zip(output.decoder_attentions, output.cross_attentions, strict=True)
        return [*output.encoder_attentions, *(attention for pair in pairs for attention in pair)]
    return list(output.attentions)


def real_rows(calls_shape: torch.Size, inputs: dict[str, Tensor]) -> Tensor:
    """Rows of text, not of padding: what attends from padding is arbitrary."""
    mask = inputs.get("attention_mask")
    if mask is None or mask.shape[1] != calls_shape[2]:
        return torch.ones(calls_shape[0], 1, calls_shape[2], 1)
    return mask[:, None, :, None]


def rounding_of(logits: Tensor) -> float:
    """What float32 leaves open in attention: a weight moves as its logit is rounded, and those of T5 are not scaled."""
    return 4 * torch.finfo(torch.float32).eps * float(logits[logits.isfinite()].abs().max())


def run(model: Model, inputs: dict[str, Tensor], visit: object) -> None:
    rest = {name: value for name, value in inputs.items() if name not in ("input_ids", "attention_mask")}
    model.run(inputs.get("input_ids"), inputs.get("attention_mask"), visit, inputs=rest)


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_capture__attention_equals_the_models_own(name: str, attention: str) -> None:
    model = wrapped(name, attention)
    inputs, seen = batch(model.hf), []
    run(model, inputs, lambda call: seen.append((call.attention(), call.logits())))
    expected = own_attention(model.hf, inputs)
    assert len(seen) == len(expected) == len(model.layers)
    for (rebuilt, logits), own in zip(seen, expected, strict=True):
        rows = real_rows(own.shape, inputs)
        torch.testing.assert_close(rebuilt * rows, own * rows, atol=max(1e-5, rounding_of(logits)), rtol=0)
        assert own[0, :, -1].max() > 2 / own.shape[-1], "attention that is nearly uniform proves nothing"


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_tap__leaves_outputs_as_they_were_to_the_bit(name: str, attention: str) -> None:
    model = wrapped(name, attention)
    hf, inputs = model.hf, batch(model.hf)
    with torch.no_grad():
        plain = hf(**inputs)
        with model.tap(lambda _: None) as tap:
            tapped = hf(**inputs)
    for before, after in zip(tensors(plain), tensors(tapped), strict=True):
        assert torch.equal(before, after)
    assert tap.calls == dict.fromkeys(model.layers, 1)


def tensors(output: object) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from tensors(value)


@pytest.mark.parametrize("name", BYPASSING)
def test_wrap__refuses_what_bypasses_the_interface(name: str) -> None:
    with pytest.raises(QKPrismError, match=rf"\({name}\).*attention interface"):
        Model.wrap(tiny(name))


@pytest.mark.parametrize("name", COMPRESSING)
def test_wrap__refuses_keys_that_stand_for_several_tokens(name: str) -> None:
    hf = tiny(name, attention="eager")
    with pytest.raises(QKPrismError, match=rf"^{type(hf).__name__} has 10 keys for 8 tokens in model\.layers\.1\.self"):
        Model.wrap(hf)


@pytest.mark.parametrize("name", HYBRIDS)
def test_wrap__hybrid_models_keep_their_layer_numbers(name: str) -> None:
    assert list(wrapped(name, "sdpa").layers) == HYBRIDS[name]


def test_wrap__shared_weights_are_layers_of_their_own() -> None:
    hf = tiny("albert")
    model, seen = Model.wrap(hf), []
    run(model, batch(hf), lambda call: seen.append((call.layer, call.attention())))
    assert [layer for layer, _ in seen] == [0, 1]
    only = []
    with model.tap(lambda call: only.append(call.attention()), layers=[1]), torch.no_grad():
        hf(**batch(hf))
    assert len(only) == 1
    assert torch.equal(only[0], seen[1][1])


@pytest.mark.family("t5")
def test_wrap__encoder_decoders_are_numbered_by_calls() -> None:
    model = Model.wrap(tiny("t5"))
    assert list(model.layers) == [0, 1, 2, 3, 4, 5]
    assert [layer.causal for layer in model.layers.values()] == [False, False, True, False, True, False]


def test_wrap__takes_down_windows_caps_and_groups() -> None:
    mistral, gemma, local = (Model.wrap(tiny(name)) for name in ("mistral", "gemma2", "modernbert"))
    assert [layer.window for layer in mistral.layers.values()] == [4, 4]
    assert [layer.window for layer in gemma.layers.values()] == [4, None]
    assert [layer.softcap for layer in gemma.layers.values()] == [2.0, 2.0]
    assert mistral.heads_per_layer == {0: 4, 1: 4}
    assert [mistral.kv_head(Head(0, head)) for head in range(4)] == [0, 0, 1, 1]
    assert mistral.is_causal
    assert not local.is_causal


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3", "olmo3", "gpt_oss", "modernbert"])
def test_layer__window_is_where_the_logits_end(name: str) -> None:
    hf = tiny(name)
    model, inputs = Model.wrap(hf), batch(hf)

    def check(call: AttentionCall) -> None:
        distance = (call.query_positions[:, None] - call.key_positions).abs()
        window = model.layers[call.layer].window or 99
        far = call.logits()[0, 0][distance >= window]
        near = call.logits()[0, 0][(distance == window - 1).tril()]
        assert far.isneginf().all()
        assert near.isfinite().all()

    run(model, inputs, check)


@pytest.mark.parametrize(("name", "positions"), [("llama", 64), ("gpt2", 64), ("roberta", 62), ("vit", None)])
def test_model__knows_its_longest_text(name: str, positions: int | None) -> None:
    assert Model.wrap(tiny(name)).max_positions == positions


def test_wrap__names_damaged_weights() -> None:
    hf = tiny("llama")
    with torch.no_grad():
        hf.model.layers[1].self_attn.q_proj.weight.fill_(torch.nan)
    with pytest.raises(QKPrismError, match=r"NaN or infinity in model\.layers\.1\.self_attn .*float32"):
        Model.wrap(hf)


def test_wrap__refuses_attention_that_is_not_softmax() -> None:
    hf = tiny("llama")

    def twice(module: object, *args: object, **kwargs: object) -> tuple[Tensor, None]:
        output, _ = plain(module, *args, **kwargs)
        return output * 2, None

    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward as plain

    AttentionInterface.register("doubled", twice)
    AttentionMaskInterface.register("doubled", AttentionMaskInterface()["sdpa"])
    hf.config._attn_implementation = "doubled"
    with pytest.raises(QKPrismError, match="LlamaForCausalLM does more"):
        Model.wrap(hf)


def test_wrap__asks_for_a_probe_it_cannot_make() -> None:
    from transformers import WhisperConfig, WhisperModel

    small = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "max_source_positions": 10}
    hf = WhisperModel(WhisperConfig(vocab_size=50, pad_token_id=0, bos_token_id=1, eos_token_id=2, **small, **heads))
    with pytest.raises(QKPrismError, match=r"No probe batch runs on WhisperModel.*`probe`"):
        Model.wrap(hf)
    probe = {"input_features": torch.randn(2, 80, 20), "decoder_input_ids": torch.tensor([[3, 4], [5, 6]])}
    assert len(Model.wrap(hf, probe=probe).layers) == 3
