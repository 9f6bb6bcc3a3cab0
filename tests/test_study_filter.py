"""The categories study, end to end on tiny models of the paper's architectures."""

import json
import shutil
import sys
from dataclasses import replace

import pytest
import torch

import qkprism as qk
import studied
from mailed import answer_in, said_in
from qkprism import QKPrismError, cli
from qkprism.contrasts.words import words
from qkprism.core.projectors import span_projector
from qkprism.figures.filter import filter_drawings
from qkprism.studies import FilterStudy, study_filter
from qkprism.studies import filter as studies
from qkprism.studies.categories import CATEGORIES
from qkprism.studies.filter_claims import (
    Gain,
    comparison,
    held_out,
    moves,
    moves_much_less,
    moves_not_all,
    rank_of_one_query,
    share_of_whole,
)
from qkprism.subspaces.comparison import Comparison
from qkprism.subspaces.crossing import crossing
from qkprism.subspaces.separation import separation
from tiny import one_thread  # noqa: F401

KNOWN = tuple(dict.fromkeys(item for name in CATEGORIES for item in words(name)))
TINY = studies.FilterSize(search=26, train={"five": 8, "all": 8}, test=13, pictured=13, draws=2)


def load(name, *, known=KNOWN, **settings):
    return studied.load(name, known, **settings)


@pytest.fixture(autouse=True, scope="module")
def small():
    with studied.sized(studies, TINY):
        yield


@pytest.fixture(scope="module", params=["llama3", "qwen3"])
def run(request, small, tmp_path_factory):  # noqa: ARG001
    """A model, the folder of its study, and what was found."""
    model, folder = load(request.param), tmp_path_factory.mktemp("filter") / "study"
    return model, folder, study_filter(model, folder, progress=False)


@pytest.fixture(scope="module")
def llama():
    return load("llama3")


def test_filter__whole_study_is_kept_and_taken_up_again(run, monkeypatch):
    model, folder, found = run
    assert len(found.heads) == 3
    assert [len(scope.categories) for scope in found.scopes.values()] == [5, 13]
    page = qk.report(folder).html
    assert "If the query were a constant vector q" in said_in(page)
    claims = answer_in(page, "start")["found"][0]["claims"]
    assert [claim["what"] for claim in claims] == [claim.what for claim in comparison(found)]
    assert set(found.summary().columns) >= {"head", "ratio", "pooled_rank", "span_accuracy", "pooled_shift"}
    assert {claim.verdict for claim in comparison(found)} <= {"", "new", "agrees", "differs", "not clear"}
    for scope in found.scopes.values():
        assert scope.effects.features == ("pooled", scope.span)
        assert set(scope.effects.ranks[0].tolist()) == {0}
    monkeypatch.setattr(type(model), "run", None)  # nothing is run again
    again = study_filter(model, folder, progress=False)
    assert again.summary().equals(found.summary())
    assert torch.equal(again.scopes["all"].effects.values, found.scopes["all"].effects.values)


def test_filter__a_finished_study_is_read_without_the_model_and_gives_the_same_page(run, tmp_path):
    _, folder, found = run
    loaded = FilterStudy.load(folder)
    assert loaded.about == found.about
    assert loaded.heads == found.heads
    assert comparison(loaded) == comparison(found)
    for name, draw in filter_drawings(loaded).items():
        assert draw().to_json() == filter_drawings(found)[name]().to_json(), name
    part = tmp_path / "part"
    shutil.copytree(folder, part)
    (part / "effects-all.job").unlink()
    with pytest.raises(QKPrismError, match="not finished: it has no effects-all"):
        FilterStudy.load(part)
    study = json.loads((part / "study.json").read_text())
    for changed, says in (({"about": {}}, "of another version"), ({"study": "binding"}, "a study of another kind")):
        (part / "study.json").write_text(json.dumps(study | changed))
        with pytest.raises(QKPrismError, match=says):
            FilterStudy.load(part)


