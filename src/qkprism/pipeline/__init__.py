"""The verbs on a model, a file each.

prompts -> Contrast -> capture (one forward pass) -> Moments -> Features -> intervene | validate | attribute
"""

from qkprism.pipeline.attributing import attribute
from qkprism.pipeline.decomposing import Way, decompose, decompose_ways
from qkprism.pipeline.intervening import intervene, intervene_ways
from qkprism.pipeline.projecting import project
from qkprism.pipeline.searching import find_heads
from qkprism.pipeline.validating import validate

__all__ = [
    "Way",
    "attribute",
    "decompose",
    "decompose_ways",
    "find_heads",
    "intervene",
    "intervene_ways",
    "project",
    "validate",
]
