"""The evidence for the features of a head: ranks, spectra and tests, proofs, and keys and queries of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qkprism.capture.readers import read_together
from qkprism.contrasts import Contrast
from qkprism.explorer.answers import FORMAT, number, numbers
from qkprism.explorer.clouds import cloud_answer
from qkprism.explorer.proofs import Proofs, checks_told, effects_told
from qkprism.explorer.verdict import head_verdict
from qkprism.heads import Head
from qkprism.models.model import Model
from qkprism.results.features import Features
from qkprism.subspaces.modulation import interactions, why_not_conditional
from qkprism.verbs.project import projections_reader

SHOWN = 20  # directions


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
