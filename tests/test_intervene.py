"""Interventions on tiny models: what is predicted from one pass is what the really edited model does."""

import functools
import re
import threading
import weakref
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import RobertaForCausalLM

import qkprism as qk
from one_head import decompose_vector_sets
from planted import swap
from qkprism import Comparison, Contrast, Edit, Effects, Example, Head, QKPrismError
from qkprism.capture.source import sites_of
from qkprism.contrasts import Span, Text
from qkprism.controls import BY_NAME, CONTROLS, EVIDENCE
from qkprism.core.effect_sums import Condition
from qkprism.models import continuation
from qkprism.models.continuation import Continuation, cache_is_exact, skipping, skips_are_exact
from qkprism.models.encoding import encode
from qkprism.results.words import hardly_attending
from qkprism.verbs import outcomes
from qkprism.verbs.aims import all_aims, given_aims
from qkprism.verbs.plan import conditions_of
from test_pipeline import WORDS
from tiny import one_thread, tiny  # noqa: F401
from tokenizers_for_tests import byte_level

LETTERS = "ABCDEF"


def example(rng, name="boxes", n_keys=4, target=True):
    """`boxes`: the positive key is that of the asked thing; `first`: it is the first key."""
    things = [str(word) for word in rng.permutation(WORDS)[:n_keys]]
    asked = int(rng.integers(n_keys))
    right = asked if name == "boxes" else 0
    text, spans = "", []
    for j, thing in enumerate(things):
        text += f"the {thing} in "
        spans.append(Span(len(text), len(text) + 1, {"boxes": thing, "first": min(j, 1)}))
        text += LETTERS[j] + ", "
    text += f"the {things[asked]} in box"
    wrong = [j for j in range(n_keys) if j != right]
    aim = int(rng.choice(wrong))
    keys = [Span(s.start, s.end, s.labels, target=target and j == aim) for j, s in enumerate(spans)]
    return Example(Text(text, None, (keys[right],), tuple(keys[j] for j in wrong)))


def examples(n, seed=0, **options):
    rng = np.random.default_rng(seed)
    return tuple(example(rng, n_keys=int(rng.integers(3, 6)), **options) for _ in range(n))


def contrasts(n=60):
    return {name: Contrast(name, examples(n, seed, name=name)) for seed, name in enumerate(("boxes", "first"))}


SETTINGS = {"gemma2": {"sliding_window": 200}, "gpt_oss": {"sliding_window": 200}}


def load(name, **settings):
    tokenizer = byte_level()
    options = SETTINGS.get(name, {}) | {"max_position_embeddings": 256} | settings
    if name == "gpt2":
        options = {"n_positions": 256}
    return qk.load((tiny(name, attention="eager", vocab_size=len(tokenizer), **options), tokenizer))


HEADS = ["L0H1", "L1H0", "L1H3"]
ONE, TWO = (Comparison(draws=draws) for draws in (1, 2))
CONTRAST = Comparison(methods=["contrast"], draws=1)


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma2", "gpt2", "gpt_oss"])
def model(request):
    return load(request.param)


@pytest.fixture(scope="module")
def llama():
    return load("llama")


@pytest.fixture(scope="module")
def features(model):
    return qk.decompose(model, contrasts(), heads=HEADS, recipe=qk.Recipe(rank=2), progress=False)


@pytest.fixture(scope="module")
def own(llama):
    return qk.decompose(llama, contrasts(), heads=HEADS, recipe=qk.Recipe(rank=2), progress=False)


def edited_attention(model, encoded, head, change):
    """The attention row of the query in the model with one head's copy of keys or queries changed."""

    def visit(call):
        if call.layer == head.layer:
            change(call)

    with torch.no_grad(), model.tap(visit):
        output = model.hf(torch.tensor([encoded.text.ids]), output_attentions=True, use_cache=False)
    return output.attentions[head.layer][0, head.index, encoded.text.query].double()


def test_intervene__predicted_attention_is_that_of_the_really_edited_model(model, features):
    test = examples(3, seed=7)
    encoded = encode(model.tokenizer, test)
    aims = given_aims(encoded, 0)
    for i, item in enumerate(test):
        effects = qk.intervene(model, [item], features, compare=ONE, progress=False)
        conditions = conditions_of(
            features, sites_of(model, features.heads), Comparison(methods=("contrast", "raw"), draws=1)
        )
        o, t = (getattr(aims[i], side).position for side in ("original", "target"))
        for head in features.heads:
            for at, name in enumerate(conditions[head].names):
                p = conditions[head].subspace(at).projector.float()

                def change(call, head=head, p=p, o=o, t=t, row=encoded[i].text.query):
                    key = call.key[:, call.kv_head(head.index)].clone()
                    key[:, o], key[:, t] = swap(key[:, o], key[:, t], p)
                    call.edit_head(head.index, key=key, rows=torch.tensor([row]))

                if name.draw == 0 and name.control != "permuted":
                    measured = edited_attention(model, encoded[i], head, change)
                    where = {"head": head, "feature": name.feature, "method": name.method, "control": name.control}
                    for side, place in (("original", o), ("target", t)):
                        found = effects.value(f"attention_{side}", **where)[0]
                        assert found == pytest.approx(float(measured[place]), abs=1e-5)


