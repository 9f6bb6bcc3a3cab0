"""Texts that share a row are computed as if each were alone, in every model where that is so; others are left apart."""

import functools

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import qkprism as qk
from qkprism.capture import batching
from qkprism.models.batches import Forest, tree_size
from qkprism.models.model import Model
from test_pipeline import contrast, relative_error
from tiny import _TEXT, VOCABULARY, one_thread, tiny  # noqa: F401
from tokenizers_for_tests import byte_level

SHARING = [
    *("llama", "llama3", "llama_yarn", "llama_linear", "qwen2", "qwen3", "ministral3", "mixtral", "gpt2", "gpt_neox"),
    *("opt", "phi", "phi3", "olmo2", "smollm3", "granite", "stablelm", "cohere", "deepseek_v3"),
]
APART = [
    *("llama_dynamic", "phi3_long", "qwen3_next", "qwen3_5", "qwen3_5_vision", "lfm2", "nemotron_h"),
    *("bert", "roberta", "t5", "vit"),
]
WINDOWS = ["mistral", "gemma2", "gemma3", "olmo3", "gpt_oss"]

texts_of_a_row = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=5)


def rows_of_texts(seed=0):
    """Two rows: three texts that branch at different places and one of them twice, and a short one alone."""
    ids = torch.randint(5, VOCABULARY - 1, (4, 12), generator=torch.Generator().manual_seed(seed)).tolist()
    first = ids[0]
    return [[first, first[:4] + ids[1][:7], first[:8] + ids[2][:2], first], [ids[3][:5]]]


def logits_apart(model, rows):
    found = {layer: [] for layer in model.layers}
    for text in (text for own in rows for text in own):
        model.run(torch.tensor([text]), visit=lambda call: found[call.layer].append(call.logits()[0]), stop=False)
    return found


def logits_together(model, rows):
    found = {}
    model.run_forest(Forest.of(rows), lambda call: found.update({call.layer: call.logits()}))
    return found


@given(texts_of_a_row)
def test_tree_size__counts_each_beginning_once(texts):
    assert tree_size(texts) == len({tuple(text[: end + 1]) for text in texts for end in range(len(text))})


@given(st.lists(texts_of_a_row, min_size=1, max_size=3))
def test_forest__has_every_text_in_its_order_and_shows_it_nothing_else(rows):
    forest = Forest.of(rows, pad_id=9)
    texts = [(row, text) for row, own in enumerate(rows) for text in own]
    for (row, text), at, column in zip(texts, forest.text_row, forest.text_column, strict=True):
        column = column[: len(text)]
        assert at == row
        assert forest.input_ids[row, column].tolist() == list(text)
        assert forest.position_ids[row, column].tolist() == list(range(len(text)))
        for number, place in enumerate(column):
            assert forest.sees[row, 0, place].nonzero()[:, 0].tolist() == sorted(column[: number + 1].tolist())
    assert forest.sees.any(-1).all()
    assert forest.input_ids.shape[1] == max(map(tree_size, rows))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", SHARING)
def test_run_forest__every_text_is_computed_as_if_it_were_alone(name, attention):
    model = Model.wrap(tiny(name, attention=attention))
    assert model.shares_beginnings
    rows = rows_of_texts()
    apart, together = logits_apart(model, rows), logits_together(model, rows)
    for layer, expected in apart.items():
        for text, logits in enumerate(expected):
            found = together[layer][text, :, : logits.shape[-1], : logits.shape[-1]]
            assert torch.equal(found.isfinite(), logits.isfinite())
            assert torch.allclose(found, logits, rtol=1e-3, atol=1e-4)
            assert together[layer][text, :, : logits.shape[-1], logits.shape[-1] :].isneginf().all()


@pytest.mark.parametrize("name", APART)
def test_shares_beginnings__not_where_a_row_is_more_than_its_tokens(name):
    assert not Model.wrap(tiny(name)).shares_beginnings


