"""What a user may give, and in which forms; what is no such thing is refused in one sentence, before a pass."""

# ruff: noqa: ARG005  (what is tried is given a model and features, and need not use both)

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import qkprism as qk
from one_head import decompose_vector_sets, decompose_vectors
from qkprism import (
    Contrast,
    Encoding,
    Example,
    Head,
    QKPrismError,
    Vectors,
    VectorSource,
    decompose,
    options,
)
from qkprism.contrasts import Span, Text
from qkprism.core.feature import Choices
from qkprism.heads import check_heads
from qkprism.options import MAX_SEED, checked_rank, checked_seed, whole_number
from test_pipeline import contrast, unchecked
from tiny import one_thread, tiny  # noqa: F401
from tokenizers_for_tests import byte_level

SIZES = {0: 4, 1: 4}


@pytest.fixture(scope="module")
def model():
    tokenizer = byte_level()
    return qk.load((tiny("llama", vocab_size=len(tokenizer)), tokenizer))


def one_sentence(wrong, match=None):
    with unchecked(), pytest.raises(QKPrismError, match=match) as caught:
        wrong()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


# Numbers


@pytest.mark.parametrize("seed", [0, 7, MAX_SEED, np.int64(7), np.uint8(7), torch.tensor(7)])
def test_seed__whole_numbers_of_any_kind(seed):
    assert type(checked_seed(seed)) is int
    assert checked_seed(seed) == int(seed)


@pytest.mark.parametrize(
    "seed", [-1, MAX_SEED + 1, 10**5000, 1.0, "7", True, None, np.float64(3), np.array([1, 2])], ids=range(9)
)
def test_seed__others_are_refused(seed, model):
    q, k = torch.randn(20, 4), torch.randn(20, 4)
    for wrong in (
        lambda: checked_seed(seed),
        lambda: Choices(seed=seed),
        lambda: decompose_vectors(q, k, k + 1, seed=seed),
        lambda: Vectors(q, k, k + 1).moments(seed=seed),
        lambda: qk.decompose(model, contrast(4), seed=seed, progress=False),
        lambda: qk.task("boxes", seed),
    ):
        one_sentence(wrong, "seed=")


@pytest.mark.parametrize("rank", [3.5, 3.0, -1, True, "best", None, [1], np.float32(2), math.nan])
def test_rank__is_a_whole_number_or_a_rule(rank):
    one_sentence(lambda: checked_rank(rank), "is not a rule for the rank. Use a whole number, 0 or more, or balanced")
    one_sentence(lambda: Choices(rank=rank))


def test_rank__numpy_integers_cut_like_integers():
    g = torch.Generator().manual_seed(0)
    feature = decompose_vectors(*(torch.randn(64, 4, generator=g) for _ in range(3)), rank=np.int64(2))
    assert feature.rank == 2
    assert feature.choices == Choices(metric="contrast", rank=2)
    assert feature.with_rank(np.int32(1)).rank == 1
    one_sentence(lambda: feature.with_rank(2.5))


def test_whole_number__tells_the_limits():
    one_sentence(lambda: whole_number(0, "draws", 1), "draws=0 is not possible. Give a whole number, 1 or more.")
    one_sentence(lambda: whole_number(9, "n", 1, 3), "from 1 to 3")


# Heads


