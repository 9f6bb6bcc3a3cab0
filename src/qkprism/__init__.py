"""qkprism: why did this attention head attend to that token?

import qkprism as qk
model    = qk.load("smollm2")
contrast = qk.Contrast.read("examples/boxes.jsonl")
heads    = qk.find_heads(model, contrast)
features = qk.decompose(model, contrast, heads=heads.top(8))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkprism import toy
    from qkprism.atlas.atlas import Atlas
    from qkprism.atlas.explain import explain
    from qkprism.atlas.explanation import Explanation
    from qkprism.atlas.survey import survey
    from qkprism.capture.vector_source import VectorSource
    from qkprism.capture.vectors import Vectors
    from qkprism.contrasts import Contrast, Example
    from qkprism.contrasts.tasks import Task, task
    from qkprism.core.edits import Edit
    from qkprism.core.feature import Feature
    from qkprism.core.moments import Moments
    from qkprism.encoding import Encoding
    from qkprism.errors import QKPrismError
    from qkprism.explorer.report import report
    from qkprism.heads import Head
    from qkprism.models.loading import load
    from qkprism.models.model import Model
    from qkprism.options import Outcome
    from qkprism.results.attribution import Attribution, Attributions
    from qkprism.results.effects import Effects
    from qkprism.results.features import Features
    from qkprism.results.interaction import Interactions
    from qkprism.results.projections import Projections
    from qkprism.results.scores import HeadScores
    from qkprism.results.validation import Validation
    from qkprism.studies.shelf import run_shelf
    from qkprism.studies.shelf_result import Shelf
    from qkprism.subspaces.comparison import Comparison
    from qkprism.subspaces.modulation import interactions
    from qkprism.verbs.attribute import attribute
    from qkprism.verbs.decompose import Recipe, decompose
    from qkprism.verbs.find_heads import find_heads
    from qkprism.verbs.intervene import intervene
    from qkprism.verbs.project import project
    from qkprism.verbs.validate import validate

__all__ = [
    "Atlas",
    "Attribution",
    "Attributions",
    "Comparison",
    "Contrast",
    "Edit",
    "Effects",
    "Encoding",
    "Example",
    "Explanation",
    "Feature",
    "Features",
    "Head",
    "HeadScores",
    "Interactions",
    "Model",
    "Moments",
    "Outcome",
    "Projections",
    "QKPrismError",
    "Recipe",
    "Shelf",
    "Task",
    "Validation",
    "VectorSource",
    "Vectors",
    "attribute",
    "decompose",
    "explain",
    "find_heads",
    "interactions",
    "intervene",
    "load",
    "project",
    "report",
    "run_shelf",
    "survey",
    "task",
    "toy",
    "validate",
]

# Where the names are: torch and transformers are imported with the first of them, so that `qkprism --help` is quick.
_NAMES = {
    "atlas.atlas": ("Atlas",),
    "atlas.explain": ("explain",),
    "atlas.explanation": ("Explanation",),
    "atlas.survey": ("survey",),
    "capture.vector_source": ("VectorSource",),
    "capture.vectors": ("Vectors",),
    "contrasts": ("Contrast", "Example"),
    "contrasts.tasks": ("Task", "task"),
    "core.edits": ("Edit",),
    "core.feature": ("Feature",),
    "core.moments": ("Moments",),
    "encoding": ("Encoding",),
    "errors": ("QKPrismError",),
    "explorer.report": ("report",),
    "heads": ("Head",),
    "models.loading": ("load",),
    "models.model": ("Model",),
    "options": ("Outcome",),
    "results.attribution": ("Attribution", "Attributions"),
    "results.effects": ("Effects",),
    "results.features": ("Features",),
    "results.interaction": ("Interactions",),
    "results.projections": ("Projections",),
    "results.scores": ("HeadScores",),
    "results.validation": ("Validation",),
    "subspaces.comparison": ("Comparison",),
    "subspaces.modulation": ("interactions",),
    "verbs.attribute": ("attribute",),
    "verbs.decompose": ("Recipe", "decompose"),
    "verbs.find_heads": ("find_heads",),
    "verbs.intervene": ("intervene",),
    "verbs.project": ("project",),
    "verbs.validate": ("validate",),
    "studies.shelf": ("run_shelf",),
    "studies.shelf_result": ("Shelf",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_ROOMS = {"toy", *(module.partition(".")[0] for module in _NAMES)}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _ROOMS:
            return import_module(f"qkprism.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'qkprism' has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(f"qkprism.{_HOMES[name]}"), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
