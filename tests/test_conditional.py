"""The conditional exchange: laws of its sums, of the exchange itself, and planted factors that multiply."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import qkprism as qk
from interacting import LATENT, PLACE, InteractingToy
from plain_vectors import intervene_vectors
from qkprism.capture import vectors as vectors_module
from qkprism.capture.source import sites_of
from qkprism.core.by_value import ValuePlan
from qkprism.core.conditional import ConditionalSwap, KeysByValue, Standard
from qkprism.core.edits import Edit
from qkprism.core.effect_sums import Condition
from qkprism.core.projectors import Subspace
from qkprism.errors import QKPrismError
from qkprism.explorer.what_if import Meeting, Wish, feature_variants
from qkprism.heads import Head
from qkprism.models.encoding import encode
from qkprism.results.features import Features
from qkprism.studies.binding_prompts import binding_prompts
from qkprism.subspaces.comparison import CONDITIONAL, methods_of
from qkprism.subspaces.conditions import layer_conditions
from qkprism.subspaces.intervention import key_changes
from qkprism.subspaces.modulation import head_modulation, layer_amplitudes, modulation_of, why_not_conditional
from qkprism.verbs.aims import given_aims
from qkprism.verbs.plan import conditions_of
from test_intervene import edited_attention, load
from tiny import one_thread  # noqa: F401

HEAD = Head(0, 0)
MODEL_HEADS = ["L1H0", "L1H3"]
WAYS = (CONDITIONAL, "contrast")


def errors_of(toy, features=None, *, known=True):
    """Of each factor and method the error of both logits after the edit, as a share of no edit."""
    features = features or qk.decompose(toy.source(), progress=False)
    test, truth = toy.test()
    conditions = layer_conditions(features, 0, methods_of(features, WAYS, swaps=True), draws=1)
    scene = (test if known else replace(test, labels=None)).scene(slice(None), 1.0)
    changes = key_changes(scene, conditions, Edit())
    found = {}
    for factor, after in truth.items():
        true = [(test.query * (one - test.key[:, i])).sum(-1) for i, one in enumerate(after)]
        for way in WAYS:
            at = conditions[HEAD].names.index(Condition("feature", factor, way))
            off = sum((one - change[at, :, 0]).abs().mean() for one, change in zip(true, changes, strict=True))
            found[factor, way] = float(off / sum(one.abs().mean() for one in true))
    return found


@pytest.fixture(scope="module")
def multiplied():
    toy = InteractingToy()
    return toy, qk.decompose(toy.source(), progress=False)


def test_conditional__factors_that_multiply_are_exchanged_where_a_projector_fails(multiplied):
    found = errors_of(*multiplied)
    assert found[PLACE, CONDITIONAL] < 0.1 < 0.3 < found[PLACE, "contrast"]
    assert found[LATENT, CONDITIONAL] < 0.32 < 0.4 < found[LATENT, "contrast"]


def test_conditional__factors_that_add_up_are_exchanged_as_well_as_by_a_projector():
    found = errors_of(InteractingToy(amplitudes=(1.0, 1.0, 1.0)))
    for factor in (PLACE, LATENT):
        assert found[factor, CONDITIONAL] < found[factor, "contrast"] + 0.02


def test_conditional__values_that_are_not_known_are_those_of_the_nearest_mean(multiplied):
    toy, features = multiplied
    assert errors_of(toy, features, known=False)[PLACE, CONDITIONAL] < 0.1


def test_amplitudes__planted_ones_are_found_and_equal_ones_are_called_equal(multiplied):
    _, features = multiplied
    found = layer_amplitudes(features, 0, modulation_of(features))[HEAD][LATENT]
    planted = torch.tensor(InteractingToy().amplitudes).double()
    planted = planted / planted.square().mean().sqrt()
    assert torch.allclose(found.value, planted, atol=0.08)
    assert found.statistic > 100
    equal = qk.decompose(InteractingToy(amplitudes=(1.0,) * 4).source(), progress=False)
    assert layer_amplitudes(equal, 0, modulation_of(equal))[HEAD][LATENT].statistic < 10


def test_modulation__the_contrast_whose_twins_share_no_value_moves_the_label(multiplied):
    modulation = modulation_of(multiplied[1])
    assert modulation.movers == (PLACE,)
    assert modulation.values == (0, 1, 2, 3)
    assert [modulation.number(labels) for labels in ({"value": 2}, {"value": 9}, {})] == [2, -1, -1]


def test_conditional__a_change_of_basis_changes_no_logit(multiplied):
    toy, features = multiplied
    turned = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(1)).double())[0]
    matrix = turned * torch.logspace(0, torch.log10(torch.tensor(30.0)).item(), 16).double()
    source = InteractingToy().source()
    moved = {
        name: replace(
            one,
            query=one.query @ matrix,
            twin_query=one.twin_query @ matrix,
            positive=one.positive @ torch.linalg.inv(matrix).mT,
            negative=one.negative @ torch.linalg.inv(matrix).mT,
        )
        for name, one in source.contrasts.items()
    }
    other = qk.decompose(qk.VectorSource(moved), progress=False)
    test, _ = toy.test(50)
    there = replace(test, query=test.query @ matrix, key=test.key @ torch.linalg.inv(matrix).mT)
    changes = []
    for found, rows in ((features, test), (other, there)):
        conditions = layer_conditions(found, 0, [CONDITIONAL], draws=1)
        kept = {HEAD: conditions[HEAD].pick(lambda c: c.control in ("feature", "full"))}
        changes.append(torch.stack(key_changes(rows.scene(slice(None), 1.0), kept, Edit())))
    assert torch.allclose(*changes, rtol=1e-6, atol=1e-6 * float(changes[0].abs().max()))


def test_conditional__exchanging_everything_is_the_whole_key_and_nothing_is_no_edit():
    g = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 50, 6, generator=g).double()
    square = torch.einsum("vnd,vne->vde", rows, rows)
    keys = KeysByValue.of(torch.full((3,), 50.0).double(), rows.sum(1), square)
    basis = torch.randn(6, 2, generator=g).double()
    space = {"f": Subspace(basis, torch.linalg.pinv(basis))}
    standard = Standard.of(keys, space, {"f": torch.tensor([0.5, 1.0, 2.0]).double()})
    original, target, values = rows[0], rows[2], (torch.zeros(50).long(), torch.full((50,), 2))
    eye = torch.eye(6).double()
    changes = ConditionalSwap(standard, eye, True).changes(original, target, values)
    assert torch.allclose(changes[0], target - original, atol=1e-10)
    assert torch.allclose(changes[1], original - target, atol=1e-10)
    for change in ConditionalSwap(standard, 0 * eye, False).changes(original, target, values):
        assert torch.allclose(change, torch.zeros_like(change), atol=1e-10)
    once = ConditionalSwap(standard, 0 * eye, True).changes(original, target, values)
    again = ConditionalSwap(standard, 0 * eye, True).changes(original + once[0], target + once[1], values[::-1])
    assert torch.allclose(once[0] + again[0], torch.zeros_like(original), atol=1e-10)


def twins(n=40, keys=3, d=5):
    """Texts of several marked keys, and twins of as many."""
    g = torch.Generator().manual_seed(0)
    vectors = [torch.randn(*shape, d, generator=g).double() for shape in ((n,), (n, keys), (n, keys), (n,))]
    value = torch.arange(keys).expand(n, -1)
    return qk.Vectors(*vectors, positive_value=value, negative_value=value)


def test_sums__by_value_are_what_they_say():
    one = twins()
    moments = one.moments("symmetric")
    for value in range(3):
        rows = torch.cat([one.positive[:, value], one.negative[:, value]]) / 6**0.5  # six marked keys an example
        assert torch.allclose(moments.value_square.sum(0)[value, 0], rows.mT @ rows)
        assert torch.allclose(moments.value_weight.sum(0)[value], torch.tensor(40 * 2 / 6).double())
    assert float(moments.twin_weight.sum()) == 0  # positive keys of three values share none


def test_sums__chunks_and_order_of_adding_do_not_matter(monkeypatch):
    one = twins()
    whole = one.moments("symmetric").tensors()
    monkeypatch.setattr(vectors_module, "_CHUNK", 7)
    parts = one.moments("symmetric").tensors()
    for name, tensor in whole.items():
        assert torch.allclose(parts[name], tensor, rtol=1e-5, atol=1e-5), name
    assert float(whole["value_square"].abs().sum()) > 0
    assert not any(float(whole[name].abs().sum()) for name in ("dealt_square", "dealt_twin_square"))  # all keys change


def test_sums__merging_is_commutative_and_refuses_other_values():
    first, second = twins().moments("symmetric"), twins(60).moments("symmetric")
    ours, theirs = (first + second).tensors(), (second + first).tensors()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.allclose(ours["value_square"], first.value_square + second.value_square)
    with pytest.raises(QKPrismError, match="values cannot be added"):
        first + twins(keys=4).moments("symmetric")


def test_value_plan__dealt_values_stay_in_their_text_and_depend_on_the_example_alone():
    value = torch.arange(4).repeat(1, 2)[..., None].expand(30, -1, -1)
    side = torch.tensor([1, -1, -1, -1, -1, 1, -1, -1]).expand(30, -1)
    text = (torch.arange(8) > 3).long().expand(30, -1)
    plans = [ValuePlan.of(value, side, text, [np.random.default_rng((s, i)) for i in range(30)]) for s in (0, 0, 1)]
    assert torch.equal(plans[0].dealt, plans[1].dealt)
    assert not torch.equal(plans[0].dealt, plans[2].dealt)
    for half in (slice(0, 4), slice(4, 8)):
        assert torch.equal(plans[0].dealt[:, half, 0].sort(1).values, torch.arange(4).expand(30, -1))
    assert torch.equal(plans[0].pair[:, :4].sum(1), torch.ones(30).double())
    assert torch.equal(plans[0].pair.sum(1), torch.zeros(30).double())


def test_value_plan__dealt_twins_are_compared_at_the_same_key_and_never_at_one_that_changes():
    side = torch.tensor([1, -1, -1, -1, -1, 1, -1, -1]).expand(30, -1)
    text = (torch.arange(8) > 3).long().expand(30, -1)
    value = torch.arange(4).repeat(1, 2)[..., None].expand(30, -1, -1)
    pair = ValuePlan.of(value, side, text, [np.random.default_rng(i) for i in range(30)]).pair
    assert (pair[side > 0] == 0).all()
    ours, theirs = (pair[:, half][side[:, half] < 0].reshape(30, 3) for half in (slice(0, 4), slice(4, 8)))
    assert torch.equal(ours, -theirs)
    assert {int(at) for at in ours.argmax(1)} == {0, 1, 2}


def test_permuted__moves_next_to_nothing_where_only_the_positive_key_changes(bound):
    _, _, features = bound
    modulation = modulation_of(features)
    for head in features.heads:
        sizes = [
            float(head_modulation(features, head, modulation, dealt=dealt).swap(["lexical"], ("order",)).share.trace())
            for dealt in (False, True)
        ]
        assert 0 <= sizes[1] < sizes[0] / 2


def test_interactions__saved_ones_are_the_same(multiplied, tmp_path):
    found = qk.interactions(multiplied[1])
    found.save(tmp_path / "run")
    assert qk.Interactions.load(tmp_path / "run") == found


def test_features__saved_ones_exchange_alike(multiplied, tmp_path):
    _, features = multiplied
    features.save(tmp_path / "run")
    before, after = (
        head_modulation(one, HEAD, modulation_of(one)).swap([LATENT], (PLACE,)).share
        for one in (features, Features.load(tmp_path / "run"))
    )
    assert torch.equal(before, after)


def test_parts__with_all_of_the_rest_they_add_up_to_the_key_but_its_mean(multiplied):
    _, features = multiplied
    modulation = modulation_of(features)
    split = head_modulation(features, HEAD, modulation).parts((PLACE, LATENT), modulation.movers)
    g = torch.Generator().manual_seed(0)
    query, key = torch.randn(7, 16, generator=g).double(), torch.randn(7, 4, 16, generator=g).double()
    whole = replace(split, counted={LATENT: torch.eye(16).double()})
    expected = torch.einsum("nd,ntd->nt", query, key - split.standard.mean.mean(0)) * 0.5
    assert torch.allclose(whole.parts(query, key, 0.5).sum(0), expected, atol=1e-9)
    value = torch.ones(7, 4).long()
    place = split.parts(query, key, 0.5, value)[0]
    assert torch.allclose(place, place[:, :1].expand_as(place), atol=1e-12)


def test_intervene__conditional_is_beside_the_projectors_with_its_controls(multiplied):
    toy, features = multiplied
    effects = intervene_vectors(toy.test(60)[0], features, draws=2)
    assert effects.methods == ("contrast", "raw", CONDITIONAL)
    assert any("none that stays" in note for note in effects.notes)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda f: f.with_metric("raw"), "contrast metric"),
        (lambda f: replace(f, provenance={}), "have none"),
    ],
)
def test_conditional__what_is_missing_is_said(multiplied, change, sentence):
    features = change(multiplied[1])
    assert sentence in why_not_conditional(features)
    assert CONDITIONAL not in methods_of(features, swaps=True)
    with pytest.raises(QKPrismError, match=sentence):
        methods_of(features, [CONDITIONAL], swaps=True)


def test_conditional__a_label_with_one_value_modulates_nothing():
    source = InteractingToy().source(60)
    alike = {
        name: replace(one, positive_value=0 * one.positive_value, negative_value=0 * one.negative_value)
        for name, one in source.contrasts.items()
    }
    features = qk.decompose(qk.VectorSource(alike), progress=False)
    assert why_not_conditional(features).startswith("all keys have one value, 0;")
    with pytest.raises(QKPrismError, match="needs two or more"):
        qk.interactions(features)


def test_conditional__is_a_swap_and_no_other_edit(multiplied):
    assert why_not_conditional(multiplied[1], "colour").startswith("keys were not summed by the label 'colour'")
    with pytest.raises(QKPrismError, match="exchanges two keys"):
        methods_of(multiplied[1], [CONDITIONAL])
    assert CONDITIONAL not in methods_of(multiplied[1])


def test_attribute__conditional_parts_of_vectors_add_up(multiplied):
    toy, features = multiplied
    test = toy.test(50)[0]
    source = qk.VectorSource({"test": qk.Vectors(test.query, test.key[:, 0], test.key[:, 1])})
    ours, theirs = (
        qk.attribute(source, "test", features, method=method, progress=False) for method in (CONDITIONAL, "oblique")
    )
    assert ours.terms == theirs.terms == (PLACE, LATENT, "residual")
    assert ours.method == {HEAD: CONDITIONAL}
    assert torch.allclose(ours.values["gap"].sum(1), theirs.values["gap"].sum(1), atol=1e-4)
    assert not torch.allclose(ours.values["gap"], theirs.values["gap"], atol=1e-2)


def test_interactions__say_how_much_stronger_with_a_test_and_a_figure(multiplied):
    found = qk.interactions(multiplied[1])
    (one,) = found.found
    assert one.differs
    assert found.verdict() == [
        f"L0H0: latent is {one.amplitude[3] / one.amplitude[0]:.1f} times as strong at value 3 as at value 0."
    ]
    assert 2.8 < one.amplitude[3] / one.amplitude[0] < 3.4  # planted 3.2; noise is as strong everywhere
    assert len(found.to_frame()) == 4
    figure = found.plot()
    assert len(figure.data) == 1
    assert list(figure.data[0].y) == list(one.amplitude)
    equal = qk.interactions(qk.decompose(InteractingToy(amplitudes=(1.0,) * 4).source(), progress=False))
    assert "as strong at every value" in equal.verdict()[0]


@pytest.fixture(scope="module")
def bound():
    model, task = load("llama"), binding_prompts("boxes", 3, n_train=60, n_test=8)
    return model, task, qk.decompose(model, task.contrasts, heads=MODEL_HEADS, recipe=qk.Recipe(rank=2), progress=False)


def test_model__labels_of_few_values_are_summed_by_and_the_order_modulates(bound):
    _, _, features = bound
    assert modulation_of(features).label == "order"
    assert modulation_of(features).movers == ("order",)
    moments = features.layers[1].moments["lexical"]
    assert moments.twin_weight.tolist() == [20.0, 20.0, 20.0]  # each place equally often
    assert float(features.layers[1].moments["order"].twin_weight.sum()) == 0


def test_model__attention_after_the_exchange_is_that_of_the_really_edited_model(bound):
    model, task, features = bound
    item = task.task.test[0]
    (encoded,) = encode(model.tokenizer, [item])
    aim = given_aims([encoded], 0)[0]
    effects = qk.intervene(model, [item], features, compare=qk.Comparison(draws=1), progress=False)
    outcome = qk.intervene(
        model,
        [item],
        features,
        compare=qk.Comparison(draws=1),
        outcome=qk.Outcome("logits", together=False),
        progress=False,
    )
    conditions = conditions_of(features, sites_of(model, features.heads), qk.Comparison(methods=CONDITIONAL, draws=1))
    for head in features.heads:
        of_head = conditions[head]
        values = [torch.tensor([of_head.modulation.number(key.labels)]) for key in (aim.original, aim.target)]
        for name in (Condition("feature", one, CONDITIONAL) for one in ("order", "lexical", "order+lexical")):
            exchange = of_head.swap(of_head.names.index(name))

            def change(call, head=head, exchange=exchange, values=values):
                key = call.key[:, call.kv_head(head.index)].clone()
                pair = key[:, aim.original.position], key[:, aim.target.position]
                original, target = exchange.changes(*pair, tuple(values))
                key[:, aim.original.position] += original.float()
                key[:, aim.target.position] += target.float()
                call.edit_head(head.index, key=key, rows=torch.tensor([encoded.text.query]))

            row = edited_attention(model, encoded, head, change)
            where = {"head": head, "feature": name.feature, "method": CONDITIONAL}
            for side in ("original", "target"):
                found = effects.value(f"attention_{side}", **where)[0]
                assert found == pytest.approx(float(row[getattr(aim, side).position]), abs=1e-5)

            def visit(call, head=head, change=change):
                if call.layer == head.layer:
                    change(call)

            ids = torch.tensor([encoded.text.ids])
            before, after = model.run(ids, logits=True)[0, -1], model.run(ids, visit=visit, logits=True)[0, -1]
            target, original = (encoded.text.ids[key.position] for key in (aim.target, aim.original))
            moved = float((after - before)[target] - (after - before)[original])
            assert outcome.value("logit_change", **where)[0] == pytest.approx(moved, abs=1e-4)


def test_what_if__the_conditional_kind_is_the_exchange_beside_its_permuted_control(bound):
    _, _, features = bound
    head = features.heads[0]
    variants = feature_variants(Wish(head, 9, 3, 5, CONDITIONAL), features, ["lexical"], [head])
    assert [one.control for one in variants] == ["none", "feature", "full", "permuted"]
    g = torch.Generator().manual_seed(0)
    query, original, target = torch.randn(3, features["lexical", head].d_head, generator=g).double()
    changes = variants[1].change(head, Meeting(query, original, target, torch.zeros_like(query), 0.5))
    swap = head_modulation(features, head, modulation_of(features)).swap(["lexical"], ("order",))
    expected = swap.changes(original, target, (torch.tensor(-1), torch.tensor(-1)))
    assert all(torch.allclose(one, other) for one, other in zip(changes, expected, strict=True))


def test_outcome__methods_share_their_random_controls_and_the_conditional_has_its_own(bound):
    model, prompts, features = bound
    effects = qk.intervene(
        model,
        prompts.task.test[:3],
        features,
        outcome="logits",
        compare=qk.Comparison(methods=["contrast", CONDITIONAL], draws=1),
        progress=False,
    )
    (head,) = effects.heads
    known = {(entry.control, entry.method) for entry in effects.entries}
    assert {("permuted", CONDITIONAL), ("keys", CONDITIONAL), ("feature", CONDITIONAL)} <= known
    for control in ("keys", "pca"):
        both = [
            effects.value("logit_change", head=head, feature="lexical", method=method, control=control)
            for method in ("contrast", CONDITIONAL)
        ]
        assert both[0] == both[1]
    ours, theirs = (
        effects.value("logit_change", head=head, feature="lexical", method=method) for method in effects.methods
    )
    assert ours != theirs


def test_validate__leads_with_logits_and_has_the_permuted_control(bound):
    model, task, features = bound
    pairs = {name: task.counterfactuals(name) for name in ("order", "lexical")}
    frame = qk.validate(model, pairs, features, progress=False).to_frame().set_index(["method", "feature", "head"])
    methods = set(frame.index.get_level_values("method"))
    assert {CONDITIONAL, "conditional, permuted", "conditional, key draws", "contrast", "whole key"} <= methods
    none = frame.loc[CONDITIONAL].logit_off_unedited
    assert torch.allclose(*(torch.tensor(one.to_numpy()) for one in (none, frame.loc["contrast"].logit_off_unedited)))
    assert (frame.loc[CONDITIONAL].logit * none).to_numpy() == pytest.approx(
        frame.loc[CONDITIONAL].logit_off.to_numpy()
    )
    assert (frame.floor.dropna() >= 0).all()