@pytest.mark.parametrize(
    "heads",
    [
        ["L0H1", "L1H3"],
        [(0, 1), (1, 3)],
        [[0, 1], [1, 3]],
        np.array([[0, 1], [1, 3]]),
        np.array(["L0H1", "L1H3"]),
        torch.tensor([[0, 1], [1, 3]]),
        {Head(0, 1), Head(1, 3)},
        (head for head in ["l0h1", (np.int64(1), np.int8(3))]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_heads__in_every_form(heads):
    with unchecked():
        found = check_heads(heads, SIZES, "tiny")
    assert found == (Head(0, 1), Head(1, 3))
    assert all(type(number) is int for head in found for number in (head.layer, head.index))


@pytest.mark.parametrize("head", ["L1H3", (1, 3), [1, 3], np.array([1, 3]), Head(np.int64(1), 3)])
def test_heads__one_head_in_every_form(head):
    with unchecked():
        assert check_heads(head, SIZES, "tiny") == (Head(1, 3),)


@pytest.mark.parametrize(
    "heads",
    [
        5,
        "",
        "L",
        "L1",
        "18",
        "L-1H2",
        "L1H2,L1H3",
        [5],
        [None],
        [(1, 2, 3)],
        [(0.5, 1)],
        (-1, 2),
        [True],
        [b"L1H1"],
        "L" + "9" * 5000 + "H1",
        np.array([[0.0, 1.0]]),
        np.zeros((2, 2, 2), int),
        [[]],
        {},
        "L٣H٣x",
    ],
    ids=range(20),
)
def test_heads__what_is_none_is_one_sentence(heads):
    one_sentence(lambda: check_heads(heads, SIZES, "tiny"))


# Contrasts


def test_contrasts__are_read_from_files(model, tmp_path):
    one, other = contrast(12), Contrast("other", contrast(12, seed=5).examples)
    one.write(tmp_path / "one.jsonl")
    other.write(tmp_path / "other.jsonl")
    expected = qk.decompose(model, [one, other], recipe=qk.Recipe(metric="raw"), progress=False)
    paths = [tmp_path / "one.jsonl", str(tmp_path / "other.jsonl")]
    for given in (paths, dict(zip(expected.contrasts, paths, strict=True)), [one, paths[1]]):
        found = qk.decompose(model, given, recipe=qk.Recipe(metric="raw"), progress=False)
        assert found.contrasts == expected.contrasts
        assert all(torch.equal(found[key].key_basis, expected[key].key_basis) for key in expected)
    assert qk.decompose(model, paths[0], progress=False).contrasts == (one.name,)
    scores = qk.find_heads(model, paths[0], progress=False)
    assert scores.heads == qk.find_heads(model, one, progress=False).heads
    assert scores.provenance["contrast"] == one.name
    features = qk.decompose(model, one, heads="L0H0", recipe=qk.Recipe(rank=2), progress=False)
    effects = qk.intervene(model, paths[0], features, compare=qk.Comparison(draws=1), progress=False)
    assert effects.to_frame().equals(
        qk.intervene(model, one, features, compare=qk.Comparison(draws=1), progress=False).to_frame()
    )
    means = qk.attribute(model, Path(paths[0]), features, progress=False)
    assert means.to_frame().equals(qk.attribute(model, one, features, progress=False).to_frame())


@pytest.mark.parametrize(
    "given",
    [
        3,
        None,
        [],
        {},
        [3],
        "nothing.jsonl",
        Path("nothing.jsonl"),
        {3: contrast(4)},
        {"": contrast(4)},
        b"boxes.jsonl",
        {"a\nb": contrast(4)},
        {"token": contrast(4)},
        [contrast(4), contrast(4)],
        "a\0b",
        [list(contrast(4))],
    ],
    ids=range(15),
)
def test_contrasts__what_is_none_is_one_sentence(model, given):
    one_sentence(lambda: qk.decompose(model, given, progress=False))


@pytest.mark.parametrize("given", [3, None, "nothing.jsonl", [3], ["text"], [None], {}], ids=str)
def test_examples__what_is_none_is_one_sentence(model, given):
    one_sentence(lambda: qk.find_heads(model, given, progress=False))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Contrast(3, contrast(2).examples),
        lambda: Contrast("a", "text"),
        lambda: Contrast("a", None),
        lambda: Contrast("a", ["[-a] [+b]"]),
        lambda: Contrast("a", contrast(2).examples, description=3),
        lambda: Contrast.from_texts("a", "[-a] [+b]"),
        lambda: Contrast.from_texts("a", [3]),
        lambda: Contrast.from_texts("a", 3),
        lambda: Contrast.read(3),
        lambda: Contrast.read("."),
        lambda: Example.parse(None),
        lambda: Example.parse("[-a] [+b]", group=3),
        lambda: Example.parse("[-a] [+b]", weight="2"),
        lambda: Example.parse("[-a] [+b]", weight=True),
        lambda: Example.parse("[-a] [+b]", labels={"x": np.zeros(2)}),
        lambda: Example.parse("[-a] [+b]", labels=[1]),
        lambda: Text(3),
        lambda: Text("abc", (0, 1)),
        lambda: Text("abc", positive=[(0, 1)]),
        lambda: Text("abc", negative=3),
        lambda: Span("0", 1),
        lambda: Span(0.0, 1),
        lambda: Span(0, 1, unit="word"),
    ],
)
def test_examples__of_wrong_types_are_one_sentence(wrong):
    one_sentence(wrong)


def test_examples__numbers_of_numpy_become_plain_ones(tmp_path):
    spans = [Span(np.int64(at), np.int32(at + 1), {"x": np.int64(at), "y": np.float32(0.5)}) for at in (0, 2)]
    own = Contrast("a", [Example(Text("a b c", None, (spans[0],), (spans[1],)), weight=np.float32(2))])
    own.write(tmp_path / "a.jsonl")
    assert Contrast.read(tmp_path / "a.jsonl") == own


# Vectors


def test_vectors__arrays_and_lists_give_what_tensors_give():
    g = torch.Generator().manual_seed(0)
    query, positive, negative = (torch.randn(40, 4, generator=g) for _ in range(3))
    weight, group = torch.rand(40, generator=g) + 0.5, torch.arange(40) // 2
    expected = decompose_vectors(query, positive, negative, weight=weight, group=group.tolist())
    with unchecked():
        for form in (torch.Tensor.numpy, torch.Tensor.tolist):
            given = [form(tensor) for tensor in (query, positive, negative)]
            found = decompose_vectors(*given, weight=form(weight), group=form(group))
            assert torch.allclose(found.key_basis, expected.key_basis)
            assert found.rank == expected.rank
        labelled = Vectors(*map(torch.Tensor.numpy, (query, positive, negative)), positive_label=np.arange(40))
        assert labelled.moments().cell_weight.shape == (40,)


VECTORS = torch.randn(20, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: decompose_vectors("query", VECTORS, VECTORS + 1),
        lambda: decompose_vectors([[1, 2], [3]], VECTORS, VECTORS + 1),
        lambda: decompose_vectors(3.0, VECTORS, VECTORS + 1),
        lambda: decompose_vectors(VECTORS[0], VECTORS, VECTORS + 1),
        lambda: decompose_vectors(VECTORS, VECTORS[0], VECTORS + 1),
        lambda: decompose_vectors(VECTORS, VECTORS[:, None, None], VECTORS + 1),
        lambda: decompose_vectors(VECTORS.to("meta"), VECTORS, VECTORS + 1),
        lambda: decompose_vectors(VECTORS.to(torch.complex64), VECTORS, VECTORS + 1),
        lambda: decompose_vectors(VECTORS[:0], VECTORS[:0], VECTORS[:0]),
        lambda: decompose_vectors(VECTORS, VECTORS, VECTORS + 1, twin_query=VECTORS[:, :3]),
        lambda: decompose_vectors(VECTORS, VECTORS, VECTORS + 1, weight=torch.ones(3)),
        lambda: decompose_vectors(VECTORS, VECTORS, VECTORS + 1, weight=torch.ones(20, 1)),
        lambda: decompose_vectors(VECTORS, VECTORS, VECTORS + 1, weight=-torch.ones(20)),
        lambda: decompose_vectors(VECTORS, VECTORS, VECTORS + 1, weight=3),
        lambda: decompose_vectors(VECTORS, VECTORS, VECTORS + 1, group="a" * 20),
        lambda: decompose_vectors(VECTORS, VECTORS, VECTORS + 1, group=7),
        lambda: decompose_vectors(VECTORS, VECTORS, VECTORS + 1, scaling="big"),
        lambda: decompose_vectors(VECTORS, VECTORS, VECTORS + 1, scaling=math.inf),
        lambda: decompose(VectorSource({3: Vectors(VECTORS, VECTORS, VECTORS + 1)})),
        lambda: decompose_vectors(VECTORS, VECTORS, VECTORS + 1, center="middle"),
        lambda: decompose_vectors(VECTORS, VECTORS, VECTORS + 1, reading="backwards"),
        lambda: decompose_vectors(VECTORS, VECTORS, VECTORS + 1, rank=5),
        lambda: decompose(VectorSource({"a": VECTORS})),
        lambda: decompose(VectorSource([Vectors(VECTORS, VECTORS, VECTORS)])),
        lambda: decompose_vector_sets({"a": Vectors(VECTORS, VECTORS, VECTORS + 1)}, head="first"),
        lambda: Vectors(VECTORS, VECTORS, VECTORS, positive_label=torch.ones(20)).moments(),
        lambda: Vectors(VECTORS, VECTORS, VECTORS, positive_label=torch.ones(3).long()).moments(),
    ],
)
def test_vectors__what_is_none_is_one_sentence(wrong):
    one_sentence(wrong)


