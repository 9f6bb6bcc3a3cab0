"""The categories study, end to end on tiny models of the paper's architectures."""

import json
import sys
from dataclasses import replace

import pytest
import torch

import qkprism as qk
from qkprism import QKPrismError, cli
from qkprism.core.crossing import crossing
from qkprism.core.projectors import span_projector
from qkprism.core.separation import separation
from qkprism.figures.filter import filter_figures
from qkprism.page.filter import comparison, filter_report, held_out
from qkprism.studies import filter as studies
from qkprism.studies import study_filter
from qkprism.tasks.categories import CATEGORIES
from tiny import one_thread, tiny  # noqa: F401
from tokenizers_for_tests import byte_level

KNOWN = tuple(dict.fromkeys(item for category in CATEGORIES.values() for item in category.items))
TINY = studies.Size(search=26, train={"five": 8, "all": 8}, test=13, pictured=13, draws=2)


def load(name, *, known=KNOWN, **settings):
    tokenizer = byte_level(words=known)
    return qk.load((tiny(name, vocab_size=len(tokenizer), max_position_embeddings=512, **settings), tokenizer))


@pytest.fixture(autouse=True, scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(studies.SIZES, "quick", TINY)
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
    page = filter_report(found, filter_figures(found))
    assert "If the query were a constant vector q" in page
    assert "src=" not in page.split("<body>")[1]
    assert set(found.summary().columns) >= {"head", "ratio", "pooled_rank", "span_accuracy", "pooled_shift"}
    assert {row["agrees"] for row in comparison(found)} <= {"", "new", "agrees", "differs", "not clear"}
    for scope in found.scopes.values():
        assert scope.effects.features == ("pooled", scope.span)
        assert set(scope.effects.ranks[0].tolist()) == {0}
    monkeypatch.setattr(type(model), "run", None)  # nothing is run again
    again = study_filter(model, folder, progress=False)
    assert again.summary().equals(found.summary())
    assert torch.equal(again.scopes["all"].effects.values, found.scopes["all"].effects.values)


def test_filter__command_prints_a_table_or_json_and_writes_page_and_figures(run, monkeypatch, capsys):
    model, folder, found = run
    monkeypatch.setattr(qk, "load", lambda *_, **__: model)
    monkeypatch.setattr("qkprism.studies.study_filter", lambda *_, **__: found)
    monkeypatch.setattr("qkprism.figures.filter.filter_figures", lambda study: {"heads": study.scores.plot("ratio")})
    monkeypatch.setattr("qkprism.page.filter.filter_report", lambda *_: "<html></html>")
    for options in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["qkprism", "filter", "--save", str(folder), *options])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert not left.value.code
        told = capsys.readouterr().out
        if options:
            assert len(json.loads(told)["heads"]) == 6
        else:
            assert "1 figures as .html" in told
            assert str(folder / "report.html") in told
    assert (folder / "figures" / "heads.html").is_file()


def test_filter__tables_agree_with_the_plain_computation(run):
    scope = run[2].scopes["five"]
    head, test, train = scope.features.heads[-1], scope.test, scope.train
    assert head.layer == 1  # in the first layer all queries are one
    feature = scope.compared["pooled", head]
    ours, theirs = (feature.key_coordinates(own.key[str(head)]) for own in (train, test))
    labels = [torch.tensor([scope.categories.index(c) for c in own.labels["category"]]) for own in (train, test)]
    centroids = torch.stack([ours[labels[0] == c].mean(0) for c in range(5)])
    right = (torch.cdist(theirs, centroids).argmin(1) == labels[1]).double().mean()
    assert scope.score("accuracy", head, "pooled") == pytest.approx(float(right))
    whole = scope.score("accuracy", head, control="full")
    eye = scope.compared.with_rank({"pooled": feature.d_head})
    full = separation(train, test, eye, "category", groups={"pooled": ["pooled"]}, draws=1)
    assert full.value("score", head=head, feature="pooled", target="accuracy")[0] == pytest.approx(whole)
    single = scope.compared[scope.categories[0], head]
    assert single.choices.center == "none"
    assert single.rank == single.rank_energy


def test_separation__errors_are_over_items_and_copies_are_no_neighbours(run):
    scope = run[2].scopes["five"]
    head, test = scope.features.heads[-1], scope.test
    items, labels = test.labels["item"], test.labels["category"]
    assert {item for item in items if labels[items.index(item)] == "fruits"} <= set(CATEGORIES["fruits"].items)
    assert not set(items) & set(scope.train.labels["item"])
    feature = scope.compared["pooled", head]
    ours, theirs = (feature.key_coordinates(own.key[str(head)]) for own in (scope.train, test))
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
    key, query = test.key[str(head)].double(), test.query[str(head)].double()
    p, scaling = span_projector([scope.compared["pooled", head]]), scope.features.layers[head.layer].scaling
    labels, asked = test.labels["category"], test.query_labels("category")
    shifts = {}
    for o in test.positive.nonzero()[:, 0].tolist():
        for t in (~test.positive & (test.example == test.example[o])).nonzero()[:, 0].tolist():
            q = query[test.example[o]] * scaling
            new = torch.stack([q @ (key[o] + p @ (key[t] - key[o])), q @ (key[t] + p @ (key[o] - key[t]))])
            shifts.setdefault((asked[test.example[o]], labels[t]), []).append(float(new.softmax(0)[1]))
    found = crossing(test, p, scaling, head, "category")
    for (row, column), values in shifts.items():
        at = found.labels.index(row), found.labels.index(column)
        assert float(found.after[at]) == pytest.approx(sum(values) / len(values))
    assert int(found.gain.isfinite().sum()) == len(shifts)


def test_filter__bad_input_is_one_clear_line(llama, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "study.json").write_text(json.dumps({"study": "binding", "job": {}}))
    short = load("llama3", seed=1)
    short.hf.config.max_position_embeddings = 8
    splits = load("llama3", known=())
    for wrong, says in [
        (lambda: study_filter(llama, tmp_path / "x", size="huge"), "not a size of this study"),
        (lambda: study_filter(llama, tmp_path / "x", phrasing="song"), "unknown phrasing"),
        (lambda: study_filter(llama, tmp_path / "other"), "a study of another kind"),
        (lambda: study_filter(short, tmp_path / "y", progress=False), "more than the 8 positions"),
        (lambda: study_filter(splits, tmp_path / "y"), "items of the category 'fruits'"),
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
