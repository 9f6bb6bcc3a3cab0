"""How far a survey has come, in a folder: killed, it goes on to the identical result.

Kept are the windows (a model may have written them), the sums of what was learned, and those of what was tested, each
with the number of windows they hold. Sums are float64 and are stored as they are, and the plan of batches is fixed, so
what follows is the same to the bit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkprism.atlas.coverage import CoverageSums
from qkprism.atlas.sums import LayerSums
from qkprism.atlas.windows import Windows
from qkprism.errors import QKPrismError
from qkprism.runs import MANIFEST, check_place, json_value, read_run, write_run

KIND = "atlas checkpoint"
EVERY = 20.0  # seconds


@dataclass
class SurveyProgress:
    """What is done of a survey. Without a folder nothing is kept."""

    job: Mapping[str, Any]
    folder: Path | None = None
    windows: Windows | None = None
    learned: dict[int, LayerSums] = field(default_factory=dict)
    tested: dict[int, CoverageSums] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=lambda: {"learned": 0, "tested": 0})
    saved_at: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, job: Mapping[str, Any], folder: Path | None) -> SurveyProgress:
        """What a folder holds of this job, or nothing done yet."""
        job = json_value(job)
        if folder is None or not (check_place(folder, KIND) / MANIFEST).is_file():
            return cls(job, folder)
        manifest, files = read_run(folder, KIND)
        if manifest["job"] != job:
            raise QKPrismError(
                f"{folder} holds the beginning of another survey (other text, size, seed or model). Give the same "
                "options to go on with it, or choose another folder."
            )
        windows = _windows(files["windows"], manifest["origin"]) if "windows" in files else None
        learned = {layer: LayerSums(**one) for layer, one in _by_layer(files["learned"]).items()}
        tested = {layer: CoverageSums(**one) for layer, one in _by_layer(files["tested"]).items()}
        return cls(job, folder, windows, learned, tested, manifest["done"])

    def note(self, *, now: bool = False) -> None:
        """Write what is done, if it is time to."""
        if self.folder is None or (not now and time.monotonic() - self.saved_at < EVERY):
            return
        files: dict[str, dict[str, Tensor]] = {"learned": _tensors(self.learned), "tested": _tensors(self.tested)}
        if self.windows is not None:
            files["windows"] = _stored(self.windows)
        origin = None if self.windows is None else self.windows.origin
        write_run(self.folder, KIND, {"job": self.job, "done": self.done, "origin": origin}, files)
        self.saved_at = time.monotonic()


def _tensors(sums: Mapping[int, LayerSums] | Mapping[int, CoverageSums]) -> dict[str, Tensor]:
    return {f"{layer}/{name}": value for layer, one in sums.items() for name, value in one.state().items()}


def _by_layer(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    found: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        layer, _, what = name.partition("/")
        found.setdefault(int(layer), {})[what] = value.clone()
    return dict(sorted(found.items()))


def _stored(windows: Windows) -> dict[str, Tensor]:
    return {
        "ids": torch.tensor([token for one in windows.ids for token in one]),
        "lengths": torch.tensor([len(one) for one in windows.ids]),
        "document": torch.tensor(windows.document),
    }


def _windows(stored: Mapping[str, Tensor], origin: str) -> Windows:
    pieces = stored["ids"].split(stored["lengths"].tolist())
    return Windows(tuple(tuple(piece.tolist()) for piece in pieces), tuple(stored["document"].tolist()), origin)