# Options


def test_options__are_refused_before_a_text_is_encoded(model, monkeypatch):
    monkeypatch.setattr(model.tokenizer, "__call__", lambda *_, **__: pytest.fail("a text was encoded"))
    monkeypatch.setattr(type(model), "run", lambda *_, **__: pytest.fail("the model ran"))
    examples = contrast(20)
    for wrong in (
        {"batch_size": 0}, {"batch_size": 2.5}, {"seed": -1}, {"checkpoint": 3},
        {"encoding": "first"}, {"encoding": None},
        {"recipe": 3}, {"recipe": None}, {"recipe": "paperback"}, {"recipe": {"a": "paperback"}},
        {"recipe": qk.Recipe(rank=3.5)}, {"recipe": qk.Recipe(metric=3)}, {"recipe": qk.Recipe(center=["query"])},
        {"recipe": qk.Recipe(reading=3)},
    ):  # fmt: skip
        one_sentence(lambda wrong=wrong: qk.decompose(model, examples, progress=False, **wrong))
    for wrong in ({"by": 3}, {"batch_size": -1}, {"encoding": {}}, {"heads": 3}):
        one_sentence(lambda wrong=wrong: qk.find_heads(model, examples, progress=False, **wrong))


@pytest.mark.parametrize(
    "wrong",
    [{"rope": "pre"}, {"rope": 3}, {"token": None}, {"token": "middle"}, {"max_length": "long"}, {"max_length": 0},
     {"chat": 3}, {"chat": {"prefix": ""}}],
    ids=str,
)  # fmt: skip
def test_encoding__what_is_none_is_one_sentence(wrong):
    one_sentence(lambda: Encoding(**wrong))


