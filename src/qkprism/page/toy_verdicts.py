"""Statements of the paper beside what a run found: verdicts are computed from numbers, by rules that are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["yes", "partly", "no", "new"]
NOT_IN_THE_PAPER = "(Not in the paper.) "


@dataclass(frozen=True)
class ToyClaim:
    """A statement of the paper, what this run says to it, and the rule that the verdict follows."""

    paper: str
    run: str
    verdict: Verdict
    rule: str


def judged(paper: str, run: str, rule: str, *, agrees: bool, partly: bool) -> ToyClaim:
    """A statement of the paper with its verdict; what is not known (nan) is neither."""
    return ToyClaim(paper, run, "yes" if agrees else "partly" if partly else "no", rule)


def new(statement: str, run: str) -> ToyClaim:
    """Something that the paper does not speak of."""
    return ToyClaim(NOT_IN_THE_PAPER + statement, run, "new", "")


def below(row: Any) -> bool:
    """Has the head more dimensions than its latents?"""
    return bool(sum(row.cell.task.ranks) < row.cell.d_head)
