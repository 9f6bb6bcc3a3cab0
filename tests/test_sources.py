"""Two kinds of source: from the same vectors they give the same results."""

from itertools import permutations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import qkprism as qk
from qkprism import Contrast, Example, QKPrismError, Vectors, VectorSource
from qkprism.capture.source import ContrastReading
from qkprism.capture.vector_batches import encoded_vectors
from qkprism.heads import Head
from qkprism.verbs.decompose import source_of
from tiny import one_thread, tiny  # noqa: F401
from tokenizers_for_tests import byte_level

QUIET = {"progress": False}
SHORT = ("hat", "jam", "pen", "cup", "key", "map", "bag")


@pytest.fixture(scope="module")
def model():
    tokenizer = byte_level()
    return qk.load((tiny("llama", vocab_size=len(tokenizer)), tokenizer))


def boxes(*, twins=False):
    """Texts whose keys stand in one order, the positive one first, as vectors have them."""
    chosen = [[next(w for w in SHORT if w not in rest), *rest] for rest in permutations(SHORT, 2)]
    if twins:
        pairs = [(text(words, "+", ""), text(["rod", *words[1:]], "+", "")) for words in chosen]
        return Contrast("boxes", tuple(Example.parse(first, twin=second) for first, second in pairs))
    return Contrast("boxes", tuple(Example.parse(text(words, "+", "-")) for words in chosen))


def text(words, positive, negative):
    """The first word's box is the positive key; without a sign the others are not marked."""
    marks = [f"[{sign}{box}]" if sign else box for sign, box in zip((positive, negative, negative), "ABC", strict=True)]
    told = ", ".join(f"the {word} in {mark}" for word, mark in zip(words, marks, strict=True))
    return f"{told}. The {words[0]} in [?box]"


def chunks_of(model, texts, reading):
    source = source_of(model, texts, None, qk.Encoding(), None)
    source.outlines([texts.name], progress=False)
    return list(source.stream([ContrastReading(texts.name, reading)], 0).chunks({})), source


def as_run(model, texts, reading="plain"):
    """The same texts in the order in which a model runs them: the longest first."""
    (chunk,), _ = chunks_of(model, texts, reading)
    return Contrast(texts.name, tuple(texts[number] for number in chunk.marks.group))


def kept(model, texts, reading="plain"):
    """What a model shows of a contrast: its vectors and groups."""
    chunks, source = chunks_of(model, texts, reading)
    side = chunks[0].marks.side[0] if reading == "plain" else 1 - 2 * chunks[0].marks.text[0]
    by_layer = {}
    for layer in source.layers:
        query, key = chunks[0].vectors(layer)
        twin = None if reading == "plain" else query[:, 1]
        marks = {"weight": chunks[0].marks.weight, "group": chunks[0].marks.group}
        by_layer[layer] = Vectors(query[:, 0], key[:, side > 0], key[:, side < 0], twin, **marks)
    return by_layer


def assert_same(first, second):
    assert list(first) == list(second)
    for key, feature in first.items():
        other = second[key]
        for name in ("key_basis", "query_basis", "strengths", "metric"):
            assert torch.equal(getattr(feature, name), getattr(other, name))
        assert torch.equal(feature.spectrum.t.nan_to_num(), other.spectrum.t.nan_to_num())
        assert feature.logit_gap == other.logit_gap


@pytest.mark.parametrize("reading", ["plain", "symmetric"])
def test_sources__a_model_and_its_vectors_give_identical_features(model, reading):
    texts = as_run(model, boxes(twins=reading != "plain"), reading)
    source = VectorSource({texts.name: kept(model, texts, reading)})
    assert_same(qk.decompose(model, texts, **QUIET), qk.decompose(source, **QUIET))
    some = ["L1H0", "L1H3"]
    assert_same(qk.decompose(model, texts, heads=some, **QUIET), qk.decompose(source, heads=some, **QUIET))


def test_vector_source__heads_one_by_one_are_the_layer_and_files_are_the_tensors(model, tmp_path):
    texts = as_run(model, boxes())
    whole = kept(model, texts)
    expected = qk.decompose(VectorSource({"boxes": whole}), **QUIET)
    ratio = whole[0].n_heads // whole[0].n_kv_heads
    single = {
        f"L1H{i}": Vectors(
            whole[1].query[:, i].numpy(), whole[1].positive[:, :, i // ratio], whole[1].negative[:, :, i // ratio],
            weight=whole[1].weight, group=whole[1].group,
        )
        for i in (1, 3)
    }  # fmt: skip
    alone = qk.decompose(VectorSource({"boxes": single}), **QUIET)
    assert [str(head) for head in alone.heads] == ["L1H1", "L1H3"]
    for head in alone.heads:
        assert torch.equal(alone["boxes", head].strengths, expected["boxes", head].strengths)
    tensors = {
        f"boxes/{layer}/{side}": getattr(v, side)
        for layer, v in whole.items()
        for side in ("query", "positive", "negative")
    }
    tensors |= {"boxes/weight": whole[0].weight, "boxes/group": torch.tensor(whole[0].group)}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "v.safetensors")
    assert_same(expected, qk.decompose(VectorSource.from_safetensors(tmp_path / "v.safetensors"), **QUIET))