def test_options__every_list_says_its_values():
    for name in ("CENTERS", "METRICS", "READINGS", "TOKENS", "FRAMES", "OUTCOMES", "RULES", "SPLITS", "DTYPES"):
        allowed = getattr(options, name)
        assert all(options.choice(value, allowed, "it") == value for value in allowed)
        one_sentence(
            lambda allowed=allowed: options.choice("x", allowed, "it"), f"Use .*{allowed[0]}.* or {allowed[-1]}"
        )


@pytest.fixture(scope="module")
def features(model):
    return qk.decompose(model, contrast(12), heads=["L0H0", "L1H1"], recipe=qk.Recipe(rank=2), progress=False)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"edit": edit} for edit in (3, "blur")),
        *({"batch_size": size} for size in (0, "x")),
        {"outcome": 3},
        {"compare": 3},
        {"compare": {"draws": 2}},
        {"heads": 3},
    ],
    ids=str,
)
def test_intervene__bad_options_are_one_sentence_before_the_pass(model, features, wrong, monkeypatch):
    monkeypatch.setattr(type(model), "run", lambda *_, **__: pytest.fail("the model ran"))
    one_sentence(lambda: qk.intervene(model, contrast(4), features, progress=False, **wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"draws": draws} for draws in (0, 1.5, "many")),
        *({"seed": seed} for seed in (-1, 2**70, "a")),
        *({"methods": methods} for methods in (3, ["x"], [3])),
        *({"groups": groups} for groups in (3, {"x": ["nope"]}, {"x": 3}, {3: ["boxes"]})),
        *({"labels": labels} for labels in (3, {"boxes": 3})),
    ],
    ids=str,
)
def test_comparison__bad_options_are_one_sentence_before_the_pass(model, features, wrong, monkeypatch):
    monkeypatch.setattr(type(model), "run", lambda *_, **__: pytest.fail("the model ran"))
    one_sentence(lambda: qk.intervene(model, contrast(4), features, compare=qk.Comparison(**wrong), progress=False))