@pytest.mark.parametrize(
    "edit",
    [
        Edit("ablate"),
        Edit("ablate", side="query"),
        Edit("steer", amount=3.0, direction=1),
        Edit("steer", side="query", amount=3.0),
        Edit("steer", amount=0.5, vector=torch.linspace(-1, 1, 8)),
        Edit("replace", vector=torch.linspace(-1, 1, 8)),
        Edit("replace", side="query", vector=torch.linspace(-1, 1, 8)),
    ],
    ids=str,
)
def test_intervene__further_edits_are_those_of_the_really_edited_model(llama, own, edit):
    test = examples(2, seed=9)
    encoded = encode(llama.tokenizer, test)
    aims = given_aims(encoded, 0)
    conditions = conditions_of(own, sites_of(llama, own.heads), CONTRAST)
    for i, item in enumerate(test):
        effects = qk.intervene(llama, [item], own, edit=edit, compare=CONTRAST, progress=False)
        o, t = (getattr(aims[i], side).position for side in ("original", "target"))
        for head in own.heads:
            for at, name in enumerate(conditions[head].names):
                space = conditions[head].subspace(at)
                if name.control == "full" and edit.kind == "steer" and edit.vector is None:
                    continue  # the whole key has no direction
                if name.draw or name.control == "permuted" or (edit.kind == "steer" and space.rank <= edit.direction):
                    continue

                def change(call, head=head, space=space, o=o, row=encoded[i].text.query):
                    if edit.side == "query":
                        query = call.query[:, head.index].double()
                        query[:, row] += edit.change(query[:, row], head, space.mT)
                        call.edit_head(head.index, query=query.float(), rows=torch.tensor([row]))
                    else:
                        key = call.key[:, call.kv_head(head.index)].double()
                        key[:, o] += edit.change(key[:, o], head, space)
                        call.edit_head(head.index, key=key.float(), rows=torch.tensor([row]))

                measured = edited_attention(llama, encoded[i], head, change) if space.rank else None
                where = {"head": head, "feature": name.feature, "method": name.method, "control": name.control}
                if measured is not None:
                    for side, place in (("original", o), ("target", t)):
                        found = effects.value(f"attention_{side}", **where)[0]
                        assert found == pytest.approx(float(measured[place]), abs=1e-5)


def test_intervene__batches_and_order_change_nothing(llama, own):
    test = examples(30, seed=3)
    whole = qk.intervene(llama, test, own, compare=TWO, progress=False)
    for other in (
        qk.intervene(llama, test, own, compare=TWO, batch_size=1, progress=False),
        qk.intervene(llama, test, own, compare=TWO, batch_size=7, progress=False),
    ):
        assert torch.allclose(whole.values, other.values, atol=1e-6)
        assert torch.allclose(whole.errors, other.errors, atol=1e-6)
        assert torch.allclose(whole.advantage, other.advantage, atol=1e-6, equal_nan=True)
        assert torch.allclose(whole.gains, other.gains, atol=1e-6)


def test_intervene__full_swap_exchanges_the_attention_and_none_leaves_it(llama, own):
    found = qk.intervene(llama, examples(20, seed=4), own, compare=ONE, progress=False)
    for head in own.heads:
        before = [found.value(f"attention_{side}", head=head, control="none")[0] for side in ("original", "target")]
        after = [found.value(f"attention_{side}", head=head, control="full")[0] for side in ("original", "target")]
        assert after == pytest.approx(before[::-1], abs=1e-6)
        assert found.value("logit_change", head=head, control="none") == (0.0, 0.0)
        assert found.value("flip", head=head, control="none")[0] == 0


def test_intervene__is_the_mean_over_single_examples_with_its_error(llama, own):
    test = examples(12, seed=5)
    whole = qk.intervene(llama, test, own, compare=TWO, progress=False)
    single = [qk.intervene(llama, test[i : i + 1], own, compare=TWO, progress=False) for i in range(12)]
    given = sum(entry.target == "given" for entry in whole.entries)
    each = torch.stack([s.values[:, :given] for s in single])
    assert torch.allclose(whole.values[:, :given], each.mean(0), atol=1e-6)
    assert torch.allclose(whole.errors[:, :given], each.std(0) / 12**0.5, atol=1e-6)
    for name, error in (("advantage", whole.advantage_error), ("gains", whole.gain_errors)):
        differences = torch.stack([getattr(s, name)[:given] for s in single])
        assert torch.allclose(error[:given], differences.std(0) / 12**0.5, atol=1e-6, equal_nan=True)


def test_effects__a_gain_is_paired_for_every_control(llama, own):
    """Against the plain computation from single examples: the error is that of the differences to no edit."""
    test = examples(10, seed=5)
    whole = qk.intervene(llama, test, own, compare=TWO, progress=False)
    single = [qk.intervene(llama, item, own, compare=TWO, progress=False) for item in test]
    for control in CONTROLS:
        where = {"head": "L1H0", "control": control.name} | ({} if control.shared else {"feature": "boxes"})
        moved = torch.tensor([s.value("shift", **where)[0] for s in single], dtype=torch.float64)
        still = torch.tensor([s.value("shift", head="L1H0", control="none")[0] for s in single], dtype=torch.float64)
        gain, error = whole.gain(**where)
        assert gain == pytest.approx(float((moved - still).mean()), abs=1e-6)
        assert error == pytest.approx(float((moved - still).std()) / 10**0.5, abs=1e-6)


