"""The tap: it reads what the model uses, edits what it is told to, and leaves no trace."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from qkprism.errors import QKPrismError
from qkprism.models.calls import AttentionCall
from qkprism.models.model import Model
from qkprism.models.probe import evaluating
from qkprism.models.tap import Tap, TapName
from tiny import TOKENS, batch, one_thread, text_batch, tiny  # noqa: F401

ROWS = torch.tensor([8, 5])


def nothing(call: AttentionCall) -> None:
    """A visitor that only looks."""


def vocabulary(hf: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return hf(**inputs).logits


def traces(hf: PreTrainedModel) -> tuple[object, ...]:
    """Everything that a tap touches."""
    configs = [hf.config, *(getattr(hf.config, key) for key in hf.config.sub_configs)]
    names = tuple((config._attn_implementation, type(config._attn_implementation)) for config in configs)
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in hf.modules())
    training = tuple(module.training for module in hf.modules())
    return names, hooks, training, hf.generation_config.disable_compile


# --- the name -------------------------------------------------------------------------------------------------------


def test_tap_name__reads_like_the_original_but_is_another_key() -> None:
    name = TapName("flash_attention_2")
    assert name == "flash_attention_2"
    assert name in ("eager", "flash_attention_2")
    assert "flash" in name
    assert {"flash_attention_2": 1}.get(name) is None
    assert {TapName("flash_attention_2"): 2}[name] == 2


def test_tap_name__lets_the_model_take_its_own_branch_for_eager() -> None:
    with pytest.raises(QKPrismError, match="GPT2LMHeadModel ran without calling the attention interface"):
        Model.wrap(tiny("gpt2", attention="eager", reorder_and_upcast_attn=True))


# --- no trace -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma2", "llava"])
def test_tap__puts_everything_back(name: str) -> None:
    hf = tiny(name)
    if name == "llava":
        hf.set_attn_implementation({"vision_config": "eager"})
        assert hf.config.vision_config._attn_implementation == "eager"
    before = traces(hf)
    with Tap(hf, nothing):
        assert type(hf.config._attn_implementation) is TapName
        assert hf.generation_config.disable_compile
        vocabulary(hf, text_batch(hf))
    assert traces(hf) == before


def test_tap__puts_everything_back_after_an_error_in_the_visitor() -> None:
    hf = tiny("llama").train()
    model, before = Model.wrap(hf), traces(hf)

    def fail(call: AttentionCall) -> None:
        raise ZeroDivisionError(call.name)

    with pytest.raises(ZeroDivisionError):
        model.run(**text_batch(hf), visit=fail)
    assert traces(hf) == before
    with pytest.raises(IndexError):
        model.run(torch.full((1, 4), 999), visit=nothing)
    assert traces(hf) == before


def test_tap__nests_and_both_see_every_call() -> None:
    hf = tiny("llama")
    before, outer, inner = traces(hf), [], []
    with Tap(hf, lambda call: outer.append(call.layer)):
        with Tap(hf, lambda call: inner.append(call.layer)):
            vocabulary(hf, text_batch(hf))
        vocabulary(hf, text_batch(hf))
    assert (outer, inner) == ([0, 1, 0, 1], [0, 1])
    assert traces(hf) == before


def test_tap__inner_taps_see_the_edits_of_outer_ones() -> None:
    hf, seen = tiny("llama"), []

    def double(call: AttentionCall) -> None:
        call.key = call.key * 2

    with Tap(hf, lambda call: seen.append(call.key)):
        vocabulary(hf, text_batch(hf))
        with Tap(hf, double), Tap(hf, lambda call: seen.append(call.key)):
            vocabulary(hf, text_batch(hf))
    plain, _, outer, inner = seen[0], seen[1], seen[2], seen[3]
    assert torch.equal(outer, plain)
    assert torch.equal(inner, plain * 2)


def test_tap__an_open_tap_cannot_be_opened_again() -> None:
    tap = Tap(tiny("llama"), nothing)
    with tap, pytest.raises(QKPrismError, match="open already"):
        tap.__enter__()


def test_tap__threads_do_not_meet() -> None:
    hf = tiny("llama")
    model, before = Model.wrap(hf), traces(hf)
    inputs = text_batch(hf)
    expected = vocabulary(hf, inputs)
    failures: list[object] = []

    def work(*layers: int) -> None:
        seen: list[int] = []
        for _ in range(10):
            if layers:
                output = model.run(**inputs, visit=lambda call: seen.append(call.layer), layers=layers, logits=True)
            else:
                output = vocabulary(hf, inputs)
            failures.extend([] if torch.equal(output, expected) else [layers])
        failures.extend([] if seen == [*layers] * 10 else [seen])

    threads = [threading.Thread(target=work, args=layers) for layers in ((0,), (1,), ())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert traces(hf) == before


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("name", "attention"), [("llama", "sdpa"), ("llama", "eager"), ("gemma2", "eager"), ("gpt_oss", "eager")]
)
def test_tap__reads_in_every_dtype(name: str, attention: str, dtype: torch.dtype) -> None:
    hf = tiny(name, attention=attention, dtype=dtype)
    model, inputs, seen = Model.wrap(hf), text_batch(hf), []
    tapped = model.run(**inputs, visit=lambda call: seen.append(call), logits=True)
    assert torch.equal(tapped, vocabulary(hf, inputs))
    for call in seen:
        assert call.query.dtype == dtype
        assert call.logits().dtype == torch.float32
        total = call.attention(rows=ROWS).sum(-1)
        assert (total < 1 + 1e-5).all() if call.sinks is not None else torch.allclose(total, torch.ones(()))


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "bert", "t5"])
def test_call__heads_and_rows_pick_from_the_whole(name: str) -> None:
    hf = tiny(name)

    def check(call: AttentionCall) -> None:
        rows, each = torch.tensor([call.query.shape[2] - 1, 2]), torch.arange(2)
        for whole, part in ((call.logits, call.logits), (call.attention, call.attention)):
            everything = whole()
            torch.testing.assert_close(part(heads=[3, 1]), everything[:, [3, 1]])
            torch.testing.assert_close(part(rows=slice(1, 3)), everything[:, :, 1:3])
            torch.testing.assert_close(part(heads=[2], rows=rows), everything[each, 2, rows][:, None, None])

    with Tap(hf, check), torch.no_grad():
        hf(**batch(hf))


def test_call__rebuilds_masks_of_flash_attention() -> None:
    hf, seen = tiny("mistral"), []
    inputs = text_batch(hf)
    Model.wrap(hf).run(**inputs, visit=seen.append)
    call = seen[0]
    expected = call.attention()
    call.implementation, call.mask = "flash_attention_2", inputs["attention_mask"]
    torch.testing.assert_close(call.attention()[0], expected[0])
    torch.testing.assert_close(call.attention()[1, :, :6], expected[1, :, :6])


def test_call__says_when_a_mask_cannot_be_read() -> None:
    hf, seen = tiny("llama"), []
    Model.wrap(hf).run(**text_batch(hf), visit=seen.append)
    seen[0].implementation, seen[0].mask = "flex_attention", object()
    with pytest.raises(QKPrismError, match=r'flex_attention .*attn_implementation="sdpa"'):
        seen[0].logits()


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "roberta", "bert", "gpt_neox"])
def test_run__padding_side_changes_nothing(name: str) -> None:
    hf = tiny(name)
    model = Model.wrap(hf)
    queries: dict[str, list[Tensor]] = {"right": [], "left": []}
    keys: dict[str, list[Tensor]] = {"right": [], "left": []}
    for side, text in (("right", slice(0, 6)), ("left", slice(3, 9))):

        def keep(call: AttentionCall, side: str = side, text: slice = text) -> None:
            queries[side].append(call.query[1, :, text])
            keys[side].append(call.key[1, :, text])

        model.run(**text_batch(hf, side), visit=keep)
    torch.testing.assert_close(queries["left"], queries["right"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(keys["left"], keys["right"], atol=1e-5, rtol=1e-5)


# --- early stop and counting ----------------------------------------------------------------------------------------


def test_run__stops_inside_the_last_layer_asked_for() -> None:
    hf = tiny("llama", num_hidden_layers=3)
    model, reached = Model.wrap(hf), []
    for name, module in hf.named_modules():
        if name.endswith(("q_proj", "o_proj", "lm_head")):
            module.register_forward_hook(lambda *_, name=name: reached.append(name))
    assert model.run(**text_batch(hf), visit=nothing, layers=[1]) is None
    assert reached == [
        f"model.layers.{name}" for name in ("0.self_attn.q_proj", "0.self_attn.o_proj", "1.self_attn.q_proj")
    ]
    reached.clear()
    model.run(**text_batch(hf), visit=nothing, layers=[1], stop=False)
    assert reached[-1] == "model.layers.2.self_attn.o_proj"
    model.run(**text_batch(hf), visit=nothing, layers=[1], logits=True)
    assert reached[-1] == "lm_head"


def test_run__a_stop_ends_only_the_tap_that_asked() -> None:
    hf, outer = tiny("llama", num_hidden_layers=3), []
    model = Model.wrap(hf)
    with model.tap(lambda call: outer.append(call.layer)):
        model.run(**text_batch(hf), visit=nothing, layers=[0])
        model.run(**text_batch(hf))
    assert outer == [0, 0, 1, 2]


def test_tap__a_run_without_any_call_is_an_error() -> None:
    hf = tiny("falcon")
    with pytest.raises(QKPrismError, match="FalconForCausalLM ran without calling"), Tap(hf, nothing):
        vocabulary(hf, text_batch(hf))
    with Tap(hf, nothing):
        pass


def test_run__names_layers_that_do_not_exist_or_are_not_reached() -> None:
    hf = tiny("llava")
    text, image = text_batch(hf), torch.randn(2, 3, 12, 12)
    seen = Model.wrap(hf)
    with pytest.raises(QKPrismError, match=r"no attention layer 7\. Its attention layers are 0, 1"):
        seen.run(**text, visit=nothing, layers=[0, 7])
    with pytest.raises(QKPrismError, match="empty"):
        seen.run(**text, visit=nothing, layers=[])
    looking = {"pixel_values": image, "input_ids": torch.full((2, 9), 60), "attention_mask": torch.ones(2, 9).long()}
    whole = Model.wrap(hf, probe=looking)
    assert len(whole.layers) > len(seen.layers)
    whole.run(**text, visit=nothing)
    last = max(whole.layers)
    for layers in ([0], [0, last]):
        with pytest.raises(QKPrismError, match=r"do not reach layers 0 .*pixel_values"):
            whole.run(**text, visit=nothing, layers=layers)
    whole.run(looking["input_ids"], visit=nothing, layers=[0, last], inputs={"pixel_values": image})


def test_run__gives_the_vocabulary_logits_of_the_model() -> None:
    hf = tiny("qwen3").train()
    inputs = text_batch(hf)
    got = Model.wrap(hf).run(**inputs, visit=nothing, logits=True)
    assert hf.training
    assert torch.equal(got, vocabulary(hf.eval(), inputs))
    alone = Model.wrap(hf).run(inputs["input_ids"][:1], logits=True)  # a batch of another size may round otherwise
    torch.testing.assert_close(alone, got[:1], atol=1e-5, rtol=1e-5)


# --- editing --------------------------------------------------------------------------------------------------------


def head_outputs(model: Model, layer: int, projection: str, visit: Callable[[AttentionCall], None]) -> Tensor:
    """What the heads of a layer hand to the output projection: [batch, token, head, d_value]."""
    found: list[Tensor] = []
    module = model.hf.get_submodule(model.layers[layer].name).get_submodule(projection)
    hook = module.register_forward_pre_hook(lambda _, args: found.append(args[0]))
    model.run(**text_batch(model.hf), visit=visit, layers=[layer], stop=False)
    hook.remove()
    return found[0].unflatten(-1, (model.layers[layer].n_heads, -1))


@pytest.mark.parametrize(
    ("name", "attention"),
    [("llama", "sdpa"), ("llama", "eager"), ("gemma2", "eager"), ("gpt_oss", "eager"), ("mistral", "sdpa")],
)
def test_edit_head__equals_editing_the_shared_keys_and_spares_the_others(name: str, attention: str) -> None:
    model = Model.wrap(tiny(name, attention=attention))
    change = torch.randn(2, 1, TOKENS, 8, generator=torch.Generator().manual_seed(5))

    def whole(call: AttentionCall) -> None:
        key = call.key.clone()
        key[:, 1] += change[:, 0]
        call.key = key

    def alone(call: AttentionCall) -> None:
        call.edit_head(3, key=call.key[:, 1] + change[:, 0])

    plain, shared, single = (head_outputs(model, 1, "o_proj", visit) for visit in (nothing, whole, alone))
    torch.testing.assert_close(single[:, :, 3], shared[:, :, 3], atol=1e-5, rtol=1e-5)
    assert torch.equal(single[:, :, :3], plain[:, :, :3])
    assert not torch.allclose(shared[:, :, 2], plain[:, :, 2])
    assert not torch.allclose(single[:, :, 3], plain[:, :, 3])


def test_edit_head__follows_the_formula_under_grouped_queries() -> None:
    model = Model.wrap(tiny("llama"))
    new_query, new_key = torch.randn(2, 2, TOKENS, 8, generator=torch.Generator().manual_seed(6)).unbind(0)
    kept: list[AttentionCall] = []

    def edit(call: AttentionCall) -> None:
        kept.append(call)
        call.edit_head(1, query=new_query, key=new_key, rows=ROWS)

    edited, plain = head_outputs(model, 0, "o_proj", edit), head_outputs(model, 0, "o_proj", nothing)
    for row, (query, end) in enumerate(zip(ROWS.tolist(), (9, 6), strict=True)):
        weights = torch.softmax(new_key[row, :end] @ new_query[row, query] / 8**0.5, 0)
        torch.testing.assert_close(edited[row, query, 1], weights @ kept[0].value[row, 0, :end])
        plain[row, query, 1] = edited[row, query, 1]
    assert torch.equal(edited, plain)


@pytest.mark.family("t5")
def test_edit_head__position_bias_and_cross_attention_are_kept() -> None:
    hf = tiny("t5")
    model, inputs = Model.wrap(hf), batch(hf)

    def edit(call: AttentionCall) -> None:
        call.edit_head(2, key=call.key[:, 2].clone())

    with torch.no_grad(), model.tap(edit):
        same = hf(**inputs).logits
    torch.testing.assert_close(same, vocabulary(hf, inputs), atol=1e-4, rtol=1e-4)


def test_edit__reported_attention_follows_the_edit() -> None:
    hf = tiny("llama", attention="eager")
    model, inputs = Model.wrap(hf), text_batch(hf)

    def edit(call: AttentionCall) -> None:
        call.edit_head(0, key=torch.zeros_like(call.key[:, 0]), rows=ROWS)

    with torch.no_grad(), model.tap(edit, layers=[1]):
        weights = hf(**inputs, output_attentions=True).attentions[1]
    torch.testing.assert_close(weights[0, 0, 8], torch.full((9,), 1 / 9))
    torch.testing.assert_close(weights[1, 0, 5], torch.tensor([1 / 6] * 6 + [0.0] * 3))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "gemma2", "deepseek_v3"])
def test_edit__changes_the_vocabulary_logits(name: str) -> None:
    hf = tiny(name)
    model, inputs = Model.wrap(hf), text_batch(hf)

    def alone(call: AttentionCall) -> None:
        call.edit_head(0, key=call.key[:, call.kv_head(0)].flip(1))

    def all_queries(call: AttentionCall) -> None:
        call.query = call.query.flip(2).double()

    plain = model.run(**inputs, logits=True)
    for edit in (alone, all_queries):
        assert (model.run(**inputs, visit=edit, layers=[0], logits=True) - plain).abs().max() > 1e-3


def test_edit__wrong_shapes_and_heads_are_named() -> None:
    model = Model.wrap(tiny("llama"))
    inputs = text_batch(model.hf)

    def cut(call: AttentionCall) -> None:
        call.key = call.key[:, :, 1:]

    with pytest.raises(QKPrismError, match=r"key assigned in model\.layers\.0\.self_attn has shape"):
        model.run(**inputs, visit=cut, stop=False)
    with pytest.raises(QKPrismError, match="Its heads run from 0 to 3"):
        model.run(**inputs, visit=lambda call: call.edit_head(4, key=call.key[:, 0]))
    with pytest.raises(QKPrismError, match=r"needs shape \(2, 9, 8\)"):
        model.run(**inputs, visit=lambda call: call.edit_head(0, key=call.key[:, 0, 1:]))


# --- models that are spread out -------------------------------------------------------------------------------------


def test_run__works_on_offloaded_models() -> None:
    from accelerate import cpu_offload

    hf, plain, offloaded = tiny("llama"), [], []
    inputs = text_batch(hf)
    Model.wrap(hf).run(**inputs, visit=lambda call: plain.append(call.attention()))
    expected = vocabulary(hf, inputs)
    cpu_offload(hf, execution_device=torch.device("cpu"))
    model = Model.wrap(hf)
    assert model.device == torch.device("cpu")
    logits = model.run(**inputs, visit=lambda call: offloaded.append(call.attention()), logits=True)
    assert torch.equal(logits, expected)
    assert all(torch.equal(one, two) for one, two in zip(plain, offloaded, strict=True))


def test_call__is_built_from_plain_arguments() -> None:
    query, key, value = torch.randn(3, 2, 4, 5, 8).unbind(0)
    call = AttentionCall.read("sdpa", nn.Identity(), (query, key[:, :2], value[:, :2]), (None,), {})
    expected = nn.functional.scaled_dot_product_attention(
        query, key[:, [0, 0, 1, 1]], value[:, [0, 0, 1, 1]], is_causal=True
    )
    torch.testing.assert_close(call.attention() @ value[:, [0, 0, 1, 1]], expected)
    # An eager function that is given no mask sees everything.
    call.implementation = "eager"
    assert call.logits().isfinite().all()


# --- training flags -------------------------------------------------------------------------------------------------


def test_evaluating__lasts_until_the_last_of_two_threads_is_done() -> None:
    hf = tiny("llama", attention_dropout=0.5).train()
    hf.model.norm.eval()  # flags of its own come back too
    before = [module.training for module in hf.modules()]
    model, inputs = Model.wrap(hf), text_batch(hf)
    assert [module.training for module in hf.modules()] == before
    alone = model.run(**inputs, logits=True)
    first_in, second_in, first_out = (threading.Event() for _ in range(3))
    seen: list[object] = []

    def first() -> None:
        with evaluating(hf):
            first_in.set()
            second_in.wait(10)
        first_out.set()

    def second() -> None:
        first_in.wait(10)
        with evaluating(hf):
            second_in.set()
            first_out.wait(10)
            seen.append(any(module.training for module in hf.modules()))
            seen.append(hf(**inputs).logits.detach())

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen[0] is False
    assert torch.allclose(seen[1], alone, atol=1e-5)
    assert [module.training for module in hf.modules()] == before


def test_run__two_threads_see_no_dropout_and_leave_the_flags() -> None:
    hf = tiny("gpt2", attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5).train()
    model, inputs = Model.wrap(hf), text_batch(hf)
    alone, found = model.run(**inputs, logits=True), list[Tensor]()

    def work() -> None:
        found.extend(model.run(**inputs, logits=True) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    assert all(torch.allclose(logits, alone, atol=1e-5) for logits in found)
    assert all(module.training for module in hf.modules())
