"""What a finished study adds to its parts in the page: sentences, claims, tables, and figures of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from qkprism.contrasts import Text
from qkprism.errors import QKPrismError
from qkprism.figures.filter import filter_drawings
from qkprism.figures.toy import toy_drawings
from qkprism.findings import findings
from qkprism.runs.store import STUDY, read_study
from qkprism.studies import binding_claims, binding_figures, filter_claims
from qkprism.studies.binding_study import BindingStudy, folder_of
from qkprism.studies.filter import FilterStudy
from qkprism.studies.shelf_result import Shelf
from qkprism.subspaces.modulation import interactions, why_not_conditional
from qkprism.toy import claims as toy_claims
from qkprism.toy.results import Study
from qkprism.toy.studying import load_study


def told_of_study(folder: Path) -> dict[str, Any]:
    """Fields of the open run; none for a study that is not finished, whose parts are shown all the same."""
    kind = str(read_study(folder)["study"]) if (folder / STUDY).is_file() else "toy"
    if kind not in STUDIES:
        return {}
    load, tell = STUDIES[kind]
    try:
        found = load(folder)
    except QKPrismError as error:
        told = f"This study is not finished, or another version wrote it: what can be read is shown. ({error})"
        return {"findings": lambda: findings([told])}
    return tell(found)


def _binding(study: BindingStudy) -> dict[str, Any]:
    tables: dict[str, Callable[[], Any]] = dict(binding_figures.tables(study))
    if why_not_conditional(study.features) is None:
        tables["interactions"] = lambda: interactions(study.features).to_frame()
    if study.entities.rows:
        tables["entities"] = study.entities.to_frame
    tables |= {
        "heads": study.scores.to_frame,
        "features": study.features.to_frame,
        "effects": study.effects.to_frame,
        "effects, the paper": study.effects_paper.to_frame,
        "outcome": study.outcome.to_frame,
        "validation": study.validation.to_frame,
        "attributions": study.attributions.to_frame,
    }
    return {
        "tables": tables,
        "captions": binding_figures.CAPTIONS,
        "findings": partial(binding_claims.told, study),
        "notes": study.notes,
        "claims": partial(binding_claims.comparison, study),
        "figures": _without(binding_figures.drawings(study), binding_figures.SEEN),
        "effects": {"ours": study.effects, "the paper": study.effects_paper},
        "naming": {folder_of("ours"): study.features, folder_of("paper"): study.paper},
        "prompts": (Text(study.about.example),),
        "named": folder_of("ours"),
    }


def _filter(study: FilterStudy) -> dict[str, Any]:
    scopes = study.scopes
    return {
        "tables": {
            "summary": study.summary,
            "heads": study.scores.to_frame,
            **{f"effects, {name}": scope.effects.to_frame for name, scope in scopes.items()},
            **{f"separation, {name}": scope.separation.to_frame for name, scope in scopes.items()},
        },
        "captions": {"summary": filter_claims.SUMMARY},
        "findings": partial(filter_claims.told, study),
        "notes": study.notes,
        "claims": partial(filter_claims.comparison, study),
        "figures": _without(filter_drawings(study), ("heads", "spectrum")),
        "effects": {f"{name} categories": scope.effects for name, scope in scopes.items()},
        "prompts": (Text(study.about.example),),
    }


def _shelf(shelf: Shelf) -> dict[str, Any]:
    return {
        "tables": {"shelf": shelf.to_frame},
        "captions": {"shelf": " ".join(LEGEND)},
        "findings": lambda: findings(shelf.in_words(), "shelf"),
        "figures": {"the contrast that each head does best": shelf.plot},
        "naming": {"": shelf},
        "scores": {},
        "provenance": shelf.provenance,
    }


def _toy(study: Study) -> dict[str, Any]:
    return {
        "tables": {name: getattr(study, name) for name in ("summary", "accuracy", "ranks", "swaps", "parts")},
        "findings": partial(toy_claims.told, study),
        "claims": partial(toy_claims.claims, study),
        "figures": toy_drawings(study),
        "picture": "ranks",
    }


def _without(drawings: Mapping[str, Any], seen: tuple[str, ...]) -> dict[str, Any]:
    """The figures but those that the views of the page show."""
    return {name: draw for name, draw in drawings.items() if not name.startswith(seen)}


LEGEND = (
    "Head and feature of a row were chosen on texts of the contrast's own words; every figure is of held-out words.",
    "accuracy: how often the head attends more to a positive key than to any negative one. q: Benjamini and "
    "Hochberg's, over all heads; q_feature by the held-out test of its first direction.",
    "effect: how much attention moves to the target when the two keys exchange the feature; control: the one of "
    "permuted labels, key draws and key PCA, of the same rank, that moves most. permuted: how much more that is than "
    "with permuted labels; its error has the spread over their draws in it.",
    "part_off: the feature's part of the logit gap against half of what the gap loses when the variable is really "
    "exchanged in the text.",
)
# how a study is read, and what is told of it
STUDIES: Mapping[str, tuple[Callable[[Path], Any], Callable[[Any], dict[str, Any]]]] = {
    "binding": (BindingStudy.load, _binding),
    "filter": (FilterStudy.load, _filter),
    "shelf": (Shelf.load, _shelf),
    "toy": (load_study, _toy),
}
