"""Runs in the explorer: opened from folders, told in sentences and tables, and seen in texts."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import qkprism as qk
from interacting import InteractingToy
from qkprism.explorer.clouds import cloud_answer
from qkprism.explorer.desk import Desk
from qkprism.explorer.draft import Draft
from qkprism.explorer.evidence import evidence_answer, seen_answer
from qkprism.explorer.opening import OpenRun, open_run, open_runs, opened
from qkprism.explorer.proofs import Proofs, checks_told
from qkprism.explorer.run_answers import pieces, table_answer
from qkprism.heads import Head
from qkprism.results.validation import TruthCheck, Validation
from qkprism.runs.folder import write_run
from test_atlas import explained
from test_pipeline import contrast
from tiny import one_thread  # noqa: F401

CHECK = TruthCheck("ours", "thing", Head(1, 2), "contrast", 0.5, 0.1, 1.1, 1.0, 0.1, 0.1, 0.1, 1, 0, 0, 0, 9, logit=0.4)


@cache
def features() -> qk.Features:
    return qk.decompose(explained()[0], contrast(40), recipe=qk.Recipe(rank=2), progress=False)


def desk(runs: dict[str, OpenRun]) -> Desk:
    model, atlas = explained()
    return Desk.ready(model, atlas, runs)


def test_open_run__gives_the_tables_that_were_saved(tmp_path: Path) -> None:
    scores = qk.find_heads(explained()[0], contrast(40), progress=False)
    for result, kind in ((features(), "features"), (scores, "scores")):
        opened = open_run(result.save(tmp_path / kind))
        assert opened.what == kind
        pd.testing.assert_frame_equal(opened.table(kind), result.to_frame())
        opened.check(explained()[0])
    (tmp_path / "empty").mkdir()
    for place in ("empty", "none"):
        with pytest.raises(qk.QKPrismError, match="not a run folder"):
            open_run(tmp_path / place)
    with pytest.raises(qk.QKPrismError, match="has no table"):
        opened.table("<b>")


def test_open_run__a_study_is_its_parts_and_the_toy_its_tables(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"study": "binding", "job": {"model": "x"}, "about": {}}')
    features().save(tmp_path / "ours")
    opened = open_run(tmp_path)
    assert list(opened.tables) == list(opened.naming) == ["ours"]
    told = desk({"s": opened})
    head = features().heads[0]
    assert [one["run"] for one in told.edits(str(head))["sets"]] == ["s / ours"]
    toy = tmp_path / "toy"
    write_run(toy / "heads", "toy-heads", {}, {})
    columns = {"cell": [1, 0], "value": [0.5, None]}
    write_run(
        toy / "limits", "toy-table", {"job": {}, "cells": [{"d": 2}, {"d": 4}], "tables": {"limits": columns}}, {}
    )
    frame = open_run(toy).table("limits: limits")
    assert list(frame["cell"]) == ["d=4", "d=2"]
    assert table_answer(frame)["rows"][1] == ["d=2", None]


def test_open_runs__are_called_as_their_folders_and_by_their_paths_where_these_are_the_same(tmp_path: Path) -> None:
    places = [features().save(tmp_path / folder / "mine") for folder in ("one", "two")]
    assert list(open_runs(places)) == ["mine", str(places[1])]


def test_start__says_what_was_found_and_leads_to_heads_and_tables(tmp_path: Path) -> None:
    opened = open_run(features().save(tmp_path / "f"))
    for runs in ({}, {"f": opened}):
        made = desk(runs)
        told = made.start()
        sentences = [*told["sentences"], told["hint"], *(one for run in told["found"] for one in run["sentences"])]
        links = [piece for pieces in sentences for piece in pieces if isinstance(piece, dict)]
        heads = [piece["head"] for piece in links if "head" in piece]
        assert heads
        assert all(made.library.head(name)["head"] == name for name in heads)
        places = [piece["go"] for piece in links if piece.get("go", {}).get("view") == "run"]
        tables = [place for place in places if "table" in place]
        assert tables
        assert all(made.library.table(place["run"], place["table"])["n"] for place in tables)
        left = [piece for pieces in sentences for piece in pieces if isinstance(piece, str)]
        assert [words for words in left if re.search(r"(?<![\w.:-])\d", words)] == []  # a number that leads nowhere


def test_pieces__numbers_lead_to_their_table_and_to_the_head_named_before() -> None:
    source = {"view": "run", "run": "mine", "table": "features"}
    said = pieces(
        "Of 1,024 keys in SmolLM2-135M, L1H2 has +0.31 ± 0.02, q < 1e-20; z1 is train:8. 4 of 9, 2 to 3.", source
    )
    numbers = {piece["text"]: piece["go"] for piece in said if isinstance(piece, dict) and "text" in piece}
    assert list(numbers) == ["1,024", "+0.31 ± 0.02", "1e-20", "4 of 9", "2 to 3"]
    assert numbers["1,024"] == source
    assert numbers["1e-20"] == {**source, "head": "L1H2"}


def test_heads__have_a_column_for_every_score_of_every_run(tmp_path: Path) -> None:
    told = desk({"f": open_run(features().save(tmp_path / "f"))}).library.tell_heads()
    columns = {column["name"]: column["values"] for column in told["columns"]}
    for place, (layer, index) in enumerate(told["heads"]):
        expected = float(features()["boxes", f"L{layer}H{index}"].spectrum.t[0])
        assert columns["held-out t: boxes (f)"][place] == pytest.approx(expected, abs=1e-4)


def _marks(text: qk.Text) -> list[tuple[str, bool]]:
    spans = sorted((*text.positive, *text.negative), key=lambda span: span.place)
    return [(text.text[span.start : span.end], span in text.positive) for span in spans]


def test_seen__margins_agree_with_how_often_the_feature_is_right(tmp_path: Path) -> None:
    texts = contrast(30, seed=5)
    folder = features().save(tmp_path / "f")
    (folder / "contrast.jsonl").write_text(Draft("x", tuple(e.text.markup() for e in texts)).file[1])
    opened = desk({"f": open_run(folder)})
    head = str(features().heads[3])
    assert opened.library.evidence(head)["texts"]["f"][0] == "own"
    found: dict[str, Any] = opened.seen(head, "f", "boxes", "own")
    assert len(found["texts"]) == found["n"] == 30
    keys = sum(len(e.text.positive) + len(e.text.negative) for e in texts)
    assert {len(found[name]) for name in ("example", "positive", "places")} == {keys}
    for view in found["views"]:
        assert (len(view["keys"]), len(view["queries"])) == (keys, 30)
    margins = [one["margin"] for kind in ("strongest", "weakest", "wrong") for one in found[kind]]
    assert all(margin > 0 for margin in margins[: len(found["strongest"]) + len(found["weakest"])])
    assert all(one["margin"] <= 0 for one in found["wrong"])
    assert bool(found["wrong"]) == (found["right"] < 1)
    for example, tokens in enumerate(found["texts"]):
        letters = re.sub(r"[Ġ ]", "", "".join(tokens))
        of_text = [i for i, one in enumerate(found["example"]) if one == example]
        marks = [(tokens[found["places"][i]], found["positive"][i]) for i in of_text]
        same = [e.text for e in texts if e.text.text.replace(" ", "") == letters]
        assert marks in [_marks(text) for text in same]
    stored = opened.seen(head, "f", "boxes", "own", n=10)
    assert stored["n"] == 10
    for run, name, source in (("f", "boxes", "nothing"), ("f", "none", "own"), ("g", "boxes", "own")):
        with pytest.raises(qk.QKPrismError):
            opened.seen(head, run, name, source)


def test_cloud__a_kept_projection_lies_where_the_live_one_does() -> None:
    """The same vectors without their texts: points and margins agree, and no word is invented."""
    texts, head = contrast(30, seed=5), features().heads[3]
    kept = qk.project(explained()[0], texts, features(), progress=False)
    live = seen_answer(explained()[0], texts, features(), "boxes", head)
    stored = cloud_answer(kept, features(), "boxes", head)
    for name in ("views", "example", "positive", "labels", "strongest", "wrong", "right"):
        assert stored[name] == live[name], name
    assert stored["texts"] == stored["places"] == []


def test_cloud__directions_are_centred_and_of_one_size() -> None:
    kept = qk.project(explained()[0], contrast(30, seed=5), features(), progress=False)
    head = features().heads[3]
    told = cloud_answer(kept, features(), "boxes", head)["views"][0]
    keys = torch.tensor(told["keys"]).double()
    assert keys.mean(0).tolist() == pytest.approx([0.0] * keys.shape[1], abs=1e-3)
    if features()["boxes", head].rank <= 3:
        assert float(keys.square().sum(1).mean()) == pytest.approx(1, abs=1e-2)


def test_evidence__effects_and_checks_of_open_runs_stand_beside_their_feature(tmp_path: Path) -> None:
    model, _ = explained()
    features().save(tmp_path / "f")
    effects = qk.intervene(
        model, contrast(30, seed=5), features(), compare=qk.Comparison(methods=["contrast"], draws=2), progress=False
    )
    effects.save(tmp_path / "e")
    runs = {str(tmp_path / name): open_run(tmp_path / name) for name in ("f", "e")}
    for head in map(str, effects.heads):
        evidence = desk(runs).library.evidence(head)
        (feature,) = evidence["features"]
        (effect,) = feature["effects"]
        rows = {row["control"]: row for row in effect["rows"]}
        for control in ("feature", "permuted", "full"):
            gain, error = effects.gain(head=head, feature="boxes", control=control)
            assert (rows[control]["gain"], rows[control]["error"]) == pytest.approx(
                (gain, error), abs=1e-4, nan_ok=True
            )
        beaten = {row["control"]: row["beaten"] for row in effects.beats() if row["head"] == head}
        assert {name: row["beaten"] for name, row in rows.items() if row["rival"]} == beaten
        assert evidence["sentence"].startswith(head)
        named = [row["title"] for row in rows.values() if row["rival"] and row["evidence"] and row["beaten"]]
        before = evidence["sentence"].partition("not clearly more")[0]
        assert all(name in before for name in named)
    assert desk({}).library.evidence(str(effects.heads[0]))["features"] == []


def test_evidence__effects_alone_are_told_with_every_control(tmp_path: Path) -> None:
    effects = qk.intervene(
        explained()[0],
        contrast(30, seed=5),
        features(),
        compare=qk.Comparison(methods=["contrast"], draws=2),
        progress=False,
    )
    for run in (open_run(effects.save(tmp_path / "e")), opened("e", effects)):
        told = desk({"e": run}).library.evidence(effects.heads[0])
        assert told["features"] == []
        (edited,) = told["edited"]
        (effect,) = edited["effects"]
        assert {row["control"] for row in effect["rows"]} == {entry.control for entry in effects.entries}
        gain, error = effects.gain(head=effects.heads[0], feature="boxes")
        own = next(row for row in effect["rows"] if row["control"] == "feature")
        assert (own["gain"], own["error"]) == pytest.approx((gain, error), abs=1e-4)
        assert told["sentence"].startswith(f"{effects.heads[0]}: an edit of boxes alone")
    both = desk({"e": run, "f": open_run(features().save(tmp_path / "f"))}).library.evidence(effects.heads[0])
    assert both["edited"] == []
    assert len(both["features"][0]["effects"]) == 1


def test_open_run__answers_that_another_version_kept_are_not_shown_and_a_note_says_what_to_do(tmp_path: Path) -> None:
    folder = features().save(tmp_path / "f")
    (folder / "kept.json").write_text('{"format": 1, "beside": {}, "kept": []}')
    run = open_run(folder)
    assert run.kept == ()
    assert f"`qkprism report {folder} --model MODEL` asks" in run.notes[-1]


def test_evidence__a_proof_that_cannot_be_read_is_a_sentence_and_the_rest_is_told(tmp_path: Path) -> None:
    Validation((CHECK,)).save(tmp_path / "v")
    for tensors in (tmp_path / "v").glob("*.safetensors"):
        tensors.unlink()
    head = str(features().heads[0])
    proofs = Proofs({"v": tmp_path / "v"})
    told = evidence_answer(Head.parse(head), {"f": features()}, proofs)
    assert len(told["features"]) == 1
    assert len(told["problems"]) == 1


def test_checks__say_by_how_much_a_part_is_off() -> None:
    head = Head.parse("L1H2")
    (told,) = checks_told("run", Validation((CHECK,)), "thing", head)
    assert "off by 10%; the edit leaves 0.40" in told["sentence"]
    (told,) = checks_told("run", Validation((CHECK._replace(true_part=0.01),)), "thing", head)
    assert "tests nothing" in told["sentence"]
    assert checks_told("run", Validation((CHECK,)), "box", head) == []


def test_evidence__says_where_a_feature_is_strongest_if_that_is_significant() -> None:
    head = Head.parse("L0H0")
    for amplitudes, said in (((0.5, 0.8, 1.1, 1.6), True), ((1.0,) * 4, False)):
        found = qk.decompose(InteractingToy(amplitudes=amplitudes).source(), progress=False)
        told = evidence_answer(head, {"f": found})
        (one,) = qk.interactions(found).found
        assert one.differs == said
        assert (one.told() in told["sentence"]) == said
        assert (
            any(
                "not as strong at every value" in words
                for words in (each.sentence for each in opened("f", found).findings())
            )
            == said
        )