def test_intervene__weights_count(llama, own):
    a, b = examples(2, seed=6)
    found = [qk.intervene(llama, [x, b], own, compare=ONE, progress=False) for x in (Example(a.text, weight=3.0), a)]
    given = sum(entry.target == "given" for entry in found[0].entries)
    single = [qk.intervene(llama, [x], own, compare=ONE, progress=False).values[:, :given] for x in (a, b)]
    assert torch.allclose(found[0].values[:, :given], (3 * single[0] + single[1]) / 4, atol=1e-6)
    assert not torch.allclose(found[0].values, found[1].values, atol=1e-6)


def test_intervene__targets_that_differ_in_one_label_only_are_reported_where_there_are_some(llama, own):
    keys = [(1, 2, {"boxes": "a", "first": 0}), (4, 5, {"boxes": "b", "first": 0}), (7, 8, {"boxes": "a", "first": 1})]
    spans = [Span(a, b, labels) for a, b, labels in keys]
    matched = Example(Text("xA yB zC box", None, (spans[0],), tuple(spans[1:])))
    encoded = encode(llama.tokenizer, [matched, *examples(2, seed=1)])
    aims = all_aims(encoded, own, Comparison())
    assert set(aims) == {"given", "boxes", "first"}
    assert aims["boxes"][0].target.labels == {"boxes": "b", "first": 0}
    assert aims["first"][0].target.labels == {"boxes": "a", "first": 1}
    found = qk.intervene(llama, [matched, *examples(2, seed=1)], own, compare=ONE, progress=False)
    assert found.targets == ("given", "boxes", "first")
    assert found.n[[e.target == "first" for e in found.entries].index(True)] == len(aims["first"])


def test_intervene__random_targets_go_with_the_text_not_its_place(llama, own):
    test = examples(6, seed=8, target=False)
    forward, backward = (qk.intervene(llama, x, own, compare=ONE, progress=False) for x in (test, test[::-1]))
    assert torch.allclose(forward.values, backward.values, atol=1e-6)
    one = qk.intervene(llama, test[0], own, compare=ONE, progress=False)
    assert one.n[0] == 1


def test_intervene__names_of_results_are_no_names_for_contrasts(llama):
    with pytest.raises(QKPrismError, match="'residual' is a word of the results"):
        qk.decompose(llama, {"residual": contrasts(4)["boxes"]})


def test_effects__save_load_frame_and_sentences(llama, own, tmp_path):
    found = qk.intervene(llama, examples(10, seed=2), own, compare=Comparison(draws=3), progress=False)
    assert [note for note in found.notes if "conditional edit needs twins" in note]
    again = Effects.load(found.save(tmp_path / "effects"))
    assert again.entries == found.entries
    assert torch.equal(again.values, found.values)
    assert again.verdict() == found.verdict()
    assert again.to_frame().equals(found.to_frame())
    frame = found.to_frame()
    assert set(frame.control) == {"feature", "permuted", "keys", "gaussian", "pca", "full", "none"}
    assert set(frame[frame.control == "keys"].draws) == {3}
    assert {entry.control for entry in found.entries} == {control.name for control in CONTROLS}
    for sentence in found.verdict():
        told, weak = re.split("; (?=also beats|does not even beat)", sentence)
        assert "beat" in told
        assert all(control.title in told for control in EVIDENCE)
        assert BY_NAME["gaussian"].title in weak
        assert weak.startswith("also") == weak.endswith("which shows nothing: noise does too.")
        assert "Gaussian" not in told
    assert {row["method"] for row in found.beats()} == {"contrast", "raw"}
    assert all(", raw)" in sentence for sentence in found.verdict(methods=["raw"]))
    for row in found.beats():
        assert row["threshold"] == 2 * row["error"]
        assert row["beaten"] == (row["advantage"] > row["threshold"])
        assert row["evidence"] == (row["control"] != "gaussian")
    assert (found.edit, found.title) == ("swap", "swap keys")
    with pytest.raises(QKPrismError, match="There is no effect for L9H9"):
        found.value("shift", head="L9H9", feature="boxes")
    with pytest.raises(QKPrismError, match="was not measured"):
        found.value("speed", head=HEADS[0])
    with pytest.raises(QKPrismError, match="There is no effect of 'colour'"):
        found.value("shift", head=HEADS[0], feature="colour")


@torch.inference_mode()  # in which tensors of results can be written
def told_of(effects, **changes):
    """The sentence of one feature after some numbers of it were changed: by control, gain and error."""
    found = replace(effects, gains=effects.gains.clone(), gain_errors=effects.gain_errors.clone())
    for control, (gain, error) in changes.items():
        at = found.entries.index(("given", *(("", "") if BY_NAME[control].shared else ("boxes", "contrast")), control))
        found.gains[at], found.gain_errors[at] = gain, error
    return next(s for s in found.verdict() if s.startswith("L1H0 boxes (rank 2, contrast):"))


def test_effects__a_share_of_the_whole_key_only_where_both_move_attention_to_the_target(llama, own):
    found = qk.intervene(llama, examples(5, seed=2), own, compare=ONE, progress=False)
    assert ", 50% of the whole key" in told_of(found, feature=(0.1, 0.01), full=(0.2, 0.01))
    for feature, full in ((-0.1, -0.2), (0.1, -0.2), (-0.1, 0.2), (0.1, 0.01)):
        for edit in ("swap", "steer"):
            told = told_of(replace(found, edit=edit), feature=(feature, 0.01), full=(full, 0.01))
            assert "of the whole key" not in told


