"""From texts to features on tiny models: the streaming result equals brute force, however it is batched."""

import gc
import warnings
from contextlib import contextmanager
from dataclasses import replace

import jaxtyping
import numpy as np
import pytest
import torch

import oracle
import qkprism as qk
from qkprism import Contrast, Example, QKPrismError
from qkprism.capture import batching, streaming
from qkprism.capture.batching import Batches
from qkprism.capture.source import moments_of, sites_of
from qkprism.capture.streaming import MarkedContrast, ModelStream, Pass
from qkprism.capture.texts import Census
from qkprism.contrasts import Text
from qkprism.core.covariance import contrastive_covariance
from qkprism.core.metrics import cell_covariance, key_covariance
from qkprism.models.encoding import EncodedExample, Encoder, Encodings, encode
from tiny import one_thread, tiny  # noqa: F401
from tokenizers_for_tests import byte_level

WORDS = ["hat", "jam", "pen", "cup", "key", "map", "ring", "coin", "book", "lamp"]


def contrast(n=40, twins=False, seed=0, name="boxes"):
    """Texts of which no two are the same, nor are their twins; the same texts with and without twins."""
    rng = np.random.default_rng(seed)
    examples, seen = [], set()
    while len(examples) < n:
        things = list(rng.permutation(WORDS)[: rng.integers(2, 6)])
        asked = int(rng.integers(len(things)))
        texts = []
        for word in (None, "drum"):
            named = [word if word and j == asked else thing for j, thing in enumerate(things)]
            marks = [f"the {thing} in [{'+' if j == asked else '-'}{'ABCDEF'[j]}]" for j, thing in enumerate(named)]
            texts.append(", ".join(marks) + f". The {named[asked]} in [?box]")
        weight, group = float(rng.uniform(0.5, 2)), f"g{len(examples) // 2}"
        if seen.isdisjoint(own := {Text.parse(text).text for text in texts}):
            examples.append(Example.parse(texts[0], twin=texts[1] if twins else None, weight=weight, group=group))
            seen |= own
    return Contrast(name, tuple(examples))


@pytest.fixture(scope="module", params=["llama", "qwen3", "gpt2"])
def model(request):
    tokenizer = byte_level()
    return qk.load((tiny(request.param, vocab_size=len(tokenizer)), tokenizer))


def captured(model, examples):
    """Queries and keys of every layer, one text at a time: [layer][example] -> (query, keys, sides, twin query)."""
    encoded = encode(model.tokenizer, examples)
    found = {layer: [] for layer in model.layers}
    for example in encoded:
        seen = []
        for text in example.texts:
            calls = {}

            def keep(call, calls=calls):
                calls[call.layer] = (call.query[0].clone(), call.key[0].clone())

            model.run(torch.tensor([text.ids]), visit=keep, stop=False)
            seen.append((text, calls))
        for layer in found:
            keys, sides = [], []
            for which, (text, calls) in enumerate(seen):
                for key in text.keys:
                    keys.append(calls[layer][1][:, key.position])
                    sides.append((which + 1) * (1 if key.positive else -1))
            queries = [calls[layer][0][:, text.query] for text, calls in seen]
            found[layer].append((queries[0], torch.stack(keys, 1), sides, queries[-1]))
    return found


def brute_force(model, layer, head, rows, weight, *, reading="plain", centred=True):
    kv = model.kv_head(qk.Head(layer, head))
    pairs = oracle.pairs(
        [row[0][head].numpy() for row in rows],
        [row[1][kv].numpy() for row in rows],
        [row[2] for row in rows],
        twin_query=[row[3][head].numpy() for row in rows],
        reading=reading,
    )
    return oracle.covariance(pairs, weight, centred=centred)


