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
    from qkprism import tasks, toy
    from qkprism.contrasts import Contrast, Example
    from qkprism.contrasts.tasks import Task, task
    from qkprism.core.attribution import Attribution, Attributions
    from qkprism.core.edits import Edit
    from qkprism.core.effects import Effects
    from qkprism.core.feature_set import Features
    from qkprism.core.features import Feature
    from qkprism.core.moments import Moments
    from qkprism.core.projection import Projections
    from qkprism.core.scores import HeadScores
    from qkprism.core.validation import Validation
    from qkprism.core.vectors import Vectors, decompose_vector_sets, decompose_vectors
    from qkprism.errors import QKPrismError
    from qkprism.heads import Head
    from qkprism.models.loading import load
    from qkprism.models.model import Model
    from qkprism.pipeline import (
        Way,
        attribute,
        decompose,
        decompose_ways,
        find_heads,
        intervene,
        intervene_ways,
        project,
        validate,
    )

__all__ = [
    "Attribution",
    "Attributions",
    "Contrast",
    "Edit",
    "Effects",
    "Example",
    "Feature",
    "Features",
    "Head",
    "HeadScores",
    "Model",
    "Moments",
    "Projections",
    "QKPrismError",
    "Task",
    "Validation",
    "Vectors",
    "Way",
    "attribute",
    "decompose",
    "decompose_vector_sets",
    "decompose_vectors",
    "decompose_ways",
    "find_heads",
    "intervene",
    "intervene_ways",
    "load",
    "project",
    "task",
    "tasks",
    "toy",
    "validate",
]

# Where the names are: torch and transformers are imported with the first of them, so that `qkprism --help` is quick.
_NAMES = {
    "contrasts": ("Contrast", "Example"),
    "contrasts.tasks": ("Task", "task"),
    "core.attribution": ("Attribution", "Attributions"),
    "core.edits": ("Edit",),
    "core.effects": ("Effects",),
    "core.feature_set": ("Features",),
    "core.features": ("Feature",),
    "core.moments": ("Moments",),
    "core.projection": ("Projections",),
    "core.scores": ("HeadScores",),
    "core.validation": ("Validation",),
    "core.vectors": ("Vectors", "decompose_vector_sets", "decompose_vectors"),
    "errors": ("QKPrismError",),
    "heads": ("Head",),
    "models.loading": ("load",),
    "models.model": ("Model",),
    "pipeline": (
        "Way",
        "attribute",
        "decompose",
        "decompose_ways",
        "find_heads",
        "intervene",
        "intervene_ways",
        "project",
        "validate",
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_ROOMS = {"tasks", "toy", *(module.partition(".")[0] for module in _NAMES)}


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
