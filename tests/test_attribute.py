"""Attribution: parts sum to the logit, whatever the method and the model."""

import warnings

import pytest
import torch

import qkprism as qk
from one_head import decompose_vector_sets
from planted import Lock, basis_change, two_factors
from qkprism import Attribution, Attributions, Contrast, Example, QKPrismError
from qkprism.core.splitting import METHODS, shapley, split_of
from qkprism.core.terms import variance_shares
from qkprism.heads import Head
from test_intervene import HEADS, contrasts, examples, load
from test_pipeline import unchecked
from tiny import one_thread  # noqa: F401

TEXT = "the hat in A, the jam in B, the pen in C. the jam in box"


def features_of(sets=None, **options):
    found = decompose_vector_sets(sets or two_factors(800)[0], **({"rank": "heldout", "scaling": 1.0} | options))
    return found, [found[name, "L0H0"] for name in found.contrasts]


def vectors(n=5, tokens=6, d=16, seed=3):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=g, dtype=torch.float64) for shape in ((n, d), (n, tokens, d)))


# The methods, on vectors


def test_split__a_whole_space_explains_the_whole_logit_and_an_empty_one_nothing():
    _, own = features_of(rank=0)
    q, k = vectors()
    logits = torch.einsum("nd,ntd->nt", q, k)
    for method in METHODS:
        assert split_of(own, method).parts(q, k, 1.0).abs().max() == 0
    whole = [feature.with_rank(16 if feature.contrast == "z1" else 0) for feature in own]
    for method in METHODS:
        split = split_of(whole, method)
        parts = dict(zip(split.names, split.parts(q, k, 1.0), strict=True))
        assert torch.allclose(parts["z1"], logits)
        assert torch.allclose(parts["z2"], torch.zeros_like(logits), atol=1e-9)


def test_split__order_of_the_features_matters_to_the_sequential_method_alone():
    q, k = vectors()
    for metric in ("contrast", "raw"):
        _, own = features_of(metric=metric)
        for method in ("oblique", "shapley", "both"):
            forward, backward = (split_of(part, method).parts(q, k, 1.0) for part in (own, own[::-1]))
            assert torch.allclose(forward, backward.flip(0), atol=1e-8)
        ways = [split_of(own, "sequential", order) for order in (["z1", "z2"], ["z2", "z1"])]
        assert ways[0].names == ("z1", "z2")
        assert ways[1].names == ("z2", "z1")
        forward, backward = (way.parts(q, k, 1.0) for way in ways)
        assert not torch.allclose(forward, backward.flip(0), atol=1e-2)


def test_split__sequential_is_the_papers():
    _, own = features_of(metric="raw", center="none")
    assert split_of(own).method == "sequential"
    q, k = vectors()
    u1, u2 = (feature.query_basis[:, : feature.rank] for feature in own)
    assert own[0].rank < own[1].rank  # the lower rank is projected out first
    first = q @ u1 @ u1.T
    second = (q - first) @ u2 @ u2.T
    parts = split_of(own).parts(q, k, 0.5)
    assert torch.allclose(parts[0], 0.5 * torch.einsum("nd,ntd->nt", first, k))
    assert torch.allclose(parts[1], 0.5 * torch.einsum("nd,ntd->nt", second, k))


def test_split__shapley_is_the_mean_over_all_orders_of_joint_spans():
    values = {frozenset(): 0.0, frozenset({0}): 1.0, frozenset({1}): 2.0, frozenset({2}): 0.0}
    values |= {frozenset({0, 1}): 4.0, frozenset({0, 2}): 1.5, frozenset({1, 2}): 2.0, frozenset({0, 1, 2}): 6.0}
    found = shapley(lambda group: torch.full((1, 1), values[frozenset(group)], dtype=torch.float64), 3, 1)[:, 0, 0]
    from itertools import permutations

    expected = torch.zeros(3).double()
    for order in permutations(range(3)):
        for i, player in enumerate(order):
            expected[player] += (values[frozenset(order[: i + 1])] - values[frozenset(order[:i])]) / 6
    assert torch.allclose(found, expected)


def test_split__shapley_of_overlapping_features_shares_what_they_have_in_common():
    _, own = features_of(metric="raw")
    same = [own[0], type(own[0])(**{**vars(own[0]), "contrast": "again"})]
    q, k = vectors()
    parts = split_of(same, "shapley").parts(q, k, 1.0)
    assert torch.allclose(parts[0], parts[1])
    alone = split_of(own[:1], "shapley").parts(q, k, 1.0)
    assert torch.allclose(parts.sum(0), alone[0])  # not counted twice


