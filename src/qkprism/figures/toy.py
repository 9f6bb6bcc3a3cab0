"""All figures of a toy study by name, from its results alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from qkprism.figures.toy_grid import accuracy_grid, rank_triangles
from qkprism.figures.toy_heads import cloud_figure, interaction_grid
from qkprism.figures.toy_panels import kind_of
from qkprism.figures.toy_swaps import gauge_figure, limit_figure, matched_figure, part_figure, swap_bars, truth_figure

if TYPE_CHECKING:
    from qkprism.toy.cells import Cell
    from qkprism.toy.results import Study

SHOWN = 8  # heads drawn one by one


def toy_drawings(study: Study) -> dict[str, Callable[[], go.Figure]]:
    """Every figure of a study, to be drawn; those of what was not measured are left out."""
    seed = min(cell.seed for cell in study.heads)
    cells = _selected([cell for cell in study.heads if cell.seed == seed])
    found: dict[str, Callable[[], go.Figure]] = {
        "accuracy": lambda: accuracy_grid(study.scores()),
        "ranks": partial(rank_triangles, study.recovered, seed=seed),
        "ranks-balanced": partial(rank_triangles, study.recovered, seed=seed, rule="balanced"),
        "ranks-heldout": partial(rank_triangles, study.recovered, seed=seed, rule="heldout"),
        "untrained": partial(rank_triangles, study.controls, seed=seed, heads="untrained heads"),
        "clouds": partial(cloud_figure, study.clouds),
    }
    if swaps := study.trained.swaps:
        found["swaps"] = partial(swap_bars, swaps, cells)
        found["matched"] = partial(matched_figure, swaps)
        found["truth"] = partial(truth_figure, swaps)
    if study.trained.parts:
        found["parts"] = partial(part_figure, study.trained.parts)
    if not all(cell.superposed for cell in study.heads):
        found["gauge"] = partial(gauge_figure, study.trained, study.rebased)
    found["interactions"] = lambda: interaction_grid([(cell, study.interaction(cell)) for cell in cells])
    return found | {"limits": partial(limit_figure, study.limits)}


def _selected(cells: list[Cell]) -> list[Cell]:
    """Two heads of every kind: the fullest one with room, and the most superposed."""
    found: list[Cell] = []
    for kind in sorted({kind_of(cell) for cell in cells}):
        of_kind = [cell for cell in cells if kind_of(cell) == kind]
        of_kind.sort(key=lambda cell: (sum(cell.task.ranks), -abs(cell.task.r1 - cell.task.r2)))
        roomy = [cell for cell in of_kind if sum(cell.task.ranks) < cell.d_head]
        found += dict.fromkeys([*roomy[-1:], of_kind[-1]])
    return found[:SHOWN]
