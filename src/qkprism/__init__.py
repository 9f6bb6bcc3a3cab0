"""qkprism: why did this attention head attend to that token?

import qkprism as qk
model    = qk.load("smollm2")
contrast = qk.Contrast.read("examples/boxes.jsonl")
heads    = qk.find_heads(model, contrast)
features = qk.decompose(model, contrast, heads=heads.top(8))
"""

from qkprism import tasks, toy
from qkprism.contrasts import Contrast, Example
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
    "tasks",
    "toy",
    "validate",
]
