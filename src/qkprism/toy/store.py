"""Trained heads on disk, with the maps of their tasks, and training that can be killed: one run folder (`runs.py`).

The folder holds the finished heads and, while training lasts, the state of every stack, which is written after a
validation check, at most every INTERVAL seconds. Heads that are there are not trained again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkprism.errors import QKPrismError
from qkprism.runs import MANIFEST, check_place, json_value, read_run, write_run
from qkprism.toy.cells import Cell, ToyHead
from qkprism.toy.protocols import Protocol
from qkprism.toy.stack import Stack
from qkprism.toy.task import Maps

KIND = "toy-heads"
INTERVAL = 30.0
_MAPS = ("key_1", "key_2", "payload", "query_1", "query_2")
_WEIGHTS = ("query", "key", "value", "output")
_NUMBERS = ("steps", "loss", "accuracy")


@dataclass
class Store:
    """A folder of heads trained by one protocol. `unfinished` is what a former training left."""

    folder: Path
    protocol: Protocol
    heads: dict[Cell, ToyHead]
    unfinished: tuple[dict[str, Any], dict[str, Tensor]] | None = None
    _written: float = field(default_factory=time.monotonic)

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
        left = (manifest["unfinished"], files["stacks"]) if manifest["unfinished"] else None
        return cls(place, protocol, _read_heads(manifest["heads"], files["heads"]), left)

    def resume(self, stacks: Sequence[Stack]) -> int:
        """Set the stacks to where a former training of the same cells was, and give the steps it had taken."""
        if self.unfinished is None or self.unfinished[0]["job"] != _job(stacks):
            return 0
        state, tensors = self.unfinished
        for number, stack in enumerate(stacks):
            for name in stack.tensors():
                setattr(stack, name, tensors[f"{number}/{name}"])
        return int(state["taken"])

    def note(self, stacks: Sequence[Stack], taken: int) -> None:
        """Write where training is, if it is time."""
        if time.monotonic() - self._written >= INTERVAL:
            tensors = {f"{i}/{name}": t for i, stack in enumerate(stacks) for name, t in stack.tensors().items()}
            self._write({"job": _job(stacks), "taken": taken}, {"stacks": tensors})
            self._written = time.monotonic()

    def add(self, heads: Mapping[Cell, ToyHead]) -> None:
        """Keep trained heads."""
        self.heads |= heads
        self._write(None, {})

    def _write(self, unfinished: Mapping[str, Any] | None, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        rows: list[dict[str, Any]] = []
        tensors: dict[str, Tensor] = {}
        for i, (cell, head) in enumerate(self.heads.items()):
            numbers = {name: getattr(head, name) for name in _NUMBERS}
            rows.append({"cell": asdict(cell), "noise": head.maps.noise, **numbers})
            tensors |= {f"{i}/map/{name}": getattr(head.maps, name) for name in _MAPS}
            tensors |= {f"{i}/{name}": getattr(head, name) for name in _WEIGHTS}
        manifest = {"protocol": asdict(self.protocol), "heads": rows, "unfinished": unfinished}
        write_run(self.folder, KIND, manifest, {"heads": tensors, **files})


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


def _job(stacks: Sequence[Stack]) -> str:
    """What tells one training from another, beside the protocol."""
    cells = json_value([[asdict(cell) for cell in stack.cells] for stack in stacks])
    text = json.dumps([cells, torch.__version__], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