def test_split__oblique_parts_do_not_depend_on_the_basis_in_the_contrast_metric():
    a = basis_change(16)
    found = []
    for change in (None, a):
        lock = Lock(change=change)
        features, own = features_of(lock.contrasts(1500))
        query, key, _, _ = lock.scenes(20)
        found.append({m: split_of(own, m).parts(query, key, 1.0) for m in METHODS})
        raw = features.with_metric("raw")
        found[-1]["raw"] = split_of([raw[n, "L0H0"] for n in raw.contrasts], "sequential").parts(query, key, 1.0)
    for method in METHODS:
        assert torch.allclose(found[0][method], found[1][method], atol=1e-5)
    assert not torch.allclose(found[0]["raw"], found[1]["raw"], atol=0.1)


def test_split__angles_and_conditioning_are_told():
    _, own = features_of(metric="raw")
    split = split_of(own, "oblique")
    assert len(split.angles["z1", "z2"]) == 3
    assert 0 <= min(split.angles["z1", "z2"]) <= max(split.angles["z1", "z2"]) <= 90
    assert split.condition > 1
    _, whitened = features_of()
    assert min(split_of(whitened, "oblique").angles["z1", "z2"]) > min(split.angles["z1", "z2"])


def test_split__bad_choices_are_one_clear_line():
    _, own = features_of()
    for wrong, says in [
        (lambda: split_of([]), "no feature"),
        (lambda: split_of(own, "best"), "not a method of attribution"),
        (lambda: split_of(own, "oblique", ["z1", "z2"]), "has no order"),
        (lambda: split_of(own, "sequential", ["z1"]), "must name each feature once"),
        (lambda: split_of([f.with_rank(10) for f in own], "oblique"), "no joint projectors: ranks 10 \\+ 10"),
        (lambda: split_of(own * 5, "shapley"), "up to 8 features"),
    ]:
        with pytest.raises(QKPrismError, match=says):
            wrong()


def test_variance_shares__add_up_and_give_a_constant_nothing():
    g = torch.Generator().manual_seed(0)
    terms = torch.randn(3, 4, 9, generator=g, dtype=torch.float64)
    terms[2] = 5.0
    shares = variance_shares(terms, torch.ones(4, 9, dtype=torch.bool))
    assert torch.allclose(shares.sum(0), torch.ones(4).double())
    assert torch.allclose(shares[2], torch.zeros(4).double())
    chosen = torch.arange(9) < 5
    part = variance_shares(terms[..., :5], torch.ones(4, 5, dtype=torch.bool))
    assert torch.allclose(variance_shares(terms, chosen.expand(4, 9)), part)


# On models


@pytest.fixture(scope="module", params=["llama", "qwen3", "gemma2", "gpt2", "gpt_oss"])
def model(request):
    return load(request.param)


@pytest.fixture(scope="module")
def features(model):
    return qk.decompose(model, contrasts(), heads=HEADS, recipe=qk.Recipe(rank=2), progress=False)


@pytest.mark.parametrize("method", METHODS)
def test_attribute__terms_sum_to_the_models_logits_and_attention_follows(model, features, method):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = qk.attribute(model, TEXT, features, "L1H3", method=method)
    assert (found.values.sum(0) - found.logits).abs().max() <= 1e-4
    ids = torch.tensor([model.tokenizer(TEXT)["input_ids"]])
    with torch.no_grad():
        true = model.hf(ids, output_attentions=True, use_cache=False).attentions[1][0, 3, -1].double()
    assert torch.allclose(found.attention, true, atol=1e-5)
    assert found.positions == tuple(range(ids.shape[1]))
    assert "".join(found.tokens).replace("Ġ", " ") == TEXT  # this tokenizer has no decoder
    assert ("soft cap" in found.terms) == (model.hf.config.model_type == "gemma2")
    assert found.query == ids.shape[1] - 1
    assert sum(found.variance_shares().values()) == pytest.approx(1)


