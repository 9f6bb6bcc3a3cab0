"""The explorer: who may ask, what is answered, what comes from a prompt is text."""

from __future__ import annotations

import re
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import qkprism as qk
import qkprism.explorer.desk as desk_module
from mailed import kept_in
from qkprism.errors import QKPrismError
from qkprism.explorer.answers import MEANINGS
from qkprism.explorer.app import LARGEST, explorer_app
from qkprism.explorer.assets import IMPORT, asset, asset_names, one_script
from qkprism.explorer.desk import LONGEST, Desk
from qkprism.explorer.jobs import Worker
from qkprism.explorer.mail import KeptAnswer, mailed_page
from qkprism.explorer.opening import OpenRun, opened
from qkprism.figures.explanation import COLORS
from qkprism.progress import bar, listening
from test_atlas import WORDS, explained
from test_pipeline import contrast
from tiny import one_thread  # noqa: F401

SECRET, PORT = "secret-of-the-test", 8123
HOSTILE = "<img src=x onerror=alert(1)></script> ${x} \u202eabc\x00 is in Box O, the jam"


@cache
def desk() -> Desk:
    model, atlas = explained()
    return Desk.ready(model, atlas, {})


def client(worker: Worker | None = None, host: str = f"127.0.0.1:{PORT}") -> TestClient:
    app = explorer_app(desk(), worker or Worker(), secret=SECRET, port=PORT)
    return TestClient(app, base_url=f"http://{host}", raise_server_exceptions=False)


def asked(what: str, **question: Any) -> Any:
    answer = client().post(f"/{SECRET}/api/{what}", json=question)
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def test_guard__only_the_whole_address_is_answered() -> None:
    assert client().get(f"/{SECRET}/").status_code == 200
    assert client().get(f"/{SECRET}/api/start").json()["stage"] == "ready"
    for path in ("/", "/api/start", "/static/main.js", f"/{SECRET}x/", f"/{SECRET[:-1]}/", "/ü/"):
        assert client().get(path).status_code == 403, path
    page = client().get(f"/{SECRET}/")
    assert "script-src 'self';" in page.headers["content-security-policy"]
    assert page.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}"])
def test_guard__other_hosts_and_origins_are_refused(host: str) -> None:
    assert client(host=host).get(f"/{SECRET}/").status_code == 403
    start = f"/{SECRET}/api/start"
    assert client().get(start, headers={"origin": f"http://{host}"}).status_code == 403
    assert client().get(start, headers={"origin": f"http://localhost:{PORT}"}).status_code == 200


def test_static__no_other_file_can_be_named() -> None:
    assert client().get(f"/{SECRET}/static/main.js").headers["content-type"].startswith("text/javascript")
    for name in ("../app.py", "..%2fapp.py", "%2e%2e/app.py", "none.js", "/etc/passwd"):
        assert client().get(f"/{SECRET}/static/{name}").status_code == 404, name


def test_questions__are_bounded_and_mistakes_are_sentences() -> None:
    post, place = client().post, f"/{SECRET}/api/explain"
    for options, said in (
        ({"json": {"text": "x" * LARGEST}}, "larger than"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, "not JSON"),
        ({"content": b"[" * 20_000, "headers": {"content-type": "application/json"}}, "not JSON"),
        ({"json": [1]}, "JSON object"),
        ({"content": b"{}", "headers": {"content-type": "text/plain"}}, "content-type"),
        ({"json": {"text": 3}}, "text is a text, not 3"),
        ({"json": {"text": WORDS, "query": True}}, "number of a token"),
        ({"json": {"text": WORDS, "query": 10**6}}, "the text has"),
        ({"json": {"text": ""}}, "empty"),
        ({"content": rb'{"text": "a\ud800b"}', "headers": {"content-type": "application/json"}}, "surrogate"),
        ({"json": {"text": "x " * LONGEST}}, "shorten it"),
    ):
        answer = post(place, **options)
        assert answer.status_code == 400, said
        assert said in answer.json()["error"]
    assert "L9H9 is not in" in asked("row", text=WORDS, head="L9H9")["error"]
    assert "is not the name of a head" in asked("head", head="<b>")["error"]
    assert "does not see token 9 from token 3" in asked("row", text=WORDS, query=3, head="L0H0", key=9)["error"]
    assert client().get(f"/{SECRET}/api/nothing").json()["error"]


