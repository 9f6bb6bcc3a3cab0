"""All figures of a toy study by name, from its results alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go

from qkprism.figures.toy_grid import accuracy_grid, rank_menu
from qkprism.figures.toy_heads import cloud_figure, interaction_grid
from qkprism.figures.toy_limits import limit_figure, rank_size_figure
from qkprism.figures.toy_panels import kind_of
from qkprism.figures.toy_swaps import gauge_figure, matched_figure, part_figure, swap_bars, truth_figure

if TYPE_CHECKING:
    from qkprism.toy.cells import Cell
    from qkprism.toy.results import Study

SHOWN = 8  # heads drawn one by one


def toy_figures(study: Study) -> dict[str, go.Figure]:
    """Every figure of a study; those of what was not measured are left out."""
    seed = min(cell.seed for cell in study.heads)
    cells = _selected([cell for cell in study.heads if cell.seed == seed])
    found = {
        "accuracy": accuracy_grid(study.scores()),
        "ranks": rank_menu(study.recovered, seed=seed),
        "untrained": rank_menu(study.controls, seed=seed, heads="untrained heads"),
        "sizes": rank_size_figure(study.ranks_at),
        "clouds": cloud_figure(study.clouds),
    }
    if swaps := study.trained.swaps:
        found |= {
            "swaps": swap_bars(swaps, cells),
            "matched": matched_figure(swaps),
            "truth": truth_figure(swaps),
        }
    if study.trained.parts:
        found["parts"] = part_figure(study.trained.parts)
    if not all(cell.superposed for cell in study.heads):
        found["gauge"] = gauge_figure(study.trained, study.rebased)
    interactions = interaction_grid([(cell, study.interaction(cell)) for cell in cells])
    return found | {"interactions": interactions, "limits": limit_figure(study.limits)}


def _selected(cells: list[Cell]) -> list[Cell]:
    """Two heads of every kind: the fullest one with room, and the most superposed."""
    found: list[Cell] = []
    for kind in sorted({kind_of(cell) for cell in cells}):
        of_kind = [cell for cell in cells if kind_of(cell) == kind]
        of_kind.sort(key=lambda cell: (sum(cell.task.ranks), -abs(cell.task.r1 - cell.task.r2)))
        roomy = [cell for cell in of_kind if sum(cell.task.ranks) < cell.d_head]
        found += dict.fromkeys([*roomy[-1:], of_kind[-1]])
    return found[:SHOWN]