def test_attribute__scaling_and_parts_are_those_of_the_projectors(model, features):
    found = qk.attribute(model, TEXT, features, "L1H0")
    calls = []
    model.run(torch.tensor([model.tokenizer(TEXT)["input_ids"]]), visit=calls.append, layers=[1])
    query, key = calls[0].query[0, 0, -1].double(), calls[0].key[0, calls[0].kv_head(0)].double()
    part = key @ (features.joint("L1H0")["boxes"].T @ query) * float(calls[0].scaling)
    assert torch.allclose(found.values[0], part, atol=1e-5)


def test_attribute__a_marked_query_and_gaps_between_tokens(model, features):
    text = "the hat in [-A], the jam in [+B], the [?jam] in box"
    found = qk.attribute(model, text, features, "L0H1")
    plain = text.replace("[-A]", "A").replace("[+B]", "B").replace("[?jam]", "jam")
    assert "".join(found.tokens).replace("Ġ", " ") == plain[: plain.rindex("jam") + 3]
    assert [found.tokens[at].strip("Ġ") for at in sorted(found.marks)] == ["A", "B"]
    a, b = sorted(found.marks)
    gap = found.gap(b, a)
    assert sum(value for name, value in gap.items() if name != "logit") == pytest.approx(gap["logit"], abs=1e-4)
    with pytest.raises(QKPrismError, match="does not see a token"):
        found.gap(b, 400)
    assert found.gap("B", "A") == found.gap(found.tokens[found.positions.index(b)], " A") == gap
    twice = [str(at) for at, token in zip(found.positions, found.tokens, strict=True) if token.strip("Ġ") == "in"]
    with pytest.raises(QKPrismError, match=f"2 tokens. Give the position of one: {', '.join(twice)}"):
        found.gap("B", "in")
    for wrong in (True, 1.0, None, "", "nowhere"):
        with unchecked(), pytest.raises(QKPrismError):
            found.gap(b, wrong)


def test_attribute__examples_give_means_of_the_single_ones_with_errors(model, features):
    test = examples(9, seed=21)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = qk.attribute(model, Contrast("test", test), features, batch_size=4, progress=False)
    single = [qk.attribute(model, e, features, "L1H3") for e in test]
    assert found.heads == (Head(0, 1), Head(1, 0), Head(1, 3))
    gaps, shares = [], []
    for one in single:
        at = {
            side: [one.positions.index(p) for p, s in one.marks.items() if s == side]
            for side in ("positive", "negative")
        }
        gaps.append(one.values[:, at["positive"]].mean(1) - one.values[:, at["negative"]].mean(1))
        shares.append(torch.tensor(list(one.variance_shares().values())))
    gaps, shares = torch.stack(gaps), torch.stack(shares)
    assert torch.allclose(found.values["gap"][2], gaps.mean(0), atol=1e-4)
    assert torch.allclose(found.errors["gap"][2], gaps.std(0) / 3, atol=1e-4)
    assert torch.allclose(found.values["variance"][2], shares.double().mean(0), atol=1e-4)
    assert torch.allclose(found.values["gap_share"].sum(1), torch.ones(3).double())
    share = gaps.mean(0) / gaps.sum(1).mean()
    error = (gaps - share * gaps.sum(1, keepdim=True)).std(0) / 3 / gaps.sum(1).mean().abs()
    assert torch.allclose(found.values["gap_share"][2], share, atol=1e-3)
    assert torch.allclose(found.errors["gap_share"][2], error, rtol=0.02, atol=1e-3)


@pytest.fixture(scope="module")
def llama():
    return load("llama")


@pytest.fixture(scope="module")
def own(llama):
    return qk.decompose(llama, contrasts(), heads=HEADS, recipe=qk.Recipe(rank=2), progress=False)


def test_attribute__saves_and_loads(llama, own, tmp_path):
    one = qk.attribute(llama, TEXT, own, "L0H1")
    again = Attribution.load(one.save(tmp_path / "one"))
    assert again.to_frame().equals(one.to_frame())
    assert (again.marks, again.angles.keys(), again.method) == (one.marks, one.angles.keys(), one.method)
    many = qk.attribute(llama, examples(4), own, progress=False)
    back = Attributions.load(many.save(tmp_path / "many"))
    assert back.to_frame().equals(many.to_frame())
    with pytest.raises(QKPrismError, match="is a run of kind 'attributions'"):
        Attribution.load(tmp_path / "many")
    assert "variance" in repr(one)
    hostile = qk.attribute(llama, "the <b>hat</b> in A & B, box", own, "L0H1")._repr_html_()
    assert "<b>" not in hostile.replace("<tbody>", "")


