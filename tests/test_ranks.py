"""Several processes that share a job find what one finds; one that dies ends it, and any number of them goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import qkprism as qk
from qkprism import QKPrismError
from qkprism.heads import Head
from qkprism.packing import bytes_of, values_of
from qkprism.ranks import ALONE, Ranks, added, exchanged, failing_together, in_turn, ranks
from qkprism.runs.folder import read_manifest
from test_intervene import load
from test_pipeline import contrast
from tiny import tiny
from tokenizers_for_tests import byte_level

HERE = Path(__file__).parent
FLOAT32 = ("fold_product", "flip_product", "shuffle_product")  # sums that are kept in float32
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE)]),
    "OMP_NUM_THREADS": "1",
}


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_mine__every_item_is_of_one_rank(count):
    every = [item for number in range(count) for item in Ranks(number, count).mine(range(5))]
    assert sorted(every) == [*range(5)]


def test_alone__nothing_is_exchanged():
    assert ranks() == ALONE
    assert list(in_turn("abc", str.upper)) == ["A", "B", "C"]
    assert exchanged(3) == [3]
    tensor = torch.ones(2)
    assert added({"a": tensor})["a"] is tensor
    with pytest.raises(QKPrismError, match="my mistake"), failing_together():
        raise QKPrismError("my mistake")


def torchrun(count, *arguments, **options):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    return subprocess.Popen(
        [*command, *map(str, arguments)], env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        **options,
    )  # fmt: skip


def told(process, seconds=240):
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process finds, by family."""
    found = {}

    def of(family):
        if family not in found:
            place = tmp_path_factory.mktemp("alone")
            command = [sys.executable, HERE / "ranks_worker.py", family, place / "features", place / "found.pt"]
            subprocess.run(command, env=ENVIRONMENT, check=True)
            found[family] = place / "features", torch.load(place / "found.pt")
        return found[family]

    return of


@pytest.mark.processes
@pytest.mark.parametrize(("family", "count"), [("llama", 3), ("qwen3", 2)])
def test_verbs__several_processes_find_what_one_finds(alone, family, count, tmp_path):
    features, one = alone(family)
    code, _, err = told(torchrun(count, HERE / "ranks_worker.py", family, features, tmp_path / "found.pt"))
    assert code == 0, err
    several = torch.load(tmp_path / "found.pt")
    assert several["heads"] == one["heads"]
    for name, value in one["read"].items():  # the same batches, added in the same order: the same bits
        assert torch.equal(several["read"][name].nan_to_num(), value.nan_to_num()), name
    for what, whole_chunks in (("decompose", True), ("few", False)):  # two examples are no chunk for each process
        assert several[what]["n"] == one[what]["n"]
        for name, total in one[what]["sums"].items():
            exact = whole_chunks and name.rpartition("/")[2] not in FLOAT32
            near = 1e-10 if exact else 1e-5
            size = float(total.abs().amax()) if total.numel() else 0.0
            assert torch.allclose(several[what]["sums"][name], total, rtol=0, atol=near * (1 + size)), name
        for name, covariance in one[what]["covariance"].items():
            assert torch.allclose(several[what]["covariance"][name], covariance, atol=1e-9 if whole_chunks else 1e-5)


@pytest.mark.processes
@pytest.mark.parametrize(("family", "device_map", "count"), [("qwen3", "tp", 2), ("llama", "tp:2", 4)])
def test_split__heads_of_all_processes_are_seen_and_edited(alone, family, device_map, count, tmp_path):
    features, one = alone(family)
    model = load(family)
    model.hf.save_pretrained(tmp_path / "little")
    model.tokenizer.save_pretrained(tmp_path / "little")
    arguments = (tmp_path / "little", features, tmp_path / "found.pt", device_map)
    code, _, err = told(torchrun(count, HERE / "ranks_worker.py", *arguments))
    assert code == 0, err
    split = torch.load(tmp_path / "found.pt")
    assert split["heads"] == one["heads"]
    sums = {f"{what} {name}": t for what in ("decompose", "few") for name, t in one[what]["sums"].items()}
    theirs = {f"{what} {name}": t for what in ("decompose", "few") for name, t in split[what]["sums"].items()}
    for name, value in (one["read"] | sums).items():  # products of parts of a matrix are added up: other rounding
        size = float(value.nan_to_num().abs().max()) if value.numel() else 0.0
        found = (split["read"] | theirs)[name]
        assert torch.allclose(found.nan_to_num(), value.nan_to_num(), rtol=0, atol=1e-4 * (1 + size)), name


