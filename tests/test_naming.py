"""Named features within the match: parts that add up, of one run and of several, beside permuted labels."""

import warnings
from functools import cache

import pytest
import torch

import qkprism as qk
from qkprism.atlas import naming, shares
from qkprism.atlas.explain import naming_of
from qkprism.atlas.rows import STAGES, RotatedRows
from qkprism.atlas.spans import NAMED, named_spans
from qkprism.atlas.words import atlas_in_words
from qkprism.cli.inputs import Loading
from qkprism.core.metrics import MetricRoot
from qkprism.core.projectors import span_projector
from qkprism.core.row_split import REST
from qkprism.models.rotation import Rotation
from qkprism.subspaces import spaces
from test_atlas import WORDS, surveyed, wrapped
from test_cli import run  # noqa: F401
from test_pipeline import contrast
from tiny import one_thread  # noqa: F401

HEADS = ["L0H1", "L1H2"]


@cache
def found(seed, rope="post"):
    contrasts = {name: contrast(40, seed=seed + place, name=name) for place, name in enumerate(("one", "two"))}
    options = {
        "heads": HEADS,
        "recipe": qk.Recipe(rank=2, metric="raw"),
        "encoding": qk.Encoding(rope=rope),
        "progress": False,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return qk.decompose(wrapped("llama"), contrasts, **options)


@pytest.fixture(autouse=True)
def all_hold(monkeypatch):
    """Random heads have no significant features; the laws are about those that are offered."""
    monkeypatch.setattr(spaces, "held_rank", lambda feature: feature.rank)


def explained(features, **options):
    return qk.explain(wrapped("llama"), WORDS, atlas=surveyed("llama"), features=features, head=HEADS, **options)


def test_named__parts_and_the_rest_are_the_match():
    without, named = explained(None), explained(found(0))
    for head, row in named.rows.items():
        assert [*row.terms][4:] == ["one", "two", REST]
        match = row.terms["one"] + row.terms["two"] + row.terms[REST]
        torch.testing.assert_close(match, without.rows[head].terms[REST])
        assert row.terms["one"].abs().max() > 1e-3
        assert "+ named" in row.variation
        assert row.null["one"].shape[1:] == row.terms["one"].shape
        assert len(row.null["one"]) >= 4
    for edge in named:
        assert sum(edge.shares.values()) == pytest.approx(edge.height, abs=1e-9)
        assert sum(edge.lead_shares.values()) == pytest.approx(edge.lead, abs=1e-9)


def test_named__is_the_oblique_part_of_attribute_less_the_means():
    features, head = found(0), qk.Head.parse("L1H2")
    forms = naming.named_forms({"": features}, [head])[head]
    joint = features.joint(head)
    for name, form in zip(forms.names, forms.forms, strict=True):
        torch.testing.assert_close(form, joint[name], atol=1e-8, rtol=1e-6)


def test_named__a_run_alone_needs_no_name_and_no_run_takes_the_place_of_another(tmp_path):
    first, second = found(0).save(tmp_path / "x" / "run"), found(7).save(tmp_path / "y" / "run")
    assert [*explained(first).rows[qk.Head(0, 1)].terms][4:] == ["one", "two", REST]
    row = explained([first, second]).rows[qk.Head(0, 1)]
    assert row.tried == ("run: one", "run: two", "run 2: one", "run 2: two")


def test_named__features_of_another_model_are_refused():
    with pytest.raises(qk.QKPrismError, match=r"the weights of .* are others"):
        qk.explain(wrapped("qwen3"), WORDS, atlas=surveyed("qwen3"), features=found(0))


@pytest.mark.parametrize("name", ["salience", "match", REST])
def test_named__no_contrast_is_called_what_a_part_is_called(name):
    with pytest.raises(qk.QKPrismError, match="is a word of the results"):
        qk.decompose(wrapped("llama"), {name: contrast(8)}, progress=False)


def test_named__features_of_several_runs_share_their_joint_span():
    first, second = found(0), found(7)
    head = qk.Head.parse("L1H2")
    tried = naming.named_forms({"a": first, "b": second}, [head])[head]
    assert tried.names == ("a: one", "a: two", "b: one", "b: two")
    columns = [spaces.basis_of(first.joint(head)[name]) for name in ("one", "two")]
    columns += [spaces.basis_of(second.joint(head)[name]) for name in ("one", "two")]
    shared = tried._shared("shapley")
    torch.testing.assert_close(shared.forms.sum(0), shares.span(columns), atol=3e-3, rtol=1e-3)  # kept in half
    alone = shares.shapley([columns[0], columns[0]], 0)  # the same twice: half each
    torch.testing.assert_close(alone, shares.span(columns[:1]) / 2, atol=1e-9, rtol=0)


def test_stands_out__is_above_all_draws_and_by_more_than_any_feature_by_chance():
    own, null = torch.tensor([3.0]).double(), torch.tensor([[1.0, 2.9]]).double()
    assert naming.stands_out(own, null).tolist() == [True]
    assert naming.stands_out(torch.tensor([2.8]).double(), null).tolist() == [False]
    # the second feature's draw stands out of its others by 2: what stands out less than that may be chance
    both = torch.tensor([[1.0, 2.9], [1.0, 2.0]]).double()
    assert naming.stands_out(torch.tensor([3.0, 0.5]).double(), both).tolist() == [False, False]
    assert naming.stands_out(torch.tensor([7.0, 0.5]).double(), both).tolist() == [True, False]
    scaled = naming.stands_out(torch.tensor([7.0, 50.0]).double(), both * torch.tensor([[1.0], [100.0]]))
    assert scaled.tolist() == [True, False]  # however large a feature is by itself


def test_stands_out__null_data_seldom_does_however_many_features():
    gen = torch.Generator().manual_seed(0)
    for features in (1, 30):
        worlds = torch.randn(2000, features, 8, generator=gen, dtype=torch.float64).square()
        passed = sum(bool(naming.stands_out(one[:, 0], one[:, 1:]).any()) for one in worlds)
        assert passed < 2000 * (1 / 8 + 0.03), features


def test_spaces__are_kept_for_every_head_and_loaded_again(tmp_path):
    features = found(0)
    every = spaces.Spaces.of(features)
    again = spaces.Spaces.load(every.save(tmp_path / "spaces"))
    assert not [*spaces.Spaces.of(features, []).of_head(features.heads[0])]  # of none of its heads
    parts = spaces.Spaces.joined(*(spaces.Spaces.of(features, [head]) for head in features.heads))
    for head in features.heads:
        of_head = dict(every.of_head(head))
        assert [*of_head] == ["one", "two"]
        for other in (again, parts):
            for name, bases in other.of_head(head):
                assert all(map(torch.equal, bases, of_head[name]))
        for name, bases in of_head.items():
            own = spaces.basis_of(features.joint(head)[name])
            torch.testing.assert_close(bases[0] @ bases[0].mT, own @ own.mT, atol=3e-3, rtol=0)
            assert len(bases) == 8  # the feature, and 7 draws
    assert [*every.of_head(qk.Head(1, 1))] == []


def test_named__one_run_is_told_apart_as_when_it_stands_alone():
    features, head = found(0), qk.Head.parse("L0H1")
    total = sum(features.joint(head)[name] for name in features.contrasts)
    both = span_projector([features[name, head] for name in features.contrasts])
    torch.testing.assert_close(total @ both, both, atol=1e-8, rtol=1e-6)


def test_named__counting_positions_from_the_query_gives_the_same_logits():
    post, relative = explained(found(0)), explained(found(0, "relative"))
    for head, row in relative.rows.items():
        terms = torch.stack([*row.terms.values()]).sum(0)
        torch.testing.assert_close(terms, post.rows[head].logits, atol=1e-6, rtol=1e-6)
        assert not torch.allclose(row.terms["one"], post.rows[head].terms["one"])


def test_named__only_what_beats_permuted_labels_is_offered():
    named = explained(found(0), top=20)
    for edge in named:
        row = named.rows[edge.head]
        later = row.logits.isfinite()
        later[0] = False
        for name in ("one", "two"):
            drawn = (row.null[name][:, edge.key] - row.null[name][:, later].mean(1)).abs().max()
            share = float(row.terms[name][edge.key] - row.terms[name][later].mean())
            assert (name in edge.shares) == (abs(share) > float(drawn))
            over = row.null[name][:, edge.key] - row.null[name][:, edge.rival]
            lead = float(row.terms[name][edge.key] - row.terms[name][edge.rival])
            assert (name in edge.lead_shares) == (abs(lead) > float(over.abs().max()))
            assert (name in edge.offered) == (name in edge.shares or name in edge.lead_shares)


def test_explain__asks_the_heads_that_have_the_features_and_the_explorer_all():
    model, atlas, features = wrapped("llama"), surveyed("llama"), found(0)
    assert set(qk.explain(model, WORDS, atlas=atlas, features=features).rows) == set(features.heads) < set(atlas.heads)
    assert set(qk.explain(model, WORDS, atlas=atlas, features=naming_of(features, model)).rows) == set(atlas.heads)
    assert set(qk.explain(model, WORDS, atlas=atlas).rows) == set(atlas.heads)


def test_explain_command__says_which_names_permuted_labels_have_too(run, monkeypatch, tmp_path):  # noqa: F811
    named = explained(found(0), top=20)
    monkeypatch.setattr(qk, "explain", lambda *_, **__: named)
    monkeypatch.setattr(Loading, "load", lambda _: None)
    code, out, _ = run("explain", WORDS, "--features", found(0).save(tmp_path / "run"))
    passed_over = [edge for edge in named if edge.tried != edge.offered]
    assert code == 0
    assert " ".join(out.split()).count("no better here than permuted labels") == len(passed_over) > 0


def test_survey__with_features_says_what_they_rebuild_beside_permuted_labels():
    options = {"windows": 8, "length": 24, "progress": False}
    texts = [WORDS * 30, WORDS[5:] * 30]
    without = qk.survey(wrapped("llama"), texts, **options)
    atlas = qk.survey(wrapped("llama"), texts, **options, features=found(0))
    assert [*atlas.coverage()["with"]] == [*STAGES, *NAMED]
    frame = atlas.to_frame().set_index("head")
    for name in without.to_frame():
        if name != "head":
            assert [*frame[name]] == [*without.to_frame()[name]], name
    for head in map(str, atlas.heads):
        ours = head in HEADS
        assert frame["named: rank"][head] == (4 if ours else 0)
        for stage in NAMED:
            same = frame[f"variation: {stage}"][head] == frame["variation: + asked position"][head]
            assert same == (not ours)
    stages = atlas.coverage().set_index("with")
    assert stages["variation"]["+ named"] == pytest.approx(frame["variation: + named"].median())
    assert stages["rows within 0.1"]["+ match 16"] == pytest.approx(frame["suffice: + match 16"].mean())
    assert "With named features" in " ".join(one.sentence for one in atlas_in_words(atlas))
    assert "With named features" not in " ".join(one.sentence for one in atlas_in_words(without))


@pytest.mark.parametrize("rope", ["post", "relative"])
def test_survey__what_is_named_of_a_row_is_the_part_of_the_joint_span(rope):
    features, model, met = found(0, rope), wrapped("llama"), []
    spans = named_spans(model, [features])

    def visit(call):
        rotation = Rotation.of(call, model.rotated_slices[call.layer])
        rows = RotatedRows.of(call, rotation, surveyed("llama").layers[call.layer], slice(-1, None), torch.float64)
        parts = rows.split.parts()
        stages = rows.stages(parts, spans[call.layer])
        for head in (head for head in features.heads if head.layer == call.layer):
            bases = [basis for _, basis in spaces.Spaces.of(features).of_head(head)]
            for place, stage in enumerate(NAMED):
                span = shares.span([basis[place] for basis in bases])
                forms = naming.NamedForms(("all",), span[None], span[None, None], (rope == "relative",), overlap=None)
                expected = forms.parts(rows, head.index)[0][0]
                named = stages[[*STAGES, *NAMED].index(stage)] - stages[STAGES.index("+ asked position")]
                torch.testing.assert_close(named[0, head.index, 0], expected, atol=1e-6, rtol=1e-6)
                assert expected.abs().max() > 1e-3
                met.append((head, stage))

    model.run(torch.tensor([model.tokenizer(WORDS)["input_ids"]]), None, visit)
    assert len(met) == len(features.heads) * len(NAMED)


@pytest.mark.parametrize("method", ["oblique", "shapley", "sequential"])
def test_named__by_every_method_parts_are_of_the_joint_span_and_add_up(method):
    features, head = found(0), qk.Head.parse("L1H2")
    forms = naming.NamedHeads({"": features}, method).forms([head])[head]
    both = span_projector([features[name, head] for name in features.contrasts])
    total = forms.forms.sum(0)
    torch.testing.assert_close(both @ total, total, atol=1e-8, rtol=1e-6)
    if method == "shapley":
        torch.testing.assert_close(total, both, atol=1e-8, rtol=1e-6)
    assert forms.permuted.shape[2:] == forms.forms.shape[1:]
    row = explained(features, method=method).rows[head]
    torch.testing.assert_close(torch.stack([*row.terms.values()]).sum(0), row.logits, atol=1e-6, rtol=1e-6)


def test_named__sequential_gives_what_is_shared_to_the_first_and_shapley_to_both():
    shared, own = torch.eye(6, dtype=torch.float64).split([1, 5], 1)
    first, second = torch.cat([shared], 1), torch.cat([shared, own[:, :1]], 1)
    given = {
        name: [share([first, second], place)[0, 0] for place in (0, 1)]
        for name, share in shares.SHARES.items()
        if name != "oblique"
    }
    assert given["sequential"] == pytest.approx([1, 0])
    assert given["shapley"] == pytest.approx([0.5, 0.5])
    with pytest.raises(qk.QKPrismError, match="overlap too far"):
        shares.oblique([first, second], 0)


def test_named__shares_do_not_depend_on_the_basis():
    """Where the metric moves with the basis, forms do too: q -> A^T q, k -> A^-1 k."""
    generator = torch.Generator().manual_seed(0)
    columns = [torch.randn(6, 2, generator=generator, dtype=torch.float64) for _ in range(2)]
    forms = torch.stack([c @ torch.linalg.pinv(c) for c in columns])
    change = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    back = torch.linalg.inv(change)
    moved = back @ forms @ change
    eye = torch.eye(6, dtype=torch.float64)
    for method in shares.SHARES:
        plain, _ = shares.shares(forms, forms[:, None], method, MetricRoot(eye, eye))
        turned, _ = shares.shares(moved, moved[:, None], method, MetricRoot(back, change))
        torch.testing.assert_close(turned, back @ plain @ change)