def sparse(**settings):
    """A model whose attention picks the keys that it sees, by a mask of its own."""
    settings = _TEXT | {"intermediate_size": 40, "num_key_value_heads": 4, "max_position_embeddings": 64} | settings
    settings |= {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12}
    settings |= {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
    settings |= {"first_k_dense_replace": 1, "moe_intermediate_size": 24, "index_n_heads": 2, "index_head_dim": 16}
    torch.manual_seed(0)
    return Model.wrap(transformers.DeepseekV32ForCausalLM(transformers.DeepseekV32Config(**settings)).eval())


@pytest.mark.family("deepseek_v32")
def test_unfold__shows_what_the_model_saw():
    model = sparse(index_topk=9)
    assert model.horizon == 9
    together = logits_together(model, [rows_of_texts()[0][:2]])
    for logits in together.values():
        assert logits[0, :, 11].isfinite().sum(-1).tolist() == [9] * 4
        assert logits[1, :, 10].isfinite().sum(-1).tolist() == [9] * 4


class Deaf(Exception):
    pass


@pytest.mark.parametrize("name", ["attention_mask", "position_ids"])
def test_shares_beginnings__not_in_a_model_that_cannot_take_masks_or_positions(name, monkeypatch):
    model = Model.wrap(tiny("llama"))
    forward = type(model.hf.base_model).forward

    @functools.wraps(forward)
    def raising(self, *args, **given):
        if name in given and (name == "position_ids" or given[name].ndim == 4):
            raise Deaf
        return forward(self, *args, **given)

    monkeypatch.setattr(type(model.hf.base_model), "forward", raising)
    assert not model.shares_beginnings


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1, 16, 40])
def test_shares_beginnings__not_in_a_model_that_ignores_the_mask(dtype, scale, monkeypatch):
    hf = tiny("gpt2", dtype=dtype)
    with torch.no_grad():
        for block in hf.transformer.h:
            block.attn.c_attn.bias.mul_(scale)
    model = Model.wrap(hf)
    assert model.shares_beginnings
    model = Model.wrap(hf)  # asked anew
    forward = type(hf.base_model).forward

    @functools.wraps(forward)
    def deaf(self, *args, attention_mask=None, **given):
        flat = attention_mask is not None and attention_mask.ndim == 4
        return forward(self, *args, attention_mask=None if flat else attention_mask, **given)

    monkeypatch.setattr(type(hf.base_model), "forward", deaf)
    assert not model.shares_beginnings


@pytest.mark.parametrize("name", WINDOWS)
def test_horizon__texts_beyond_a_window_are_left_apart(name, monkeypatch):
    tokenizer = byte_level()
    hf = tiny(name, vocab_size=len(tokenizer), sliding_window=16, max_position_embeddings=256)
    model = qk.load((hf, tokenizer))
    assert model.horizon == 16
    assert model.shares_beginnings  # the probe is shorter than the window
    few = qk.Contrast("few", contrast(30, twins=True)[:12])
    assert min(len(tokenizer(e.text.text)["input_ids"]) for e in few) > 16
    monkeypatch.setattr(type(model), "run_forest", lambda *_, **__: pytest.fail("texts shared a row"))
    with pytest.raises(qk.QKPrismError, match="outside the sliding window"):
        qk.decompose(model, few, progress=False)
    wide = [layer for layer, own in model.layers.items() if own.window is None]
    if wide:
        heads = [f"L{layer}H0" for layer in wide]
        qk.decompose(model, few, heads=heads, progress=False)


@pytest.mark.parametrize(("window", "horizon"), [(0, None), (None, None), (12, 12)])
def test_horizon__a_window_of_0_is_none(window, horizon):
    hf = tiny("llama")
    hf.config.sliding_window = window
    assert Model.wrap(hf).horizon == horizon


def test_batches__share_rows_only_where_that_saves_tokens(monkeypatch):
    tokenizer = byte_level()
    model = qk.load((tiny("llama", vocab_size=len(tokenizer)), tokenizer))
    twins = contrast(20, twins=True)
    shared = []
    run = type(model).run_forest
    monkeypatch.setattr(type(model), "run_forest", lambda *args, **options: (shared.append(1), run(*args, **options)))
    together = qk.decompose(model, twins, progress=False)
    assert shared
    shared.clear()
    for limit, value in (("LEAST_SAVED", 0.9), ("WIDEST", 20)):
        with monkeypatch.context() as patched:
            patched.setattr(batching, limit, value)
            apart = qk.decompose(model, twins, progress=False)
        for key, feature in together.items():
            assert relative_error(feature.covariance, apart[key].covariance) <= 1e-5
    qk.decompose(model, twins, encoding=qk.Encoding(rope="relative"), progress=False)
    qk.decompose(model, contrast(20), progress=False)
    assert not shared
