"""Training a bank: cells stop on their own, heads are kept, and what was cut short goes on to the same end."""

import dataclasses
import json

import pytest
import torch

from qkprism import QKPrismError
from qkprism.runs import store
from qkprism.runs.folder import read_run, write_run
from qkprism.toy import studying
from qkprism.toy.cells import Cell, few_cells, paper_grid, untrained
from qkprism.toy.contrasts import Sampling
from qkprism.toy.portrait import Depth
from qkprism.toy.stack import Protocol, Stack
from qkprism.toy.store import load_heads
from qkprism.toy.studying import load_study, study
from qkprism.toy.task import ToyTask
from qkprism.toy.training import train

CELLS = [Cell(ToyTask(v, r1, r2), 8) for v in ("discrete", "continuous") for r1, r2 in ((2, 2), (2, 3))]
SHORT = Protocol(
    "short", rate=1e-2, steps=60, warmup=5, decays=True, batch=32, check_every=20, check_batches=2, test_batches=2
)

SMALL = Depth(swaps=128, draws=1, most=256)


def same(ours, theirs):
    return all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in ("query", "key", "value", "output"))


class Killed(Exception):
    """What ends a training in these tests."""


def test_train__resumes_to_the_identical_result(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "EVERY", 0.0)
    whole = train(CELLS, SHORT)

    def kill(step, _):
        if step == 40:
            raise Killed

    with pytest.raises(Killed):
        train(CELLS, SHORT, folder=tmp_path / "heads", progress=kill)
    steps = []
    resumed = train(CELLS, SHORT, folder=tmp_path / "heads", progress=lambda step, _: steps.append(step))
    assert steps == [40, 60]
    for cell in CELLS:
        assert same(whole[cell], resumed[cell])
        assert whole[cell].accuracy == resumed[cell].accuracy


def test_train__keeps_heads_and_trains_only_what_is_missing(tmp_path):
    first = train(CELLS[:2], SHORT, folder=tmp_path)
    steps = []
    both = train(CELLS, SHORT, folder=tmp_path, progress=lambda step, left: steps.append((step, left)))
    assert {left for _, left in steps} == {2}
    assert all(same(first[cell], both[cell]) for cell in CELLS[:2])
    steps.clear()
    again = train(CELLS[::-1], SHORT, folder=tmp_path, progress=lambda *step: steps.append(step))
    assert not steps
    assert list(again) == CELLS[::-1]
    stored = load_heads(tmp_path)
    for cell in CELLS:
        assert same(stored[cell], both[cell])
        assert torch.equal(stored[cell].maps.payload, untrained(cell).maps.payload)
        assert stored[cell].steps == both[cell].steps
    assert not [path for path in tmp_path.iterdir() if path.suffix in (".pt", ".pkl")]


def test_train__refuses_a_folder_of_another_protocol(tmp_path):
    train(CELLS[:1], SHORT, folder=tmp_path)
    with pytest.raises(QKPrismError, match="trained otherwise"):
        train(CELLS[:1], dataclasses.replace(SHORT, rate=1e-3), folder=tmp_path)


def test_train__refuses_cells_that_cannot_share_draws():
    for cells, message in (
        ([], "no cell"),
        ([CELLS[0], CELLS[0]], "twice"),
        ([CELLS[0], Cell(ToyTask("discrete", 2, 2, tokens=8), 8)], "share"),
    ):
        with pytest.raises(QKPrismError, match=message):
            train(cells, SHORT)


