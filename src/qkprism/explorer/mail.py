"""A page that holds its answers: the explorer, with questions and what was answered inside. It asks nobody.

One form for everything that is shown without a server: the file that is mailed, the frame in a notebook, and what a run
keeps beside its results because it took the model to find out. A question is answered by the first answer that was kept
for it: each field that was kept is what the question says, or the question does not say it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qkprism.errors import QKPrismError
from qkprism.explorer.answers import FORMAT, dumps, edge_answer, explanation_answer, row_answer, start_of
from qkprism.explorer.assets import one_page
from qkprism.ranks import of_first
from qkprism.runs.catalogue import KEPT
from qkprism.runs.files import file_digest, write_bytes

if TYPE_CHECKING:
    from qkprism.atlas.explanation import Explanation
    from qkprism.heads import Head

HEADS, KEYS = 12, 20  # of an explanation


class KeptAnswer(NamedTuple):
    """A question, by what it asks and with which words, and its answer."""

    ask: str
    words: Mapping[str, Any]
    answer: Any

    def to_json(self) -> dict[str, Any]:
        return {"ask": self.ask, "with": dict(self.words), "answer": self.answer}


def mailed_page(title: str, kept: Sequence[KeptAnswer]) -> str:
    """The page with these answers inside; with plotly too, if one of them is a figure."""
    data = {"format": FORMAT, "kept": [one.to_json() for one in kept]}
    return one_page(title, dumps(data), figures=any(one.ask == "figure" for one in kept))


def explanation_kept(explanations: Sequence[Explanation], text: str = "") -> list[KeptAnswer]:
    """What "Why this token" asks of explanations of one query: the heads of their edges, and the rows of these.

    Where two have a head, the last one tells of it.
    """
    rows = {head: one for one in explanations for head in _heads(one)}
    edges = [edge for one in explanations for edge in one.edges if rows.get(edge.head) is one]
    first = explanations[0]
    told = explanation_answer(first) | {"edges": [*map(edge_answer, sorted(edges, key=lambda edge: -edge.attention))]}
    words = {"text": text, "query": first.query}
    kept = [KeptAnswer("explain", words, told)]
    for head, one in rows.items():
        kept.append(KeptAnswer("row", words | {"head": str(head)}, row_answer(one, head, _keys(one, head))))
    return kept


def _heads(explanation: Explanation) -> list[Head]:
    return list(dict.fromkeys(edge.head for edge in explanation.edges))[:HEADS]


def explanation_page(explanation: Explanation) -> str:
    """An explanation as a page of its own: the view "Why this token", for the heads of the edges."""
    atlas = explanation.provenance.get("atlas", {}).get("text", {})
    start = start_of() | {
        "model": str(explanation.provenance.get("model", "")),
        "atlas": f"{atlas.get('tokens')} tokens of {atlas.get('origin')}",
    }
    title = f"why from {explanation.tokens[explanation.query]!r}"
    return mailed_page(title, [KeptAnswer("start", {}, start), *explanation_kept([explanation])])


def _keys(explanation: Explanation, head: Head) -> list[int]:
    """The keys that a sentence is told of: those of the edges, and the most attended."""
    told = [edge.key for edge in explanation.edges if edge.head == head]
    return [*told, *explanation.most_attended(head, KEYS)]


def write_kept(folder: Path, kept: Iterable[KeptAnswer], beside: Iterable[str] = ()) -> None:
    """Keep answers beside a run, and the digests of what else was written for the page."""
    digests = of_first(lambda: {name: file_digest(folder / name) for name in beside if name != KEPT})
    body = {"format": FORMAT, "beside": digests, "kept": [one.to_json() for one in kept]}
    write_bytes(folder / KEPT, dumps(body) + b"\n")


def kept_note(folder: Path) -> list[str]:
    """What to do where answers were kept by another version, whose views are not shown."""
    place = folder / KEPT
    if not place.is_file() or json.loads(place.read_bytes()).get("format") == FORMAT:
        return []
    told = "What was kept of prompts is of another version of qkprism, and is not shown."
    return [f"{told} `qkprism report {folder} --model MODEL` asks the model again."]


def read_kept(folder: Path) -> tuple[KeptAnswer, ...]:
    """The answers that were kept beside a run, if there are any."""
    place = folder / KEPT
    if not place.is_file():
        return ()
    try:
        body = json.loads(place.read_bytes())
        if body["format"] != FORMAT:
            return ()
        return tuple(KeptAnswer(str(one["ask"]), dict(one["with"]), one["answer"]) for one in body["kept"])
    except (ValueError, KeyError, TypeError) as error:
        raise QKPrismError(
            f"{place} is damaged: it is not what was written. Delete it, or make the run again."
        ) from error