@torch.inference_mode()  # in which tensors of results can be written
def test_effects__only_a_steer_may_beat_a_control_the_other_way(llama, own):
    found = qk.intervene(llama, examples(5, seed=2), own, compare=ONE, progress=False)
    found = replace(found, gains=-found.gains.abs() - 1, advantage=-found.advantage.abs() - 1)
    found.advantage_error[:] = 0.1
    assert {row["beaten"] for row in replace(found, spread=0 * found.spread).beats()} == {False}
    steered = replace(found, spread=torch.zeros_like(found.spread), edit="steer", title="a name that says nothing")
    assert {row["beaten"] for row in steered.beats()} == {True}


def test_effects__heads_that_hardly_attend_to_the_two_keys_are_named(llama, own):
    found = qk.intervene(llama, examples(5, seed=2), own, compare=ONE, progress=False)
    both = {
        str(head): sum(
            found.value(f"attention_{side}", head=head, control="none")[0] for side in ("original", "target")
        )
        for head in found.heads
    }
    (said,) = [note for note in found.notes if "of its attention" in note]
    assert set(re.findall(r"L\dH\d", said)) == {head for head, share in both.items() if share < 0.01} < {*both}
    assert said == (
        "L0H1 gives the two keys less than 0.000001 of its attention, L1H3 0.001: what the edit moves between them "
        "hardly matters to the heads."
    )
    told = hardly_attending(qk.find_heads(llama, examples(5, seed=2), progress=False), found.heads)
    assert re.match(r"L0H1 \(.*\), L1H3 \(.*\) give positive keys less than 1% of the attention", told[0])


@pytest.mark.parametrize("outcome", ["attention", "logits"])
def test_effects__one_example_has_no_error_and_says_so(llama, own, outcome):
    found = qk.intervene(llama, examples(1, seed=2), own, compare=TWO, outcome=outcome, progress=False)
    for sentence in found.verdict():
        assert "nan" not in sentence
        assert "beat" not in sentence
        assert sentence.endswith("one example has no standard error, so it is not compared with controls.")
    assert any(note.startswith("One example has") for note in found.notes)
    several = qk.intervene(llama, examples(2, seed=2), own, compare=TWO, outcome=outcome, progress=False)
    assert not any(note.startswith("One example has") for note in several.notes)


