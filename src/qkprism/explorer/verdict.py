"""What a head does, in one sentence that is made of the evidence for it and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qkprism.core.evidence import LEVEL
from qkprism.heads import Head

Row = Mapping[str, Any]


def head_verdict(head: Head, features: Sequence[Row], tested: Sequence[Row], edited: Sequence[Row] = ()) -> str:
    """How often it is right, by which feature, how that varies, what an edit moves, beside which controls, the truth.

    features   rows of `evidence_answer`
    tested     what contrasts found in the head, the best first
    edited     proofs of features that are not in `features`
    """
    if not features and not tested:
        clear = [f"{_moves(row['name'], effect)}." for row in edited if (effect := _clearest(row)) is not None]
        return f"{head}: {clear[0]}" if clear else ""
    best = max(features, key=_weight, default=None)
    said = f"{head} {_finds(tested[0])}" if tested else str(head)
    if best is None:
        return f"{said}; no feature was decomposed in it."
    others = sorted((one for one in features if one is not best and _is_sure(one)), key=_weight, reverse=True)
    names = dict.fromkeys(f"{one['name']} (rank {one['rank']}{_sure(one)})" for one in (best, *others))
    said += f"{' by' if tested else ' finds keys by'} {' and by '.join(names)}"
    if (effect := _clearest(best)) is not None:
        said += f": {_moves(best['name'], effect)}"
    if (check := _truest(best)) is not None:
        said += f"; where {best['name']} is exchanged in the text itself, its part is off by "
        said += f"{check['relative_part_error']:.0%}"
    if varies := [one["varies"] for one in features if one["varies"]]:
        said += f"; {' and '.join(dict.fromkeys(varies))}"
    return f"{said}."


def _weight(feature: Row) -> tuple[float, float]:
    """Features that move most come first, then those with the largest held-out t."""
    effect = _clearest(feature)
    gain = -1.0 if effect is None else abs(_of(effect, "feature")["gain"] or 0.0)
    return gain, feature["t"][0] or 0.0


def _finds(row: Row) -> str:
    q = row["q"]
    sure = "" if q is None else f", q {'< 0.001' if q < 0.001 else f'{q:.3f}'}"
    return (
        f"attends to the right key of {row['contrast']} in {row['accuracy']:.0%} of {row['texts']} "
        f"(chance {row['chance']:.0%}{sure})"
    )


def _is_sure(feature: Row) -> bool:
    return feature["rank"] > 0 and feature["q"] is not None and feature["q"] < LEVEL


def _sure(feature: Row) -> str:
    t, q = feature["t"][0], feature["q"]
    if t is None or q is None:
        return ""
    return f", held-out t {t:.1f}" + ("" if q < LEVEL else ", which is not significant")


def _clearest(feature: Row) -> Row | None:
    """The edit towards the key that the example marks, by the feature's own method."""
    usual = [one for one in feature.get("effects", ()) if one["target"] == "given"]
    return max(usual, key=lambda one: abs(_of(one, "feature")["gain"] or 0.0), default=None)


def _of(effect: Row, control: str) -> Row:
    return next((row for row in effect["rows"] if row["control"] == control), {"gain": None, "error": None})


def _moves(name: str, effect: Row) -> str:
    moved, whole = _of(effect, "feature"), _of(effect, "full")
    rivals = [row for row in effect["rows"] if row["rival"] and row["evidence"]]
    said = f"an edit of {name} alone ({effect['did']}) moves {effect['compared']} by {moved['gain']:+.2f}"
    said += "" if moved["error"] is None else f" ± {moved['error']:.2f}"
    if whole["gain"] and whole["error"] is not None and whole["gain"] > 2 * whole["error"]:
        said += f", {moved['gain'] / whole['gain']:.0%} of what the whole key moves"
    for words, won in (("more than", True), ("not clearly more than", False)):
        names = [row["title"] for row in rivals if row["beaten"] is won]
        said += f", {words} {' and '.join(names)}" if names else ""
    return said


def _truest(feature: Row) -> Row | None:
    """The check of the joint projectors, where exchanging the factor matters."""
    checked = [one for one in feature.get("checks", ()) if one["matters"] and one["relative_part_error"] is not None]
    return next((one for one in checked if one["method"] == "contrast"), checked[0] if checked else None)
