"""Figures of the toy grid: every head has its place, and classes and numbers are those of the results."""

import dataclasses

import pytest

from qkprism import QKPrismError
from qkprism.figures.toy_grid import CLASSES, accuracy_grid, rank_triangles
from qkprism.figures.toy_heads import interaction_grid
from qkprism.figures.toy_swaps import limit_figure
from qkprism.toy.cells import Cell, paper_grid, untrained
from qkprism.toy.limits import Limit
from qkprism.toy.recovery import Recovery
from qkprism.toy.results import HeadScore
from qkprism.toy.task import ToyTask
from qkprism.toy.truth import interaction


@pytest.fixture(scope="module")
def rows():
    """Ranks that are right, but for one too many and three too few."""
    made = []
    for cell in paper_grid():
        for latent, true in zip(("z1", "z2"), cell.task.ranks, strict=True):
            found = true + 1 if cell.task.ranks == (2, 3) else true - 3 if cell.task.ranks == (12, 12) else true
            made.append(Recovery(cell, latent, true, found, true, true, 1.0, 1.0, 1.0, 0.0))
    return made


def triangles(fig, kind):
    return sum(x is None for trace in fig.data if trace.name == kind for x in trace.x if trace.fill == "toself")


def test_rank_triangles__draws_every_latent_once_in_its_class(rows):
    fig = rank_triangles(rows)
    counts = {kind: triangles(fig, kind) for kind in CLASSES if kind in {t.name for t in fig.data}}
    assert counts["too many"] == 4 + 2  # two panels, and an empty trace in each of the other two
    assert counts["3 or more too few"] == 4 + 2
    assert counts["exact"] == 424 - 8
    assert "Exact for 416 of 424" in fig.layout.title.text
    texts = [text for trace in fig.data if trace.mode == "text" for text in trace.text]
    assert len(texts) == 424


def test_rank_triangles__changes_with_the_rule_and_refuses_an_unknown_seed(rows):
    assert "Exact for 424 of 424" in rank_triangles(rows, rule="heldout").layout.title.text
    with pytest.raises(QKPrismError, match="seed 3"):
        rank_triangles(rows, seed=3)


def test_accuracy_grid__shows_means_over_seeds_and_distance_to_the_ceiling():
    heads = [untrained(cell) for cell in paper_grid(d_heads=(8,), seeds=(0, 1))]
    scores = [HeadScore.of(head) for head in heads]
    scores = [
        HeadScore(**{**score.__dict__, "accuracy": score.ceiling - 0.1 * (1 + score.cell.seed)}) for score in scores
    ]
    fig = accuracy_grid(scores)
    maps = [trace for trace in fig.data if trace.type == "heatmap"]
    assert len(maps) == 2
    assert all(value == pytest.approx(0.15) for trace in maps for line in trace.z for value in line)
    assert maps[0].text[0][0] == "0.85"
    assert "mean of 2 seeds" in fig.layout.title.text


def test_interaction_grid__shows_each_matrix_scaled_and_tells_its_shares():
    heads = [untrained(cell) for cell in paper_grid(d_heads=(8,))[:5]]
    fig = interaction_grid([(head.cell, interaction(head)) for head in heads])
    maps = [trace for trace in fig.data if trace.type == "heatmap"]
    assert len(maps) == 5
    assert all(max(abs(value) for line in trace.z for value in line) == pytest.approx(1) for trace in maps)
    titles = [note.text for note in fig.layout.annotations]
    assert f"{interaction(heads[0]).diagonal:.0%} diagonal" in titles[0]
    assert len(fig.layout.shapes) == 10


def test_accuracy_grid__has_panels_of_their_own_for_presets():
    heads = [untrained(cell) for preset in ("calibrated", "paper") for cell in paper_grid(d_heads=(8,), preset=preset)]
    fig = accuracy_grid([HeadScore.of(dataclasses.replace(head, accuracy=0.1)) for head in heads])
    titles = [note.text for note in fig.layout.annotations]
    assert len([trace for trace in fig.data if trace.type == "heatmap"]) == 4
    assert any("discrete, d_head 8, paper" in title for title in titles)


def test_limit_figure__tells_which_heads_it_has():
    def told(*ranks):
        cells = [Cell(ToyTask("discrete", *pair), 8) for pair in ranks]
        fig = limit_figure([Limit(c, "z1", 0.0, 100, "raw", 0.1) for c in cells])
        return fig.layout.title.text

    assert "1 head with r1 + r2 &lt; d_head" in told((3, 3)) or "1 head with r1 + r2 < d_head" in told((3, 3))
    assert "r1 + r2 ≤ d_head" in told((3, 3), (4, 4))
    assert "some of them superposed" in told((3, 3), (5, 5))
