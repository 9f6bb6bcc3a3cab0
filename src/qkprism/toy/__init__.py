"""The paper's laboratory: heads with known truth, and a study that finds it again.

found = qk.toy.study("runs/toy")
"""

from qkprism.toy.cells import Cell, ToyHead, few_cells, paper_grid
from qkprism.toy.contrasts import Sampling, decompose_heads
from qkprism.toy.portrait import Depth
from qkprism.toy.results import Study
from qkprism.toy.studying import load_study, study
from qkprism.toy.task import ToyTask
from qkprism.toy.training import train

__all__ = [
    "Cell",
    "Depth",
    "Sampling",
    "Study",
    "ToyHead",
    "ToyTask",
    "decompose_heads",
    "few_cells",
    "load_study",
    "paper_grid",
    "study",
    "train",
]
