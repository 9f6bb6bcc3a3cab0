"""Which features there are to edit, by run: those of feature runs, and those of every contrast of a shelf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.results.features import Features
from qkprism.studies.shelf_result import Shelf
from qkprism.subspaces.modulation import why_not_conditional


@dataclass
class FeatureSets:
    """Sets of features by name; those of a shelf are read when they are first wanted."""

    runs: Mapping[str, Features | Shelf]
    _read: dict[str, Features] = field(default_factory=dict)

    def of_head(self, head: Head) -> list[dict[str, Any]]:
        """The sets that have features in a head, each with the evidence for them there."""
        return [
            {
                "run": name,
                "features": _evidence(self.features(name), head),
                "heads": list(map(str, heads)),
                "lacking": why_not_exchanged(self.features(name)),
            }
            for name, heads in self._heads().items()
            if head in heads
        ]

    def features(self, name: str) -> Features:
        """One set."""
        if name not in self._read:
            self._read[name] = self._open(name)
        return self._read[name]

    def _open(self, name: str) -> Features:
        if name not in self._heads():
            there = ", ".join(self._heads()) or "none"
            raise QKPrismError(f"There are no features {name!r}. There are: {there}.")
        run = self.runs.get(name)
        if isinstance(run, Features):
            return run
        folder, _, contrast = name.rpartition(SEPARATOR)
        shelf = self.runs[folder]
        assert isinstance(shelf, Shelf)
        return shelf.features(contrast)

    def _heads(self) -> dict[str, Sequence[Head]]:
        """The heads of every set, without reading it."""
        found: dict[str, Sequence[Head]] = {}
        for name, run in self.runs.items():
            if isinstance(run, Features):
                found[name] = run.heads
            elif run.folder is not None and Path(run.folder).is_dir():
                for row in run.rows:
                    found[f"{name}{SEPARATOR}{row.contrast}"] = row.heads
        return found


SEPARATOR = " / "


def why_not_exchanged(features: Features) -> str | None:
    """Why features have no conditional exchange with a control beside it, in a sentence; None if they have."""
    dealt = (moments.dealt_weight.sum() for layer in features.layers.values() for moments in layer.moments.values())
    reason = why_not_conditional(features)
    if reason is None and not any(float(weight) for weight in dealt):
        reason = "twins without a negative key give the conditional edit no control."
    return reason


def _evidence(features: Features, head: Head) -> list[dict[str, Any]]:
    return [
        {"name": name, "rank": features[name, head].rank, "p": round(features[name, head].p, 4)}
        for name in features.contrasts
        if (name, head) in features
    ]