# The effect on the output


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gpt2", "gpt_oss", "mistral"])
def test_continuation__gives_the_logits_of_the_whole_text_and_keeps_the_cache(name):
    model = load(name, **({"sliding_window": 64} if name == "mistral" else {}))
    encoded = encode(model.tokenizer, examples(6, seed=1))
    assert cache_is_exact(model, encoded, "post")
    begun = Continuation.start(model, encoded, rope="post", cached=True)
    assert begun.tail == 1
    whole = Continuation.start(model, encoded, rope="post", cached=False)
    for _ in range(2):
        assert torch.allclose(begun.logits(), whole.logits(), atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_continuation__goes_on_from_the_cache_and_leaves_it_as_it_is(name):
    model = load(name)
    begun = Continuation.start(model, encode(model.tokenizer, examples(6, seed=1)), rope="post", cached=True)
    before = [(layer.keys.clone(), layer.values.clone()) for layer in begun.cache.layers]
    assert torch.equal(*(begun.logits() for _ in range(2)))
    for layer, (keys, values) in zip(begun.cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys)
        assert torch.equal(layer.values, values)


def test_continuation__queries_in_the_middle_of_texts_of_different_lengths():
    model = load("llama")
    texts = ["the hat in [-A], the jam in [+B]. the [?jam] is there", "a pen in [-A], the cup in [+B]. [?box] of"]
    encoded = encode(model.tokenizer, [Example.parse(text) for text in texts])
    begun, whole = (Continuation.start(model, encoded, rope="post", cached=cached) for cached in (True, False))
    assert begun.tail > 1
    assert torch.allclose(begun.logits(), whole.logits(), atol=1e-4)
    rows = []

    def visit(call):
        rows.append(call.query[torch.arange(2), :, begun.rows])

    def visit_whole(call):
        rows.append(call.query[torch.arange(2), :, whole.rows])

    begun.logits(visit, [0])
    whole.logits(visit_whole, [0])
    assert torch.allclose(rows[0], rows[1], atol=1e-5)


CHOSEN = [
    Condition("feature", "boxes+first", "contrast"),
    Condition("gaussian", "first", "contrast"),
    Condition("full"),
]


@pytest.mark.parametrize("edit", [Edit(), Edit("ablate"), Edit("ablate", side="query")], ids=str)
def test_outcome__is_that_of_the_edited_model_run_by_hand(llama, own, edit):
    test = examples(5, seed=11)
    found = qk.intervene(
        llama,
        test,
        own,
        outcome="logits",
        edit=edit,
        compare=CONTRAST,
        progress=False,
    )
    assert found.heads == ("L0H1+L1H0+L1H3",)
    encoded = encode(llama.tokenizer, test)
    aims = given_aims(encoded, 0)
    conditions = conditions_of(own, sites_of(llama, own.heads), CONTRAST)
    for name in CHOSEN:
        changes = []
        for i, item in enumerate(encoded):
            o, t = (getattr(aims[i], side).position for side in ("original", "target"))
            row = torch.tensor([item.text.query])

            def visit(call, o=o, t=t, row=row, name=name):
                for head in own.heads:
                    if head.layer != call.layer:
                        continue
                    p = conditions[head].subspace(conditions[head].names.index(name)).projector.float()
                    if edit.side == "query":
                        query = call.query[:, head.index] - call.query[:, head.index] @ p
                        call.edit_head(head.index, query=query, rows=row)
                        continue
                    key = call.key[:, call.kv_head(head.index)].clone()
                    if edit.kind == "swap":
                        key[:, o], key[:, t] = swap(key[:, o], key[:, t], p)
                    else:
                        key[:, o] = key[:, o] - key[:, o] @ p.T
                    call.edit_head(head.index, key=key, rows=row)

            ids = torch.tensor([item.text.ids])
            before, after = llama.run(ids, logits=True)[0, -1], llama.run(ids, visit=visit, logits=True)[0, -1]
            answers = [item.text.ids[place] for place in (t, o)]
            gap = [float(logits[answers[0]] - logits[answers[1]]) for logits in (before, after)]
            changes.append(gap[1] - gap[0])
        value, error = found.value(
            "logit_change", head=found.heads[0], feature=name.feature, method=name.method, control=name.control
        )
        assert value == pytest.approx(np.mean(changes), abs=1e-4)
        assert error == pytest.approx(np.std(changes, ddof=1) / 5**0.5, abs=1e-4)


def test_outcome__cached_whole_and_batched_are_the_same(llama, own, monkeypatch):
    test = examples(8, seed=12)
    options = {"outcome": "logits", "compare": CONTRAST, "progress": False}
    cached = qk.intervene(llama, test, own, **options)
    small = qk.intervene(llama, test, own, batch_size=3, **options)
    monkeypatch.setattr("qkprism.verbs.outcomes.cache_is_exact", lambda *_: False)
    whole = qk.intervene(llama, test, own, **options)
    assert torch.allclose(cached.values, small.values, atol=1e-4)
    assert torch.allclose(cached.values, whole.values, atol=1e-4)


def test_outcome__is_read_before_what_the_tokenizer_puts_after_a_text():
    tokenizer = byte_level(around="<s> $A </s>")
    model = qk.load((tiny("llama", vocab_size=len(tokenizer), max_position_embeddings=256), tokenizer))
    encoded = encode(tokenizer, examples(3))
    for cached in (True, False):
        begun = Continuation.start(model, encoded, rope="post", cached=cached)
        assert begun.last == [e.text.query for e in encoded]
        for i, item in enumerate(encoded):
            alone = model.run(torch.tensor([item.text.ids[:-1]]), logits=True)[0, -1]
            assert torch.allclose(begun.logits()[i], alone, atol=1e-4)


def test_outcome__heads_one_by_one_and_all_rows(llama, own):
    test = examples(4, seed=13)
    options = {"outcome": "logits", "compare": CONTRAST, "progress": False}
    each = qk.intervene(llama, test, own, **options | {"outcome": qk.Outcome("logits", together=False)})
    assert each.heads == tuple(map(Head.parse, HEADS))
    alone = qk.intervene(llama, test, own, heads="L1H0", **options)
    assert torch.allclose(each.values[:, :, 1], alone.values[:, :, 0], atol=1e-5)
    every_row = qk.intervene(llama, test, own, heads="L0H1", **options | {"outcome": qk.Outcome("logits", rows="all")})
    query_row = qk.intervene(llama, test, own, heads="L0H1", **options)
    assert not torch.allclose(every_row.values, query_row.values, atol=1e-4)


def answered(text, answers):
    parsed = Text.parse(text)
    label = [
        Span(s.start, s.end, {"answer": a}) for s, a in zip((*parsed.positive, *parsed.negative), answers, strict=True)
    ]
    return Example(Text(parsed.text, None, (label[0],), (label[1],)))


def test_outcome__answers_are_the_keys_or_their_label(llama, own):
    options = {"outcome": "logits", "compare": CONTRAST, "progress": False}
    text = "the jam in [+A], the hat in [-B], the jam in box"
    plain, same = (qk.intervene(llama, [e], own, **options) for e in (Example.parse(text), answered(text, ["A", "B"])))
    turned = qk.intervene(llama, [answered(text, ["B", "A"])], own, **options)
    assert torch.allclose(plain.values, same.values)
    assert torch.allclose(plain.values[0], -turned.values[0])
    with pytest.raises(QKPrismError, match="is 2 tokens, not one"):
        qk.intervene(llama, [answered(text, ["AB", "B"])], own, **options)
    with pytest.raises(QKPrismError, match="the same answer"):
        qk.intervene(llama, [answered(text, ["A", "A"])], own, **options)


@pytest.mark.parametrize("cached", [True, False])
def test_outcome__halves_a_batch_that_does_not_fit_and_adds_nothing_twice(llama, own, monkeypatch, cached):
    if not cached:
        monkeypatch.setattr(outcomes, "cache_is_exact", lambda *_: False)
    test = examples(9, seed=12)
    options = {"outcome": "logits", "compare": CONTRAST, "progress": False}
    expected = qk.intervene(llama, test, own, **options)
    logits, sizes = Continuation.logits, []

    def small_memory(self, visit=None, layers=None):
        sizes.append(len(self.batch.examples))
        found = logits(self, visit, layers)
        if len(self.batch.examples) > 2 and (visit is not None or len(sizes) % 2):
            raise torch.OutOfMemoryError("out of memory")
        return found

    monkeypatch.setattr(Continuation, "logits", small_memory)
    found = qk.intervene(llama, test, own, **options)
    assert max(sizes) > 2
    assert sizes[-1] <= 2
    assert torch.equal(found.n, expected.n)
    assert torch.allclose(found.values, expected.values, atol=1e-5, equal_nan=True)
    assert torch.allclose(found.gain_errors, expected.gain_errors, atol=1e-5, equal_nan=True)
    monkeypatch.setattr(Continuation, "logits", lambda *_: raise_memory())
    with pytest.raises(QKPrismError, match=r"a single example of \d+ tokens does not fit in memory"):
        qk.intervene(llama, test[:1], own, **options)


def raise_memory():
    raise torch.OutOfMemoryError("out of memory")


def test_outcome__progress_counts_every_edited_text_once_also_after_halving(llama, own, monkeypatch):
    test, ticks = examples(5, seed=12), []
    start = Continuation.start.__func__

    def small_memory(cls, model, examples, **options):
        if len(examples) > 2 and ticks:
            raise_memory()
        return start(cls, model, examples, **options)

    @contextmanager
    def counting(total, *_):
        ticks.append(0)
        yield ticks.append
        assert sum(ticks) == total

    monkeypatch.setattr(outcomes, "bar", counting)
    monkeypatch.setattr(Continuation, "start", classmethod(small_memory))
    qk.intervene(
        llama,
        test,
        own,
        outcome="logits",
        compare=CONTRAST,
    )
    assert len(ticks) > 3


def test_outcome__answers_that_the_model_hardly_gives_are_noted(llama, own, monkeypatch):
    options = {"outcome": "logits", "compare": CONTRAST, "progress": False}
    found = qk.intervene(llama, examples(3, seed=12), own, **options)
    before = found.value("probability_original", head=found.heads[0], control="none")[0]
    assert before < 0.05
    assert any(f"the original answers a probability of {before:.2g}" in note for note in found.notes)
    monkeypatch.setattr(outcomes, "HARDLY", before)
    assert not any("probability" in note for note in qk.intervene(llama, examples(3, seed=12), own, **options).notes)


def test_outcome__nan_is_one_sentence():
    model = load("llama", tie_word_embeddings=False)
    options = {"outcome": "logits", "compare": Comparison(methods=["raw"], draws=1), "progress": False}
    own = qk.decompose(model, contrasts(20), heads=["L0H1"], recipe=qk.Recipe(rank=1), progress=False)
    huge = Edit("steer", side="query", amount=1e38, vector=[1.0] * 8)
    with pytest.raises(
        QKPrismError, match=r"example \d: .*float32\) predicts NaN or infinity after the edit \(steer queries"
    ):
        qk.intervene(model, examples(2), own, edit=huge, **options)
    with torch.no_grad():
        model.hf.lm_head.weight[3] = torch.nan
    own = qk.decompose(model, contrasts(20), heads=["L0H1"], recipe=qk.Recipe(rank=1), progress=False)
    with pytest.raises(QKPrismError, match=r"example \d: the output layer of .* gives NaN or infinity"):
        qk.intervene(model, examples(2), own, **options)


# Bad input


def test_intervene__bad_input_is_one_clear_line(llama, own):
    test = examples(2)
    twin = Example.parse("jam in [+A]. jam", twin="pen in [+A]. pen")
    for wrong, says in [
        (lambda: qk.intervene(llama, test, own, heads="L0H0"), "no feature for head L0H0. There are: L0H1"),
        (lambda: qk.intervene(llama, test, own, heads="L7H0"), "L7H0 is not in"),
        (lambda: qk.intervene(load("llama", seed=5), test, own), "the weights of .* are others"),
        (lambda: Text("xA yB", None, (Span(1, 2, target=True),), (Span(4, 5),)), "the target is a negative key"),
        (lambda: qk.intervene(llama, [twin], own), "needs a negative key"),
        (lambda: qk.intervene(llama, [], own), "no examples"),
        (lambda: qk.intervene(llama, [Example.parse("[-A] [?x] [+B]")], own), "comes after the query"),
        (lambda: qk.intervene(llama, test, own, compare=Comparison(draws=0)), "draws=0 is not possible"),
        (
            lambda: qk.intervene(llama, test, own, compare=Comparison(labels={"colour": "x"})),
            "labels names the contrast 'colour'",
        ),
        (lambda: qk.intervene(llama, test, own, compare=Comparison(methods=["best"])), "not a method of editing"),
        (lambda: qk.intervene(llama, test, own, compare=Comparison(methods=[])), "No method of editing"),
        (
            lambda: qk.intervene(llama, test, own, compare=Comparison(labels={"boxes": "colour"})),
            "No key has a label 'colour'",
        ),
        (lambda: qk.intervene(llama, test, own, compare=Comparison(seed=-1)), "seed=-1 is not possible"),
        (lambda: qk.intervene(llama, test, own, edit=Edit("steer", direction=4)), "is not in 'boxes' of L0H1"),
        (lambda: qk.intervene(llama, test, own, edit=Edit("replace", vector=[1.0])), "has 1 numbers; L0H1 needs 8"),
    ]:
        with pytest.raises(QKPrismError, match=says):
            wrong()


def test_intervene__features_of_vectors_are_refused(llama):
    from planted import two_factors

    features = decompose_vector_sets(two_factors(200)[0])
    with pytest.raises(QKPrismError, match="plain vectors"):
        qk.intervene(llama, examples(1), features)


def test_intervene__a_key_outside_the_window_is_refused():
    model = load("mistral", sliding_window=64)
    own = qk.decompose(model, contrasts(20), heads=["L0H0"], recipe=qk.Recipe(rank=1, metric="raw"), progress=False)
    far = Example.parse("in [+A], " + "the hat and " * 12 + "in [-B], box")
    with pytest.raises(QKPrismError, match="outside the sliding window"):
        qk.intervene(model, [far], own, progress=False)


@pytest.mark.filterwarnings("ignore:18 of 20 examples")
def test_intervene__encoders_have_no_next_token():
    model = load("bert")
    marked = [Example.parse("hat in [+A], pen in [-B], [?box]"), Example.parse("cup in [-A], pen in [+B], [?box]")]
    contrast = Contrast("c", tuple(marked * 10))
    own = qk.decompose(model, contrast, heads=["L0H0"], recipe=qk.Recipe(rank=1), progress=False)
    assert qk.intervene(model, marked, own, compare=ONE, progress=False).n[0] == 2
    with pytest.raises(QKPrismError, match="needs a causal language model"):
        qk.intervene(model, marked, own, outcome="logits", progress=False)


def test_heads_order__is_kept_by_layer(own):
    assert own.heads == tuple(map(Head.parse, HEADS))


def counted(model):
    """How often each block of a model has run, in a list that grows."""
    ran = []
    for number, block in enumerate(model.hf.model.layers):
        block.self_attn.register_forward_hook(lambda *_, number=number: ran.append(number))
    return ran


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gpt2", "gpt_oss"])
def test_continuation__blocks_in_front_of_an_edit_are_not_needed_again(name):
    model = load(name)
    encoded = encode(model.tokenizer, examples(4, seed=2))
    assert skips_are_exact(model, encoded, "post", [0, 1])
    plain, skips = (Continuation.start(model, encoded, rope="post", cached=True, skips=own) for own in ((), (1,)))
    skips.logits()
    found = [begun.logits(ablate_first_head, [1]) for begun in (plain, skips)]
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[1], skips.logits(), atol=1e-5)


