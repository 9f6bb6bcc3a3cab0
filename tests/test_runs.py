"""Run folders: what is ours is replaced, what is not ours is left alone, and what a killed process left is cleared."""

import os
import stat
import subprocess
import sys
import textwrap

import pytest
import torch

from qkprism import QKPrismError
from qkprism.runs.files import part_of, write_text
from qkprism.runs.folder import MANIFEST, check_place, read_manifest, read_run, remove_run, write_run
from qkprism.runs.store import check_study
from qkprism.toy.studying import _check_place as check_toy

MINE = [".gitignore", ".env", ".x.part", ".manifest.json.ab12", "notes.txt", "weights-202401011200.safetensors"]
CHECKS = [lambda place: check_place(place, "features"), lambda place: check_study(place, "binding"), check_toy]


def write(folder, value=1.0):
    return write_run(folder, "features", {"value": value}, {"moments": {"a": torch.full((3,), value)}})


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_write_run__leaves_every_file_that_it_did_not_make(tmp_path):
    run = write(tmp_path / "run")
    for name in MINE:
        (run / name).write_text("mine")
    for folder in (".git", ".qkprism-mine", ".qkprism-0123.part", "moments-0123456789ab.safetensors"):
        (run / folder).mkdir()
        (run / folder / "inside").write_text("mine")
    before = set(names(run)) - set(read_files(run))
    write(run, 2.0)
    assert set(names(run)) - set(read_files(run)) == before
    assert all((run / name).read_text() == "mine" for name in MINE)
    assert read_run(run, "features")[1]["moments"]["a"].tolist() == [2.0] * 3


def read_files(run):
    return [entry["file"] for entry in read_manifest(run)["files"].values()]


def test_write_run__removes_what_the_former_run_and_killed_processes_left(tmp_path):
    run = write(tmp_path / "run")
    former = read_files(run)
    script = """
        import itertools, os, signal, sys, torch, qkprism.runs.files as files, qkprism.runs.folder as runs
        def killed(*_): os.kill(os.getpid(), signal.SIGKILL)
        for place, when in itertools.product(sys.argv[1:], ("tensors", "manifest", "text")):
            if child := os.fork():
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
                continue
            if when == "tensors": runs.file_digest = killed
            if when == "manifest": runs.write_text = killed
            if when == "text": files.os.fsync = killed
            if when == "text": runs._write_tensors = lambda *_: {"file": "x", "sha256": "y"}
            runs.write_run(place, "features", {}, {"moments": {"a": torch.full((3,), 5.0)}})
            os._exit(0)
    """
    places = (run, tmp_path / "new")
    code = [sys.executable, "-c", textwrap.dedent(script), *map(str, places)]
    subprocess.run(code, env=os.environ, check=True)
    for place in places:
        assert len(names(place)) == 3 + (place == run) * 2
        write(place, 3.0)
        assert names(place) == sorted([MANIFEST, *read_files(place)])
    assert read_files(run) != former


def test_check_place__an_empty_folder_is_one_without_files_of_others(tmp_path):
    for name in (".git", ".env"):
        (tmp_path / name / name).mkdir(parents=True)
        for check in CHECKS:
            with pytest.raises(QKPrismError):
                check(tmp_path / name)
    for check in CHECKS:
        check(tmp_path / "none")
    (tmp_path / "left").mkdir()
    part_of(tmp_path / "left").write_text("half")
    for check in CHECKS:
        check(tmp_path / "left")


def test_write_run__all_files_have_the_same_permissions(tmp_path):
    old = os.umask(0o022)
    try:
        run = write(tmp_path / "run")
        write_text(run / "report.html", "page")
    finally:
        os.umask(old)
    assert {stat.S_IMODE(path.stat().st_mode) for path in run.iterdir()} == {0o644}


def test_remove_run__takes_the_run_and_leaves_the_rest(tmp_path):
    remove_run(write(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    run = write(tmp_path / "run")
    (run / "notes.txt").write_text("mine")
    remove_run(run)
    assert names(run) == ["notes.txt"]


@pytest.mark.parametrize("place", [3, None, b"run", "a\0b", "x" * 5000, "/proc/run"])
def test_write_run__a_place_that_cannot_be_is_one_sentence(place):
    with pytest.raises(QKPrismError) as caught:
        write(place)
    assert "\n" not in str(caught.value)
    with pytest.raises(QKPrismError):
        read_run(place, "features")
