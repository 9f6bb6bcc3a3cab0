"""A finished study as it is in its folder: nothing is computed, and parts of different studies are not mixed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qkprism.errors import QKPrismError
from qkprism.runs import json_value
from qkprism.toy.attributions import PartError
from qkprism.toy.cells import Cell, ToyHead
from qkprism.toy.clouds import Point
from qkprism.toy.interventions import Swap
from qkprism.toy.limits import Limit, RankAt
from qkprism.toy.portrait import Portrait
from qkprism.toy.recovery import Recovery
from qkprism.toy.results import Study
from qkprism.toy.store import load_heads
from qkprism.toy.tables import load_tables

PORTRAIT: Mapping[str, type[Any]] = {"recovered": Recovery, "swaps": Swap, "parts": PartError}
LIMITS: Mapping[str, type[Any]] = {"limits": Limit, "ranks_at": RankAt}
CLOUDS: Mapping[str, type[Any]] = {"clouds": Point}
PORTRAITS = ("trained", "untrained", "rebased")
PARTS = {**dict.fromkeys(PORTRAITS, PORTRAIT), "limits": LIMITS, "clouds": CLOUDS}


def load_study(folder: str | os.PathLike[str]) -> Study:
    """A finished study, as it is in its folder; nothing is computed."""
    place = Path(folder)
    loaded = {name: load_tables(place / name, kinds) for name, kinds in PARTS.items()}
    stored = load_heads(place / "heads")
    cells = dict.fromkeys(Cell.from_json(state) for state, *_ in loaded["trained"][0]["heads"])
    _check(place, {name: job for name, (job, _) in loaded.items()}, cells, stored)
    tables = {name: found for name, (_, found) in loaded.items()}
    of_trained, of_untrained, of_rebased = (Portrait(**tables[name]) for name in PORTRAITS)
    heads = {cell: stored[cell] for cell in cells}
    return Study(heads, of_trained, of_untrained, of_rebased, **tables["limits"], **tables["clouds"])


def _check(
    place: Path, jobs: Mapping[str, Mapping[str, Any]], cells: Mapping[Cell, None], stored: Mapping[Cell, ToyHead]
) -> None:
    """Refuse parts that were made of other heads, or drawn otherwise, than the first."""
    trained = {str(json_value(asdict(cell))): json_value([head.steps, head.loss]) for cell, head in stored.items()}
    for name, job in jobs.items():
        own = {str(state): told for state, *told in job["heads"]}
        of_all = name not in PORTRAITS or list(own) == [str(state) for state, *_ in jobs["trained"]["heads"]]
        same = name == "untrained" or all(trained.get(cell) == told for cell, told in own.items())
        if not of_all or not same or any(cell not in stored for cell in cells):
            raise QKPrismError(f"{place / name} is of other heads than {place / 'heads'}. Run the study again.")
        if job["sampling"] != jobs["trained"]["sampling"]:
            raise QKPrismError(f"{place / name} was drawn otherwise than {place / 'trained'}. Run the study again.")