def ablate_first_head(call):
    call.edit_head(0, query=torch.zeros_like(call.query[:, 0]))


def test_continuation__skips_run_only_what_an_edit_changes_and_leave_no_trace():
    model = load("llama", num_hidden_layers=4)
    encoded = encode(model.tokenizer, examples(3, seed=2))
    begun = Continuation.start(model, encoded, rope="post", cached=True, skips=[2])
    ran = counted(model)
    begun.logits()
    assert ran == [0, 1, 2, 3]
    begun.logits(ablate_first_head, iter([3, 2]))
    assert ran == [0, 1, 2, 3, 2, 3]
    begun.logits(ablate_first_head, [1])
    begun.logits(ablate_first_head)
    assert ran[6:] == [0, 1, 2, 3] * 2
    assert len(begun.noted) == 1
    assert not any("forward" in vars(block) for block in model.hf.model.layers)
    with pytest.raises(ValueError, match="stop here"):
        begun.logits(raise_there, [2])
    assert not any("forward" in vars(block) for block in model.hf.model.layers)


def raise_there(_):
    raise ValueError("stop here")


def test_continuation__other_threads_run_every_block():
    model = load("llama")
    encoded = encode(model.tokenizer, examples(3, seed=2))
    begun = Continuation.start(model, encoded, rope="post", cached=True, skips=[1])
    text = torch.tensor([encoded[0].text.ids[:7]])
    alone, seen = model.run(text, logits=True), []
    begun.logits()

    def run_elsewhere(_):
        thread = threading.Thread(target=lambda: seen.append(model.run(text, logits=True)))
        thread.start()
        thread.join()

    begun.logits(run_elsewhere, [1])
    assert torch.equal(seen[0], alone)