def test_filter__command_prints_a_table_or_json_and_writes_page_and_figures(run, monkeypatch, capsys, tmp_path):
    model, folder, found = run
    studied.small_atlas(monkeypatch, tmp_path)
    monkeypatch.setattr(qk, "load", lambda *_, **__: model)
    monkeypatch.setattr("qkprism.figures.saving.find_spec", lambda _: None)  # a browser takes seconds a figure
    for options in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["qkprism", "filter", "--save", str(folder), *options])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert not left.value.code
        told = capsys.readouterr().out
        if options:
            assert len(json.loads(told)["heads"]) == 6
            assert json.loads(told)["comparison"] == [claim._asdict() for claim in comparison(found)]
        else:
            assert f"{len(filter_drawings(found))} figures as .html" in told
            assert str(folder / "report.html") in told
            assert "attends from" in told, told
    assert {path.stem for path in (folder / "figures").glob("*.html")} == set(filter_drawings(found))
    assert answer_in((folder / "report.html").read_text(), "explain")["edges"]


def gains(*values, error=0.02):
    return [Gain(value, error) for value in values]


def test_verdicts__need_gains_beyond_two_errors():
    whole = gains(0.5, 0.5, 0.5)
    for spans, wholes, shifts, not_all in [
        (gains(0.3, 0.3, 0.4), whole, "agrees", "agrees"),
        (gains(0.3, 0.3, 0.49), whole, "agrees", "differs"),
        (gains(0.3, 0.02, 0.3), whole, "differs", "not clear"),  # one head clearly moves less than a quarter
        (gains(-0.3, -0.3, -0.4), gains(-0.5, -0.5, -0.5), "not clear", "not clear"),  # shares of 0.6 to 0.8
        (gains(-0.3, -0.3, -0.3), whole, "differs", "not clear"),
        (gains(0.3, 0.3, 0.3), gains(0.5, 0.5, 0.0), "not clear", "not clear"),
        (gains(0.0, 0.0, 0.0, error=0.0), gains(0.0, 0.0, 0.0, error=0.0), "not clear", "not clear"),
        (gains(0.3, 0.3, 0.3, error=0.2), whole, "not clear", "not clear"),
        (gains(0.4, 0.4, 0.4, error=0.06), whole, "agrees", "not clear"),
        (gains(0.3, 0.3, 0.3, error=float("nan")), whole, "not clear", "not clear"),
    ]:
        assert (moves(spans, wholes), moves_not_all(spans, wholes)) == (shifts, not_all), (spans, wholes)
    assert share_of_whole(gains(0.3, 0.4), gains(0.5, 0.5)) == "60% to 80% of what the whole key does"
    assert "without 1 of 2 heads" in share_of_whole(gains(0.3, -0.4), gains(0.5, -0.5))
    assert share_of_whole(gains(-0.3), gains(-0.5)).startswith("no share")
    assert share_of_whole(gains(0.1), gains(0.0)).startswith("no share")


def test_moves_much_less__is_judged_by_what_random_subspaces_move():
    for random, span, how in (
        ((0.05, 0.01), (0.5, 0.02), "agrees"),
        ((0.2, 0.01), (0.5, 0.02), "differs"),
        ((0.12, 0.01), (0.5, 0.02), "not clear"),
        ((0.0, 0.01), (0.01, 0.02), "not clear"),
    ):
        assert moves_much_less([Gain(*random)], [Gain(*span)]) == how
    assert moves_much_less([Gain(0.05, 0.01)] * 2, [Gain(0.5, 0.02), Gain(0.1, 0.01)]) == "differs"


def test_rank_of_one_query__says_what_was_measured():
    nearly, varies = rank_of_one_query(0.998, 0.9999), rank_of_one_query(0.6, 0.9999)
    assert "makes 99.80% to 99.99% of the energy of dC" in nearly
    assert "centred, 0.20% of the energy or less is left" in nearly
    assert "makes 60.00% to 99.99% of the energy of dC" in varies
    assert "nearly" not in varies


