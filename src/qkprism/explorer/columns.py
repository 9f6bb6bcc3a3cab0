"""Scores of heads from the runs that are open: a column each, beside those of the atlas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from qkprism.explorer.opening import OpenRun
from qkprism.heads import Head, is_name
from qkprism.results.effects import GIVEN, Effects
from qkprism.results.features import Features
from qkprism.results.scores import HeadScores
from qkprism.studies.shelf_result import Shelf

Columns = dict[str, list[float]]


def run_columns(runs: Mapping[str, OpenRun], heads: Sequence[Head]) -> Columns:
    """Accuracies of contrasts, and the evidence for features; NaN for heads that a run does not have."""
    found: Columns = {}
    for name, run in runs.items():
        for told, scores in run.scores.items():
            found |= _of_scores(told, scores, heads)
        for part, naming in run.naming.items():
            told = f"{name} / {part}" if part else name
            found |= _of_shelf(naming, heads) if isinstance(naming, Shelf) else _of_features(told, naming, heads)
        for told, effects in run.effects.items():
            found |= _of_effects(told, effects, heads)
    return found


def _filled(values: Mapping[Head, float], heads: Sequence[Head]) -> list[float]:
    return [values.get(head, math.nan) for head in heads]


def _of_shelf(shelf: Shelf, heads: Sequence[Head]) -> Columns:
    return {
        f"accuracy: {row.contrast}": _filled(dict(zip(shelf.heads, accuracies, strict=True)), heads)
        for row, accuracies in zip(shelf.rows, shelf.accuracy.tolist(), strict=True)
    }


def _of_scores(name: str, scores: HeadScores, heads: Sequence[Head]) -> Columns:
    chosen = {"accuracy": "accuracy", "logit gap": "logit_gap"}
    columns = {f"{kind}: {name}": scores.values[measure].tolist() for kind, measure in chosen.items()}
    columns[f"q: {name}"] = scores.q.tolist()
    return {told: _filled(dict(zip(scores.heads, values, strict=True)), heads) for told, values in columns.items()}


def _of_effects(name: str, effects: Effects, heads: Sequence[Head]) -> Columns:
    """What each edit moves, and by how much that is more than the control that is evidence and comes nearest."""
    found: Columns = {}
    rows = [row for row in effects.beats() if row["evidence"] and row["method"] == effects.methods[0]]
    for feature in effects.features:
        moved = {head: effects.gain(head=head, feature=feature)[0] for head in effects.alone}
        nearest: dict[Head, float] = {}
        for row in rows:
            if (row["feature"], row["target"]) == (feature, GIVEN) and is_name(row["head"]):
                head = Head.parse(row["head"])
                nearest[head] = min(row["advantage"], nearest.get(head, math.inf))
        found[f"effect: {feature} ({name})"] = _filled(moved, heads)
        found[f"above controls: {feature} ({name})"] = _filled(nearest, heads)
    return found


def _of_features(name: str, features: Features, heads: Sequence[Head]) -> Columns:
    found: Columns = {}
    q = features.q_values()
    for contrast in features.contrasts:
        of_heads = {head: features[contrast, head] for head in features.heads if (contrast, head) in features}
        measured = {
            "held-out t": {head: float(one.spectrum.t[0]) for head, one in of_heads.items()},
            "logit gap": {head: one.logit_gap.total for head, one in of_heads.items() if one.logit_gap is not None},
            "q": {head: q.get((contrast, head), math.nan) for head in of_heads},
            "rank": {head: float(one.rank) for head, one in of_heads.items()},
        }
        found |= {f"{kind}: {contrast} ({name})": _filled(values, heads) for kind, values in measured.items()}
    return found
