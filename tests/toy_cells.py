"""The toy heads that tests share, trained once: two seeds with room, a superposed one, one on the
boundary, and a few of other ranks."""

from qkprism.toy import Cell, ToyTask

JUDGED = [Cell(ToyTask(variant, 3, 3), 8, seed) for variant in ("discrete", "continuous") for seed in (0, 1)]
JUDGED += [Cell(ToyTask("discrete", 5, 5), 8), Cell(ToyTask("discrete", 4, 4), 8)]
OTHERS = [Cell(ToyTask("discrete", 2, 3), 8), Cell(ToyTask("discrete", 3, 4), 8), Cell(ToyTask("continuous", 3, 2), 8)]
