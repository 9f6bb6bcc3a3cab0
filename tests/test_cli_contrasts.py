"""Commands on contrasts: from an idea to a checked contrast, and one line or a picture for a mistake."""

from __future__ import annotations

import json

import pytest

from qkprism import Contrast, Features
from qkprism.contrasts.shelves import findings
from test_cli import place, run  # noqa: F401
from tiny import one_thread  # noqa: F401


@pytest.fixture
def mine(run, tmp_path):  # noqa: F811
    """The starter, for a tokenizer that splits nearly all words."""
    path = tmp_path / "mine.toml"
    code, out, _ = run("new", path)
    assert code == 0
    assert f"qkprism check {path}" in out
    path.write_text("whole_words = false\n" + path.read_text().replace("places = 5", "places = 3"))
    return path


def test_new__writes_a_starter_that_can_be_used_as_it_is(run, tmp_path):  # noqa: F811
    path = tmp_path / "mine.toml"
    run("new", path)
    code, out, _ = run("check", path, "--model", "none")
    assert code == 0
    assert "It can be used." in out
    assert f"Next: qkprism heads {path}" in out
    assert len(path.read_text().splitlines()) <= 25
    code, _, err = run("new", path)
    assert code == 2
    assert "is there already" in err
    code, _, err = run("new", tmp_path / "mine.txt")
    assert code == 2
    assert "ends in .toml" in err


def test_check__shows_tokens_marks_words_and_balance(run, place, mine):  # noqa: F811
    code, out, err = run("check", mine, "-m", place / "little", "--shown", 2)
    assert code == 0, err
    assert "Which box holds the thing that is asked for?" in out
    assert "things: 92 words: 61 to find with, 31 to test on" in out
    assert out.count("+") >= 2
    assert "|" in out
    for predictor in ("place", "distance", "length", "token"):
        assert predictor in out
    code, out, _ = run("check", mine, "-m", "none", "--json")
    body = json.loads(out)
    assert code == 0
    assert body["mistakes"] == []
    assert [row["predictor"] for row in body["balance"]] == ["place", "distance", "length", "token"]


def test_check__says_every_mistake_with_a_picture(run, mine):  # noqa: F811
    mine.write_text(mine.read_text().replace("thing[i] }}", "thng[i] }}").replace('"letters"', '"leters"'))
    code, out, _ = run("check", mine)
    assert code == 1
    assert "'thng' is not known here; did you mean 'thing'?" in out.replace("\n", " ")
    assert "^^^^" in out
    assert "no list of words is called 'leters'" in out.replace("\n", " ")
    assert "Traceback" not in out
    code, out, _ = run("check", mine, "--json")
    assert [mistake["line"] for mistake in json.loads(out)["mistakes"]] == [9, 16]


def test_check__takes_files_of_examples_and_names_of_the_shelf(run, place):  # noqa: F811
    code, out, err = run("check", place / "boxes.jsonl", "-m", "none")
    assert code == 0, err
    assert "Can one simple thing tell" in out
    code, out, _ = run("check", "previous_token", "-m", "none")
    assert code == 0
    assert "a leak, declared" in out


def test_check__of_a_twin_shows_that_twin_and_of_one_example_asks_for_more(run, mine, tmp_path):  # noqa: F811
    code, out, err = run("check", f"{mine}:thing", "-m", "none")
    assert code == 0, err
    assert "twin: " in out
    assert f"Next: qkprism heads {mine}:thing" in out
    assert run("check", f"{mine}:colour")[2].startswith("qkprism: mine has no twins of 'colour'; it has thing, order.")
    one = tmp_path / "one.jsonl"
    one.write_text('{"text": "The [+cat] sat by the [-dog], and the cat"}')
    code, out, _ = run("check", one, "-m", "none")
    assert "one: 1 example\n" in out
    assert "a test needs at least 8 examples: write 7 more." in out
    assert "Next" not in out


