"""Trained heads on disk, with the maps of their tasks: a run folder, in which finished heads are not trained again."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from qkprism.errors import QKPrismError
from qkprism.runs import MANIFEST, check_place, json_value, read_run, write_run
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
