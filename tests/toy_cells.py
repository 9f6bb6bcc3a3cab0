"""The toy heads that tests share, trained once: two seeds with room, a superposed one, one on the
boundary, and a few of other ranks."""

from qkprism.toy import Cell, Task

JUDGED = [Cell(Task(variant, 3, 3), 8, seed) for variant in ("discrete", "continuous") for seed in (0, 1)]
JUDGED += [Cell(Task("discrete", 5, 5), 8), Cell(Task("discrete", 4, 4), 8)]
OTHERS = [Cell(Task("discrete", 2, 3), 8), Cell(Task("discrete", 3, 4), 8), Cell(Task("continuous", 3, 2), 8)]
