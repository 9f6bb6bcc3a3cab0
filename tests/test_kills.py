"""Commands that are really killed (SIGKILL) at many points: the same command goes on and ends in the identical files.

A point is a step on the file system (a file made, flushed, put in its place, removed) or a forward pass. Every attempt
is a fork of a process that has all libraries, so that it takes as long as its work. QKPRISM_KILLS says how many points
of each command are tried; 3 by default, and 20 before a release.
"""

import hashlib
import json
import os
import signal
import sys

import pytest
import torch

import qkprism as qk
from qkprism import cli
from qkprism.atlas import survey
from qkprism.capture import batching, streaming
from qkprism.runs import store
from qkprism.toy import studying
from test_pipeline import contrast
from test_shelf_run import WORDS as SHELF_WORDS
from test_studies import KNOWN as STUDY_WORDS
from test_studies import TINY
from test_studies import studies as binding
from tiny import tiny
from tokenizers_for_tests import byte_level

POINTS = int(os.environ.get("QKPRISM_KILLS", 3))
pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny model and a contrast."""
    place = tmp_path_factory.mktemp("kills")
    words = [*dict.fromkeys([*SHELF_WORDS, *STUDY_WORDS])]
    tokenizer = byte_level(words=tuple(words))
    tiny("llama3", vocab_size=len(tokenizer), max_position_embeddings=512).save_pretrained(place / "little")
    tokenizer.save_pretrained(place / "little")
    contrast(60, seed=3).write(place / "boxes.jsonl")
    arguments = ["decompose", str(place / "boxes.jsonl"), *loaded(place), "--rank", "2", "--heads", "L0H1,L1H0"]
    code, told = attempt(arguments, place / "features")
    assert code == 0, told
    (place / "text.txt").write_text("\n\n".join(f"{' '.join(words[i:] + words[:i])}." * 3 for i in range(12)))
    return place


def loaded(place):
    return ["-m", str(place / "little"), "--device", "cpu", "--dtype", "float32"]


def command(name, place):
    """The arguments of a command, without where it saves."""
    model = loaded(place)
    edits = ["intervene", str(place / "features"), str(place / "boxes.jsonl"), "--draws", "2", "--batch-size", "4"]
    return {
        "decompose": ["decompose", str(place / "boxes.jsonl"), *model],
        "intervene": [*edits, *model],
        "intervene on logits": [*edits, "--outcome", "logits", "--limit", "12", *model],
        "shelf": ["shelf", "--run", "--only", "duplicate,coreference", "-n", "40", *model],
        "binding": ["binding", "--size", "quick", "--phrasing", "cloze", "--pairs", "3", *model],
        "toy": ["toy", "--quick"],
        "atlas": ["atlas", "--texts", str(place / "text.txt"), "--windows", "12", "--length", "48", *model],
    }[name]


def small():
    """All that makes a command quick, and its checkpoints frequent."""
    torch.set_num_threads(1)
    streaming.CHUNK["cpu"] = 16
    binding.SIZES["quick"] = TINY
    store.EVERY, store.MOST = 0.0, 0
    survey.TOKENS_AT_ONCE = {"cpu": 2 * 48}
    some, quick = qk.toy.few_cells(0, "calibrated")[:2], studying.Depth(64, 1)
    qk.toy.few_cells = lambda *_: some
    work = studying.study
    qk.toy.study = lambda *a, **k: work(*a, **k | {"depth": quick})


class Points:
    """Counts what a command does, and kills it at a point, or before a forward pass of some number."""

    def __init__(self, at, before=None):
        self.at, self.before, self.count, self.passes = at, before, 0, 0
        for name in ("replace", "unlink", "mkdir", "rmdir", "fsync", "rename"):
            setattr(os, name, self.counted(getattr(os, name)))
        batching.Batches._pass = self.passing(self.counted(batching.Batches._pass))
        survey._SurveyPass.show = self.counted(survey._SurveyPass.show)

    def counted(self, work):
        def step(*args, **options):
            self.step()
            done = work(*args, **options)
            self.step()
            return done

        return step

    def passing(self, work):
        def run(*args, **options):
            self.passes += 1
            if self.passes == self.before:
                os.kill(os.getpid(), signal.SIGKILL)
            return work(*args, **options)

        return run

    def step(self):
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def attempt(arguments, save, at=None, before=None):
    """Run a command in a fork; how it ended and what it said. How many points there were is in `points.json`."""
    told = save.with_name(f"{save.name}-told.txt")
    child = os.fork()
    if child == 0:
        points = None
        try:
            small()
            points = Points(at, before)
            sys.stdout = sys.stderr = told.open("w")
            sys.argv = ["qkprism", *arguments, "--save", str(save)]
            cli.main()
        except SystemExit as end:
            sys.stdout.flush()
            save.with_name("points.json").write_text(json.dumps([points.count, points.passes]))
            os._exit(end.code if isinstance(end.code, int) else 0)
        except BaseException:
            import traceback

            traceback.print_exc()
        sys.stdout.flush()
        os._exit(70)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), told.read_text() if told.exists() else ""


def digests(save):
    """All files of a folder by their digests; a page is its text without what is counted anew each time."""
    return {
        str(path.relative_to(save)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(save.rglob("*"))
        if path.is_file() and path.suffix not in (".html", ".png", ".svg")
    }


@pytest.mark.parametrize("name", ["decompose", "intervene", "intervene on logits", "shelf", "binding", "toy", "atlas"])
def test_kill__same_command_goes_on_to_the_identical_files(place, tmp_path, name):
    arguments = command(name, place)
    code, told = attempt(arguments, tmp_path / "whole")
    assert code == 0, told
    (steps, _), whole = json.loads((tmp_path / "points.json").read_text()), digests(tmp_path / "whole")
    assert whole
    for number in range(POINTS):
        at = 1 + (steps - 1) * number // max(1, POINTS - 1)
        save = tmp_path / f"killed-{number}"
        code, _ = attempt(arguments, save, at)
        assert code in (0, -signal.SIGKILL), f"{name} at {at} of {steps}"
        assert code or number, "the first point comes always"
        code, told = attempt(arguments, save)
        assert code == 0, f"{name}, killed at {at} of {steps}, is refused: {told}"
        assert digests(save) == whole, f"{name}, killed at {at} of {steps}"
        left = [path for path in save.parent.rglob(".*") if path.name.startswith((".qkprism", f".{save.name}"))]
        assert not left, f"{name}, killed at {at} of {steps}, leaves {left}"


@pytest.mark.parametrize("name", ["intervene", "shelf", "binding"])
def test_kill__no_pass_is_run_again_that_was_kept(place, tmp_path, name):
    """Also within a part: chunks before the kill are read, not run. A chunk of these sizes has one pass or two."""
    arguments = command(name, place)
    code, told = attempt(arguments, tmp_path / "whole")
    assert code == 0, told
    _, passes = json.loads((tmp_path / "points.json").read_text())
    assert passes > 6
    for before in (passes // 3, passes // 2, 4 * passes // 5):
        save = tmp_path / f"killed-{before}"
        code, _ = attempt(arguments, save, before=before)
        assert code == -signal.SIGKILL
        code, told = attempt(arguments, save)
        assert code == 0, told
        _, again = json.loads((tmp_path / "points.json").read_text())
        assert again - (passes - before + 1) in (0, 1), f"{name}, killed before {before} of {passes}"
        assert digests(save) == digests(tmp_path / "whole")
