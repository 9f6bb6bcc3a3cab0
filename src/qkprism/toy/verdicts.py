"""Statements of the paper beside what a run found: verdicts are computed from numbers, by rules that are told."""

from __future__ import annotations

from typing import Any

from qkprism.findings import Claim

NOT_IN_THE_PAPER = "(Not in the paper.) "


def judged(paper: str, run: str, rule: str, *, agrees: bool, partly: bool, table: str = "") -> Claim:
    """A statement of the paper with its verdict; what is not known (nan) is neither."""
    return Claim(paper, "", "agrees" if agrees else "in part" if partly else "differs", run, rule, table)


def new(statement: str, run: str) -> Claim:
    """Something that the paper does not speak of."""
    return Claim(NOT_IN_THE_PAPER + statement, "", "new", run)


def below(row: Any) -> bool:
    """Has the head more dimensions than its latents?"""
    return bool(sum(row.cell.task.ranks) < row.cell.d_head)