def test_attribute__warns_where_the_order_decides(llama, own):
    raw = own.with_metric("raw").with_rank(5)
    with pytest.warns(UserWarning, match="depends on its order"):
        found = qk.attribute(llama, TEXT, raw, "L1H3", method="sequential", order=["first", "boxes"])
    assert found.terms[:2] == ("first", "boxes")
    assert "depends on its order (first, then boxes)" in found.notes[0]
    assert found.order_spread > 0.1


def test_attribute__some_features_only(llama, own):
    found = qk.attribute(llama, TEXT, own, "L1H3", contrasts=["first"])
    assert found.terms == ("first", "residual")


def test_attribute__order_is_judged_on_the_tokens_that_are_seen(llama, own):
    raw = own.with_metric("raw").with_rank(5)
    text = Example.parse("the hat in [-A], the jam in [+B], the [?jam] in box, and more words after it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = qk.attribute(llama, text, raw, "L1H3", method="sequential")
        many = qk.attribute(llama, [text], raw, "L1H3", method="sequential", progress=False)
    assert many.order_spread[Head(1, 3)] == pytest.approx(one.order_spread, rel=1e-6)


def test_attribute__order_spread_does_not_depend_on_batches(llama, own):
    """Which feature depends most on the order differs from example to example."""
    raw, test = own.with_metric("raw").with_rank(5), Contrast("test", examples(15, seed=5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [
            qk.attribute(llama, test, raw, method="sequential", batch_size=size, progress=False).order_spread
            for size in (1, 7)
        ]
        single = [qk.attribute(llama, example, raw, "L1H3", method="sequential").order_spread for example in test]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0][Head(1, 3)] <= sum(single) / 15  # the most of one feature, not of a different one each time
    assert qk.attribute(llama, test, own, progress=False).order_spread[Head(1, 3)] is None


def test_attribute__terms_keep_their_names_where_heads_project_in_different_orders(llama, own):
    """By default the lowest rank is projected out first, and ranks differ from head to head."""
    raw = own.with_metric("raw")
    ranks = {"L0H1": {"boxes": 1, "first": 4}, "L1H0": {"boxes": 4, "first": 1}, "L1H3": {"boxes": 4, "first": 1}}
    cut = {key: f.with_rank(ranks[str(key[1])][key[0]]) for key, f in raw.features.items()}
    mixed = type(raw)(cut, raw.layers, raw.choices, raw.provenance)
    test = examples(5, seed=31)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = qk.attribute(llama, test, mixed, method="sequential", progress=False)
        for i, head in enumerate(found.heads):
            single = [qk.attribute(llama, e, mixed, head, method="sequential") for e in test]
            for name in ("boxes", "first"):
                gaps = []
                for one in single:
                    part = one.values[one.terms.index(name)]
                    right, wrong = ([p for p, s in one.marks.items() if s == side] for side in ("positive", "negative"))
                    gaps.append(float(part[right].mean() - part[wrong].mean()))
                value = float(found.values["gap"][i, found.terms.index(name)])
                assert value == pytest.approx(sum(gaps) / 5, abs=1e-4)


def test_attribute__bad_input_is_one_clear_line(llama, own):
    other = load("llama", seed=4)
    twin = Example.parse("jam in [+A]. jam", twin="pen in [+A]. pen")
    for wrong, says in [
        (lambda: qk.attribute(llama, TEXT, own), "Name one head for a text"),
        (lambda: qk.attribute(llama, TEXT, own, "L0H0"), "no feature for head L0H0"),
        (lambda: qk.attribute(llama, TEXT, own, "L0H1", contrasts=["colour"]), "no contrast 'colour'"),
        (lambda: qk.attribute(llama, [twin], own), "need a negative key"),
        (lambda: qk.attribute(llama, TEXT, own, "L0H1", contrasts=["first", "first"]), "named twice"),
        (lambda: qk.attribute(llama, "", own, "L0H1"), "the text is empty"),
        (lambda: qk.attribute(llama, "x" * 400, own, "L0H1"), "more than the 256 positions"),
        (lambda: qk.attribute(other, TEXT, own, "L0H1"), "are others"),
        (lambda: qk.attribute(llama, Example.parse("[-A] [?x] [+B]"), own, "L0H1"), "comes after the query"),
    ]:
        with pytest.raises(QKPrismError, match=says):
            wrong()