def test_vector_source__other_libraries_are_read_at_positions():
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(20, 7, 4, 3, generator=g), torch.randn(20, 7, 2, 3, generator=g)
    at = {
        "query": torch.full((20,), 6),
        "positive": torch.randint(3, (20, 1)),
        "negative": torch.randint(3, 6, (20, 2)),
    }
    lens = VectorSource.from_transformerlens({"blocks.5.attn.hook_rot_q": q, "blocks.5.attn.hook_rot_k": k}, "z", **at)
    nns = VectorSource.from_nnsight({5: (q.transpose(1, 2), k.transpose(1, 2))}, "z", **at)
    rows = np.arange(20)[:, None]
    direct = VectorSource({"z": {5: Vectors(q[:, 6], k[rows, at["positive"]], k[rows, at["negative"]])}})
    found = [qk.decompose(source, **QUIET) for source in (lens, nns, direct)]
    assert [str(head) for head in found[0].heads] == ["L5H0", "L5H1", "L5H2", "L5H3"]
    assert_same(found[0], found[2])
    assert_same(found[1], found[2])


def test_verbs__read_vectors_as_attention_among_marked_keys():
    g = torch.Generator().manual_seed(1)
    value = torch.randn(60, 2, generator=g)
    one = torch.cat([value, 0.1 * torch.randn(60, 2, generator=g)], 1)
    query = torch.stack([one, one + 0.1], 1)  # two heads that share a key head
    positive = 3 * one[:, None, None] + 0.1 * torch.randn(60, 1, 1, 4, generator=g)
    negative = torch.stack([one.roll(1, 0), one.roll(2, 0)], 1)[:, :, None]
    source = VectorSource({"z": {3: Vectors(query, positive, negative)}}, scaling=1.0)
    features = qk.decompose(source, recipe=qk.Recipe(rank=2), **QUIET)
    logit = torch.einsum("nhd,nkd->nhk", query, torch.cat([positive, negative], 1)[:, :, 0]).double()
    attention = logit.softmax(-1)
    scores = qk.find_heads(source, "z", **QUIET)
    assert scores.values["attention_positive"].tolist() == pytest.approx(attention[:, :, 0].mean(0).tolist(), rel=1e-5)
    effects = qk.intervene(source, "z", features, compare=qk.Comparison(draws=1), **QUIET)
    before = effects.value("attention_original", head="L3H0", control="none")[0]
    assert before == pytest.approx(float(attention[:, 0, 0].mean()), rel=1e-5)
    terms = qk.attribute(source, "z", features, **QUIET)
    gap = (logit[:, 0, 0] - logit[:, 0, 1:].mean(1)).mean()
    assert float(terms.values["gap"][0].sum()) == pytest.approx(float(gap), rel=1e-5)
    shown = qk.project(source, "z", features, **QUIET)
    assert torch.equal(shown.query[Head(3, 1)], query[:, 1])


def test_verbs__say_what_vectors_lack(model):
    source = VectorSource({"z": Vectors(*torch.randn(3, 40, 4).unbind())})
    features = qk.decompose(source, **QUIET)
    for verb in (
        lambda: qk.intervene(source, "z", features, outcome="logits", compare=qk.Comparison(draws=1), **QUIET),
        lambda: qk.validate(source, {"z": []}, features, **QUIET),
    ):
        with pytest.raises(QKPrismError, match=r"a VectorSource has none to run\. Give a model"):
            verb()
    for wrong, message in (
        (lambda: qk.decompose(source, boxes()), "has its contrasts already"),
        (lambda: qk.decompose(model), "Give the contrasts"),
        (lambda: qk.decompose(source, heads="L0H3"), "L0H3 is not in these vectors"),
        (lambda: qk.decompose(source, checkpoint="x"), "checkpoint is of a pass"),
        (lambda: qk.find_heads(source, "y", **QUIET), "There are: z"),
        (lambda: VectorSource({}), "No contrast was given"),
        (lambda: VectorSource.from_safetensors("nothing.safetensors"), "not a file of vectors"),
    ):
        with pytest.raises(QKPrismError, match=message):
            wrong()


def test_encoded_vectors__keep_sides_labels_and_weights():
    q = torch.randn(12, 4)
    vectors = Vectors(
        q, q + 1, torch.stack([q, q - 1], 1), weight=torch.arange(1.0, 13), positive_label=torch.arange(12)
    )
    first = encoded_vectors(VectorSource({"z": vectors}), "z")[3]
    assert (first.text.positive, first.text.negative, first.weight) == ((0,), (1, 2), 4.0)
    assert first.text.keys[0].labels == {"label": 3}
    assert ContrastReading("z", "plain").name == "z/plain"


def test_vectors__groups_do_not_depend_on_the_pieces_in_which_vectors_are_read(monkeypatch):
    drawn = torch.randn(3, 60, 4, generator=torch.Generator().manual_seed(0)).repeat(1, 2, 1)
    vectors = qk.Vectors(*drawn, group=[*range(120)])
    whole = vectors.grouping().group
    assert whole[:60] == whole[60:], "the same vectors are one group"
    assert len(set(whole)) == 60
    monkeypatch.setattr("qkprism.capture.vectors._CHUNK", 7)
    assert vectors.grouping().group == whole
