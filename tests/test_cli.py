"""The command line: tables, JSON, run folders, and one line for a user's mistake."""

import json
import sys

import pytest

from qkprism import Effects, Features, cli
from test_pipeline import contrast
from tiny import one_thread, tiny  # noqa: F401
from tokenizers_for_tests import byte_level


@pytest.fixture
def place(tmp_path):
    tokenizer = byte_level()
    tiny("llama", vocab_size=len(tokenizer)).save_pretrained(tmp_path / "little")
    tokenizer.save_pretrained(tmp_path / "little")
    contrast(40).write(tmp_path / "boxes.jsonl")
    return tmp_path


@pytest.fixture
def run(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["qkprism", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return left.value.code or 0, *capsys.readouterr()

    return call


def test_heads__prints_a_table_or_json(run, place):
    code, out, _ = run("heads", place / "boxes.jsonl", "--model", place / "little", "--top", 3)
    assert code == 0
    assert "accuracy" in out
    assert "40 examples, 8 heads" in out
    code, out, _ = run("heads", place / "boxes.jsonl", "--model", place / "little", "--top", 3, "--json")
    body = json.loads(out)
    assert code == 0
    assert len(body["heads"]) == 3
    assert body["n"] == 40


def test_decompose__saves_a_run_with_a_report_and_shows_it_again(run, place):
    saved = place / "runs" / "boxes"
    arguments = ("decompose", place / "boxes.jsonl", "-m", place / "little", "--top", 2, "--save", saved)
    code, out, err = run(*arguments)
    assert code == 0, err
    assert "rank" in out
    assert str(saved / "report.html") in out
    page = (saved / "report.html").read_text()
    assert "Query-key features of boxes" in page
    assert "src=" not in page.split("<body>")[1]
    assert len(Features.load(saved)) == 2
    assert [p.name for p in saved.parent.iterdir()] == ["boxes"]
    code, again, _ = run("show", saved, "--json")
    assert code == 0
    assert len(json.loads(again)["features"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["heads", "nothing.jsonl"], "nothing.jsonl"),
        (["decompose", "{place}/boxes.jsonl", "-m", "{place}/little", "--heads", "L9H9"], "L9H9 is not in little"),
        (["decompose", "{place}/boxes.jsonl", "-m", "{place}/little", "--heads", "L0H0", "--top", "2"], "not both"),
        (["show", "{place}"], "is not a qkprism run"),
        (
            ["heads", "{place}/boxes.jsonl", "-m", "{place}/little", "--by", "beauty"],
            "'beauty' is not a measure of heads",
        ),
    ],
)
def test_mistakes__are_one_line_on_standard_error(run, place, arguments, message):
    code, out, err = run(*(a.format(place=place) for a in arguments))
    assert code == 2
    lines = [line for line in err.splitlines() if "qkprism:" in line]
    assert len(lines) == 1
    assert message in lines[0]
    assert not out


def test_help__has_an_example_for_every_command(run):
    assert "Usage" in run("--help")[1]
    for command in ("heads", "decompose", "show"):
        code, out, _ = run(command, "--help")
        assert code == 0
        assert f"qkprism {command} " in out.split("Example")[1]


@pytest.fixture
def saved(run, place):
    folder = place / "runs" / "boxes"
    code, _, err = run(
        "decompose",
        place / "boxes.jsonl",
        "-m",
        place / "little",
        "--heads",
        "L0H1,L1H0",
        "--rank",
        2,
        "--save",
        folder,
    )
    assert code == 0, err
    return folder


def test_intervene__prints_verdicts_and_saves_a_report(run, place, saved):
    target = place / "runs" / "effects"
    common = ("intervene", saved, place / "boxes.jsonl", "-m", place / "little", "--draws", 2, "--limit", 6)
    code, out, err = run(*common, "--save", target)
    assert code == 0, err
    assert "L0H1 boxes (rank 2, raw): shift" in out
    assert "In words" in (target / "report.html").read_text()
    assert Effects.load(target).heads == ("L0H1", "L1H0")
    code, out, _ = run(*common, "--outcome", "logits", "--each", "--heads", "L1H0", "--json")
    body = json.loads(out)
    assert code == 0
    assert {row["head"] for row in body["effects"]} == {"L1H0"}
    assert body["verdict"][0].startswith("L1H0 boxes")
    code, _, err = run(*common, "--heads", "L1H2")
    assert code == 2
    assert "no feature for head L1H2" in err
    code, _, err = run(*common, "--save", saved)
    assert code == 2
    assert len(err.strip().splitlines()) == 1


def test_attribute__prints_tokens_and_writes_a_figure(run, place, saved):
    text = "the hat in A, the <b>jam</b> in B. The jam in box"
    common = ("attribute", saved, text, "L1H0", "-m", place / "little")
    code, out, err = run(*common, "--save", place / "why.html")
    assert code == 0, err
    assert "residual" in out
    assert "plotly" in (place / "why.html").read_text()
    code, out, _ = run(*common, "--method", "shapley", "--json")
    body = json.loads(out)
    assert sum(body["variance_shares"].values()) == pytest.approx(1)
    code, _, err = run("attribute", saved, text, "-m", place / "little")
    assert code == 2
    assert "Name one head" in err