@pytest.mark.parametrize("wrong", [("logits", True, "some"), ("attention", False), ("attention", True, "all")], ids=str)
def test_outcome__what_is_not_possible_is_one_sentence(wrong):
    one_sentence(lambda: qk.Outcome(*wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda m, f: qk.intervene(m, contrast(4), None),
        lambda m, f: qk.intervene(None, contrast(4), f),
        lambda m, f: qk.intervene(contrast(4), m, f),
        lambda m, f: qk.intervene(m, [], f),
        lambda m, f: qk.intervene(m, contrast(4), 3),
        lambda m, f: qk.intervene(m, contrast(4), {}),
        lambda m, f: qk.intervene(m, contrast(4), f, edit=qk.Edit("replace", vector=[1, 2, 3])),
        lambda m, f: qk.Edit("steer", amount="a"),
        lambda m, f: qk.Edit("steer", direction=1.5),
        lambda m, f: qk.Edit("replace", vector="abc"),
        lambda m, f: qk.Edit("replace", vector=[[1, 2], [3]]),
        lambda m, f: qk.Edit("replace", vector={3: [1]}),
        lambda m, f: qk.attribute(m, "", f, "L0H0"),
        lambda m, f: qk.attribute(m, 3, f, "L0H0"),
        lambda m, f: qk.attribute(m, "\ud800", f, "L0H0"),
        lambda m, f: qk.attribute(m, "text", f, 3),
        lambda m, f: qk.attribute(m, "text", f, "L0H0", method=3),
        lambda m, f: qk.attribute(m, "text", f, "L0H0", method="sequential", order=3),
        lambda m, f: qk.attribute(m, "text", f, "L0H0", contrasts=3),
        lambda m, f: qk.attribute(m, "text", f, "L0H0", contrasts=[]),
        lambda m, f: qk.attribute(m, "a " * 5000, f, "L0H0"),
        lambda m, f: qk.attribute(m, ["text"], f, "L0H0"),
        lambda m, f: qk.validate(m, 3, f),
        lambda m, f: qk.validate(m, {"boxes": 3}, f),
        lambda m, f: qk.validate(m, {"boxes": [3]}, f),
        lambda m, f: qk.validate(m, {"boxes": [(contrast(1)[0],)]}, f),
        lambda m, f: qk.validate(m, {"boxes": [("a", "b")]}, f),
        lambda m, f: qk.validate(m, {"boxes": "nothing.jsonl"}, f),
        lambda m, f: qk.validate(m, {"boxes": [tuple(contrast(2))]}, 3),
        lambda m, f: qk.validate(m, {"boxes": [tuple(contrast(2))]}, f, truth=3),
        lambda m, f: qk.project(m, 3, f),
        lambda m, f: qk.project(m, contrast(2), 3),
        lambda m, f: f[3],
        lambda m, f: f["boxes", 3],
        lambda m, f: f["a", "b", "c"],
        lambda m, f: f.with_rank({3: 1, "x": 2}),
        lambda m, f: f.with_rank({"boxes": None}),
        lambda m, f: f.with_metric(3),
        lambda m, f: f.with_center(3),
        lambda m, f: f.joint(3),
        lambda m, f: f.save(3),
        lambda m, f: qk.Features.load(None),
        lambda m, f: qk.find_heads(m, contrast(4), progress=False).top(0),
        lambda m, f: qk.find_heads(m, contrast(4), progress=False).above(accuracy="high"),
        lambda m, f: qk.decompose(m, contrast(4), encoding=3),
        lambda m, f: qk.decompose(m, contrast(4), recipe=3),
        lambda m, f: qk.decompose(m, contrast(4), recipe={}),
        lambda m, f: qk.decompose(m, contrast(4), recipe={"a": 3}),
        lambda m, f: qk.decompose(m, contrast(4), recipe={"a": qk.Recipe(contrasts=3)}),
        lambda m, f: qk.Recipe(3),
        lambda m, f: qk.task("boxes", places="two"),
        lambda m, f: qk.task("boxes", places=10**9),
        lambda m, f: qk.task("boxes", places=24),
        lambda m, f: qk.task("boxes", phrasing=3),
        lambda m, f: qk.task("boxes", shared=3),
        lambda m, f: qk.task("boxes", shared="boxes and things"),
        lambda m, f: qk.task("boxes", pairs=3),
        lambda m, f: qk.task("boxes").from_words(things=["hat"]),
        lambda m, f: qk.task("boxes").from_words(hats=["hat"]),
        lambda m, f: qk.task("boxes").fixed("goal"),
        lambda m, f: qk.task("sink", places=3),
        lambda m, f: qk.task("filter", kinds=3),
        lambda m, f: qk.task("filter", kinds="fruits"),
        lambda m, f: qk.task("filter", kinds=["fruits", 3]),
        lambda m, f: qk.task("filter", kinds=["fruits", "gems"]),
        lambda m, f: qk.task("filter", kinds=[]),
    ],
)
def test_verbs__what_cannot_be_is_one_sentence(model, features, wrong):
    one_sentence(lambda: wrong(model, features))
