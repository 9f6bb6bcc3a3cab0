"""The command line: tables, JSON, run folders, and one line for a user's mistake."""

import json
import subprocess
import sys
from itertools import groupby

import pytest

import qkprism
from mailed import answer_in, said_in
from qkprism import Effects, Features, cli
from qkprism.models import encoding
from qkprism.runs.folder import _body_digest, read_manifest
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
    assert "of 8 heads (q <= 0.05; chance alone would show about" in out.replace("\n", " ")
    code, out, _ = run("heads", place / "boxes.jsonl", "--model", place / "little", "--top", 3, "--json")
    body = json.loads(out)
    assert code == 0
    assert len(body["heads"]) == 3
    assert body["n"] == 40
    assert body["found"]["tested"] == 8
    assert body["found"]["found"] == sum(row["q"] <= 0.05 for row in body["heads"])


def test_decompose__saves_a_run_with_a_report_and_shows_it_again(run, place):
    saved = place / "runs" / "boxes"
    arguments = ("decompose", place / "boxes.jsonl", "-m", place / "little", "--top", 2, "--save", saved)
    code, out, err = run(*arguments)
    assert code == 0, err
    assert "rank" in out
    assert str(saved / "report.html") in out
    page = (saved / "report.html").read_text()
    assert "of 2 heads (q <= 0.05; chance alone would show about" in out.replace("\n", " ")
    assert "of 2 heads (q <= 0.05; chance alone would show about" in said_in(page)
    assert answer_in(page, "table", table="features")["n"] == 2
    assert answer_in(page, "table", table="heads")["n"] == 8
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
    assert out.index("L0H1 boxes (rank 2, contrast): moves") < out.index("--wide")
    assert ", raw):" not in out
    assert "gaussian" not in out
    wide = run(*common, "--wide")[1]
    assert "L0H1 boxes (rank 2, raw): moves" in wide
    assert "gaussian" in wide
    page = (target / "report.html").read_text()
    assert "boxes moves most in" in said_in(page)
    assert answer_in(page, "figure", figure="effects")["figure"]["data"]
    assert [str(head) for head in Effects.load(target).heads] == ["L0H1", "L1H0"]
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


