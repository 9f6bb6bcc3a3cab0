"""What the page is told of the model and of the runs that are open: sentences, choices, tables, figures."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qkprism.atlas.words import atlas_in_words
from qkprism.explorer.answers import FORMAT, number
from qkprism.findings import Finding
from qkprism.models.places import alias_of

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from qkprism.atlas.atlas import Atlas
    from qkprism.explorer.opening import OpenRun

ROWS = 5000  # of a table that the page is sent
WORD = 400  # letters of a choice
COPIES = "attention: after the same token"
HEAD = re.compile(r"\bL\d+H\d+\b")
SIZE = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]\d+)?%?"
# +0.3 ± 0.1, 4 of 9; not what is within a name
NUMBER = re.compile(rf"(?<![\w.:-])[-+]?{SIZE}(?: (?:±|of|to) [-+]?{SIZE})?(?![\w-])")

Piece = str | dict[str, Any]  # words, heads that can be opened, and what leads elsewhere: {"text", "go"}


def start_answer(model: str, loads_as: str, atlas: Atlas | None, runs: Mapping[str, OpenRun]) -> dict[str, Any]:
    """The model in a sentence or two, and for each run what was found, in which table, and what a paper says of it."""
    return {
        "model": model,
        "loads_as": loads_as or alias_of(model),
        "atlas": None if atlas is None else _text_of(atlas),
        "sentences": _of_model(model, atlas),
        "hint": [] if runs or atlas is None else _best_copier(atlas),
        "found": [_found(name, run) for name, run in runs.items()],
    }


def _of_model(model: str, atlas: Atlas | None) -> list[list[Piece]]:
    if atlas is None:
        told = f"The model is {model}. No atlas of it is here, so nothing is said of its heads on plain text."
        return [[told]] if model else []  # the toy is of none
    words = [_sentence("", one) for one in atlas_in_words(atlas)]
    return [_model(model, atlas), _decides(atlas), *words]


def _text_of(atlas: Atlas) -> str:
    text = atlas.provenance.get("text", {})
    return f"{text.get('tokens')} tokens of {text.get('origin')}"


def _model(model: str, atlas: Atlas) -> list[Piece]:
    layers, heads = len(atlas.layers), len(atlas.heads)
    return [
        f"{model} has ",
        {"text": f"{layers} layers with {heads} attention heads", "go": {"view": "heads"}},
        ". Its atlas says what each of them does on ",
        {"text": _text_of(atlas), "go": _table("", "atlas")},
        ".",
    ]


def _decides(atlas: Atlas) -> list[Piece]:
    """Which part decides most rows, over heads."""
    frame = atlas.to_frame()
    parts = [name for name in frame if str(name).startswith("decides: ")]
    best = Counter(map(str, frame[parts].fillna(0).idxmax(axis=1))) if parts else Counter()
    told: list[Piece] = ["What most often decides where a head attends, counted over heads: "]
    for name, count in best.most_common():
        told += [
            f"{name.removeprefix('decides: ')} in ",
            {"text": str(count), "go": {"view": "heads", "score": name}},
            ", ",
        ]
    return [*told[:-1], "."]


def _best_copier(atlas: Atlas) -> list[Piece]:
    frame = atlas.to_frame()
    no_run: list[Piece] = ["No run is open. ", {"text": "Try a contrast", "go": {"view": "contrast"}}]
    if COPIES not in frame:
        return [*no_run, " makes one."]
    copies, head = max(zip(frame[COPIES].tolist(), frame["head"].tolist(), strict=True))
    return [
        *no_run,
        " finds the heads that do a task, such as to say which box holds a thing, and names what they go by. The head "
        "that attends most to what followed the same token before is ",
        {"head": str(head)},
        " (",
        {"text": f"{copies:.2f}", "go": {"view": "heads", "score": COPIES, "head": str(head)}},
        " of its attention).",
    ]


def _found(name: str, run: OpenRun) -> dict[str, Any]:
    """What a run found, with links to heads, and from numbers to the tables that they are from."""
    return {
        "run": name,
        "what": run.what,
        "sentences": [_sentence(name, one) for one in run.findings()],
        "notes": [pieces(note, _table(name)) for note in run.notes],
        "claims": [claim._asdict() | {"here": pieces(claim.here, _table(name, claim.table))} for claim in run.claims()],
        "picture": run.picture,
        "prompts": [_prompt(run, dict(one.words)) for one in run.kept if one.ask == "explain"],
    }


def _sentence(run: str, found: Finding) -> list[Piece]:
    return pieces(found.sentence, _table(run, found.table))


def _table(run: str, table: str = "") -> dict[str, str]:
    """Where a table of a run is looked at; without one, where all of the run's are."""
    return {"view": "run", "run": run} | ({"table": table} if table else {})


def _prompt(run: OpenRun, words: dict[str, Any]) -> dict[str, Any]:
    """A prompt that was kept, and the head of the run that attends most in it."""
    heads = {str(head) for one in run.naming.values() for head in one.heads}
    edges = next(one.answer["edges"] for one in run.kept if one.ask == "explain" and dict(one.words) == words)
    return words | {"head": next((edge["head"] for edge in edges if edge["head"] in heads), None)}


def pieces(sentence: str, source: Mapping[str, str]) -> list[Piece]:
    """A sentence with links: heads open, and numbers lead to where they are from, there to the head named before.

    >>> pieces("Best is L1H2 (80%).", {"view": "run"})
    ['Best is ', {'head': 'L1H2'}, ' (', {'text': '80%', 'go': {'view': 'run', 'head': 'L1H2'}}, ').']
    """
    words, heads = HEAD.split(sentence), HEAD.findall(sentence)
    told = _numbers(words[0], source)
    for head, rest in zip(heads, words[1:], strict=True):
        told += [{"head": head}, *_numbers(rest, {**source, "head": head})]
    return told


def _numbers(words: str, source: Mapping[str, str]) -> list[Piece]:
    told: list[Piece] = []
    at = 0
    for found in NUMBER.finditer(words):
        told += [words[at : found.start()], {"text": found[0], "go": dict(source)}]
        at = found.end()
    return [piece for piece in (*told, words[at:]) if piece]


def runs_answer(runs: Mapping[str, OpenRun], *, places: bool = False) -> dict[str, Any]:
    """What was run, and with which choices; with `places` also where, which a page that is mailed need not tell."""
    return {
        "format": FORMAT,
        "runs": [
            {
                "name": name,
                "folder": str(run.folder) if places and run.folder is not None else name,
                "what": run.what,
                "model": run.model,
                "choices": [[key, value[:WORD]] for key, value in run.choices.items()],
                "tables": [{"name": table, "caption": run.captions.get(table, "")} for table in run.tables],
                "figures": list(run.figures),
            }
            for name, run in runs.items()
        ],
    }


def table_answer(frame: pd.DataFrame) -> dict[str, Any]:
    """A table: its columns and rows, the first of very many."""
    rows = frame.head(ROWS).to_dict("records")
    cells = [[_cell(value) for value in row.values()] for row in rows]
    return {"format": FORMAT, "names": [str(name) for name in frame], "rows": cells, "n": len(frame)}


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return number(value, 6)
    if value is None or isinstance(value, bool | int | str):
        return value
    return value.item() if hasattr(value, "item") else str(value)


def figure_answer(figure: go.Figure) -> dict[str, Any]:
    """A figure as plotly draws it."""
    body = json.loads(figure.to_json())
    return {"format": FORMAT, "figure": {"data": body["data"], "layout": body["layout"]}}
