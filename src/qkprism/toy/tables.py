"""Tables of the study as run folders: rows of one kind, columns on disk. They are parts of the study (`store.py`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from qkprism.runs import of_another_version, read_run, write_run
from qkprism.toy.cells import Cell

KIND = "toy-table"
VERSION = 3  # of what the columns mean: tables of another one are made anew
Kinds = Mapping[str, type[Any]]  # of the rows of a table by its name


@dataclass(frozen=True)
class Tables:
    """Tables by name, and what they were made for."""

    job: Mapping[str, Any]
    kinds: Kinds
    rows: Mapping[str, Any]

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a run folder."""
        columns = {name: _columns(rows, self.kinds[name]) for name, rows in self.rows.items()}
        cells = list(dict.fromkeys(row.cell for rows in self.rows.values() for row in rows))
        numbers = {cell: i for i, cell in enumerate(cells)}
        for table in columns.values():
            table["cell"] = [numbers[cell] for cell in table["cell"]]
        return write_run(folder, KIND, {"job": self.job, "cells": list(map(asdict, cells)), "tables": columns}, {})

    @classmethod
    def load(cls, kinds: Kinds, folder: str | os.PathLike[str]) -> Tables:
        """Read what `save` wrote."""
        manifest, _ = read_run(folder, KIND)
        if manifest["job"].get("version") != VERSION or not _has(manifest, kinds):
            raise of_another_version(folder, f"tables of {manifest['job'].get('version')!r}, and {VERSION} is read")
        return cls(manifest["job"], kinds, _restored(manifest, kinds))


def _has(manifest: Mapping[str, Any], kinds: Kinds) -> bool:
    """Has it these tables, with all their columns?"""
    tables = manifest.get("tables", {})
    return set(tables) == set(kinds) and all(
        set(tables[name]) == {column.name for column in fields(kind)} for name, kind in kinds.items()
    )


def _columns(rows: Iterable[Any], kind: type[Any]) -> dict[str, list[Any]]:
    every = tuple(rows)
    return {column.name: [getattr(row, column.name) for row in every] for column in fields(kind)}


def _restored(manifest: Mapping[str, Any], kinds: Kinds) -> dict[str, tuple[Any, ...]]:
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
