"""Tables of the study as run folders: rows of one kind, columns on disk, made once.

A table knows the job it was made for; asked for another, it is made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from qkprism.errors import QKPrismError
from qkprism.runs import MANIFEST, check_place, json_value, read_run, write_run
from qkprism.toy.cells import Cell

KIND = "toy-table"
VERSION = 2  # of what the columns mean: tables of another one are made anew
Tables = Mapping[str, Sequence[Any]]


def kept(
    folder: Path, job: Mapping[str, Any], kinds: Mapping[str, type[Any]], make: Callable[[], Tables]
) -> dict[str, tuple[Any, ...]]:
    """The tables of a folder if they are of this job, else those that `make` gives, which are kept there."""
    check_place(folder, KIND)
    wanted = json_value({"version": VERSION, **job})
    if (folder / MANIFEST).exists():
        manifest, _ = read_run(folder, KIND)
        if manifest["job"] == wanted and _has(manifest, kinds):
            return _restored(manifest, kinds)
    tables = {name: tuple(rows) for name, rows in make().items()}
    columns = {name: _columns(rows, kinds[name]) for name, rows in tables.items()}
    cells = list(dict.fromkeys(row.cell for rows in tables.values() for row in rows))
    numbers = {cell: i for i, cell in enumerate(cells)}
    for table in columns.values():
        table["cell"] = [numbers[cell] for cell in table["cell"]]
    write_run(folder, KIND, {"job": wanted, "cells": [asdict(cell) for cell in cells], "tables": columns}, {})
    return tables


def load_tables(folder: Path, kinds: Mapping[str, type[Any]]) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """The job that the tables of a folder were made for, and the tables."""
    manifest, _ = read_run(folder, KIND)
    if manifest["job"].get("version") != VERSION or not _has(manifest, kinds):
        raise QKPrismError(f"{folder} was written by another version. Run the study again.")
    return manifest["job"], _restored(manifest, kinds)


def _has(manifest: Mapping[str, Any], kinds: Mapping[str, type[Any]]) -> bool:
    """Has it these tables, with all their columns?"""
    tables = manifest.get("tables", {})
    return set(tables) == set(kinds) and all(
        set(tables[name]) == {column.name for column in fields(kind)} for name, kind in kinds.items()
    )


def _columns(rows: Iterable[Any], kind: type[Any]) -> dict[str, list[Any]]:
    every = tuple(rows)
    return {column.name: [getattr(row, column.name) for row in every] for column in fields(kind)}


def _restored(manifest: Mapping[str, Any], kinds: Mapping[str, type[Any]]) -> dict[str, tuple[Any, ...]]:
    cells = [Cell.from_json(state) for state in manifest["cells"]]
    found = {}
    for name, kind in kinds.items():
        columns = manifest["tables"][name]
        columns["cell"] = [cells[number] for number in columns["cell"]]
        names = [column.name for column in fields(kind)]
        found[name] = tuple(kind(*map(_value, row)) for row in zip(*(columns[n] for n in names), strict=True))
    return found


def _value(value: Any) -> Any:
    """JSON has no NaN."""
    return float("nan") if value is None else value
