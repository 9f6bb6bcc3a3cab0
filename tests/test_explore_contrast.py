"""Try a contrast: drafts become files and runs, marks go where one clicks, and nothing is written elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import qkprism as qk
from qkprism.explorer.app import explorer_app
from qkprism.explorer.desk import Desk
from qkprism.explorer.draft import Draft, draft_answer, marked_line
from qkprism.explorer.jobs import Errand, Worker
from qkprism.explorer.trial import place_below
from qkprism.progress import bar
from qkprism.runs.catalogue import written_beside
from test_atlas import explained
from test_explore import PORT, SECRET
from test_pipeline import contrast
from tiny import one_thread  # noqa: F401

LINE = "the hat in [-A], the jam in [+B]. The jam in [?box]"


def lines(n: int) -> list[str]:
    return [example.text.markup() for example in contrast(n)]


@pytest.mark.parametrize("name", ["", "  ", "/tmp/x", "../x", "a/../../x", ".", "link/x", "taken", "x\0y", "y" * 300])
def test_places__are_new_and_below_the_folder(name: str, tmp_path: Path) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    for folder in (home / "taken", other):
        folder.mkdir(parents=True)
    (home / "taken" / "file").write_text("x")
    (home / "link").symlink_to(other)
    assert place_below(home, "runs/mine") == home.resolve() / "runs" / "mine"
    with pytest.raises(qk.QKPrismError):
        place_below(home, name)


def test_marks__go_on_the_token_that_is_clicked_and_replace_what_was_there() -> None:
    model, _ = explained()
    tokens = draft_answer(Draft("x", (LINE,)), model)["examples"][0]["tokens"]
    at = {sign: place for place, sign in draft_answer(Draft("x", (LINE,)), model)["examples"][0]["marks"]}
    assert at["?"] == len(tokens) - 1
    erased = marked_line(LINE, at["+"], "none", model)
    assert erased == LINE.replace("[+B]", "B")
    assert marked_line(erased, at["+"], "+", model) == LINE
    assert marked_line(LINE, at["target"], "+", model) == LINE.replace("[-A]", "[+A]")
    twice = marked_line(marked_line(LINE, at["+"], "target", model), at["target"], "target", model)
    assert twice == LINE.replace("[-A]", "[-*A]").replace("[+B]", "[-B]")
    moved = marked_line(LINE, at["+"], "?", model)
    assert moved == LINE.replace("[+B]", "[?B]").replace("[?box]", "box")
    with pytest.raises(qk.QKPrismError, match="no part of the text"):
        marked_line(LINE, 10**6, "+", model)


def test_drafts__say_what_is_missing_and_what_is_wrong() -> None:
    model, _ = explained()
    unfinished = draft_answer(Draft("x", ("the hat in A", LINE)), model)
    assert [one["line"] for one in unfinished["mistakes"]] == [1]
    found = draft_answer(Draft("x", tuple(lines(30))), model)
    assert found["n"] == len(found["examples"]) == 30
    assert {row["predictor"] for row in found["balance"]} == {"place", "distance", "length", "token"}
    broken = draft_answer(Draft("x", template="prompt = 3"), model)
    assert broken["mistakes"]
    for name in ("", "../x", "a/b", ".x", "a\nb"):
        with pytest.raises(qk.QKPrismError):
            Draft(name, (LINE,))


def test_templates__of_the_page_read_no_file() -> None:
    model, _ = explained()
    words, draws = '[words]\nw = "/etc/hostname"', '[draw]\na = "choice(w)"\nb = "choice(w)"'
    source = f'question = "q"\nprompt = "{{{{ pos(a) }}}} {{{{ neg(b) }}}} x"\n{words}\n{draws}\n'
    for name in ("/etc/hostname", "../hostname", "hostname.txt"):
        told = draft_answer(Draft("x", template=source.replace("/etc/hostname", name)), model)
        assert any(name in one["message"] for one in told["mistakes"]), told["mistakes"]
        assert not told["examples"]


def test_jobs__stop_at_their_next_step_and_before_they_begin() -> None:
    def work(job: Errand) -> str:
        job.enter("part")
        with bar(10, "steps", False) as tick:
            for step in range(10):
                tick(1)
                if step == 3:
                    job.cancel()
        return "whole"

    stopped, never = Errand("x", work), Errand("y", work)
    stopped.run()
    assert (stopped.state, stopped.step, stopped.result) == ("cancelled", ("steps", 4, 10), None)
    never.cancel()
    never.run()
    assert (never.state, never.step) == ("cancelled", None)
    wrong = Errand("z", lambda _: 1 / 0)
    wrong.run()
    assert wrong.state == "failed"
    assert "ZeroDivisionError" in str(wrong.failure)


def test_trial__becomes_a_run_like_any_other_and_names_parts(tmp_path: Path) -> None:
    model, atlas = explained()
    desk = Desk.ready(model, atlas, {})
    desk.root = tmp_path
    client = TestClient(explorer_app(desk, Worker(), secret=SECRET, port=PORT), base_url=f"http://127.0.0.1:{PORT}")

    def asked(what: str, **question: Any) -> Any:
        return client.post(f"/{SECRET}/api/{what}", json=question).json()

    written = lines(24)
    question = {"name": "mine", "lines": written, "template": None, "top": 2}
    job = asked("try", **question, place="runs/mine")
    while (job := asked("job", job=job["job"]))["state"] in ("waiting", "running"):
        time.sleep(0.05)
    assert job["state"] == "done", job["failure"]
    assert len(job["result"]["features"]) == 2
    features = qk.Features.load(tmp_path / "runs" / "mine")
    texts = qk.Contrast.read(tmp_path / "runs" / "mine" / "contrast.jsonl")
    assert [example.text.markup() for example in texts] == written
    expected = qk.decompose(model, texts, heads=qk.find_heads(model, texts, progress=False).top(2), progress=False)
    assert features.heads == expected.heads
    assert [one["run"] for one in desk.edits(str(features.heads[0]))["sets"]] == ["runs/mine"]
    (tested,) = asked("head", head=str(features.heads[0]))["tested"]
    assert (tested["contrast"], tested["best"], tested["accuracy"]) == (
        "runs/mine",
        True,
        pytest.approx(job["result"]["heads"][0]["accuracy"], abs=1e-4),
    )
    assert "of the texts that chose the heads" in asked("evidence", head=str(features.heads[0]))["sentence"]
    assert set(written_beside(tmp_path / "runs" / "mine")) == {"kept.json", "contrast.jsonl", "heads/manifest.json"}
    assert "there already" in asked("try", **question, place="runs/mine")["error"]
    assert "leads out" in asked("try", **question, place="../mine")["error"]
    assert "no such job" in asked("job", job="none")["error"]
