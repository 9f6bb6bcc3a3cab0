"""A pass that is killed goes on where it was, to the identical result."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

import qkprism as qk
from qkprism import QKPrismError
from qkprism.capture import model_source, streaming
from qkprism.capture.batching import Batches
from qkprism.capture.source import Checkpoint
from qkprism.capture.streaming import Pass
from qkprism.contrasts import Contrast
from qkprism.runs import store
from qkprism.runs.folder import read_manifest
from qkprism.runs.stopping import Stopped
from test_intervene import HEADS, load
from test_intervene import contrasts as pair_contrasts
from test_pipeline import contrast
from test_validate import pairs
from tiny import one_thread, tiny  # noqa: F401
from tokenizers_for_tests import byte_level


class Killed(BaseException):
    pass


@pytest.fixture
def model():
    tokenizer = byte_level()
    return qk.load((tiny("llama", vocab_size=len(tokenizer)), tokenizer))


@pytest.fixture
def contrasts(monkeypatch):
    monkeypatch.setitem(streaming.CHUNK, "cpu", 8)
    whole = contrast(30, seed=1)
    part = Contrast("part", tuple(whole[number] for number in (3, 17)))
    return {"a": whole, "b": contrast(30, twins=True, seed=2), "part": part}


def assert_identical(first, second):
    assert list(first) == list(second)
    for key, feature in first.items():
        assert torch.equal(feature.key_basis, second[key].key_basis)
        assert torch.equal(feature.spectrum.t.nan_to_num(), second[key].spectrum.t.nan_to_num())
        assert feature.n == second[key].n


@pytest.mark.parametrize("chunks", [1, 3, 5, 8])
def test_checkpoint__resumes_to_the_identical_result(model, contrasts, chunks, tmp_path, monkeypatch):
    options = {"recipe": qk.Recipe(metric="raw"), "progress": False}
    whole = qk.decompose(model, contrasts, **options)
    note, seen = Checkpoint.note, []

    def die(self, *args):
        note(self, *args)
        seen.append(args)
        if len(seen) == chunks:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(store, "EVERY", 0.0)
        patched.setattr(store, "MOST", 0)
        patched.setattr(Checkpoint, "note", die)
        with pytest.raises(Killed):
            qk.decompose(model, contrasts, checkpoint=tmp_path / "part", **options)
    run, passes = type(model).run, []
    monkeypatch.setattr(type(model), "run", lambda *a, **k: passes.append(1) or run(*a, **k))
    assert_identical(whole, qk.decompose(model, contrasts, checkpoint=tmp_path / "part", **options))
    assert len(passes) <= 8 - chunks + 1
    passes.clear()
    assert_identical(whole, qk.decompose(model, contrasts, checkpoint=tmp_path / "part", **options))
    assert not passes


@pytest.fixture
def ctrl_c():
    """Ctrl-C means what it does at a terminal, also where tests run in the background, which ignores it."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, former)


def test_checkpoint__ctrl_c_finishes_the_chunk_saves_and_says_how_to_go_on(
    model, contrasts, tmp_path, monkeypatch, ctrl_c
):
    options = {"recipe": qk.Recipe(metric="raw"), "progress": False}
    whole, note = qk.decompose(model, contrasts, **options), Checkpoint.note

    def press(self, *args):
        signal.raise_signal(signal.SIGINT)
        note(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "note", press)
        with pytest.raises(Stopped, match="8 examples is saved; the same command goes on"):
            qk.decompose(model, contrasts, checkpoint=tmp_path / "part", **options)
    assert signal.getsignal(signal.SIGINT) is ctrl_c
    assert read_manifest(tmp_path / "part")["done"] == {"a/plain": 8, "part/plain": 8}
    assert_identical(whole, qk.decompose(model, contrasts, checkpoint=tmp_path / "part", **options))


def test_checkpoint__costs_at_most_two_percent_of_a_run(tmp_path, monkeypatch):
    clock, written = [0.0], []
    monkeypatch.setattr(store.time, "monotonic", lambda: clock[0])

    def takes_two_seconds(*_):
        clock[0] += 2.0
        written.append(clock[0])

    monkeypatch.setattr(store, "write_run", takes_two_seconds)
    work = store.Unfinished(tmp_path / "part", {}, _written=0.0)
    for _ in range(1000):
        clock[0] += 1.0
        work.note({}, dict)
    assert written[0] == pytest.approx(32.0)
    assert 5 < len(written) <= 0.02 * clock[0] / 2.0 + 1


