"""What the page is told, as JSON: the heads that attend from a token, one row of one head, the heads of a model.

`FORMAT` is the version of all of it. Nothing here is larger than tokens x parts, or heads x scores.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qkprism.figures.explanation import COLORS, part_color
from qkprism.figures.theme import MISSING, ROLES, SEQUENTIAL

if TYPE_CHECKING:
    from qkprism.atlas.atlas import Atlas
    from qkprism.atlas.explanation import Edge, Explanation
    from qkprism.heads import Head
    from qkprism.results.scores import HeadScores
    from qkprism.studies.shelf_result import Shelf

FORMAT = 2
PALETTE = {"scale": list(SEQUENTIAL), "missing": MISSING, "query": ROLES["query"], "attention": ROLES["strength"]}
MEANINGS = {
    "first token": "what the first token gets for being the first, where heads rest",
    "position": "what the average query gives the average key at this distance",
    "salience": "what the average query gives this key: what the key is, whatever the query",
    "asked position": "what this query gives the average key at this distance: the place it asks for",
    "unnamed match": "what this query and this key do together that no named feature tells",
    "soft cap": "what the model's soft cap takes away",
    "position bias": "what the model adds for the distance",
}
SCORES = {
    "entropy": "How spread out the attention is on plain text, in nats.",
    "attention": "The mean share of attention that goes to such tokens, on plain text.",
    "variation": "Total variation between true rows of held-out text and rows rebuilt from the parts named alone: 0 is "
    "exact, 1 shares nothing.",
    "variation without first": "The same for rows without their first token, where many heads rest.",
    "suffice": "The share of held-out rows that the parts named rebuild to within 0.1 of total variation.",
    "decides": "The share of held-out rows in which this part gives the most attended token most of its lead.",
    "held-out t": "The t of the leading direction of this feature, on examples that did not choose it; null data is "
    "beyond 4.5 in fewer than one of a hundred heads.",
    "logit gap": "By how many logits the head prefers positive keys of this contrast.",
    "q": "The share of false discoveries if heads up to this one are taken as found.",
    "rank": "How many directions of the head this feature takes.",
    "effect": "How much more attention (or logit) an exchange of this feature moves to the target than no edit.",
    "above controls": "By how much that is more than the nearest control which is evidence, such as permuted labels.",
    "accuracy": "How often the head attends more to a positive key of this contrast than to any negative one.",
}


def dumps(value: Any) -> bytes:
    """JSON in ASCII, so that no character of a prompt can break it; a number that is none is null."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")


def number(value: float, digits: int = 4) -> float | None:
    """A number for the page: rounded, and None if it is not finite."""
    return round(float(value), digits) if math.isfinite(value) else None


def numbers(values: Iterable[float]) -> list[float | None]:
    """Numbers for the page."""
    return [number(value) for value in values]


def start_of(stage: str = "ready", failure: str | None = None) -> dict[str, Any]:
    """How far opening is: what every page is told first."""
    return {"format": FORMAT, "stage": stage, "failure": failure, "palette": PALETTE}


def step_answer(step: tuple[str, int, int] | None) -> dict[str, Any] | None:
    """How far work is."""
    return None if step is None else dict(zip(("unit", "done", "total"), step, strict=True))


def explanation_answer(explanation: Explanation) -> dict[str, Any]:
    """The tokens of a text, and the heads that attend from the query, best first."""
    return {
        "format": FORMAT,
        "tokens": list(explanation.tokens),
        "query": explanation.query,
        "edges": [edge_answer(edge) for edge in explanation.edges],
    }


def edge_answer(edge: Edge) -> dict[str, Any]:
    """One head attending to one key."""
    return {
        "head": str(edge.head),
        "key": edge.key,
        "attention": number(edge.attention),
        "decides": edge.decides,
        "sentence": edge.sentence,
    }


def row_answer(explanation: Explanation, head: Head, keys: Iterable[int]) -> dict[str, Any]:
    """One row of one head, token by token: attention, logit and its parts; and a sentence for each of these keys."""
    row = explanation.row(head)
    named = [name for name in row.terms if name not in COLORS]
    return {
        "format": FORMAT,
        "head": str(head),
        "query": explanation.query,
        "attention": numbers(row.attention.tolist()),
        "logits": numbers(row.logits.tolist()),
        "parts": [
            {
                "name": name,
                "color": part_color(name, named),
                "meaning": MEANINGS.get(name, "a named feature of the match of query and key"),
                "values": numbers(values.tolist()),
            }
            for name, values in row.terms.items()
        ],
        "variation": {name: number(value) for name, value in row.variation.items()},
        "sink": number(row.sink),
        "edges": [
            # with the features that its sentence does not name, since permuted labels do as well there
            edge_answer(edge) | {"unnamed": [name for name in row.null if name not in edge.shares]}
            for edge in (explanation.edge(head, key) for key in dict.fromkeys(keys))
        ],
    }


def heads_answer(heads: Sequence[Head], atlas: Atlas | None, columns: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Every score of every head, a column each; those of runs come first."""
    of_atlas: dict[str, Sequence[float]] = {}
    if atlas is not None:
        frame = atlas.to_frame()
        of_atlas = {str(name): list(frame[name]) for name in frame if name != "head"}
    return {
        "format": FORMAT,
        "heads": [[head.layer, head.index] for head in heads],
        "columns": [
            {"name": name, "caption": SCORES.get(name.partition(":")[0], ""), "values": numbers(values)}
            for name, values in {**columns, **of_atlas}.items()
        ],
    }


def head_answer(
    atlas: Atlas | None, head: Head, shelves: Sequence[Shelf], scores: Mapping[str, HeadScores]
) -> dict[str, Any]:
    """One head: the rows of held-out text where it attends most, and what contrasts found in it."""
    tested = [one for shelf in shelves if head in shelf.heads for one in _tested(shelf, head)]
    tested += [_scored(name, one, head) for name, one in scores.items() if head in one.heads]
    tested.sort(key=lambda one: -(one["accuracy"] or 0))
    rows = () if atlas is None else atlas.strongest.get(head, ())
    strongest = [vars(row) | {"attention": number(row.attention)} for row in rows]
    return {"format": FORMAT, "head": str(head), "strongest": strongest, "tested": tested}


def _tested(shelf: Shelf, head: Head) -> list[dict[str, Any]]:
    """What every contrast of a shelf found in a head."""
    place = shelf.heads.index(head)
    found = zip(shelf.rows, shelf.accuracy[:, place], shelf.q[:, place], strict=True)
    return [
        {"contrast": row.contrast, "question": row.question, "best": row.head == head, "texts": "held-out texts"}
        | {"accuracy": number(float(accuracy)), "q": number(float(q), 6), "chance": number(row.chance)}
        for row, accuracy, q in found
    ]


def _scored(name: str, scores: HeadScores, head: Head) -> dict[str, Any]:
    """What a run found in a head as it looked for heads: the texts are those that chose the best."""
    place = scores.heads.index(head)
    accuracy, q = float(scores.values["accuracy"][place]), float(scores.q[place])
    best, texts = head == scores.heads[0], "the texts that chose the heads"
    told = {"contrast": name, "question": "", "best": best, "texts": texts}
    return told | {"accuracy": number(accuracy), "q": number(q, 6), "chance": number(scores.chance)}