BOXES = ["{place}/boxes.jsonl", "-m", "{place}/little"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decompose", *BOXES, "--metric", "balanced"], "'balanced' is not a metric. Use raw or contrast."),
        (["decompose", *BOXES, "--rank", "3.5"], "'3.5' is not a rule for the rank"),
        (["decompose", *BOXES, "--rank", "-1"], "'-1' is not a rule for the rank"),
        (["decompose", *BOXES, "--rank", "9" * 5000], "is not a rule for the rank"),
        (["decompose", *BOXES, "--rank", ""], "'' is not a rule for the rank"),
        (["decompose", *BOXES, "--rank", "²"], "'²' is not a rule for the rank"),
        (["decompose", *BOXES, "--reading", "backwards"], "'backwards' is not a reading of twins"),
        (["decompose", *BOXES, "--token", "middle"], "'middle' is not a choice of a span's tokens"),
        (["decompose", *BOXES, "--rope", "pre"], "'pre' is not a frame of positions"),
        (["decompose", *BOXES, "--seed", "-1"], "seed=-1 is not possible"),
        (["decompose", *BOXES, "--seed", "9" * 30], "from 0 to 4294967295"),
        (["decompose", *BOXES, "--dtype", "int8"], "'int8' is not a dtype"),
        (["decompose", *BOXES, "--device", "cpu", "--device-map", "auto"], "Give device or device_map, not both."),
        (["decompose", *BOXES, "--heads", "L1H1,,L2"], "'' is not the name of a head"),
        (["decompose", *BOXES, "--heads", ""], "'' is not the name of a head"),
        (["decompose", *BOXES, "--heads", "", "--top", "2"], "not both"),
        (["decompose", *BOXES, "--save", "{place}"], "holds other files"),
        (["decompose", "{place}/boxes.jsonl", "{place}/boxes.jsonl"], "contrasts of the same name"),
        (["decompose", "{place}/little"], "cannot be read: Is a directory"),
        (["heads", *BOXES, "--by", "beauty"], "'beauty' is not a measure of heads"),
        (["heads", *BOXES, "--token", "middle"], "'middle' is not a choice of a span's tokens"),
        (["intervene", "{place}", *BOXES, "--seed", "-1"], "seed=-1 is not possible"),
        (["intervene", "{place}", *BOXES, "--outcome", "fame"], "'fame' is not an outcome"),
        (["intervene", "{place}", *BOXES, "--heads", "first"], "'first' is not the name of a head"),
        (["intervene", "{place}", "nothing.jsonl"], "nothing.jsonl cannot be read"),
        (["attribute", "{place}", "text", "--method", "magic"], "'magic' is not a method of attribution"),
        (["attribute", "{place}", "text", "L"], "'L' is not the name of a head"),
        (["attribute", "{place}", "text", "--heads", "L"], "'L' is not the name of a head"),
        (["attribute", "{place}", "text", "L1H1", "--head", "L1H2"], "Give the head once"),
        (["attribute", "{place}", "text", "L1H1,L1H2"], "L1H1,L1H2 are 2 heads"),
        (["heads", "induction", "--model", "smolm2"], "'smolm2' is not a model; did you mean 'smollm2'?"),
        (["attribute", "{place}", "text [?", "L1H1"], "is never closed"),
        (["attribute", "{place}", "", "L1H1"], "the text is empty"),
        (["attribute", "{place}", "text", "--save", "why.gif"], "cannot be saved as 'why.gif'"),
        (["binding", "--seed", "-1"], "seed=-1 is not possible"),
        (["binding", "--dtype", "int8"], "'int8' is not a dtype"),
        (["binding", "--entities", "ten"], "is not a list of numbers"),
        (["filter", "--seed", "-1"], "seed=-1 is not possible"),
        (["filter", "--device", "cpu", "--device-map", "auto"], "Give device or device_map, not both."),
    ],
)
def test_options__are_refused_before_torch_is_imported(run, tmp_path, arguments, message, monkeypatch):
    (tmp_path / "little").mkdir()
    (tmp_path / "little" / "config.json").write_text("{}")
    contrast(4).write(tmp_path / "boxes.jsonl")
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)  # importing any of these is an error
    monkeypatch.setitem(sys.modules, "qkprism.models.loading", None)
    monkeypatch.setitem(sys.modules, "qkprism.results.features", None)
    code, out, err = run(*(a.format(place=tmp_path) for a in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("wrong", [None, 3, {"x": 1}], ids=str)
def test_show__a_manifest_that_says_something_else_is_one_line(run, saved, wrong):
    body = read_manifest(saved)
    for name in body.keys() - ({"provenance"} if isinstance(wrong, dict) else set()):
        other = body | {name: wrong}
        (saved / "manifest.json").write_text(json.dumps(other | {"digest": _body_digest(other)}))
        code, out, err = run("show", saved)
        assert (code, out) == (2, ""), name
        assert len([line for line in err.splitlines() if line.startswith("qkprism:")]) == 1


def test_command_line__a_bad_option_is_told_without_torch(tmp_path):
    shown = "print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    script = f"import sys; from qkprism import cli\ntry: cli.main()\nfinally: {shown}"
    options = ["decompose", tmp_path / "boxes.jsonl", "--save", tmp_path / "run", "--metric", "balanced"]
    told = subprocess.run([sys.executable, "-c", script, *map(str, options)], capture_output=True, text=True)
    assert told.returncode == 2
    assert told.stdout == "[]\n"


def test_encoding__reaches_the_check_the_search_and_the_decomposition(run, place, monkeypatch):
    seen, of = [], encoding.Encoder.of

    def encoder(tokenizer, options, **more):
        seen.append(("encoder", {"encoding": options}))
        return of(tokenizer, options, **more)

    monkeypatch.setattr(encoding.Encoder, "of", encoder)
    for name, module in (("find_heads", qkprism), ("decompose", qkprism)):
        verb = getattr(module, name)

        def spied(*args, name=name, verb=verb, **options):
            seen.append((name, options))
            return verb(*args, **options)

        monkeypatch.setattr(qkprism, name, spied)
    common = [place / "boxes.jsonl", "-m", place / "little", "--token", "first", "--batch-size", 3]
    assert run("decompose", *common, "--top", 2)[0] == 0
    assert run("heads", *common)[0] == 0
    steps = [name for name, _ in groupby(name for name, _ in seen)]
    assert steps == ["encoder", "find_heads", "encoder", "decompose", "encoder", "find_heads", "encoder"]
    assert {options["encoding"].token for _, options in seen} == {"first"}
    assert {options["batch_size"] for name, options in seen if name != "encoder"} == {3}


def test_chat__is_checked_and_searched_as_it_is_decomposed(run, place):
    """A file whose marks fit the chat template and not the bare text: token spans count the template's tokens."""
    tokenizer = byte_level()
    tokenizer.chat_template = "{% for m in messages %}user: {{ m.content }}\nanswer:{% endfor %}"
    tokenizer.save_pretrained(place / "little")
    beyond = len(tokenizer("a b")["input_ids"])
    line = {"text": "a b", "positive": [{"tokens": [beyond, beyond + 1]}], "negative": [{"tokens": [1, 2]}]}
    (place / "chat.jsonl").write_text(json.dumps(line) + "\n")
    common = [place / "chat.jsonl", "-m", place / "little"]
    code, _, err = run("decompose", *common, "--top", 1)
    assert code == 2
    assert "reaches beyond" in err
    for command in (["decompose", *common, "--top", 1, "--save", place / "run"], ["heads", *common]):
        code, _, err = run(*command, "--chat")
        assert code == 0, err
    code, _, err = run("intervene", place / "run", *common, "--draws", 1)
    assert code == 0, err
