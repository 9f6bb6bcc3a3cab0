"""What a run found, in words: sentences with the table that they are made from, and what a paper says beside it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Finding(NamedTuple):
    """A sentence made from numbers, and the table of the run that they are in ("" for none)."""

    sentence: str
    table: str = ""


class Claim(NamedTuple):
    """What a paper says, what this run says to it, the verdict on both, and the rule that the verdict follows.

    `table` is the one that the run's numbers are in, "" where they are of several.
    The verdict is "agrees", "in part", "differs", "not clear", "new" where the paper says nothing, or "".
    """

    what: str
    paper: str
    verdict: str
    here: str
    rule: str = ""
    table: str = ""


def findings(sentences: Iterable[str], table: str = "") -> list[Finding]:
    """Sentences that are all made from one table."""
    return [Finding(sentence, table) for sentence in sentences]
