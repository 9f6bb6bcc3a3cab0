"""Runs that are pushed and pulled: the same files, nothing that could hold code, and every digest checked."""

import json

import pytest
import torch

from qkprism import QKPrismError
from qkprism.runs import sharing
from qkprism.runs.catalogue import damages
from qkprism.runs.folder import read_run, write_run
from qkprism.runs.sharing import card, pull, push, shared_files
from qkprism.runs.store import Parts


@pytest.fixture
def run(tmp_path):
    place = tmp_path / "run"
    provenance = {"provenance": {"model": "a|b<c`d"}}
    write_run(place, "features", provenance, {"moments": {"a": torch.arange(3.0)}})
    (place / "report.html").write_text("<script>")
    (place / "evil.pkl").write_bytes(b"\x80")
    return place


def test_push__takes_json_and_safetensors_alone_and_pull_gives_them_back(run, tmp_path):
    shared = push(run, tmp_path / "shared")
    assert {path.suffix for path in (tmp_path / "shared").iterdir()} == {".json", ".safetensors", ".md"}
    pulled = pull(shared, tmp_path / "mine")
    assert sorted(path.name for path in pulled.iterdir()) == sorted(map(str, shared_files(run)))
    (manifest, files), (theirs, their_files) = read_run(run, "features"), read_run(pulled, "features")
    assert manifest == theirs
    assert torch.equal(files["moments"]["a"], their_files["moments"]["a"])


def test_push__a_study_keeps_its_parts_and_stamps(tmp_path):
    class Part:
        def save(self, place):
            return write_run(place, "part", {}, {"t": {"a": torch.ones(2)}})

    study = Parts.open(tmp_path / "study", "test", {"model": "m"})
    study.get("first", Part, lambda place: read_run(place, "part"))
    (tmp_path / "study" / "no.job").write_text("import os")
    pulled = pull(push(study.folder, tmp_path / "shared"), tmp_path / "mine")
    names = sorted(str(path.relative_to(pulled)) for path in pulled.rglob("*") if path.suffix != ".safetensors")
    assert names == ["first", "first.job", "first/manifest.json", "study.json"]
    assert damages(pulled) == (1, [])
    again = Parts.open(pulled, "test", {"model": "m"})
    again.get("first", lambda: pytest.fail("it is there"), lambda place: read_run(place, "part"))


def test_pull__refuses_what_is_damaged_in_use_or_no_run_and_leaves_nothing(run, tmp_path):
    shared = tmp_path / "shared"
    push(run, shared)
    with pytest.raises(QKPrismError, match="is in use"):
        pull(shared, run)
    tensors = next(shared.glob("*.safetensors"))
    body = tensors.read_bytes()
    tensors.write_bytes(body[:-1] + b"x")
    with pytest.raises(QKPrismError, match="is not what was written"):
        pull(shared, tmp_path / "mine")
    tensors.unlink()
    (tmp_path / "secret").write_bytes(body)
    tensors.symlink_to(tmp_path / "secret")
    with pytest.raises(QKPrismError, match="is missing"):  # a link is not followed
        pull(shared, tmp_path / "mine")
    with pytest.raises(QKPrismError, match="is not a qkprism run"):
        pull(tmp_path, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()
    assert not [*tmp_path.glob(".qkprism*")]


def test_push__to_the_hub_sends_the_same_files(run, monkeypatch):
    sent = {}

    class Api:
        def create_repo(self, name, **_):
            sent["repository"] = name

        def create_commit(self, name, operations, **_):
            sent["files"] = sorted(operation.path_in_repo for operation in operations)
            return type("Info", (), {"repo_url": f"https://hub/{name}"})

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    assert push(run, "hf://me/boxes") == "https://hub/me/boxes"
    assert sent == {"repository": "me/boxes", "files": sorted(["README.md", *map(str, shared_files(run))])}
    for wrong in ("hf://boxes", "hf://me/../x", "hf://me/a b"):
        with pytest.raises(QKPrismError, match="not a repository of the Hub"):
            push(run, wrong)
    monkeypatch.setattr(sharing, "shared_files", lambda _: 1 / 0)
    with pytest.raises(QKPrismError, match="could not be reached: division by zero"):
        push(run, "hf://me/boxes")


def test_card__is_a_table_whatever_a_run_says(run):
    lines = card(run).splitlines()
    assert lines[:2] == ["---", "library_name: qkprism"]
    assert '| provenance.model | `"a\\|b&lt;c\'d"` |' in lines
    assert json.loads((run / "manifest.json").read_text())["kind"] == "features"
