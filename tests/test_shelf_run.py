"""The shelf run on a tiny model: one pass for scores and sums, chosen and reported on different words, resumable."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import qkprism as qk
import studied
from mailed import answer_in
from qkprism import QKPrismError, cli
from qkprism.contrasts.shelves import shelf_rows
from qkprism.contrasts.words import words
from qkprism.core.evidence import leading_p
from qkprism.explorer.desk import Desk
from qkprism.explorer.opening import open_run
from qkprism.heads import Head
from qkprism.studies import shelf as running
from qkprism.studies.shelf_pass import factors_of, first_pass
from qkprism.studies.shelf_result import ShelfRow
from test_pipeline import forward_passes
from tiny import one_thread  # noqa: F401

WORDS = (*words("objects")[:60], *words("male_names")[:9], *words("female_names")[:9], *words("places")[:9])
NAMES = ("duplicate", "coreference")
N = 40


@pytest.fixture(autouse=True, scope="module")
def no_collection():
    """A tiny model leaves nothing to give back to the system, and looking for it takes longer than all else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qkprism.runs.store.give_back", lambda: None)
        yield


@pytest.fixture(scope="module")
def model():
    return studied.load("llama", WORDS)


@pytest.fixture(scope="module")
def made(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "shelf"
    return qk.run_shelf(model, folder, contrasts=NAMES, n=N, progress=False)


def draw(model, name):
    return qk.task(name, tokenizer=model.tokenizer, n_train=N, n_search=8, n_test=20)


@pytest.mark.parametrize("name", NAMES)
def test_first_pass__gives_what_the_verbs_give(model, name):
    task = draw(model, name)
    sums = first_pass(model, task, progress=False)
    scores = qk.find_heads(model, task.contrast, progress=False)
    assert sums.scores.heads == tuple(sorted(scores.heads))
    order = [scores.heads.index(head) for head in sums.scores.heads]
    for measure, values in sums.scores.values.items():
        assert torch.allclose(values, scores.values[measure][order], atol=1e-5), measure
    heads = [sums.scores.heads[1], sums.scores.heads[6]]
    found = sums.features(heads, tuple(task.contrasts))
    full = sums.features(sums.scores.heads, tuple(task.contrasts))
    assert found.heads == tuple(heads)
    for key, feature in found.items():
        assert torch.allclose(feature.strengths, full[key].strengths)
        assert torch.allclose(feature.metric, full[key].metric)
        assert feature.spectrum.t[0] == pytest.approx(float(full[key].spectrum.t[0]), rel=1e-6)
    for contrast, p in sums.p_values().items():
        t = torch.stack([full[contrast, head].spectrum.t[0] for head in sums.scores.heads])
        assert torch.allclose(p, leading_p(t), atol=1e-9)


def test_moments__pick_of_a_pick_is_the_pick(model):
    sums = first_pass(model, draw(model, "duplicate"), progress=False)
    moments = sums.layers[1].moments["word"]
    twice, once = moments.pick([3, 1, 2]).pick([2, 0]), moments.pick([2, 3])
    assert twice.kv_index == once.kv_index
    assert all(torch.equal(twice.tensors()[name], tensor) for name, tensor in once.tensors().items())
    everything = moments.pick(range(moments.n_heads))
    assert all(torch.equal(everything.tensors()[name], tensor) for name, tensor in moments.tensors().items())


def test_run__nothing_is_run_again_when_it_is_there(model, made, monkeypatch):
    passes = forward_passes(model, monkeypatch)
    again = qk.run_shelf(model, made.folder, contrasts=NAMES, n=N, progress=False)
    assert passes == [0]
    assert str(again.rows) == str(made.rows)  # a NaN is not itself
    assert torch.equal(again.accuracy, made.accuracy)


def test_run__goes_on_where_it_was_killed(model, made, tmp_path, monkeypatch):
    real, seen = running.second_pass, []

    def killed(model, task, features, **options):
        seen.append(task.name)
        if task.name == NAMES[1]:
            raise KeyboardInterrupt
        return real(model, task, features, **options)

    monkeypatch.setattr(running, "second_pass", killed)
    with pytest.raises(KeyboardInterrupt):
        qk.run_shelf(model, tmp_path / "shelf", contrasts=NAMES, n=N, progress=False)
    assert seen == list(NAMES)
    monkeypatch.setattr(running, "first_pass", None)  # both are there
    monkeypatch.setattr(running, "second_pass", lambda *args, **options: seen.append("again") or real(*args, **options))
    found = qk.run_shelf(model, tmp_path / "shelf", contrasts=NAMES, n=N, progress=False)
    assert seen == [*NAMES, "again"]
    assert str(found.rows) == str(made.rows)


def test_run__rows_are_of_held_out_words(model, made):
    for name in NAMES:
        row, task = made[name], draw(model, name)
        scores = qk.find_heads(model, task.test, heads=[row.head], progress=False)
        assert row.accuracy == pytest.approx(float(scores.values["accuracy"][0]))
        assert row.n == len(task.test)
        effects = qk.intervene(model, task.test, made.features(name), progress=False)
        method = made.features(name).choices.metric
        assert row.effect == pytest.approx(effects.gain(head=row.head, feature=row.feature, method=method)[0], abs=1e-5)
        assert row.digest == task.template.digest
        factor = factors_of(task)[row.feature]
        pairs = {row.feature: task.counterfactuals(factor)[: N // 5]}
        checks = qk.validate(model, pairs, made.features(name), heads=[row.head], progress=False).checks
        own = next(check for check in checks if check.method == method)
        assert (row.factor, row.part) == (factor, pytest.approx(own.part, abs=1e-5))
        assert row.part != pytest.approx(next(c.part for c in checks if c.method == "whole key"), abs=1e-3)


def test_run__features_of_a_head_can_be_had_by_name(made):
    loaded = qk.Shelf.load(made.folder)
    head = loaded["duplicate"].head
    named = loaded.named(head)
    assert "duplicate:word" in named
    assert all(feature.head == head for feature in named.values())
    with pytest.raises(QKPrismError, match="no contrast 'boxes'"):
        loaded.features("boxes")


def test_run__spaces_are_kept_for_every_head(made, model):
    """Also where the contrast is not among the head's best: what does not hold has none."""
    loaded = qk.Shelf.load(made.folder)
    sums = first_pass(model, draw(model, "duplicate"), progress=False)
    full, spaces = sums.features(loaded.heads, ("word",)), loaded.spaces("duplicate")
    assert spaces.heads == loaded.heads
    for head in loaded.heads:
        feature = full["word", head]
        held = (feature.rank_heldout or 0) if feature.p < 0.05 else 0
        assert dict(spaces.of_head(head)).get("word", [torch.empty(0, 0)])[0].shape[1] == held
    assert any([*spaces.of_head(head)] for head in loaded.heads), "no feature holds, so nothing was tested"


def test_explain__tries_the_shelf_in_every_head(made, model):
    loaded = qk.Shelf.load(made.folder)
    atlas = qk.survey(model, ["garage the box of the key " * 20], windows=4, length=32, progress=False)
    found = qk.explain(
        model, "the box of the key the box of the key", atlas=atlas, features=made.folder, progress=False
    )
    for head, row in found.rows.items():
        held = {f"{one}: {name}" for one in NAMES for name, _ in loaded.spaces(one).of_head(head) if name != one}
        held |= {name for one in NAMES for name, _ in loaded.spaces(one).of_head(head) if name == one}
        assert set(row.tried) == held
        assert set(row.null) <= held


def test_shelf__is_saved_drawn_and_told(made, tmp_path):
    table = qk.Shelf.load(made.save(tmp_path / "table"))
    assert table.to_frame().drop(columns=["heads"]).equals(made.to_frame().drop(columns=["heads"]))
    assert torch.equal(table.q, made.q)
    with pytest.raises(QKPrismError, match="no folder with features"):
        table.features("duplicate")
    rows = answer_in(qk.report(made).html, "table", table="shelf")["rows"]
    assert "Where did this word stand before?" in {cell for row in rows for cell in map(str, row)}
    assert {trace.type for trace in made.plot().data} == {"heatmap", "scatter"}


def test_open_run__a_shelf_of_another_version_is_shown_and_names_no_parts(made, model, tmp_path):
    shutil.copytree(made.folder, tmp_path / "shelf")
    (tmp_path / "shelf" / "duplicate-spaces" / "manifest.json").unlink()
    run = open_run(tmp_path / "shelf")
    assert "another version" in run.notes[0]
    assert f"qkprism shelf --run --save {tmp_path / 'shelf'}" in run.notes[0]
    assert not open_run(Path(made.folder)).notes
    atlas = qk.survey(model, ["garage the box of the key " * 20], windows=4, length=32, progress=False)
    desk = Desk.ready(model, atlas, {"old": run, "table": open_run(made.save(tmp_path / "table"))})
    assert desk.explain("the box of the key the box of the key", None)["edges"]
    assert "accuracy: duplicate" in {column["name"] for column in desk.library.tell_heads()["columns"]}


def test_row__holds_only_if_all_three_do():
    good = ShelfRow(
        "a", "b?", "c", (Head(0, 0),), Head(0, 0), "a", 0.9, 0.02, 0.5, 0.0, 2, 2, 0.0, 0.5, 0.02, 0.4, 0.1, "pca", 0.3,
        "x", 1.0, 1.1, 0.1, 100,
    )  # fmt: skip
    assert good.holds
    assert not good._replace(accuracy=0.79).holds
    assert not good._replace(permuted=0.29).holds
    assert not good._replace(part_error=0.4).holds
    assert good._replace(part_error=0.4, factor=None).holds


def test_factors__are_the_features_own_or_the_first(model):
    assert factors_of(draw(model, "duplicate")) == {"word": "word"}
    assert factors_of(draw(model, "coreference")) == {"coreference": "person"}


def test_found__has_the_row_that_a_run_writes(made):
    """What is kept of the default model has the fields of a run, and is listed while its template is the same."""
    kept = {row["contrast"]: row["found"] for row in shelf_rows() if row["found"]}
    fields = set(made.to_json("x")["found"]["duplicate"])
    for name, found in kept.items():
        assert set(found) == fields, name
        assert set(found["made"]) == {"date", *made.provenance["versions"]}, name
    assert made.to_json("x")["provenance"]["command"] == "x"


def test_found__says_of_each_row_when_and_with_what_it_was_made(made, tmp_path):
    folder = shutil.copytree(made.folder, tmp_path / "shelf")
    for stamp in folder.glob("duplicate-test-*.job"):
        os.utime(stamp, (86400 * 400, 86400 * 400))
    found = qk.Shelf.load(folder).to_json()["found"]
    assert found["duplicate"]["made"] == {"date": "1971-02-05", **made.provenance["versions"]}
    assert found["coreference"]["made"]["date"] > "2026"
    assert replace(made, folder=None).to_json()["found"]["duplicate"]["made"]["date"] is None


def test_command__runs_and_refuses(model, made, monkeypatch, capsys):
    monkeypatch.setattr(qk, "load", lambda *_, **__: model)
    arguments = ["--run", "--only", ",".join(NAMES), "-n", str(N), "--save", made.folder]
    monkeypatch.setattr(sys, "argv", ["qkprism", "shelf", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert not left.value.code
    out = capsys.readouterr().out
    assert "duplicate" in out
    assert "report.html" in out
    monkeypatch.setattr(sys, "argv", ["qkprism", "shelf", *arguments, "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    told = json.loads(capsys.readouterr().out)
    assert [row["contrast"] for row in told["rows"]] == list(NAMES)
    monkeypatch.setattr(qk, "load", None)
    monkeypatch.setattr(sys, "argv", ["qkprism", "shelf", "--run", "--only", "inducton"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert "Did you mean 'induction'?" in capsys.readouterr().err


def test_run__refuses_what_it_cannot_do(model, tmp_path):
    with pytest.raises(QKPrismError, match="not on the shelf"):
        qk.run_shelf(model, tmp_path, contrasts=["nothing"])
    with pytest.raises(QKPrismError, match="n=8 is not possible"):
        qk.run_shelf(model, tmp_path, n=8)