def test_skipping__does_not_pile_up_when_threads_overlap():
    block = torch.nn.Linear(2, 2)
    given = torch.ones(1, 2)
    expected, ran = block(given), []

    def watch():
        for _ in range(300):
            with skipping({block: "known"}):
                ran.append(block(given))

    with skipping({}), skipping({block: 1}):
        outer = block.forward
        with skipping({block: 2}):
            assert block.forward is outer
            assert block(given) == 2
        assert block(given) == 1
    threads = [threading.Thread(target=watch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ran == ["known"] * 900
    assert torch.equal(block(given), expected)
    assert "forward" not in vars(block)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gpt2", "gpt_oss", "mistral"])
def test_continuation__texts_are_run_in_pieces_up_to_their_queries(name, monkeypatch):
    model = load(name, **({"sliding_window": 64} if name == "mistral" else {}))
    encoded = encode(model.tokenizer, examples(6, seed=1))
    whole = Continuation.start(model, encoded, rope="post", cached=False).logits()
    assert model.takes_positions  # tried once, by passes that are not to be counted
    forward, widths = type(model.hf.base_model).forward, []

    @functools.wraps(forward)
    def counted(self, *args, **options):
        widths.append(tuple((args[0] if args else options["input_ids"]).shape))
        return forward(self, *args, **options)

    monkeypatch.setattr(type(model.hf.base_model), "forward", counted)
    for budget, most in ((10_000, None), (60, 60), (1, 6)):
        monkeypatch.setitem(continuation.TOKEN_BUDGET, "cpu", budget)
        widths.clear()
        begun = Continuation.start(model, encoded, rope="post", cached=True)
        assert sum(columns for _, columns in widths) == begun.batch.input_ids.shape[1] - begun.tail
        assert len(widths) == 2 if most is None else all(rows * columns <= most for rows, columns in widths)
        assert torch.allclose(begun.logits(), whole, atol=1e-4)


def test_continuation__skips_are_refused_where_a_block_runs_again_after_the_edit():
    model = load("llama")
    encoded = encode(model.tokenizer, examples(3, seed=2))
    first, second = model.hf.model.layers
    forward = type(second).forward

    def twice(hidden, *args, **kwargs):
        """The second block, then the first once more without attention."""
        hidden = forward(second, hidden, *args, **kwargs)
        return first.mlp(hidden) + first(hidden, *args, **{**kwargs, "past_key_values": None})

    second.forward = twice
    assert not skips_are_exact(model, encoded, "post", [1])


def test_continuation__skips_are_refused_where_blocks_hand_on_more_than_their_output():
    model = load("llama")
    encoded = encode(model.tokenizer, examples(3, seed=2))
    first, second = model.hf.model.layers
    state = {}
    first.self_attn.register_forward_hook(lambda _, __, output: state.update(kept=output[0] * 2))
    second.register_forward_hook(lambda _, __, output: output + state.pop("kept", 0))
    assert cache_is_exact(model, encoded, "post")
    assert not skips_are_exact(model, encoded, "post", [1])
    shares_keys = load("gemma4", vocab_size_per_layer_input=len(byte_level()), sliding_window=200)
    encoded = encode(shares_keys.tokenizer, examples(3, seed=2))
    assert cache_is_exact(shares_keys, encoded, "post")
    assert [skips_are_exact(shares_keys, encoded, "post", [layer]) for layer in range(4)] == [True] + [False] * 3


def test_intervene__of_several_sets_gives_what_each_would_alone_from_one_pass(llama):
    given = contrasts()
    sets = {
        "ours": qk.decompose(llama, given, heads=HEADS, recipe=qk.Recipe(rank=2), progress=False),
        "raw": qk.decompose(
            llama, {"first": given["first"]}, heads=HEADS[:2], recipe=qk.Recipe(rank=1, metric="raw"), progress=False
        ),
    }
    test = Contrast("test", examples(6, seed=4))
    options = {"compare": TWO, "progress": False}
    ran = []
    hook = llama.hf.model.layers[0].register_forward_hook(lambda *_: ran.append(1))
    found = qk.intervene(llama, test, sets, batch_size=3, **options)
    hook.remove()
    assert len(ran) == 2
    for way, features in sets.items():
        alone = qk.intervene(llama, test, features, batch_size=3, **options)
        assert found[way].heads == alone.heads
        assert found[way].entries == alone.entries
        assert torch.equal(found[way].values, alone.values)
        assert found[way].provenance == alone.provenance
    with pytest.raises(QKPrismError, match="at least one set"):
        qk.intervene(llama, test, {})
    other = qk.decompose(
        llama, given, heads=HEADS, encoding=qk.Encoding(rope="relative"), recipe=qk.Recipe(rank=1), progress=False
    )
    with pytest.raises(QKPrismError, match="encoded differently"):
        qk.intervene(llama, test, {**sets, "other": other})


def test_outcome__tries_the_cache_on_the_shortest_texts_too(monkeypatch):
    torch.manual_seed(0)
    settings = tiny("roberta", max_position_embeddings=256, vocab_size=len(byte_level()), is_decoder=True).config
    model = qk.load((RobertaForCausalLM(settings).eval(), byte_level()))
    assert not model.takes_positions  # so that padding on the left changes what it says
    features = qk.decompose(model, contrasts(40), heads=["L0H1", "L1H0"], progress=False)
    rng = np.random.default_rng(5)
    lengths = defaultdict(list)
    for item in encode(model.tokenizer, drawn := [example(rng, n_keys=n) for n in (5, 3) for _ in range(60)]):
        lengths[item.length].append(drawn[item.index])
    longest = max(length for length, own in lengths.items() if len(own) >= outcomes.TRIAL)
    test = [*lengths[longest][: outcomes.TRIAL], *lengths[min(lengths)]]
    found = []
    for own in (outcomes.cache_is_exact, lambda *_: False):
        monkeypatch.setattr(outcomes, "cache_is_exact", own)
        found.append(qk.intervene(model, test, features, outcome="logits", compare=ONE, progress=False))
    assert torch.allclose(found[0].values, found[1].values, rtol=1e-3, atol=1e-5, equal_nan=True)


def test_outcome__keeps_the_cache_of_one_batch_at_a_time(llama, own, monkeypatch):
    start, begun, left = Continuation.start.__func__, list[weakref.ref[Continuation]](), list[int]()

    def counted(cls, model, examples, **options):
        left.append(sum(own() is not None for own in begun))
        found = start(cls, model, examples, **options)
        begun.append(weakref.ref(found))
        return found

    monkeypatch.setattr(outcomes, "cache_is_exact", lambda *_: True)
    monkeypatch.setattr(outcomes, "skips_are_exact", lambda *_: True)
    monkeypatch.setattr(outcomes.Continuation, "start", classmethod(counted))
    qk.intervene(llama, examples(9, seed=3), own, outcome="logits", batch_size=3, compare=ONE, progress=False)
    assert len(left) >= 3
    assert not any(left)