@pytest.mark.processes
def test_split__fewer_key_heads_than_processes_is_one_sentence(place):
    arguments = ["-m", place / "little", "--device-map", "tp", "--json"]
    script = place / "split.py"
    script.write_text("import qkprism.cli\nqkprism.cli.main()")
    code, out, err = told(torchrun(3, script, "heads", place / "boxes.jsonl", *arguments))
    assert code != 0
    assert not out
    lines = [line for line in err.splitlines() if line.startswith("qkprism: ")]
    assert len(lines) == 1, err
    assert "has 2 key heads for 4 heads, which 3 processes cannot share evenly" in lines[0]
    with pytest.raises(QKPrismError, match="over 1 of 1 processes"):
        qk.load(place / "little", device_map="tp")


@pytest.mark.processes
def test_split__memory_that_runs_out_on_one_process_ends_the_job_and_is_told(place):
    lines = ["import os", "import torch", "from qkprism.capture.batching import Batches", "run = Batches._pass"]
    lines += [
        "def fail(self, examples, *a):",
        "    if os.environ['RANK'] == '1': raise torch.OutOfMemoryError('no room')",
    ]
    lines += ["    return run(self, examples, *a)", "Batches._pass = fail", "import qkprism.cli", "qkprism.cli.main()"]
    script = place / "narrow.py"
    script.write_text("\n".join(lines))
    arguments = ["heads", place / "boxes.jsonl", "-m", place / "little", "--device-map", "tp", "--batch-size", "8"]
    began = time.monotonic()
    code, out, err = told(torchrun(2, script, *arguments))
    assert time.monotonic() - began < 120
    assert code != 0
    assert not out
    assert "process 1: memory ran out with 8 examples at once" in err
    assert "Give a smaller --batch-size" in err


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny model and a contrast that takes some chunks."""
    place = tmp_path_factory.mktemp("ranks")
    tokenizer = byte_level()
    tiny("llama", vocab_size=len(tokenizer), max_position_embeddings=256).save_pretrained(place / "little")
    tokenizer.save_pretrained(place / "little")
    contrast(600, seed=3).write(place / "boxes.jsonl")
    return place


def decompose(count, place, save, *options, more=()):
    """The command line in several processes; `more` runs before it, in each of them."""
    script = place / f"run-{abs(hash(tuple(more)))}.py"
    script.write_text("\n".join(["import qkprism.cli", *more, "qkprism.cli.main()"]))
    arguments = ["decompose", place / "boxes.jsonl", "-m", place / "little", "--save", save, "--json", *options]
    return torchrun(count, script, *arguments, cwd=place)


OFTEN = [  # a checkpoint after every chunk of 32 examples
    "from qkprism.runs import store",
    "from qkprism.capture import streaming",
    "streaming.CHUNK['cpu'] = 32",
    "store.EVERY, store.MOST = 0.0, 0",
]
SLOWLY = ["import time", "from qkprism.capture import streaming", "run = streaming._run_chunk"]
SLOWLY += ["streaming._run_chunk = lambda *a: (time.sleep(0.5), run(*a))[1]"]


@pytest.mark.processes
def test_command__first_process_speaks_and_a_dead_one_ends_the_job_which_others_go_on_with(place):
    code, out, err = told(decompose(2, place, place / "whole", more=OFTEN))
    assert code == 0, err
    whole = json.loads(out)  # one document, so one process speaks
    assert read_manifest(place / "whole")["kind"] == "features"
    process = decompose(3, place, place / "part", more=OFTEN + SLOWLY)
    checkpoint = place / ".part.checkpoint" / "manifest.json"
    deadline = time.monotonic() + 120
    while not checkpoint.is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(children(process.pid)[-1], signal.SIGKILL)
    died = time.monotonic()
    code, out, err = told(process)
    assert time.monotonic() - died < 60
    assert code != 0
    assert not out
    assert "of this job has ended" in err
    assert "goes on from its last checkpoint, with any number of processes" in err
    assert 0 < sum(read_manifest(place / ".part.checkpoint")["done"].values()) < 600
    code, out, err = told(decompose(2, place, place / "part", more=OFTEN))
    assert code == 0, err
    assert_near(json.loads(out)["features"], whole["features"])
    assert not checkpoint.exists()


def children(pid):
    """The processes that torchrun started."""
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def assert_near(first, second):
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert other[name] == (pytest.approx(value, rel=1e-4, abs=1e-5) if isinstance(value, float) else value)


@pytest.mark.processes
def test_command__an_example_that_one_process_cannot_run_is_named_once_with_its_source(place):
    breaks = ["import os", "import torch", "from qkprism.capture.batching import Batches", "run = Batches._pass"]
    breaks += ["def fail(self, examples, *a):"]
    breaks += ["    if any(e.source.endswith(':40') for e in examples): raise torch.OutOfMemoryError('no room')"]
    breaks += ["    return run(self, examples, *a)", "Batches._pass = fail"]
    code, out, err = told(decompose(2, place, place / "broken", more=OFTEN + breaks))
    assert code != 0
    assert not out
    lines = [line for line in err.splitlines() if line.startswith("qkprism: ")]
    assert len(lines) == 1, err
    assert "boxes.jsonl:40" in lines[0]
    assert "does not fit in memory" in lines[0]
    assert "process " in lines[0]


# Directions that nothing is in are rounding, and so is what swaps of them move; from the same features edits are the
# same to the bit, as the test of verbs shows.
OF_ROUNDING = ("query_basis", "key_basis", "explained", "query_agreement", "key_agreement", "null_high", "null_mean")
OF_ROUNDING += ("shuffled_high", "shuffled_mean", "own", "t")
EDITED = ("effects", "separation", "outcome", "chosen_by", "validation")


@pytest.fixture(scope="module")
def studies_alone(tmp_path_factory):
    """The folder of shelf, studies, survey and toy of one process."""
    place = tmp_path_factory.mktemp("studies")
    subprocess.run([sys.executable, HERE / "studies_worker.py", place], env=ENVIRONMENT, check=True)
    return place


@pytest.mark.processes
def test_studies__three_processes_find_what_one_finds(studies_alone, tmp_path):
    code, out, err = told(torchrun(3, HERE / "studies_worker.py", tmp_path))
    assert code == 0, err
    assert out.count("Report: ") == 1  # one process speaks
    runs = sorted(path.parent.relative_to(studies_alone) for path in studies_alone.rglob("manifest.json"))
    assert len(runs) > 40
    assert runs == sorted(path.parent.relative_to(tmp_path) for path in tmp_path.rglob("manifest.json"))
    for run in (run for run in runs if not any(word in run.name for word in EDITED)):
        one, several = read_manifest(studies_alone / run), read_manifest(tmp_path / run)
        for name, file in one["files"].items():
            first = load_file(studies_alone / run / file["file"])
            second = load_file(tmp_path / run / several["files"][name]["file"])
            assert first.keys() == second.keys()
            for key, value in first.items():
                if key.replace("/", ".").rpartition(".")[2] in OF_ROUNDING or not value.numel():
                    continue
                size = float(value.double().nan_to_num().abs().max())
                off = (value.double() - second[key].double()).nan_to_num().abs().max()
                assert float(off) <= 1e-5 * (1 + size), f"{run} {key}"


def test_packing__what_comes_back_is_what_was_given_and_nothing_foreign_is_made():
    value = {("a", 1): [torch.arange(3), None, (Head(1, 2), 0.5)], "empty": torch.empty(0, 2)}
    found = values_of(bytes_of(value))
    assert list(found) == list(value)
    assert torch.equal(found["a", 1][0], torch.arange(3))
    assert found["a", 1][1:] == [None, (Head(1, 2), 0.5)]
    assert found["empty"].shape == (0, 2)
    with pytest.raises(TypeError, match="cannot be given to other processes"):
        bytes_of({"a": object()})
    foreign = bytes_of(Head(1, 2)).replace(b"qkprism.heads", b"fractions.xyz")
    with pytest.raises(TypeError, match="no record of qkprism"):
        values_of(foreign)
