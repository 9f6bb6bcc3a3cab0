"""The evidence for the features of a head: ranks, spectra and tests, proofs, and keys and queries of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qkprism.capture.readers import read_together
from qkprism.contrasts import Contrast
from qkprism.core.evidence import LEVEL
from qkprism.explorer.answers import FORMAT, number, numbers
from qkprism.explorer.clouds import cloud_answer
from qkprism.explorer.proofs import Proofs, checks_told, effects_told
from qkprism.heads import Head
from qkprism.models.model import Model
from qkprism.results.features import Features
from qkprism.subspaces.modulation import interactions, why_not_conditional
from qkprism.verbs.project import projections_reader

SHOWN = 20  # directions
Row = Mapping[str, Any]


def evidence_answer(
    head: Head, sets: Mapping[str, Features], proofs: Proofs | None = None, tested: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Every feature of a head with its evidence and proofs, and what it comes to in one sentence.

    tested   what contrasts found in the head (`head_answer`), the best first
    """
    proofs = proofs or Proofs()
    rows = []
    for run, features in sets.items():
        varies = _varies(features, head)
        for name in (name for name in features.contrasts if (name, head) in features):
            row = _feature(run, name, features, head) | {"varies": varies.get(name, ""), "effects": [], "checks": []}
            for where, effects in proofs.parts("effects", run):
                row["effects"] += effects_told(where, effects, name, head)
            for where, validation in proofs.parts("validation", run):
                row["checks"] += checks_told(where, validation, name, head)
            rows.append(row)
    edited = _edited(head, rows, proofs)
    said = head_verdict(head, rows, tested, edited)
    problems = list(dict.fromkeys(proofs.problems))
    told = {"format": FORMAT, "head": str(head), "features": rows, "edited": edited}
    return told | {"sentence": said, "problems": problems}


def _edited(head: Head, rows: Sequence[Mapping[str, Any]], proofs: Proofs) -> list[dict[str, Any]]:
    """Proofs of features that are in no open run: of a run of effects alone."""
    told = {(one["source"], row["name"]) for row in rows for one in (*row["effects"], *row["checks"])}
    found: dict[tuple[str, str], dict[str, Any]] = {}

    def add(kind: str, run: str, name: str, proved: list[dict[str, Any]]) -> None:
        if proved and (run, name) not in told:
            row = found.setdefault((run, name), {"run": run, "name": name, "effects": [], "checks": []})
            row[kind] += proved

    for run, effects in proofs.parts("effects"):
        for name in effects.features:
            add("effects", run, name, effects_told(run, effects, name, head))
    for run, validation in proofs.parts("validation"):
        for name in dict.fromkeys(check.factor for check in validation.checks):
            add("checks", run, name, checks_told(run, validation, name, head))
    return list(found.values())


def _varies(features: Features, head: Head) -> dict[str, str]:
    """Of features that are not as strong at every value of a label, where they are strongest and weakest."""
    if why_not_conditional(features) is not None:
        return {}
    return {one.feature: one.told() for one in interactions(features, heads=[head]).found if one.differs}


def _feature(run: str, name: str, features: Features, head: Head) -> dict[str, Any]:
    feature = features[name, head]
    spectrum, gap = feature.spectrum, feature.logit_gap
    shown = min(SHOWN, max(8, 2 * feature.rank))
    return {
        "run": run,
        "name": name,
        "evidence": feature.evidence,
        "rank": feature.rank,
        "ranks": {"held-out": feature.rank_heldout, "balanced": feature.rank_balanced, "energy": feature.rank_energy},
        "q": number(features.q_values().get((name, head), float("nan")), 6),
        "gap": None if gap is None else {"total": number(gap.total), "error": number(gap.error)},
        "salience": number(feature.salience_energy),
        "n": feature.n,
        "strength": numbers(spectrum.strength[:shown].tolist()),
        "null": numbers(spectrum.null_high[:shown].tolist()),
        "shuffled": numbers(spectrum.shuffled_high[:shown].tolist()),
        "t": numbers(spectrum.t[:shown].tolist()),
        "threshold": feature.choices.threshold,
    }


def seen_answer(
    model: Model, texts: Contrast, features: Features, name: str, head: Head, *, umap: bool = False
) -> dict[str, Any]:
    """Keys and queries of texts that are run now."""
    reader = projections_reader(model, texts, features, heads=head)
    read_together(model, [reader], batch_size=None, progress=False)
    encoded, tokenizer = reader.order, model.tokenizer  # the vectors are in the order in which texts were run
    assert tokenizer is not None
    tokens = [[str(tokenizer.decode([i])) for i in one.text.ids[: one.text.query + 1]] for one in encoded]
    places = [key.position for one in encoded for key in one.text.keys]
    return cloud_answer(reader.result(), features, name, head, texts=tokens, places=places, umap=umap)


# What it comes to: one sentence made of the evidence and nothing else


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