def test_checkpoint__of_another_job_is_refused(model, contrasts, tmp_path):
    options = {"recipe": qk.Recipe(metric="raw"), "progress": False, "checkpoint": tmp_path / "part"}
    qk.decompose(model, contrasts, **options)
    with pytest.raises(QKPrismError, match="checkpoint of another job"):
        qk.decompose(model, contrasts, heads="L0H0", **options)
    qk.decompose(model, contrasts, progress=False, recipe=qk.Recipe(metric="raw")).save(tmp_path / "run")
    with pytest.raises(QKPrismError, match="run of kind 'features'"):
        qk.decompose(model, contrasts, progress=False, recipe=qk.Recipe(metric="raw"), checkpoint=tmp_path / "run")


def test_save__killed_while_writing_leaves_the_former_run(model, contrasts, tmp_path):
    """kill -9 in the middle of `save`: the folder that was there is there still, whole."""
    features = qk.decompose(model, contrasts, heads="L0H0", recipe=qk.Recipe(metric="raw"), progress=False)
    run = features.save(tmp_path / "run")
    script = f"""
        import os, signal, safetensors.torch
        from qkprism.results.features import Features
        features = Features.load({str(run)!r})
        write = safetensors.torch.save_file
        def killed(*args):
            write(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        safetensors.torch.save_file = killed
        features.save({str(run)!r})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert_identical(features, qk.Features.load(run))


def test_checkpoint__of_other_passes_is_refused(model, contrasts, tmp_path, monkeypatch):
    options = {"recipe": qk.Recipe(metric="raw"), "checkpoint": tmp_path / "part", "progress": False}
    with monkeypatch.context() as patched:
        patched.setattr(model_source, "passes_of", lambda marked: [Pass((own,)) for own in marked])
        qk.decompose(model, contrasts, **options)
    with pytest.raises(QKPrismError, match="checkpoint of another job"):
        qk.decompose(model, contrasts, **options)


def test_checkpoint__a_damaged_one_says_which_folder_to_delete(model, contrasts, tmp_path):
    options = {"recipe": qk.Recipe(metric="raw"), "progress": False, "checkpoint": tmp_path / "part"}
    qk.decompose(model, contrasts, **options)
    for file in ("manifest.json", next((tmp_path / "part").glob("*.safetensors")).name):
        place, body = tmp_path / "part" / file, (tmp_path / "part" / file).read_bytes()
        place.write_bytes(body[:-9])
        with pytest.raises(QKPrismError) as error:
            qk.decompose(model, contrasts, **options)
        assert "is damaged" in str(error.value)
        assert str(error.value).endswith(f"Delete the folder {tmp_path / 'part'}; the command begins anew.")
        assert "Make the run again" not in str(error.value)
        place.write_bytes(body)


class Passes:
    """Counts forward passes, and fails in one of some number."""

    def __init__(self, monkeypatch):
        self.count, self.last, run = 0, 0, Batches._pass

        def counted(*args):
            if self.count == self.last:
                raise Killed
            self.count += 1
            return run(*args)

        monkeypatch.setattr(Batches, "_pass", counted)

    def of(self, work, last=-1):
        """What the work gives, and how many passes it took."""
        self.count, self.last = 0, last
        return work(), self.count


OTHER_METHODS = {"validate": {"methods": ["raw"]}, "intervene": {"compare": qk.Comparison(methods=["raw"])}}


@pytest.mark.parametrize("verb", ["validate", "intervene"])
def test_readers__go_on_where_a_pass_was_killed_and_read_what_was_kept(verb, tmp_path, monkeypatch):
    model = load("llama")
    features = qk.decompose(model, pair_contrasts(), heads=HEADS, recipe=qk.Recipe(rank=2), progress=False)
    monkeypatch.setattr(store, "EVERY", 0.0)
    monkeypatch.setattr(store, "MOST", 0)
    passes, given = Passes(monkeypatch), pairs() if verb == "validate" else contrast(21, seed=5)

    def run(folder=None, **options):
        return getattr(qk, verb)(model, given, features, batch_size=3, checkpoint=folder, progress=False, **options)

    whole, n = passes.of(run)
    assert n > 5
    for killed in (1, 3, n - 1):
        place = tmp_path / f"checkpoint-{killed}"
        with pytest.raises(Killed):
            passes.of(lambda place=place: run(place), last=killed)
        again, rest = passes.of(lambda place=place: run(place))
        assert rest == n - killed
        saved = [one.save(tmp_path / f"{killed}-{name}") for one, name in ((whole, "whole"), (again, "again"))]
        assert saved[0].joinpath("manifest.json").read_bytes() == saved[1].joinpath("manifest.json").read_bytes()
        for other in ({"heads": HEADS[:1]}, OTHER_METHODS[verb]):
            with pytest.raises(QKPrismError, match="checkpoint of another job"):
                run(place, **other)