@contextmanager
def unchecked():
    """Without the checks of type hints that only tests have: what a user sees who gives something else."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def relative_error(ours, theirs):
    theirs = torch.as_tensor(theirs)
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("batch_size", [1, 3, 64, None])
def test_decompose__equals_brute_force_for_any_batch_size(model, batch_size):
    texts = contrast()
    features = qk.decompose(model, texts, batch_size=batch_size, progress=False)
    weight = [e.weight for e in texts]
    for layer, rows in captured(model, texts).items():
        moments = features.layers[layer].moments["boxes"]
        for head in range(model.layers[layer].n_heads):
            for centred in (True, False):
                expected = brute_force(model, layer, head, rows, weight, centred=centred)
                assert relative_error(contrastive_covariance(moments, None, centred=centred)[head], expected) <= 1e-5
            kv = model.kv_head(qk.Head(layer, head))
            keys = [row[1][kv].numpy() for row in rows]
            assert relative_error(key_covariance([moments])[kv], oracle.key_covariance(keys, weight)) <= 1e-5


@pytest.mark.parametrize("reading", ["paired", "symmetric", "matched"])
def test_decompose__twins_equal_brute_force(model, reading):
    texts = contrast(twins=True)
    features = qk.decompose(model, texts, recipe=qk.Recipe(reading=reading), progress=False)
    assert features.provenance["contrasts"]["boxes"]["reading"] == reading
    weight = [e.weight for e in texts]
    for layer, rows in captured(model, texts).items():
        moments = features.layers[layer].moments["boxes"]
        for head in range(model.layers[layer].n_heads):
            expected = brute_force(model, layer, head, rows, weight, reading=reading)
            assert relative_error(contrastive_covariance(moments, None, centred=True)[head], expected) <= 1e-5


@pytest.mark.parametrize("side", ["right", "left"])
def test_stream__padding_side_and_order_change_nothing(model, side, monkeypatch):
    plain = batching.collate
    texts = contrast()
    heads = list(qk.heads.all_heads(model.heads_per_layer))

    def stream(examples):
        encoded = Encodings(examples, Encoder.of(model.tokenizer))
        marked = MarkedContrast.of("boxes", encoded, Census.of(encoded, examples), "plain", 0)
        batches = Batches(model, sorted(model.layers), batch_size=7)
        return moments_of(ModelStream(batches, sites_of(model, heads), [Pass((marked,))]))["boxes"]

    expected = stream(texts)
    monkeypatch.setattr(batching, "collate", lambda examples, pad: plain(examples, pad, side))
    for changed in (stream(texts), stream(list(texts)[::-1])):
        for layer, moments in expected.items():
            assert relative_error(changed[layer].product, moments.product) <= 1e-5
            assert relative_error(changed[layer].key_within, moments.key_within) <= 1e-5


def test_stream__chunks_change_nothing(model, monkeypatch):
    texts = contrast()
    whole = qk.decompose(model, texts, progress=False)
    monkeypatch.setitem(streaming.CHUNK, "cpu", 7)
    parts = qk.decompose(model, texts, progress=False)
    for key, feature in whole.items():
        assert relative_error(parts[key].covariance, feature.covariance) <= 1e-6


def test_decompose__keeps_the_tokens_of_one_chunk_at_a_time(model, monkeypatch):
    monkeypatch.setitem(streaming.CHUNK, "cpu", 5)
    run, most = type(model).run, 0

    def counted(*args, **options):
        nonlocal most
        most = max(most, sum(type(thing) is EncodedExample for thing in gc.get_objects()))
        return run(*args, **options)

    monkeypatch.setattr(type(model), "run", counted)
    gc.collect()
    before = sum(type(thing) is EncodedExample for thing in gc.get_objects())
    twins = contrast(40, twins=True, seed=1, name="twins")
    qk.decompose(model, [contrast(60), twins], recipe={"ours": qk.Recipe(), "paper": "paper"}, progress=False)
    assert 5 <= most - before <= 3 * 5  # of this chunk, as they are run, and the last of the other contrast


def test_stream__halves_a_batch_that_does_not_fit_and_adds_nothing_twice(model, monkeypatch):
    texts = contrast()
    expected = qk.decompose(model, texts, progress=False)
    run, sizes = type(model).run, []

    def small_memory(self, input_ids, *args, **options):
        sizes.append(len(input_ids))
        output = run(self, input_ids, *args, **options)
        if len(input_ids) > 6:
            raise torch.OutOfMemoryError("out of memory")
        return output

    monkeypatch.setattr(type(model), "run", small_memory)
    found = qk.decompose(model, texts, batch_size=32, progress=False)
    assert max(sizes) > 6
    assert sizes[-1] <= 6
    for key, feature in expected.items():
        assert relative_error(found[key].covariance, feature.covariance) <= 1e-6
        assert found[key].n == feature.n


def test_stream__says_so_when_one_example_does_not_fit(model, monkeypatch):
    def no_memory(*_, **__):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(type(model), "run", no_memory)
    with pytest.raises(QKPrismError, match="does not fit in memory"):
        qk.decompose(model, contrast(3), progress=False)


def test_decompose__several_contrasts_share_a_metric_and_labels_make_cells():
    tokenizer = byte_level()
    model = qk.load((tiny("llama", vocab_size=len(tokenizer)), tokenizer))
    both = {"a": contrast(120, seed=1), "b": contrast(120, twins=True, seed=2)}
    features = qk.decompose(model, both, progress=False)
    assert features.contrasts == ("a", "b")
    assert features.choices.metric == "contrast"
    for head in features.heads:
        assert torch.equal(features["a", head].metric, features["b", head].metric)
    assert features["a", "L0H0"].reading == "plain"
    assert features["b", "L0H0"].reading == "symmetric"
    paper = qk.decompose(model, both, recipe="paper", progress=False)
    feature = paper["b", "L0H0"]
    assert (feature.choices.center, feature.choices.metric, feature.choices.rank) == ("none", "raw", "energy")
    assert (feature.reading, feature.rank) == ("paired", feature.rank_energy)
    code = qk.decompose(model, both, recipe="paper-code", progress=False)["b", "L0H0"]
    assert (code.reading, code.choices) == ("matched", feature.choices)


def test_decompose__cuts_by_what_is_mostly_the_contrasts_own_and_says_what_it_used(model):
    both = decompose_pair(model)
    assert {(f.choices.rank, f.rank_rule) for f in both.values()} == {("own", "own")}
    spanned = [f for f in both.values() if f.head.layer]  # queries of the first have seen nothing yet
    assert all(f.rank == max(f.rank_balanced, f.rank_own) for f in spanned)
    alone = qk.decompose(model, contrast(80), progress=False)["L1H0"]
    assert (alone.choices.metric, alone.rank_rule) == ("contrast", "own")
    raw = qk.decompose(model, contrast(60), recipe=qk.Recipe(metric="raw"), progress=False)["L1H0"]
    assert (raw.choices.rank, raw.rank_rule, raw.rank) == ("own", "balanced", raw.rank_balanced)
    assert any("cut by the balanced rank" in note for note in raw.notes)


def decompose_pair(model):
    return qk.decompose(model, {"a": contrast(60, seed=1), "b": contrast(60, seed=2)}, progress=False)


def test_decompose__warns_of_few_examples_in_the_contrast_metric():
    tokenizer = byte_level()
    model = qk.load((tiny("llama", vocab_size=len(tokenizer)), tokenizer))
    with pytest.warns(UserWarning, match="Only .* effective examples for d_head 8: the contrast metric is noisy"):
        qk.decompose(model, {"a": contrast(10, seed=1), "b": contrast(10, seed=2)}, progress=False)


def test_decompose__one_contrast_of_few_examples_is_in_the_raw_metric(model):
    found = qk.decompose(model, contrast(20), progress=False)
    assert found.choices.metric == "raw"
    assert all(any(note.startswith("Raw metric, in which") for note in f.notes) for f in found.values())


def test_decompose__one_contrast_is_in_the_raw_metric_where_keys_do_not_span_their_space(model):
    ends = [f"{a}{b}" for a in "abcdefghij" for b in "klmnopqr"]
    same = tuple(Example.parse(f"In Box [+A], in Box [-B]. So {end} in [?Box]") for end in ends)
    with unchecked(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = qk.decompose(model, Contrast("same", same), heads=["L0H0"], progress=False)
    assert found.choices.metric == "raw"
    assert any("So the metric is raw" in note for note in found["L0H0"].notes)
    with pytest.raises(QKPrismError, match="do not span the key space"):
        qk.decompose(model, contrast(2), recipe=qk.Recipe(metric="contrast"), progress=False)


def test_marked__groups_reach_folds_and_nulls(model):
    encoded = Encodings(contrast(40), Encoder.of(model.tokenizer))
    marked = MarkedContrast.of("boxes", encoded, Census.of(encoded, contrast(40)), "plain", 0)
    folds, numbers = {}, {}
    for example, fold, number in zip(encoded, marked.fold, marked.group, strict=True):
        folds.setdefault(example.group, set()).add(fold)
        numbers.setdefault(example.group, set()).add(number)
    assert len(folds) == 20
    assert all(len(own) == 1 for own in (*folds.values(), *numbers.values()))


def test_decompose__what_cannot_work_is_refused_before_the_pass(model, monkeypatch, tmp_path):
    monkeypatch.setattr(type(model), "run", lambda *_, **__: pytest.fail("the model ran"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    few = {"a": contrast(1, seed=1), "b": contrast(1, seed=2)}
    for arguments, options, message in (
        (contrast(20), {"recipe": qk.Recipe(rank=999)}, "rank of 999 is not possible"),
        (contrast(6), {"recipe": qk.Recipe(rank="heldout")}, "needs 8 groups"),
        (contrast(20), {"recipe": qk.Recipe(center="Query")}, "'Query' is not a way to centre"),
        (contrast(20), {"checkpoint": tmp_path / "mine"}, "holds other files"),
        (contrast(20), {"batch_size": 0}, "batch_size=0 is not possible"),
        (few, {}, "do not span"),
        ([Example.parse("in [-A] in [+B] [?box]")], {}, "is not a contrast"),
    ):
        with unchecked(), pytest.raises(QKPrismError, match=message):
            qk.decompose(model, arguments, progress=False, **options)
    with unchecked(), pytest.raises(QKPrismError, match="load returned"):
        qk.decompose(model.hf, contrast(4))
    with pytest.raises(QKPrismError, match="'beauty' is not a measure of heads"):
        qk.find_heads(model, contrast(4), by="beauty")


def test_decompose__a_dead_head_leaves_the_others_alone():
    tokenizer = byte_level()
    hf = tiny("llama", vocab_size=len(tokenizer))
    with torch.no_grad():
        hf.model.layers[1].self_attn.q_proj.weight[:8] = 0
    features = qk.decompose(qk.load((hf, tokenizer)), contrast(60), progress=False)
    assert features["L1H0"].rank_balanced is None
    assert features["L1H1"].rank_balanced is not None
    assert not any("no balanced rank" in note for note in features["L1H1"].notes)


def test_decompose__keys_with_labels_make_cells():
    tokenizer = byte_level()
    model = qk.load((tiny("llama", vocab_size=len(tokenizer)), tokenizer))
    texts = []
    for example in contrast(60):
        text = example.text
        spans = {
            side: tuple(type(s)(s.start, s.end, labels={"box": text.text[s.start]}) for s in getattr(text, side))
            for side in ("positive", "negative")
        }
        texts.append(Example(type(text)(text.text, text.query, **spans), weight=example.weight))
    features = qk.decompose(model, Contrast("boxes", tuple(texts)), heads=["L1H0"], progress=False)
    moments = features.layers[1].moments["boxes"]
    rows = captured(model, texts)[1]
    spans = [sorted(s.start for sign, s in example.text.marks if sign != "?") for example in texts]
    labels = [[example.text.text[at] for at in starts] for example, starts in zip(texts, spans, strict=True)]
    kv = model.kv_head(qk.Head(1, 0))
    keys = [row[1][kv].numpy() for row in rows]
    weight = [e.weight for e in texts]
    expected = oracle.cell_scatter(keys, labels, weight) / sum(weight)
    assert relative_error(cell_covariance([moments])[0], expected) <= 1e-5


def test_decompose__chosen_heads_equal_the_same_heads_of_all(model):
    texts = contrast()
    every = qk.decompose(model, texts, progress=False)
    few = qk.decompose(model, texts, heads=["L1H3", (0, 1)], progress=False)
    assert [str(h) for h in few.heads] == ["L0H1", "L1H3"]
    for key, feature in few.items():
        assert relative_error(feature.covariance, every[key].covariance) <= 1e-12
        real = feature.strengths > 1e-6 * feature.strengths[0]  # the directions of zeros are anyone's
        assert torch.allclose(feature.key_basis[:, real], every[key].key_basis[:, real], atol=1e-8)


def test_decompose__relative_frame_has_the_same_logit_gap(model):
    texts = contrast()
    post, relative = (
        qk.decompose(model, texts, encoding=qk.Encoding(rope=rope), progress=False) for rope in ("post", "relative")
    )
    for key, feature in post.items():
        assert relative[key].logit_gap.total == pytest.approx(feature.logit_gap.total, rel=1e-3, abs=1e-5)


def test_decompose__is_deterministic_and_records_its_provenance(model):
    texts = contrast()
    first, second = (qk.decompose(model, texts, heads="L0H0", progress=False) for _ in range(2))
    assert torch.equal(first["L0H0"].key_basis, second["L0H0"].key_basis)
    assert torch.equal(first["L0H0"].spectrum.null_mean, second["L0H0"].spectrum.null_mean)
    provenance = first["L0H0"].provenance
    assert provenance["contrasts"]["boxes"]["digest"] == texts.digest
    assert provenance["dtype"] == "float32"
    assert {"model", "revision", "model_digest", "versions"} <= provenance.keys()


def test_find_heads__equals_attention_of_the_model(model):
    texts = contrast(12)
    scores = qk.find_heads(model, texts, progress=False)
    assert scores.n == 12
    texts_of = [e.text for e in texts]
    shares = [len(t.positive) / (len(t.positive) + len(t.negative)) for t in texts_of]
    assert scores.chance == pytest.approx(sum(shares) / 12)
    encoded = encode(model.tokenizer, texts)
    weight = np.array([e.weight for e in texts])
    for name in ("accuracy", "accuracy_all", "attention_positive", "attention_negative", "ratio", "logit_gap"):
        frame = scores.to_frame().set_index("head")
        for layer in model.layers:
            measured = []
            for example in encoded:
                seen = {}

                def keep(call, seen=seen, row=example.text.query):
                    seen[call.layer] = (call.attention(rows=torch.tensor([row]))[0, :, 0], call.logits()[0, :, row])

                model.run(torch.tensor([example.text.ids]), visit=keep, stop=False)
                attention, logits = seen[layer]
                positive, negative = list(example.text.positive), list(example.text.negative)
                on, off = attention[:, positive].sum(1), attention[:, negative].sum(1)
                measured.append(
                    {
                        "accuracy": (attention[:, positive].amax(1) > attention[:, negative].amax(1)).float(),
                        "accuracy_all": (attention[:, positive].amax(1) == attention.amax(1)).float(),
                        "attention_positive": on,
                        "attention_negative": off,
                        "ratio": on / (on + off),
                        "logit_gap": logits[:, positive].mean(1) - logits[:, negative].mean(1),
                    }[name].numpy()
                )
            expected = (np.stack(measured) * weight[:, None]).sum(0) / weight.sum()
            ours = [frame.loc[f"L{layer}H{h}", name] for h in range(model.layers[layer].n_heads)]
            assert np.allclose(ours, expected, atol=1e-4)


def test_find_heads__table_sorts_and_thresholds(model):
    scores = qk.find_heads(model, contrast(12), progress=False)
    assert torch.all(scores.values["accuracy"].diff() <= 0)
    by_gap = scores.sort("logit_gap")
    assert torch.all(by_gap.values["logit_gap"].diff() <= 0)
    assert by_gap.top(2) == by_gap.heads[:2]
    kept = scores.above(accuracy=0.3, ratio=0.1)
    assert all(scores.to_frame().set_index("head").loc[str(h), "accuracy"] >= 0.3 for h in kept)
    with pytest.raises(QKPrismError, match="'beauty' is not a measure of heads"):
        scores.sort("beauty")
    features = qk.decompose(model, contrast(12), heads=scores.above(accuracy=0.0), progress=False)
    assert len(features) == len(scores)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "L9H0"}, r"L9H0 is not in .* layers x 4 heads\)\. Heads run from L0H0 to L1H3\."),
        ({"heads": []}, "No head was named"),
        ({"recipe": "mine"}, "'mine' is not a preset"),
        ({"recipe": qk.Recipe(reading="backwards")}, "'backwards' is not a reading"),
        ({"encoding": qk.Encoding(chat=True)}, "chat template"),
        ({"encoding": qk.Encoding(max_length=4)}, "cuts off"),
    ],
)
def test_decompose__bad_options_get_one_clear_line(model, options, message):
    options = {"progress": False} | options
    with unchecked(), pytest.raises(QKPrismError, match=message) as caught:
        qk.decompose(model, contrast(4, twins="backwards" in message), **options)
    assert "\n" not in str(caught.value)


def test_decompose__mixed_twins_and_equal_names_are_refused(model):
    mixed = Contrast("mixed", (*contrast(2), *contrast(2, twins=True)))
    with pytest.raises(QKPrismError, match="have a twin and some do not"):
        qk.decompose(model, mixed, progress=False)
    with pytest.raises(QKPrismError, match="the same name"):
        qk.decompose(model, [contrast(2), contrast(3)], progress=False)
    only = Example.parse("in [+A]. The [?box]", twin="in [+B]. The [?box]")
    with pytest.raises(QKPrismError, match="needs a negative key"):
        qk.find_heads(model, [only], progress=False)


def test_decompose__window_and_length_are_checked_before_the_pass():
    tokenizer = byte_level()
    model = qk.load((tiny("mistral", vocab_size=len(tokenizer)), tokenizer))
    with pytest.raises(QKPrismError, match="outside the sliding window"):
        qk.decompose(model, contrast(6), progress=False)


def test_decompose__models_that_take_no_plain_text_are_refused():
    tokenizer = byte_level()
    with pytest.raises(QKPrismError, match="is an encoder-decoder"):
        qk.decompose(qk.load((tiny("t5", vocab_size=len(tokenizer)), tokenizer)), contrast(4), progress=False)
    with pytest.raises(QKPrismError, match="has no tokenizer"):
        qk.decompose(qk.load(tiny("vit")), contrast(4), progress=False)


def test_model__says_what_it_is_in_one_line(model):
    assert repr(model).endswith("2 attention layers x 4 heads, float32 on cpu)")


def test_decompose__nan_weights_are_refused_by_name():
    tokenizer = byte_level()
    hf = tiny("llama", vocab_size=len(tokenizer))
    model = qk.load((hf, tokenizer))
    with torch.no_grad():
        hf.model.layers[1].self_attn.k_proj.weight.fill_(float("nan"))
    with pytest.raises(QKPrismError, match="L1H0, L1H1, L1H2 are not finite"):
        qk.decompose(model, contrast(12), progress=False)
    with pytest.raises(QKPrismError, match="L1H0, L1H1, L1H2 are not finite"):
        qk.find_heads(model, contrast(12), progress=False)


def forward_passes(model, monkeypatch):
    """Counts the rows that go through the model: a text each, or an example whose texts begin alike."""
    count, run = [0], type(model).run

    def counted(self, input_ids=None, *args, **kwargs):
        count[0] += len(input_ids)
        return run(self, input_ids, *args, **kwargs)

    monkeypatch.setattr(type(model), "run", counted)
    return count


def test_decompose__contrasts_of_the_same_texts_share_a_pass(model, monkeypatch):
    boxes = contrast(20)
    turned = [
        Text(e.text.text, e.text.query, e.text.negative[:1], (*e.text.positive, *e.text.negative[1:])) for e in boxes
    ]
    other = Contrast("other", tuple(Example(text, weight=e.weight) for text, e in zip(turned, boxes, strict=True)))
    alone = {c.name: qk.decompose(model, c, progress=False) for c in (boxes, other)}
    count = forward_passes(model, monkeypatch)
    both = qk.decompose(model, [boxes, other], recipe=qk.Recipe(metric="raw"), progress=False)
    assert count[0] == 20
    for (name, head), feature in both.items():
        assert torch.allclose(feature.covariance, alone[name][name, head].covariance, atol=1e-9)
    qk.decompose(model, [boxes, contrast(20, seed=1, name="else")], recipe=qk.Recipe(metric="raw"), progress=False)
    assert count[0] == 60


def test_decompose__contrasts_of_the_same_texts_with_other_twins_share_a_pass(model, monkeypatch):
    monkeypatch.setitem(streaming.CHUNK, "cpu", 8)
    texts, other = contrast(30, seed=4), contrast(30, twins=True, seed=4, name="entity")
    assert [e.text.text for e in texts] == [e.text.text for e in other]
    label = [
        Example(e.text, replace(e.text, text=e.text.text.replace(" in A", " in G").replace(" in B", " in H")))
        for e in texts[::3]
    ]
    sets = [texts, other, Contrast("label", tuple(label[::-1]))]
    alone = {c.name: qk.decompose(model, c, progress=False) for c in sets}
    count = forward_passes(model, monkeypatch)
    found = qk.decompose(model, sets, recipe=qk.Recipe(metric="raw"), progress=False)
    assert count[0] == 30
    for (name, head), feature in found.items():
        assert feature.n == alone[name][name, head].n
        assert feature.reading == alone[name][name, head].reading
        if head.layer:  # queries of the first have not seen the labels yet
            assert relative_error(feature.covariance, alone[name][name, head].covariance) <= 1e-5


def test_decompose__several_recipes_pick_and_name_their_contrasts(model):
    sets = {"boxes": contrast(30), "twins": contrast(30, twins=True, seed=1), "more": contrast(30, seed=2)}
    recipes = {
        "two": qk.Recipe(contrasts={"order": "more", "lexical": "twins"}),
        "one": qk.Recipe(contrasts={"order": "boxes"}),
    }
    found = qk.decompose(model, sets, recipe=recipes, progress=False)
    expected = qk.decompose(model, {"order": sets["more"], "lexical": sets["twins"]}, progress=False)
    assert found["two"].contrasts == ("order", "lexical")
    assert found["one"].contrasts == ("order",)
    assert found["two"].provenance == expected.provenance
    for key, feature in expected.items():
        assert torch.equal(found["two"][key].strengths, feature.strengths)
    for wrong, says in [({"order": "other"}, "no contrast 'other'"), ({}, "at least one contrast")]:
        with pytest.raises(QKPrismError, match=says):
            qk.decompose(model, sets, recipe={"x": qk.Recipe(contrasts=wrong)}, progress=False)


def test_decompose__a_part_of_a_contrast_shares_its_pass(model, monkeypatch):
    monkeypatch.setitem(streaming.CHUNK, "cpu", 8)
    examples = [*contrast(30), contrast(30)[3]]  # the same text twice
    whole = Contrast("whole", tuple(examples))
    parts = [Contrast("late", tuple(examples[20:][::-1])), Contrast("few", (examples[3], examples[5], examples[30]))]
    alone = {c.name: qk.decompose(model, c, progress=False) for c in (whole, *parts)}
    count = forward_passes(model, monkeypatch)
    both = qk.decompose(model, [*parts, whole], recipe=qk.Recipe(metric="raw"), progress=False)
    assert count[0] == 31
    for (name, head), feature in both.items():
        assert feature.n == alone[name][name, head].n
        assert relative_error(feature.covariance, alone[name][name, head].covariance) <= 1e-5  # other batches
    assert both.contrasts == ("late", "few", "whole")
    qk.decompose(model, [whole, Contrast("thrice", (examples[3],) * 3)], recipe=qk.Recipe(metric="raw"), progress=False)
    assert count[0] == 31 + 31 + 3


def test_decompose__several_recipes_are_those_of_separate_calls_in_one_pass(model, monkeypatch):
    sets = {"boxes": contrast(30), "twins": contrast(30, twins=True, seed=1)}
    ours, paper = (qk.decompose(model, sets, recipe=recipe, progress=False) for recipe in (qk.Recipe(), "paper"))
    count = forward_passes(model, monkeypatch)
    found = qk.decompose(model, sets, recipe={"ours": qk.Recipe(), "paper": "paper"}, progress=False)
    assert count[0] == 30 + 30
    for way, expected in (("ours", ours), ("paper", paper)):
        assert found[way].choices == expected.choices
        assert found[way].provenance == expected.provenance
        for key, feature in expected.items():
            assert torch.equal(found[way][key].strengths, feature.strengths)
            assert found[way][key].reading == feature.reading