def test_scope__a_gain_is_beyond_no_edit_and_its_error_that_of_the_difference(run):
    for scope in run[2].scopes.values():
        frame = scope.effects.to_frame()
        for head in scope.features.heads:
            before = scope.effects.value("shift", head=head, control="none")[0]
            assert before > 0.01
            for group, control in (("pooled", "feature"), (scope.span, "feature"), ("", "full"), ("pooled", "pca")):
                after = scope.effects.value("shift", head=head, feature=group, control=control)[0]
                gain, error = scope.gain(head, group, control)
                assert gain == pytest.approx(after - before, abs=1e-9)
                row = frame[(frame["head"] == str(head)) & (frame.feature == group) & (frame.control == control)]
                assert (gain, error) == (float(row.gain.iloc[0]), float(row.gain_error.iloc[0]))
            assert scope.gain(head, "", "none") == (0, 0)


def test_filter__tables_agree_with_the_plain_computation(run):
    scope = run[2].scopes["five"]
    head, test, train = scope.features.heads[-1], scope.test, scope.train
    assert head.layer == 1  # in the first layer all queries are one
    feature = scope.compared["pooled", head]
    ours, theirs = (feature.key_coordinates(own.key[head]) for own in (train, test))
    labels = [torch.tensor([scope.categories.index(c) for c in own.labels["category"]]) for own in (train, test)]
    centroids = torch.stack([ours[labels[0] == c].mean(0) for c in range(5)])
    right = (torch.cdist(theirs, centroids).argmin(1) == labels[1]).double().mean()
    assert scope.score("accuracy", head, "pooled") == pytest.approx(float(right))
    whole = scope.score("accuracy", head, control="full")
    eye = scope.compared.with_rank({"pooled": feature.d_head})
    full = separation(train, test, eye, "category", Comparison(groups={"pooled": ["pooled"]}, draws=1))
    assert full.value("score", head=head, feature="pooled", target="accuracy")[0] == pytest.approx(whole)
    single = scope.compared[scope.categories[0], head]
    assert single.choices.center == "none"
    assert single.rank == single.rank_energy


def test_separation__errors_are_over_items_and_copies_are_no_neighbours(run):
    scope = run[2].scopes["five"]
    head, test = scope.features.heads[-1], scope.test
    items, labels = test.labels["item"], test.labels["category"]
    assert {item for item in items if labels[items.index(item)] == "fruits"} <= set(words("fruits"))
    assert not set(items) & set(scope.train.labels["item"])
    feature = scope.compared["pooled", head]
    ours, theirs = (feature.key_coordinates(own.key[head]) for own in (scope.train, test))
    number = [torch.tensor([scope.categories.index(c) for c in own.labels["category"]]) for own in (scope.train, test)]
    centroids = torch.stack([ours[number[0] == c].mean(0) for c in range(5)])
    right = (torch.cdist(theirs, centroids).argmin(1) == number[1]).double()
    each = {item: [float(right[i]) for i, own in enumerate(items) if own == item] for item in items}
    mean, weight = float(right.mean()), torch.tensor([len(own) for own in each.values()]).double()
    means = torch.tensor([sum(own) / len(own) for own in each.values()]).double()
    variance = float((weight * (means - mean).square()).sum() / weight.sum())
    effective = float(weight.sum() ** 2 / weight.square().sum())
    assert scope.score_error("accuracy", head, "pooled") == pytest.approx((variance / (effective - 1)) ** 0.5)
    found = []
    for i, own in enumerate(items):
        far = (theirs - theirs[i]).norm(dim=1)
        others = torch.tensor([c == labels[i] and item != own for c, item in zip(labels, items, strict=True)])
        a = float(far[others].mean())
        b = min(float(far[number[1] == c].mean()) for c in range(5) if scope.categories[c] != labels[i])
        found.append((b - a) / max(a, b))
    assert scope.score("silhouette", head, "pooled") == pytest.approx(sum(found) / len(found))
    assert f"{len(each)} different held-out items, {len(items)} keys in {test.n} lists" in held_out(scope)