def test_row__has_what_the_explanation_has_and_nothing_of_tokens_by_tokens() -> None:
    _, atlas = explained()
    found = asked("explain", text=WORDS)
    tokens = len(found["tokens"])
    assert found["query"] == tokens - 1
    assert len(found["edges"]) == len(atlas.heads)
    attention = [edge["attention"] for edge in found["edges"]]
    assert attention == sorted(attention, reverse=True)
    head, key = found["edges"][0]["head"], found["edges"][0]["key"]
    body = asked("row", text=WORDS, query=found["query"], head=head, key=3)
    sums = [sum(part["values"][at] for part in body["parts"]) for at in range(tokens)]
    assert sums == pytest.approx(body["logits"], abs=1e-3)
    assert sum(body["attention"]) == pytest.approx(1, abs=1e-2)
    told = {edge["key"]: edge["sentence"] for edge in body["edges"]}
    assert told[key] == found["edges"][0]["sentence"]
    assert 3 in told
    earlier = asked("row", text=WORDS, query=5, head=head)
    assert earlier["logits"][6:] == [None] * (tokens - 6)
    numbers = sum(len(value) for value in body.values() if isinstance(value, list) and len(value) == tokens)
    assert numbers == 2 * tokens


def test_arcs__are_those_of_every_row_and_a_few_a_token() -> None:
    head = "L1H2"
    found = asked("arcs", text=WORDS, head=head)
    tokens = len(asked("explain", text=WORDS)["tokens"])
    assert len(found["out"]) == len(found["into"]) == tokens
    for query in (1, 9, tokens - 1):
        attention = asked("row", text=WORDS, query=query, head=head)["attention"]
        strongest = sorted(
            ((share, place) for place, share in enumerate(attention) if place not in (0, query)), reverse=True
        )
        assert [share for _, share in found["out"][query]] == pytest.approx(
            [share for share, _ in strongest[:4] if share >= 0.02], abs=2e-3
        )
        for key, share in found["out"][query]:
            weakest = min(one for _, one in found["into"][key])
            assert [query, share] in found["into"][key] or share <= weakest
    assert max(map(len, found["out"] + found["into"])) <= 4


def test_methods__change_named_parts_and_nothing_else() -> None:
    assert asked("explain", text=WORDS)["methods"] == []  # no run is open
    assert "method" in asked("explain", text=WORDS, method="nonsense")["error"]


def test_prompts__come_back_as_they_are_in_ascii() -> None:
    answer = client().post(f"/{SECRET}/api/explain", json={"text": HOSTILE})
    assert answer.content.isascii()
    assert "".join(answer.json()["tokens"]).startswith("<imgĠsrc=xĠonerror=alert(1)></script>Ġ${x}Ġ")  # a byte a letter
    assert "[+so]" in "".join(asked("explain", text="no marks: [+so] and [?so]")["tokens"])


def test_heads__every_score_of_every_head_and_one_head() -> None:
    _, atlas = explained()
    body = asked("heads")
    frame = atlas.to_frame()
    assert [column["name"] for column in body["columns"]] == [name for name in frame if name != "head"]
    assert [f"L{layer}H{index}" for layer, index in body["heads"]] == list(frame["head"])
    assert body["columns"][0]["values"] == pytest.approx(list(frame["entropy"]), abs=1e-4)
    assert asked("head", head="l1h2")["head"] == "L1H2"
    assert len(asked("head", head="L1H2")["strongest"]) == len(atlas.strongest[atlas.heads[6]])