def test_draw__writes_json_lines_that_are_read_again(run, mine, tmp_path):  # noqa: F811
    code, out, err = run("draw", mine, "-n", 12)
    assert code == 0, err
    (tmp_path / "drawn.jsonl").write_text(out)
    contrast = Contrast.read(tmp_path / "drawn.jsonl")
    assert (contrast.name, len(contrast)) == ("mine", 12)
    code, held_out, _ = run("draw", mine, "-n", 12, "--part", "test")
    assert held_out.splitlines()[1:] != out.splitlines()[1:]
    code, twins, _ = run("draw", f"{mine}:thing", "-n", 3)
    assert '"twin"' in twins


def test_commands__take_a_template_wherever_they_take_a_contrast(run, place, mine):  # noqa: F811
    code, out, err = run("heads", mine, "-m", place / "little", "--limit", 20)
    assert code == 0, err
    assert "20 examples, 8 heads" in out
    saved = place / "runs" / "mine"
    options = ("-m", place / "little", "--limit", 30, "--heads", "L0H1", "--rank", 2)
    code, _, err = run("decompose", f"{mine}:thing", f"{mine}:order", *options, "--save", saved)
    assert code == 0, err
    assert list(Features.load(saved).contrasts) == ["thing", "order"]
    code, out, err = run("intervene", saved, mine, "-m", place / "little", "--draws", 2, "--limit", 6)
    assert code == 0, err
    assert "L0H1 thing" in out


def test_decompose__uses_the_frame_of_the_template(run, place, mine):  # noqa: F811
    relative = mine.with_name("relative.toml")
    relative.write_text('frame = "relative"\ncenter = "none"\nname = "second"\n' + mine.read_text())
    options = ("-m", place / "little", "--limit", 24, "--heads", "L0H1", "--rank", 1)
    for arguments, frame in (((relative,), "relative"), ((relative, "--rope", "post"), "post"), ((mine,), "post")):
        saved = place / "runs" / f"{frame}{len(arguments)}{arguments[0].stem}"
        code, _, err = run("decompose", *arguments, *options, "--save", saved)
        assert code == 0, err
        features = Features.load(saved)
        assert features.encoding.rope == frame
        assert {feature.choices.center for feature in features.values()} == {
            "none" if arguments[0] == relative else "query"
        }
    code, _, err = run("decompose", relative, mine, *options)
    assert code == 2
    assert "say which with --rope" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["heads", "inducton"], "not on the shelf; did you mean 'induction'"),
        (["draw", "{mine}:colour"], "has no twins of 'colour'"),
        (["check", "nothing.toml"], "nothing.toml cannot be read: there is no such file. `qkprism new nothing.toml`"),
        (["intervene", "induction", "{folder}"], "RUN comes first, then CONTRAST: qkprism intervene"),
        (["check", "nothing.csv", "-m", "none"], "nothing.csv cannot be read"),
        (["heads", "{broken}"], "broken.toml:1: the field question is missing"),
    ],
)
def test_mistakes__are_one_line_before_anything_is_loaded(run, mine, arguments, message):  # noqa: F811
    broken = mine.with_name("broken.toml")
    broken.write_text("prompt = 'x'\n")
    code, out, err = run(*(a.format(mine=mine, broken=broken, folder=broken.parent) for a in arguments))
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert message in err
    assert not out


def test_shelf__lists_every_contrast(run):  # noqa: F811
    code, out, _ = run("shelf", "--wide")
    assert code == 0
    assert "What followed the same word before?" in out
    made = findings()["found"]["induction"]["made"]
    (row,) = [line for line in out.splitlines() if line.startswith("induction ")]
    assert row.endswith(f"{made['date']}, qkprism {made['qkprism']}")
    code, out, _ = run("shelf", "--json")
    assert len(json.loads(out)["contrasts"]) >= 14


def test_help__has_an_example_for_every_command(run):  # noqa: F811
    for command in ("new", "check", "draw", "shelf"):
        code, out, _ = run(command, "--help")
        assert code == 0
        assert f"qkprism {command}" in out.split("Example")[1]
