"""The page of an explanation: the explorer's view of it, with the data inside; it needs no server and no network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qkprism.explorer.answers import FORMAT, PALETTE, dumps, explanation_answer, row_answer
from qkprism.explorer.assets import one_page

if TYPE_CHECKING:
    from qkprism.atlas.explanation import Explanation
    from qkprism.heads import Head

HEADS, KEYS = 12, 20  # that the page holds


def explanation_page(explanation: Explanation) -> str:
    """One self-contained page: tokens, heads and stacks as in the explorer, for the heads of the edges."""
    heads = list(dict.fromkeys(edge.head for edge in explanation.edges))[:HEADS]
    answer = explanation_answer(explanation)
    answer["edges"] = [edge for edge in answer["edges"] if edge["head"] in set(map(str, heads))]
    data = {
        "format": FORMAT,
        "start": _start(explanation),
        "explanation": answer,
        "rows": [row_answer(explanation, head, _keys(explanation, head)) for head in heads],
    }
    return one_page(f"why from {explanation.tokens[explanation.query]!r}", dumps(data))


def _start(explanation: Explanation) -> dict[str, Any]:
    atlas = explanation.provenance.get("atlas", {}).get("text", {})
    return {
        "stage": "ready",
        "failure": None,
        "palette": PALETTE,
        "model": str(explanation.provenance.get("model", "")),
        "atlas": f"{atlas.get('tokens')} tokens of {atlas.get('origin')}",
    }


def _keys(explanation: Explanation, head: Head) -> list[int]:
    """The keys that a sentence is told of: those of the edges, and the most attended."""
    told = [edge.key for edge in explanation.edges if edge.head == head]
    return [*told, *explanation.most_attended(head, KEYS)]