def test_worker__who_goes_away_frees_the_place_and_is_never_served() -> None:
    worker, hold, done = Worker(most=2), threading.Event(), []
    first = worker.submit(hold.wait)
    second = worker.submit(lambda: done.append("second"))
    with pytest.raises(QKPrismError, match="2 questions wait"):
        worker.submit(lambda: None)
    assert second.cancel()
    third = worker.submit(lambda: done.append("third"))
    hold.set()
    third.result(5)
    assert first.result() is True
    assert done == ["third"]
    assert worker.waiting == 0
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 / 0).result(5)
    assert worker.submit(lambda: 7).result(5) == 7


def test_opening__says_how_far_it_is_and_what_failed() -> None:
    def refuse() -> Any:
        raise QKPrismError("There is no such model.")

    failed = Desk(refuse)
    assert failed.start()["stage"] == "loading"
    failed.open()
    assert failed.start()["stage"] == "failed"
    assert failed.start()["failure"] == "There is no such model."
    with pytest.raises(QKPrismError, match="no such model"):
        failed.explain("x", None)
    with listening(failed._listen), bar(3, "texts", False) as tick:
        tick(2)
    assert failed.start()["step"] == {"unit": "texts", "done": 2, "total": 3}


def test_opening__makes_the_atlas_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, atlas = explained()
    monkeypatch.setenv("QKPRISM_CACHE", str(tmp_path))
    atlas.save(tmp_path / "given")
    opened = Desk(lambda: model, tmp_path / "given")
    opened.open()
    assert opened.start()["model"] == model.name
    for provenance in ({"model": "another"}, {"model": "another", "model_digest": "x"}):
        other = Desk(lambda: model, runs={"x": OpenRun("x", "features", "another", {}, {}, provenance=provenance)})
        other.open()
        assert "Open it with --model another" in str(other.failure)


def test_runs__name_parts_in_heads_that_are_not_in_the_list_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, atlas = explained()
    features = qk.decompose(model, contrast(40), recipe=qk.Recipe(rank=2), progress=False)
    monkeypatch.setattr("qkprism.subspaces.spaces.held_rank", lambda feature: feature.rank)  # random weights have none
    monkeypatch.setattr(desk_module, "HEADS_TOLD", 1)
    made = Desk.ready(model, atlas, {"boxes": opened("boxes", features)})
    told = [edge["head"] for edge in made.explain(WORDS, None)["edges"]]
    assert len(told) == 1
    for head in atlas.heads:
        row = made.row(WORDS, None, str(head), None)
        assert len(row["parts"]) == 5 + len(features.contrasts), head
        assert sum(part["values"][9] for part in row["parts"]) == pytest.approx(row["logits"][9], abs=1e-3)


def test_modules__make_one_script_with_no_name_twice() -> None:
    whole = one_script()
    assert not re.search(r"^(import|export)\b", whole, re.MULTILINE)
    names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", whole, re.MULTILINE)
    assert sorted(names) == sorted(set(names))
    assert not re.search(r"^(?:const|let) [^\w]", whole, re.MULTILINE)  # names that this would not see
    modules = [name for name in asset_names() if name.endswith(".js")]
    assert set(modules) == {"main.js"} | {name for one in modules for name in IMPORT.findall(asset(one))}
    for name in modules:
        lines = [line for line in asset(name).splitlines() if line.startswith("import ")]
        assert len(lines) == len(IMPORT.findall(asset(name))), name
        for markup in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert markup not in asset(name), name
        assert "http" not in asset(name).replace("http://www.w3.org/2000/svg", ""), name


def test_parts__each_has_its_meaning() -> None:
    assert set(MEANINGS) == set(COLORS)


def test_mailed_page__data_cannot_leave_its_script() -> None:
    hostile = KeptAnswer("</script><img src=x>", {}, "<!--")
    page = mailed_page("<b>", [hostile])
    assert kept_in(page) == [hostile.to_json()]
    assert "</script><img" not in page
    assert "<title>qkprism: &lt;b&gt;</title>" in page
    assert not re.search(r"(src|href)=\"static/", page)
