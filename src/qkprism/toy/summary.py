"""A study in a few rows: means over all heads of a variant and d_head, with room for both latents or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from qkprism.toy.cells import Cell
from qkprism.toy.portrait import Portrait
from qkprism.toy.scores import HeadScore
from qkprism.toy.task import DEFAULT

if TYPE_CHECKING:
    from qkprism.toy.results import Study

ROOM = ("below", "equal", "above")  # r1 + r2, compared with d_head
HeadKind = tuple[str, str, int, int]


def summarise(study: Study) -> list[dict[str, Any]]:
    """A row for every kind of head: accuracy, exact ranks and errors of the swap of z1, before and after `rebased`."""
    scores, several = study.scores(), any(cell.task.setting for cell in study.heads)
    return [
        {
            **({"preset": kind[0] or DEFAULT} if several else {}),
            "variant": kind[1],
            "d_head": kind[2],
            "room": ROOM[kind[3]],
            **_accuracy([score for score in scores if _kind(score.cell) == kind]),
            "ranks": _exact(study.trained, kind, "balanced"),
            "ranks_rebased": _exact(study.rebased, kind, "balanced"),
            "paper_ranks": _exact(study.trained, kind, "energy"),
            "paper_ranks_rebased": _exact(study.rebased, kind, "energy"),
            "swap_error": _off(study.trained, kind, "contrast"),
            "swap_error_rebased": _off(study.rebased, kind, "contrast"),
            "paper_swap_error": _off(study.trained, kind, "raw"),
            "paper_swap_error_rebased": _off(study.rebased, kind, "raw"),
        }
        for kind in sorted({_kind(cell) for cell in study.heads})
    ]


def _kind(cell: Cell) -> HeadKind:
    over = sum(cell.task.ranks) - cell.d_head
    return cell.task.setting, cell.task.variant, cell.d_head, (over >= 0) + (over > 0)


def _accuracy(scores: Sequence[HeadScore]) -> dict[str, float]:
    means = {name: average(getattr(score, name) for score in scores) for name in ("accuracy", "ceiling")}
    return {"heads": len(scores), **means}


def _exact(portrait: Portrait, kind: HeadKind, rule: str) -> str:
    hits = [getattr(row, rule) == row.true for row in portrait.recovered if _kind(row.cell) == kind]
    return f"{sum(hits)}/{len(hits)}"


def _off(portrait: Portrait, kind: HeadKind, method: str) -> float:
    wanted = ("given", "feature", method, "z1")
    return average(
        row.off_truth
        for row in portrait.swaps
        if _kind(row.cell) == kind and (row.target, row.control, row.method, row.feature) == wanted
    )


def average(values: Iterable[float]) -> float:
    """The mean of what is known; nan if nothing is."""
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else float("nan")
