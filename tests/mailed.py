"""What a mailed page holds: the questions with their answers."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any


def kept_in(page: str) -> list[dict[str, Any]]:
    """The questions of a page, each with its words and its answer; nothing else in it is fetched from anywhere."""
    match = re.search(r'<script type="application/gzip" id="data">(.*?)</script>', page)
    assert match
    body = json.loads(gzip.decompress(base64.b64decode(match[1])))
    assert body["format"] == 2
    found: list[dict[str, Any]] = body["kept"]
    return found


def answer_in(page: str, ask: str, **words: Any) -> Any:
    """The answer to one question; the words that are given are those of the question."""
    found = [one for one in kept_in(page) if one["ask"] == ask and words.items() <= one["with"].items()]
    assert len(found) == 1, [one["with"] for one in kept_in(page) if one["ask"] == ask]
    return found[0]["answer"]


def said_in(page: str) -> str:
    """All sentences and notes of Start, as a person reads them."""
    start = answer_in(page, "start")
    lists = [one for found in start["found"] for one in (*found["sentences"], *found["notes"])]
    return " ".join("".join(_said(piece) for piece in pieces) for pieces in [*lists, *start["sentences"]])


def _said(piece: str | dict[str, Any]) -> str:
    return piece if isinstance(piece, str) else piece.get("head") or piece["text"]
