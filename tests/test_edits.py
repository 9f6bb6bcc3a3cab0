"""Laws of edits, and of the subspaces in which they are made."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from one_head import decompose_vector_sets
from planted import Lock, basis_change, orthonormal
from qkprism import Edit, Head, QKPrismError
from qkprism.core.edits import DELTAS, KINDS
from qkprism.core.effect_sums import Condition
from qkprism.core.metrics import key_covariance
from qkprism.core.projectors import Subspace
from qkprism.subspaces.comparison import PROJECTING, combined, methods_of
from qkprism.subspaces.conditions import Conditions, layer_conditions
from qkprism.subspaces.intervention import Attending, key_changes, measure_edits, query_changes

HEAD = Head(0, 0)


def oblique_subspace(d, rank, g):
    """A subspace of this rank with an oblique projector."""
    a = torch.randn(d, d, generator=g, dtype=torch.float64)
    basis = orthonormal(d, rank, g)
    return Subspace(a @ basis, basis.T @ torch.linalg.inv(a))


def drawn(seed, d=8, rank=3, n=5):
    g = torch.Generator().manual_seed(seed)
    vectors = torch.randn(3, n, d, generator=g, dtype=torch.float64)
    return *vectors, oblique_subspace(d, rank, g)


def swap(a, b, space):
    change = Edit().change(a, HEAD, space, partner=b)
    return a + change, b + Edit().of_target(change)


def edited(edit, vector, space):
    return vector + edit.change(vector, HEAD, space)


def ablate(vector, space):
    return edited(Edit("ablate"), vector, space)


def replace(vector, other, space):
    return torch.stack([edited(Edit("replace", vector=y), x, space) for x, y in zip(vector, other, strict=True)])


def steer(vector, other, space, amount):
    return edited(Edit("steer", vector=other, amount=amount), vector, space)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 8))
def test_swap__twice_is_the_identity(seed, rank):
    a, b, _, p = drawn(seed, rank=rank)
    again = swap(*swap(a, b, p), p)
    assert torch.allclose(again[0], a, atol=1e-8)
    assert torch.allclose(again[1], b, atol=1e-8)


def test_swap__empty_basis_does_nothing_and_full_basis_swaps_the_whole_key():
    a, b, _, _ = drawn(0)
    eye = torch.eye(8).double()
    nothing = swap(a, b, Subspace(eye[:, :0], eye[:0]))
    assert torch.equal(nothing[0], a)
    assert torch.equal(nothing[1], b)
    whole = swap(a, b, Subspace(eye, eye))
    assert torch.allclose(whole[0], b)
    assert torch.allclose(whole[1], a)


def test_swap__exchanges_coordinates_and_leaves_the_rest():
    a, b, _, space = drawn(1)
    x, y = swap(a, b, space)
    p, rest = space.projector, torch.eye(8).double() - space.projector
    assert torch.allclose(x @ p.T, b @ p.T)
    assert torch.allclose(x @ rest.T, a @ rest.T)
    assert torch.allclose(y @ p.T, a @ p.T)


def test_ablate__leaves_nothing_in_the_subspace_and_is_idempotent():
    a, _, _, space = drawn(2)
    assert (ablate(a, space) @ space.projector.T).abs().max() < 1e-9
    assert torch.allclose(ablate(ablate(a, space), space), ablate(a, space))


def test_replace__takes_the_coordinates_and_is_half_a_swap():
    a, b, c, space = drawn(3)
    assert torch.allclose(replace(a, b, space), swap(a, b, space)[0])
    assert torch.allclose(replace(replace(a, b, space), c, space), replace(a, c, space))
    assert torch.allclose(replace(a, torch.zeros_like(a), space), ablate(a, space))


def test_steer__adds_up_and_stays_in_the_subspace():
    a, b, _, space = drawn(4)
    assert torch.allclose(steer(steer(a, b[0], space, 1.5), b[0], space, 0.5), steer(a, b[0], space, 2.0))
    outside = torch.eye(8).double() - space.projector
    assert torch.allclose(steer(a, b[0], space, 3.0) @ outside.T, a @ outside.T)
    along = edited(Edit("steer", direction=2, amount=3.0), a, space)
    assert torch.allclose(along, a + 3 * space.basis[:, 2])
    assert torch.equal(edited(Edit("steer", direction=3), a, space), a)  # it has no fourth direction


VECTOR = torch.linspace(-1, 1, 16).double()
EDITS = [
    Edit("swap"),
    *(
        Edit(kind, side=side, **options)
        for side in ("key", "query")
        for kind, options in (
            ("ablate", {}),
            ("replace", {"vector": VECTOR}),
            ("steer", {"vector": VECTOR, "amount": 0.7}),
            ("steer", {"direction": 2, "amount": 2.0}),
        )
    ),
]


def by_hand(edit, vector, partner, basis, dual):
    """An edited vector, from the definitions."""
    p = basis @ dual
    lead = basis[:, edit.direction] if edit.direction < basis.shape[1] else torch.zeros(len(basis)).double()
    y = lead if edit.vector is None else edit.vector
    return {
        "swap": lambda: vector + (partner - vector) @ p.T,
        "ablate": lambda: vector - vector @ p.T,
        "replace": lambda: vector + (y - vector) @ p.T,
        "steer": lambda: vector + edit.amount * (p @ y),
    }[edit.kind]()


@pytest.mark.parametrize("edit", EDITS, ids=lambda e: f"{e}{'' if e.vector is None else ' vector'}")
def test_edits__predicted_logits_are_those_of_edited_vectors(conditions, edit):
    """For every kind, side and condition: of the vectors by hand, of those `change` gives, and of the attention."""
    g = torch.Generator().manual_seed(0)
    query, key = torch.randn(6, 16, generator=g).double(), torch.randn(6, 5, 16, generator=g).double()
    scene = Attending(query, key, torch.zeros(6).long(), torch.full((6,), 2)).scene(slice(None), 0.3)
    changes = (key_changes if edit.side == "key" else query_changes)(scene, {HEAD: conditions}, edit)
    measured = measure_edits(scene, {HEAD: conditions}, edit)
    for i in range(len(conditions.names)):
        space, new, asked = conditions.subspace(i), key.clone(), query
        if edit.side == "query":
            asked = by_hand(edit, query, None, space.dual.T, space.basis.T)
            assert torch.allclose(asked, query + edit.change(query, HEAD, space.mT), atol=1e-9)
        else:
            pair = key[:, 0], key[:, 2]
            new[:, 0] = by_hand(edit, *pair, space.basis, space.dual)
            if edit.kind == "swap":
                new[:, 2] = by_hand(edit, *pair[::-1], space.basis, space.dual)
            change = edit.change(pair[0], HEAD, space, partner=pair[1])
            assert torch.allclose(new[:, 0], key[:, 0] + change, atol=1e-9)
            assert torch.allclose(new[:, 2], key[:, 2] + edit.of_target(change), atol=1e-9)
        logits, before = (torch.einsum("nd,ntd->nt", *pair) for pair in ((asked, new), (query, key)))
        grown = changes[i, :, 0] if edit.side == "query" else torch.cat([side[i] for side in changes], 1)
        expected = logits - before if edit.side == "query" else (logits - before)[:, [0, 2]]
        assert torch.allclose(grown, expected, atol=1e-8)
        attention = torch.softmax(0.3 * logits, -1)
        assert torch.allclose(measured[0, :, 0, i], attention[:, 0], atol=1e-9)
        assert torch.allclose(measured[1, :, 0, i], attention[:, 2], atol=1e-9)


@pytest.mark.parametrize("side", ["key", "query"])
def test_edits__an_unknown_kind_is_refused_wherever_an_edit_is_made(conditions, side):
    assert tuple(DELTAS) == KINDS
    with pytest.raises(QKPrismError, match="'twirl' is not an edit"):
        Edit("twirl")
    edit = Edit("ablate", side=side)
    object.__setattr__(edit, "kind", "twirl")
    query, key = torch.randn(2, 16), torch.randn(2, 3, 16)
    scene = Attending(query, key, torch.zeros(2).long(), torch.ones(2).long()).scene(slice(None), 1.0)
    with pytest.raises(QKPrismError, match="'twirl' is not an edit"):
        measure_edits(scene, {HEAD: conditions}, edit)
    with pytest.raises(QKPrismError, match="'twirl' is not an edit"):
        edit.change(query, HEAD, conditions.subspace(0))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: Edit("swap", side="query"), "a query has no partner"),
        (lambda: Edit("replace"), "give the vector"),
        (lambda: Edit("steer", direction=-1), "0 or more"),
        (lambda: Edit("steer", amount=float("nan")), "not a finite number"),
        (lambda: Edit("replace", vector=[1.0, float("inf")]), "finite numbers"),
        (lambda: Edit("replace", vector={Head(0, 0): torch.ones(4)}).vector_of(Head(0, 1)), "no vector for L0H1"),
    ],
)
def test_edit__bad_choices_are_one_clear_line(made, says):
    with pytest.raises(QKPrismError, match=says):
        made()


@pytest.fixture(scope="module")
def features():
    return decompose_vector_sets(Lock().contrasts(600), rank="heldout")


@pytest.fixture(scope="module")
def conditions(features):
    return layer_conditions(features, 0, PROJECTING, draws=4)[Head(0, 0)]


def test_conditions__all_controls_stand_beside_every_feature_in_its_rank(features, conditions):
    ranks = dict(zip(conditions.names, conditions.ranks, strict=True))
    assert [features[name, "L0H0"].rank for name in ("z1", "z2")] == [3, 5]
    for method in PROJECTING:
        for feature, rank in {"z1": 3, "z2": 5, "z1+z2": 8}.items():
            for control, draws in {"feature": 1, "permuted": 7, "keys": 4, "gaussian": 4, "pca": 1}.items():
                for draw in range(draws):
                    assert ranks[Condition(control, feature, method, draw)] == rank
    assert ranks[Condition("none")] == 0
    assert ranks[Condition("full")] == 16
    assert len(ranks) == 2 + 3 * 3 * (1 + 7 + 4 + 4 + 1)


def test_conditions__projectors_are_projectors_orthogonal_in_their_metric(features, conditions):
    metric = {"contrast": features["z1", "L0H0"].metric}
    for i, name in enumerate(conditions.names):
        space = conditions.subspace(i)
        assert torch.allclose(space.dual @ space.basis, torch.eye(space.rank).double(), atol=1e-8)
        alone = name.control in ("keys", "gaussian", "pca") or name.method == "raw"
        if alone or "+" in name.feature:
            turned = space.projector @ metric.get(name.method, torch.eye(16).double())
            assert torch.allclose(turned, turned.T, atol=1e-8)


def test_conditions__oblique_features_do_not_touch_each_other_and_join_without_counting_twice(conditions):
    of = {name: conditions.subspace(i).projector for i, name in enumerate(conditions.names)}
    for method in ("contrast", "raw oblique"):
        z1, z2, both = (of[Condition("feature", name, method)] for name in ("z1", "z2", "z1+z2"))
        assert (z1 @ z2).abs().max() < 1e-8
        assert torch.allclose(z1 + z2, both, atol=1e-8)
    z1, z2, both = (of[Condition("feature", name, "raw")] for name in ("z1", "z2", "z1+z2"))
    assert (z1 @ z2).abs().max() > 0.01  # the paper's overlap
    assert torch.allclose(both @ both, both, atol=1e-8)  # the joint span, not a sum of projections
    assert not torch.allclose(z1 + z2, both, atol=1e-2)


def test_conditions__meet_is_the_bilinear_form_of_each_projector(conditions):
    g = torch.Generator().manual_seed(0)
    q, k = (torch.randn(7, 16, generator=g) for _ in range(2))
    found = conditions.meet(q, k)
    for i in range(len(conditions.names)):
        expected = torch.einsum("nd,de,ne->n", q.double(), conditions.subspace(i).projector, k.double())
        assert torch.allclose(found[:, i], expected, atol=1e-8)


def test_conditions__one_direction_of_each_subspace(conditions):
    for direction in (0, 4):
        on_keys, on_queries = conditions.leads(direction), conditions.mT.leads(direction)
        for i, rank in enumerate(conditions.ranks):
            space, nothing = conditions.subspace(i), torch.zeros(16).double()
            assert torch.equal(on_keys[i], space.basis[:, direction] if rank > direction else nothing)
            assert torch.equal(on_queries[i], space.dual[direction] if rank > direction else nothing)
            assert torch.equal(on_keys[i], space.lead(direction))


def test_conditions__columns_that_subspaces_share_are_kept_once(features):
    found = layer_conditions(features, 0, ("contrast",), draws=3)[Head(0, 0)]
    ranks = dict(zip(found.names, found.ranks, strict=True))
    together = sum(rank for name, rank in ranks.items() if name.feature == "z1+z2")
    assert together > 0
    assert found.basis.shape[1] == together + ranks[Condition("full")]
    assert len(found.columns) == sum(found.ranks) == 2 * together + ranks[Condition("full")]
    spaces = {name: found.subspace(i) for i, name in enumerate(found.names)}
    again = Conditions.of(spaces)
    assert torch.equal(again.basis, found.basis)
    assert torch.equal(again.columns, found.columns)
    alone, both = (spaces[Condition("feature", name, "contrast")] for name in ("z1", "z1+z2"))
    assert torch.equal(alone.basis, both.basis[:, : alone.rank])


def test_conditions__key_draws_follow_the_keys_and_pca_leads_them(features, conditions):
    within = key_covariance([*features.layers[0].moments.values()])[0]
    of = {name: conditions.subspace(i).projector for i, name in enumerate(conditions.names)}

    def caught(control, draw=0):
        p = of[Condition(control, "z1", "raw", draw)]
        return float((p @ within).trace() / within.trace())

    assert caught("pca") > max(caught("keys", i) for i in range(4)) > max(caught("gaussian", i) for i in range(4))


def test_conditions__are_the_same_every_time_and_differ_by_seed_and_head(features):
    first, again, other = (
        layer_conditions(features, 0, ("contrast",), draws=2, seed=seed)[Head(0, 0)] for seed in (0, 0, 1)
    )
    assert torch.equal(first.basis, again.basis)
    at = first.names.index(Condition("keys", "z1", "contrast"))
    assert not torch.allclose(first.subspace(at).projector, other.subspace(at).projector)
    same = first.names.index(Condition("permuted", "z1", "contrast"))
    assert torch.equal(first.subspace(same).projector, other.subspace(same).projector)  # of the training pass


def test_conditions__without_joint_projectors_each_feature_has_its_own_and_it_is_said():
    features = decompose_vector_sets(Lock().contrasts(600), rank=10)
    found = layer_conditions(features, 0, ("contrast",), draws=1)[Head(0, 0)]
    assert "no joint projectors" in found.notes[0]
    ranks = dict(zip(found.names, found.ranks, strict=True))
    assert ranks[Condition("feature", "z1", "contrast")] == 10
    assert ranks[Condition("feature", "z1+z2", "contrast")] == 16


@pytest.mark.parametrize("kind", KINDS)
def test_change__is_where_the_vectors_are_whatever_the_subspace(kind):
    edit = Edit(kind, vector=torch.zeros(8)) if kind == "replace" else Edit(kind)
    with FakeTensorMode(allow_non_fake_inputs=True):  # refuses to mix devices
        space = Subspace(torch.zeros(8, 3).double(), torch.zeros(3, 8).double())
        vector, partner = torch.zeros(2, 5, 8, dtype=torch.float64, device="meta")
        assert edit.change(vector, Head(0, 0), space, partner=partner).device.type == "meta"


def test_edit__takes_lists_and_names_of_heads():
    assert torch.equal(Edit("replace", vector=[1, 2]).vector_of(Head(0, 0)), torch.tensor([1.0, 2.0]).double())
    assert torch.equal(Edit("replace", vector={"L0H1": [1.0]}).vector_of(Head(0, 1)), torch.ones(1).double())


def test_conditions__a_contrast_with_the_name_of_others_together_is_refused():
    sets = Lock().contrasts(300)
    features = decompose_vector_sets(sets | {"z1+z2": sets["z1"]}, rank=1)
    with pytest.raises(QKPrismError, match="has the name of others together"):
        layer_conditions(features, 0, ("raw",))


def test_conditions__rank_zero_moves_nothing(features):
    found = layer_conditions(features.with_rank({"z1": 0}), 0, ("contrast", "raw"), draws=2)[Head(0, 0)]
    moved = found.meet(torch.randn(3, 16), torch.randn(3, 16))
    for i, name in enumerate(found.names):
        if name.feature == "z1":
            assert moved[:, i].abs().max() == 0


def test_conditions__contrast_metric_moves_with_the_basis_and_raw_does_not():
    a = basis_change(16)
    before, after = (decompose_vector_sets(Lock(change=c).contrasts(1500), rank="heldout") for c in (None, a))
    ours, theirs = (layer_conditions(f, 0, PROJECTING, draws=1)[Head(0, 0)] for f in (before, after))
    for name in ("z1", "z2", "z1+z2"):
        for method in PROJECTING:
            at = ours.names.index(Condition("feature", name, method))
            p, q = ours.subspace(at).projector, theirs.subspace(at).projector
            moved = float((a @ q @ torch.linalg.inv(a) - p).norm() / p.norm())
            assert moved < 1e-6 if method == "contrast" else moved > 0.1


def test_conditions__groups_are_moved_in_their_joint_span(features):
    every, some = (
        layer_conditions(features, 0, PROJECTING, draws=2, groups=groups)[Head(0, 0)]
        for groups in (None, {"both": ["z2", "z1"], "z1": ["z1"]})
    )
    for method in PROJECTING:
        for ours, theirs in (("both", "z1+z2"), ("z1", "z1")):
            at = [own.names.index(Condition("feature", n, method)) for own, n in ((some, ours), (every, theirs))]
            p, q = some.subspace(at[0]).projector, every.subspace(at[1]).projector
            assert torch.allclose(p, q, atol=1e-9)
    assert {name.feature for name in some.names} == {"", "both", "z1"}
    for wrong in ({}, {"a": []}, {"a": ["z3"]}, {"a": ["z1", "z1"]}):
        with pytest.raises(QKPrismError, match="groups"):
            layer_conditions(features, 0, PROJECTING, groups=wrong)


def test_combined__all_of_a_few_and_only_the_whole_of_many():
    assert combined(["a", "b"]) == [("a",), ("b",), ("a", "b")]
    assert len(combined(list("abcd"))) == 15
    assert combined(list("abcde")) == [*[(x,) for x in "abcde"], tuple("abcde")]


def test_methods_of__contrast_needs_features_in_that_metric(features):
    assert methods_of(features) == ("contrast", "raw")
    raw = features.with_metric("raw")
    assert methods_of(raw) == ("raw",)
    with pytest.raises(QKPrismError, match="with_metric"):
        methods_of(raw, ["contrast"])
    with pytest.raises(QKPrismError, match="not a method"):
        methods_of(features, ["best"])
