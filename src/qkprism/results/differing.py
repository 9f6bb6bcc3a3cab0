"""In which numbers two runs of features or of effects differ, a row each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkprism.results.effects import GIVEN, Effects
from qkprism.results.features import Features
from qkprism.runs.folder import read_manifest

if TYPE_CHECKING:
    import pandas as pd

_HELD = {"features": "features", "effects": "entries"}  # what a manifest of a kind has, if there are results in it
_TOLD = {"features": ["rank", "rank_heldout", "q", "logit_gap", "n"], "effects": ["rank", "gain", "gain_error", "n"]}


def results_that_differ(first: Path, second: Path) -> list[dict[str, str]]:
    """What two runs of one kind found otherwise, by head and feature; nothing of other kinds, or where one has none."""
    manifests = [read_manifest(place) for place in (first, second)]
    kinds = {manifest["kind"] for manifest in manifests}
    kind = next(iter(kinds))
    if len(kinds) > 1 or any(_HELD.get(kind) not in manifest for manifest in manifests):
        return []
    left, right = (_numbers(place, kind) for place in (first, second))
    rows: list[dict[str, str]] = []
    for about in dict.fromkeys([*left, *right]):
        if about not in left or about not in right:
            there = ["there" if about in numbers else "-" for numbers in (left, right)]
            rows.append({"what": about, "first": there[0], "second": there[1]})
            continue
        for name in _TOLD[kind]:
            told = [_number(numbers[about][name]) for numbers in (left, right)]
            if told[0] != told[1]:
                rows.append({"what": f"{about}: {name.replace('_', ' ')}", "first": told[0], "second": told[1]})
    return rows


def _numbers(place: Path, kind: str) -> dict[str, Any]:
    """The numbers of a run by head and feature, and by method of editing."""
    frame: pd.DataFrame = (Features if kind == "features" else Effects).load(place).to_frame()
    if kind == "features":
        return {f"{row['head']} {row['feature']}": row for row in frame.to_dict("records")}
    edits = frame[(frame["control"] == "feature") & (frame["target"] == GIVEN)]
    return {f"{row['head']} {row['feature']}, {row['method']}": row for row in edits.to_dict("records")}


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"
