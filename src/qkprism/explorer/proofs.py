"""What proves a feature in the runs that are open: edits beside all controls, and texts in which it was exchanged."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from qkprism.controls import BY_NAME
from qkprism.errors import QKPrismError
from qkprism.explorer.answers import number
from qkprism.explorer.opening import parts_of
from qkprism.heads import Head
from qkprism.results.effects import Effects, Entry
from qkprism.results.projections import Projections
from qkprism.results.validation import TruthCheck, Validation
from qkprism.runs.folder import MANIFEST

Proof = Effects | Validation | Projections
LOADERS: Mapping[str, Callable[[Path], Proof]] = {
    "effects": Effects.load,
    "validation": Validation.load,
    "projections": Projections.load,
}
MEASURED = {"shift": "attention between the two keys"}
SEARCH = "-test-chosen_by"  # of the shelf: the texts that chose the head are no proof


@dataclass(frozen=True)
class Proofs:
    """Folders of proofs by name, with the run and the part of it that they belong to.

    results    effects that are in no folder, by name
    problems   what could not be read, in sentences: of another version, or damaged; the rest is told all the same
    """

    folders: Mapping[str, Path] = field(default_factory=dict)
    results: Mapping[str, Effects] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def parts(self, kind: str, features: str | None = None) -> Iterator[tuple[str, Any]]:
        """The proofs of a kind for a set of features, those of its study and runs of proofs alone; else all."""
        if kind == "effects":
            yield from self.results.items()
        for run, folder in self.folders.items():
            for part, found in parts_of(folder):
                place = "" if part == "." else part
                if place.endswith(SEARCH) or found != kind:
                    continue
                if features is None or _belongs(run, place, features):
                    try:
                        proof = _read(folder / place, kind)
                    except QKPrismError as error:
                        self.problems.append(str(error))
                        continue
                    yield f"{run} / {place}" if place else run, proof


def _belongs(run: str, place: str, features: str) -> bool:
    """Whether a proof is of these features: a run of its own may be; a study's part is of that study's contrast."""
    if not place:
        return True
    study, _, part = features.rpartition(" / ")
    return run == study and ("-test-" not in place or place.startswith(f"{part}-test-"))


def _read(folder: Path, kind: str) -> Proof:
    return _read_once(folder, kind, (folder / MANIFEST).stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _read_once(folder: Path, kind: str, written: int) -> Proof:  # noqa: ARG001  (what is written anew is read anew)
    return LOADERS[kind](folder)


def effects_told(source: str, effects: Effects, feature: str, head: Head) -> list[dict[str, Any]]:
    """What the edits of a feature do in a head, beside every control; a row a target and method."""
    if head not in effects.heads:
        return []
    beaten = [row for row in effects.beats() if row["head"] == str(head) and row["feature"] == feature]
    told = []
    for entry in effects.entries:
        if entry.control != "feature" or entry.feature != feature:
            continue
        key = (entry.target, entry.feature, entry.method)
        rivals = {row["control"]: row for row in beaten if (row["target"], row["feature"], row["method"]) == key}
        told.append(
            {
                "source": source,
                "did": effects.title,
                "compared": MEASURED.get(effects.compared, effects.compared.replace("_", " ")),
                "target": entry.target,
                "method": entry.method,
                "rank": effects.rank(head=head, feature=feature, method=entry.method, target=entry.target),
                "n": int(effects.n[effects.entries.index(entry)]),
                "rows": [_row(effects, other, head, rivals) for other in effects.entries if _beside(other, entry)],
            }
        )
    return told


def _beside(other: Entry, entry: Entry) -> bool:
    """Whether one entry is the feature's, one of its controls, or an end that all share."""
    return other.target == entry.target and (
        BY_NAME[other.control].shared or (other.feature, other.method) == (entry.feature, entry.method)
    )


def _row(effects: Effects, entry: Entry, head: Head, rivals: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    at, column, control = effects.entries.index(entry), effects.heads.index(head), BY_NAME[entry.control]
    rival = rivals.get(entry.control, {})
    return {
        "control": entry.control,
        "title": control.title,
        "meaning": control.meaning,
        "evidence": control.is_evidence,
        "rival": control.is_rival,
        "gain": number(float(effects.gains[at, column])),
        "error": number(float(effects.gain_errors[at, column])),
        "spread": number(float(effects.spread[at, column])),
        "draws": int(effects.draws[at]),
        "advantage": number(rival.get("advantage", math.nan)),
        "advantage_error": number(rival.get("error", math.nan)),
        "beaten": rival.get("beaten"),
    }


def checks_told(source: str, validation: Validation, feature: str, head: Head) -> list[dict[str, Any]]:
    """How near edits and attributions of a feature come to texts in which it was really exchanged."""
    return [
        {
            "source": source,
            "features": check.features,
            "method": check.method,
            "n": check.n,
            "matters": check.matters,
            **{name: number(getattr(check, name)) for name in _TOLD},
            "sentence": _sentence(check),
        }
        for check in validation.checks
        if check.factor == feature and check.head == head
    ]


_TOLD = (
    "true_part", "true_part_error", "part", "part_error", "part_error_error", "relative_part_error",
    "logit", "logit_error", "tv_pair", "tv", "floor",
)  # fmt: skip


def _sentence(check: TruthCheck) -> str:
    if not check.matters:
        return f"Exchanging {check.factor} in the text hardly changes this head, so this tests nothing."
    said = f"Exchanging {check.factor} in the text takes {2 * check.true_part:+.2f} logits from its lead: a part of "
    said += (
        f"{check.true_part:.2f}. By {check.method} the part is {check.part:.2f}, off by {check.relative_part_error:.0%}"
    )
    if math.isfinite(check.logit):
        said += f"; the edit leaves {check.logit:.2f} of the error of the two logits (1 is no edit, 0 is perfect)"
    return f"{said}."


def projections_of(proofs: Proofs, features: str, head: Head) -> Projections:
    """The vectors that were kept with a study."""
    for _, found in proofs.parts("projections", features):
        if head in found.heads:
            return found
    raise QKPrismError(f"No keys and queries of {head} were kept with {features}. Choose a contrast of the shelf.")