def test_filter__the_map_of_categories_is_that_of_edited_keys(run):
    scope = run[2].scopes["five"]
    test, head = scope.test, scope.features.heads[0]
    key, query = test.key[head].double(), test.query[head].double()
    p, scaling = span_projector([scope.compared["pooled", head]]), scope.features.layers[head.layer].scaling
    labels, asked = test.labels["category"], test.query_labels("category")
    shifts = {}
    for o in test.positive.nonzero()[:, 0].tolist():
        for t in (~test.positive & (test.example == test.example[o])).nonzero()[:, 0].tolist():
            q = query[test.example[o]] * scaling
            new = torch.stack([q @ (key[o] + p @ (key[t] - key[o])), q @ (key[t] + p @ (key[o] - key[t]))])
            old = torch.stack([q @ key[o], q @ key[t]]).softmax(0)[1]
            own = shifts.setdefault((asked[test.example[o]], labels[t]), {}).setdefault(int(test.example[o]), [])
            own.append((float(old), float(new.softmax(0)[1])))
    found = crossing(test, p, scaling, head, "category")
    for (row, column), lists in shifts.items():
        at = found.labels.index(row), found.labels.index(column)
        values = torch.tensor([pair for own in lists.values() for pair in own]).double()
        assert float(found.before[at]) == pytest.approx(float(values[:, 0].mean()))
        assert float(found.after[at]) == pytest.approx(float(values[:, 1].mean()))
        means = torch.tensor([sum(new - old for old, new in own) / len(own) for own in lists.values()]).double()
        assert {len(own) for own in lists.values()} == {25}  # so that the mean over pairs is one over lists
        assert int(found.n[at]) == len(lists)
        if len(lists) > 1:
            assert float(found.error[at]) == pytest.approx(float(means.std() / len(lists) ** 0.5), rel=1e-4)
        else:
            assert found.error[at].isnan()
    assert int(found.gain.isfinite().sum()) == len(shifts)


def test_filter__bad_input_is_one_clear_line(llama, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "study.json").write_text(json.dumps({"study": "binding", "job": {}}))
    short = load("llama3", seed=1)
    short.hf.config.max_position_embeddings = 8
    splits = load("llama3", known=())
    for wrong, says in [
        (lambda: study_filter(llama, tmp_path / "x", size="huge"), "not a size of this study"),
        (lambda: study_filter(llama, tmp_path / "x", phrasing="song"), "has no phrasing 'song'"),
        (lambda: study_filter(llama, tmp_path / "other"), "a study of another kind"),
        (lambda: study_filter(short, tmp_path / "y", progress=False), "more than the 8 positions"),
        (lambda: study_filter(splits, tmp_path / "y"), "of the list 'fruits' are one token"),
        (lambda: study_filter(llama, tmp_path / "z", phrasing="chat", progress=False), "chat template"),
    ]:
        with pytest.raises(QKPrismError, match=says):
            wrong()


def test_choose_heads__takes_ratios_of_heads_that_attend_to_items_and_says_if_there_are_none():
    heads = tuple(qk.Head(0, i) for i in range(5))
    measures = ("accuracy", "accuracy_all", "attention_positive", "attention_negative", "ratio", "logit_gap")
    values = {name: torch.linspace(0.5, 0.1, 5).double() for name in measures}
    values |= {"attention_positive": torch.tensor([0.01, 0.2, 0.2, 0.2, 0.2]).double()}
    values |= {"attention_negative": torch.tensor([0.01, 0.2, 0.2, 0.2, 0.2]).double()}
    scores = qk.HeadScores(heads, values, values, 10, 0.2)
    assert studies.choose_heads(scores) == (heads[1:4], ())
    nothing = {name: torch.zeros(5).double() for name in ("attention_positive", "attention_negative")}
    chosen, notes = studies.choose_heads(replace(scores, values=values | nothing))
    assert chosen == heads[:3]
    assert notes[0].startswith("0 heads give items 10% of their attention or more; the study goes on")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--phrasing", "haiku"], "haiku"), (["--size", "huge"], "not a size"), (["--preset", "gpt5"], "not a preset")],
)
def test_filter__command_refuses_before_the_model_is_loaded(arguments, says, monkeypatch, capsys):
    monkeypatch.setattr(qk, "load", None)
    monkeypatch.setattr(sys, "argv", ["qkprism", "filter", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert says in capsys.readouterr().err
