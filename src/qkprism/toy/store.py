"""Run folders of the study: trained heads with the maps of their tasks, and tables of rows of one kind by columns.

Finished heads are not trained again; tables are parts of the study (`store.py` of the package).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from qkprism.errors import QKPrismError
from qkprism.runs.folder import MANIFEST, check_place, json_value, of_another_version, read_run, write_run
from qkprism.toy.cells import Cell, ToyHead
from qkprism.toy.stack import Protocol
from qkprism.toy.task import Maps

KIND = "toy-heads"
_MAPS = ("key_1", "key_2", "payload", "query_1", "query_2")
_WEIGHTS = ("query", "key", "value", "output")
_NUMBERS = ("steps", "loss", "accuracy")


@dataclass
class Store:
    """A folder of heads trained by one protocol."""

    folder: Path
    protocol: Protocol
    heads: dict[Cell, ToyHead]

    @classmethod
    def open(cls, folder: str | os.PathLike[str], protocol: Protocol) -> Store:
        """The folder with what is in it, or to be filled."""
        place = check_place(folder, KIND)
        if not (place / MANIFEST).exists():
            return cls(place, protocol, {})
        manifest, files = read_run(place, KIND)
        if manifest["protocol"] != json_value(asdict(protocol)):
            raise QKPrismError(
                f"{place} holds heads that were trained otherwise ({manifest['protocol']['name']}). "
                "Choose another folder, or the same protocol."
            )
        return cls(place, protocol, _read_heads(manifest["heads"], files["heads"]))

    def add(self, heads: Mapping[Cell, ToyHead]) -> None:
        """Keep trained heads."""
        self.heads |= heads
        rows: list[dict[str, Any]] = []
        tensors: dict[str, Tensor] = {}
        for i, (cell, head) in enumerate(self.heads.items()):
            numbers = {name: getattr(head, name) for name in _NUMBERS}
            rows.append({"cell": asdict(cell), "noise": head.maps.noise, **numbers})
            tensors |= {f"{i}/map/{name}": getattr(head.maps, name) for name in _MAPS}
            tensors |= {f"{i}/{name}": getattr(head, name) for name in _WEIGHTS}
        write_run(self.folder, KIND, {"protocol": asdict(self.protocol), "heads": rows}, {"heads": tensors})


def load_heads(folder: str | os.PathLike[str]) -> dict[Cell, ToyHead]:
    """The finished heads of a folder."""
    manifest, files = read_run(folder, KIND)
    return _read_heads(manifest["heads"], files["heads"])


def _read_heads(rows: Sequence[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> dict[Cell, ToyHead]:
    found = {}
    for i, row in enumerate(rows):
        cell = Cell.from_json(row["cell"])
        maps = Maps(**{name: tensors[f"{i}/map/{name}"] for name in _MAPS}, noise=row["noise"])
        weights = {name: tensors[f"{i}/{name}"] for name in _WEIGHTS}
        head = ToyHead(cell, maps, weights["query"], weights["key"], weights["value"], weights["output"])
        found[cell] = replace(head, **{name: row[name] for name in _NUMBERS})
    return found


TABLES = "toy-table"
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
        return write_run(folder, TABLES, {"job": self.job, "cells": list(map(asdict, cells)), "tables": columns}, {})

    @classmethod
    def load(cls, kinds: Kinds, folder: str | os.PathLike[str]) -> Tables:
        """Read what `save` wrote."""
        manifest, _ = read_run(folder, TABLES)
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
