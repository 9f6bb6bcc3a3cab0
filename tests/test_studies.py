"""The binding study, end to end on tiny models of the paper's architectures."""

import json
import os
import platform
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import qkprism as qk
import studied
from mailed import answer_in, said_in
from qkprism import QKPrismError, cli
from qkprism.contrasts.words import words
from qkprism.results.scores import MEASURES, HeadScores
from qkprism.runs import store
from qkprism.runs.store import Parts
from qkprism.studies import BindingStudy, binding_claims, compare, study_binding
from qkprism.studies import binding as studies
from qkprism.studies.binding_claims import comparison
from qkprism.studies.binding_figures import CAPTIONS, tables
from qkprism.studies.binding_prompts import binding_prompts
from qkprism.studies.jobs import template_of
from tiny import one_thread  # noqa: F401

KNOWN = words("objects") + words("letters")
TINY = studies.BindingSize(search=12, train=60, reflexive=40, test=6, shown=4, draws=2, outcome_draws=1)


def load(name, **settings):
    return studied.load(name, KNOWN, **settings)


@pytest.fixture(autouse=True, scope="module")
def small():
    with studied.sized(studies, TINY):
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model, the folder of a finished study of it, and what was found."""
    return _made("llama3", tmp_path_factory.mktemp("made") / "study")


def _made(name, folder):
    model = load(name)
    return model, folder, study_binding(model, folder, n_pairs=3, progress=False)


@pytest.fixture
def finished(made, tmp_path):
    """The same in a folder of its own."""
    shutil.copytree(made[1], tmp_path / "study")
    return made[0], tmp_path / "study"


@pytest.mark.filterwarnings("ignore:Only")
@pytest.mark.filterwarnings("ignore:.*depends on its order")
@pytest.mark.parametrize("name", ["llama3", "qwen3"])
def test_binding__whole_study_is_kept_and_taken_up_again(name, made, tmp_path, monkeypatch):
    model, folder, found = made if name == "llama3" else _made(name, tmp_path / "study")
    assert 3 <= len(found.heads) <= 9
    page = qk.report(folder).html
    claims = answer_in(page, "start")["found"][0]["claims"]
    assert [claim["what"] for claim in claims] == [claim.what for claim in comparison(found)]
    assert set(found.summary().columns) >= {"head", "accuracy", "order_rank", "lexical_rank", "both_shift"}
    assert {claim.what for claim in comparison(found)} >= {"rank of order", "rank of lexical"}
    monkeypatch.setattr(type(model), "run", None)  # nothing is run again
    again = study_binding(model, folder, n_pairs=3, progress=False)
    assert again.summary().equals(found.summary())
    loaded = BindingStudy.load(folder)
    assert loaded.about == found.about
    assert loaded.summary().equals(found.summary())
    assert qk.report(folder).html == page
    assert torch.equal(again.outcome.values, found.outcome.values)


@pytest.mark.filterwarnings("ignore:Only")
def test_binding__features_are_those_of_what_the_task_hands_out(made):
    model, study = made[0], BindingStudy.load(made[1])
    prompts = binding_prompts("boxes", 3, tokenizer=model.tokenizer, n_train=TINY.train)
    found = qk.decompose(model, prompts.contrasts, heads=study.heads, recipe=qk.Recipe(rank="own"), progress=False)
    assert found.choices == study.features.choices
    assert found.provenance["contrasts"] == study.features.provenance["contrasts"]
    for key, feature in study.features.items():
        assert torch.allclose(found[key].strengths, feature.strengths, rtol=1e-4)  # other texts share the pass
        assert found[key].rank == feature.rank


def _command(arguments, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["qkprism", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert not left.value.code


@pytest.mark.filterwarnings("ignore:Only")
@pytest.mark.filterwarnings("ignore:.*depends on its order")
def test_binding__command_prints_a_table_or_json_and_writes_page_and_figures(finished, monkeypatch, capsys):
    (model, place), asked = finished, []
    studied.small_atlas(monkeypatch, place.parent)
    monkeypatch.setattr(qk, "load", lambda name, **options: asked.append((name, options)) or model)
    monkeypatch.setattr("qkprism.figures.saving.find_spec", lambda _: None)
    folder = ["--pairs", "3", "--save", str(place)]
    _command(["binding", "--preset", "qwen3-4b", "--phrasing", "cloze", "--size", "quick", *folder], monkeypatch)
    options = {
        "dtype": "bfloat16",
        "device": None,
        "device_map": None,
        "quiet": True,
    }  # the command names the model itself
    assert asked == [("Qwen/Qwen3-4B-Instruct-2507", options)]
    told = capsys.readouterr().out
    assert "figures as .html" in told
    assert "sentences more with --wide" in told
    assert str(place / "report.html") in told
    assert "attends from" in told, told
    assert answer_in((place / "report.html").read_text(), "explain")["edges"]
    _command(["binding", "--json", *folder], monkeypatch)
    told = json.loads(capsys.readouterr().out)
    assert {row["head"] for row in told["heads"]} == {str(head) for head in BindingStudy.load(place).heads}
    _command(["binding", "--wide", *folder], monkeypatch)
    assert "order (ours), contrast: the factor" in capsys.readouterr().out.replace("\n", " ")
    assert (place / "figures" / "validation.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--preset", "gpt5"], "not a preset"),
        (["--entities", "ten"], "not a list of numbers"),
        (["--schema", "planets"], "planets is no template"),
        (["--phrasing", "haiku"], "has no phrasing"),
        (["--size", "huge"], "not a size"),
        (["--umap"], "needs umap-learn"),
    ],
)
def test_binding__command_refuses_before_the_model_is_loaded(arguments, says, monkeypatch, capsys):
    monkeypatch.setattr(qk, "load", None)
    monkeypatch.setattr("qkprism.results.projections.find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["qkprism", "binding", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:Only")
@pytest.mark.filterwarnings("ignore:.*depends on its order")
def test_compare__means_and_spread_over_seeds(finished, monkeypatch, capsys):
    model, place = finished
    other = place.with_name("other")
    studies = [BindingStudy.load(place), study_binding(model, other, n_pairs=3, seed=1, progress=False)]
    found = compare(studies)
    (kind,) = found.kinds
    shifts = [float(study.summary()["both_shift"].mean()) for study in studies]
    (moved,) = [m for m in found.values if m.what == "both" and m.group.startswith("Share of attention")]
    assert found.values[moved][kind] == pytest.approx(shifts)
    frame = found.to_frame().set_index(["group", "what"])
    assert frame.loc[(moved.group, "both"), kind] == f"{np.mean(shifts):.0%} ± {np.std(shifts, ddof=1):.0%}"
    assert set(found.heads[kind]) <= {str(head) for head in studies[0].heads}
    _command(["compare", str(place), str(other), "--json"], monkeypatch)
    told = json.loads(capsys.readouterr().out)
    (row,) = [row for row in told["rows"] if (row["group"], row["what"]) == (moved.group, "both")]
    assert row["values"][kind] == pytest.approx(shifts)
    _command(["compare", str(place)], monkeypatch)
    assert moved.group in capsys.readouterr().out
    for wrong, says in [([], "at least one"), ([studies[0]] * 2, "same seed")]:
        with pytest.raises(QKPrismError, match=says):
            compare(wrong)
    (place / "outcome.job").unlink()
    with pytest.raises(QKPrismError, match="not finished: it has no outcome"):
        BindingStudy.load(place)


def test_compare__leads_with_the_heads_in_which_the_clue_matters(made):
    """Of the first head one clue matters, and its part is half as large again; elsewhere there is nothing."""
    found = BindingStudy.load(made[1])
    wrong = {"true_part": 2.0, "true_part_error": 0.1, "part_error": 1.0, "tv": 1.5}
    nothing = {"true_part": 0.0, "true_part_error": 0.1, "part_error": 0.0, "tv": 0.5}
    first = found.validation.checks[0].head
    checks = tuple(
        c._replace(**(wrong if (c.head, c.factor) == (first, "order") else nothing)) for c in found.validation.checks
    )
    table = compare([replace(found, validation=replace(found.validation, checks=checks))])
    (kind,), n = table.kinds, len(found.heads)
    assert kind == "boxes"
    rows = {(m.group, m.what, m.whose): values[kind][0] for m, values in table.values.items()}
    leads, every = list(dict.fromkeys(m.group for m in table.values))[:2]
    assert next(iter(table.values)).what == "order: heads in which it matters"
    assert rows[leads, "order: heads in which it matters", ""] == 1
    assert rows[leads, "order: heads studied", ""] == n
    assert rows[leads, "lexical: heads in which it matters", ""] == 0
    error, nearer = (
        "order: error of the part / true part",
        "order: heads whose swap is nearer to the truth than no edit",
    )
    assert rows[leads, error, "ours"] == rows[leads, error, "paper"] == pytest.approx(0.5)
    assert rows[leads, nearer, "ours"] == 0
    assert rows[leads, "order: swap's distance / no edit's, median head", "ours"] == pytest.approx(1.5)
    assert rows[every, "order: error of the part in logits", "ours"] == pytest.approx(1 / n)  # flatters
    assert rows[every, nearer, "ours"] == pytest.approx((n - 1) / n)
    assert np.isnan(rows[leads, "lexical: error of the part / true part", "ours"])
    assert "-" in set(table.to_frame()[kind])
    said = {
        claim.what: claim.here
        for claim in comparison(replace(found, validation=replace(found.validation, checks=checks)))
    }
    assert f"order matters in 1 of {n} heads: ours off by 50% of the true part" in said["logits split into features"]
    assert f"lexical matters in 0 of {n} heads" in said["logits split into features"]


def test_compare__names_kinds_by_what_differs(made):
    found = BindingStudy.load(made[1])
    other = replace(found, about=replace(found.about, phrasing="question"))
    assert compare([found]).kinds == ("boxes",)
    assert compare([found, other]).kinds == ("boxes, cloze", "boxes, question")
    assert "3 pairs" in compare([found, other]).common


def test_compare__a_study_of_another_version_is_one_clear_line(finished, monkeypatch, capsys):
    place = finished[1]
    old = BindingStudy.load(place).validation
    replace(old, checks=tuple(tuple(check)[:-1] for check in old.checks)).save(place / "validation")
    monkeypatch.setattr(sys, "argv", ["qkprism", "compare", str(place)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert "written by another version" in told
    assert "Start the study in" in told


@pytest.mark.filterwarnings("ignore:Only")
@pytest.mark.filterwarnings("ignore:.*depends on its order")
def test_binding__ranks_against_entities_are_a_part_of_their_own(finished):
    model, place = finished
    assert not BindingStudy.load(place).entities.rows
    stamp = (place / "effects.job").read_text()
    found = study_binding(model, place, n_pairs=3, entities=(4, 6), progress=False)
    assert (place / "effects.job").read_text() == stamp
    frame = found.entities.to_frame()
    assert set(frame["entities"]) == {4, 6}
    again = study_binding(model, place, n_pairs=3, progress=False)
    assert again.entities == found.entities  # asked for once, kept
    with pytest.raises(QKPrismError, match="n_entities=3"):
        study_binding(model, place.with_name("new"), n_pairs=3, entities=(3, 6), progress=False)
    assert not (place.with_name("new") / "heads").exists()  # refused before anything was computed
    assert set(frame["feature"]) == {"order", "lexical"}
    assert answer_in(qk.report(place).html, "figure", figure="entities")["figure"]["data"]
    assert found.entities.plot().layout.title.text


@pytest.mark.filterwarnings("ignore:Only")
def test_binding__a_part_that_was_cut_off_is_computed_again(finished):
    model, place = finished
    first = BindingStudy.load(place)
    (place / "effects.job").unlink()
    (place / "validation.job").write_text("of another job")
    shutil.rmtree(place / "projections")
    again = study_binding(model, place, n_pairs=3, progress=False)
    assert torch.equal(again.effects.values, first.effects.values)
    assert again.validation == first.validation or again.validation.to_frame().equals(first.validation.to_frame())


class Leftover:
    """A part that leaves small things all over the heap."""

    def __init__(self, kept):
        pieces = [bytes(2000) for _ in range(50_000)]
        kept += pieces[::100]

    def save(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        return folder


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to give memory back")
def test_parts__free_memory_is_given_back(tmp_path, monkeypatch):
    def held():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    kept = []
    places, sizes = Parts.open(tmp_path, "test", {}), [held()]
    found = places.get("first", lambda: Leftover(kept), Path)
    sizes.append(held())
    monkeypatch.setattr(store, "give_back", lambda: None)
    places.get("second", lambda: Leftover(kept), Path)
    sizes.append(held())
    assert found == tmp_path / "first"  # read from the folder, not what was computed
    assert sizes[1] - sizes[0] < 40 < sizes[2] - sizes[1]


def test_binding__bad_input_is_one_clear_line(tmp_path):
    model = load("llama3")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "study.json").write_text(json.dumps({"study": "toy", "job": {}}))
    short = load("llama3", seed=1)
    short.hf.config.max_position_embeddings = 8
    for wrong, says in [
        (lambda: study_binding(model, tmp_path / "x", size="huge"), "not a size of this study"),
        (lambda: study_binding(model, tmp_path / "x", schema="planets"), "planets is no template"),
        (lambda: study_binding(model, tmp_path / "other", n_pairs=3), "not the folder of a study"),
        (lambda: study_binding(model, tmp_path / "toy", n_pairs=3), "a study of another kind"),
        (lambda: study_binding(short, tmp_path / "y", n_pairs=3), "more than the 8 positions"),
        (lambda: study_binding(model, tmp_path / "z", n_pairs=3, phrasing="chat"), "chat template"),
    ]:
        with pytest.raises(QKPrismError, match=says):
            wrong()


def test_choose_heads__goes_on_with_the_best_and_says_so():
    heads = tuple(qk.Head(0, i) for i in range(5))
    measures = ("accuracy", "accuracy_all", "attention_positive", "attention_negative", "ratio", "logit_gap")
    values = {name: torch.linspace(0.1, 0.2, 5).double() for name in measures}
    scores = qk.HeadScores(heads, values, values, 10, 0.1)
    chosen, notes = studies.choose_heads(scores)
    assert [str(head) for head in chosen] == ["L0H4", "L0H3", "L0H2"]
    assert notes[0].startswith("0 heads")
    assert "goes on with the best 3" in notes[0]
    better = {name: value + 0.5 for name, value in values.items()}
    assert studies.choose_heads(qk.HeadScores(heads, better, values, 10, 0.1)) == (heads[::-1], ())


def test_summary__is_what_the_parts_say(made):
    found = BindingStudy.load(made[1])
    for head, row in zip(found.heads, found.summary().to_dict("records"), strict=True):
        moved = found.effects.value("shift", head=head, feature="order")[0]
        still = found.effects.value("shift", head=head, control="none")[0]
        assert row["order_shift"] == pytest.approx(moved - still)
        at = found.attributions.heads.index(head), found.attributions.terms.index("lexical")
        assert row["lexical_gap"] == pytest.approx(float(found.attributions.values["gap"][at]))
        assert row["accuracy_all"] <= row["accuracy"]
    overlap = found.mechanisms.overlaps()
    assert len(overlap) == 3 * len(found.heads)
    known = overlap[["keys", "queries"]].dropna()  # a feature of rank 0 overlaps with nothing
    assert len(known)
    assert ((known >= 0) & (known <= 1 + 1e-9)).all(axis=None)


def test_comparison__says_whose_number_is_whose_and_is_not_kind(made):
    """A random model agrees with nothing that takes a trained one."""
    found = BindingStudy.load(made[1])
    rows = {claim.what: claim._asdict() for claim in comparison(found)}
    truth = found.validation.summary().query("heads == 'matters'").set_index(["set", "feature", "method"])
    said = rows["logits split into features"]["here"]
    ours, paper = truth.loc["ours", "order", "contrast"], truth.loc["paper", "order", "raw sequential"]
    assert f"order matters in {ours['n_heads']} of {len(found.heads)} heads" in said
    if ours["n_heads"]:
        assert f"ours off by {ours['relative_part_error']:.0%}" in said
        assert f"the paper's off by {paper['relative_part_error']:.0%}" in said
    (reflexive,) = {
        f"reflexive matters in {row['n_heads']} of {row['of_heads']} heads"
        for key, row in found.validation.over("matters").items()
        if key[1] == "reflexive"
    }
    assert reflexive in " ".join(finding.sentence for finding in binding_claims.told(found))  # whatever its rank
    made_of = tables(found)
    assert {finding.table for finding in binding_claims.told(found)} <= {"", "outcome", "interactions", *made_of}
    assert set(CAPTIONS) == set(made_of)
    for name, heads in (("truth, heads in which the clue matters", "matters"), ("truth, all heads", "all")):
        assert set(made_of[name]()["heads"]) <= {heads}
    assert rows["swapping one feature shifts some attention, both most of it"]["verdict"] != "agrees"
    assert {row["verdict"] for row in rows.values()} <= {"agrees", "in part", "differs", "new", ""}


def test_choose_heads__wants_more_than_chance():
    heads = tuple(qk.Head(0, i) for i in range(12))
    values = {name: torch.full((12,), 0.5).double() for name in MEASURES}
    errors = {name: torch.full((12,), 0.02).double() for name in MEASURES}
    found, notes = studies.choose_heads(HeadScores(heads, values, errors, 100, chance=0.5))
    assert len(found) == 3
    assert "0 heads" in notes[0]
    found, notes = studies.choose_heads(HeadScores(heads, values, errors, 100, chance=0.1))
    assert len(found) == 9
    assert "12 heads" in notes[0]


def test_chat_template__is_part_of_the_job(made):
    model = made[0]
    model.tokenizer.chat_template = "one"
    first = template_of(model, {"answer_prefix": ""})
    model.tokenizer.chat_template = "two"
    assert first != template_of(model, {"answer_prefix": ""})
    assert template_of(model, None) == {}
    model.tokenizer.chat_template = None


def test_binding__names_cannot_leave_the_page(finished):
    bad = "</script><img src=x onerror=alert(1)>"
    place = finished[1]
    study = json.loads((place / "study.json").read_text())
    study["about"] |= {"model": bad, "example": f"{bad} is in box", "notes": [bad]}
    (place / "study.json").write_text(json.dumps(study))
    page = qk.report(place).html
    assert bad in said_in(page)
    assert bad not in page
    assert "<img" not in page


def test_told__says_which_heads_by_which_clue_and_against_what(made):
    study = BindingStudy.load(made[1])
    question, heads, *moved, strong, parts, _ = (finding.sentence for finding in binding_claims.told(study))
    assert study.about.answer in question
    for row in study.summary().to_dict("records"):
        assert f"{row['head']} ({row['accuracy']:.0%} right)" in heads
    for name, sentence in zip(("order", "lexical"), moved, strict=True):
        gain, error = study.outcome.gain(head=study.outcome.heads[0], feature=name, method="conditional")
        assert f"Exchanging {name} " in sentence
        assert f"{gain:+.2f} ± {error:.2f} logits" in sentence
        assert "strongest control" in sentence
    assert parts.startswith("No clue matters clearly"), "of random weights"
    assert "as strong at every order" in strong