def test_stack__cells_that_do_not_improve_leave_with_their_best_weights():
    stack = Stack.of(CELLS[:2])
    protocol = dataclasses.replace(SHORT, patience=1)
    best = stack.parameter.clone()
    stack.note(torch.tensor([1.0, 1.0]), protocol, 20)
    stack.parameter += 1
    stack.note(torch.tensor([2.0, 0.5]), protocol, 40)
    assert stack.active.tolist() == [0, 1]
    stack.parameter += 1
    stack.note(torch.tensor([2.0, 0.4]), protocol, 60)
    assert stack.active.tolist() == [1]
    assert len(stack.parameter) == len(stack.first) == len(stack.active_embedding().key) == 1
    assert torch.equal(stack.best[0], best[0])
    assert torch.equal(stack.best[1], best[1] + 1 + 1)
    assert stack.steps.tolist() == [60, 60]
    stack.note(torch.tensor([0.3]), protocol, 80)
    assert stack.steps.tolist() == [60, 80]
    assert torch.equal(stack.best_loss, torch.tensor([1.0, 0.3]))


def test_study__keeps_its_parts_and_gives_the_same_again(tmp_path, monkeypatch):
    steps, asked = [], {"cells": CELLS, "protocol": SHORT, "sampling": Sampling(n=128), "depth": SMALL}
    first = study(tmp_path, **asked)
    for work in ("portray", "limits", "clouds"):
        monkeypatch.setattr(f"qkprism.toy.studying.{work}", None)
    for again in (study(tmp_path, **asked, progress=lambda *_: steps.append(1)), load_study(tmp_path)):
        assert not steps
        assert again.recovered == first.recovered
        assert again.controls == first.controls
        assert again.trained.swaps == first.trained.swaps
        assert again.clouds == first.clouds
        assert again.limits == first.limits
        assert list(again.heads) == CELLS
    assert len(first.ranks()) == 4 * len(CELLS)
    _check_mixed_parts(tmp_path)
    table = first.accuracy()
    assert (table.ceiling - table.below).tolist() == pytest.approx(table.accuracy.tolist())
    assert {row.cell for row in first.misses()} <= set(CELLS)


def test_study__pictures_the_papers_heads_with_its_grid_of_any_seeds():
    for seeds, preset in (((0,), "calibrated"), ((0, 1), "calibrated"), ((1, 2), "paper")):
        cells = studying._pictured(paper_grid(seeds=seeds, preset=preset))
        assert [(c.task.ranks, c.d_head, c.seed, c.task.preset) for c in cells] == [((3, 5), 16, seeds[0], preset)] * 2
    assert {cell.task.ranks for cell in studying._pictured(few_cells())} <= {cell.task.ranks for cell in few_cells()}


def test_study__probes_heads_of_the_first_seed_there_is():
    heads = [untrained(cell) for seed in (3, 2) for cell in few_cells(seed)]
    probed = [head.cell for head in studying._probed(heads)]
    assert {cell.seed for cell in probed} == {2}
    assert {cell.task.ranks for cell in probed} == {(2, 3), (3, 3), (3, 4)}


def test_depth__is_that_of_the_paper_unless_told_otherwise():
    assert Depth().swaps == Depth(draws=5).swaps == 51_200
    with pytest.raises(QKPrismError, match="start at 0"):
        Depth(draws=-1)


def _check_mixed_parts(place):
    """Parts of different jobs, and tables without a column, are refused in one line."""

    def refused(part, change):
        manifest, _ = read_run(place / part, "toy-table")
        write_run(place / part, "toy-table", change(json.loads(json.dumps(manifest))), {})
        with pytest.raises(QKPrismError) as told:
            load_study(place)
        write_run(place / part, "toy-table", manifest, {})
        return str(told.value)

    def job(**changed):
        return lambda manifest: {**manifest, "job": {**manifest["job"], **changed}}

    def narrower(manifest):
        del manifest["tables"]["recovered"]["aligned"]
        return manifest

    assert "drawn otherwise" in refused("rebased", job(sampling={"n": 7}))
    assert "drawn otherwise" in refused("clouds", job(sampling={"n": 7}))
    assert "other heads" in refused("untrained", job(heads=[]))
    assert "other heads" in refused("trained", lambda m: job(heads=[[c, s + 1, x] for c, s, x in m["job"]["heads"]])(m))
    assert "another version" in refused("trained", narrower)
    assert "another version" in refused("limits", job(version=1))
