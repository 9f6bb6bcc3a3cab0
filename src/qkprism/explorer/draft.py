"""`Draft`: a contrast that is being written in the page, as marked prompts or as the text of a template.

A draft is checked as a file is (`qkprism check`), because it is written into one first. A template from the page finds
no file beside it, so its words are its own lists or those that come with the package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qkprism.contrasts import Contrast, Span, Text
from qkprism.contrasts.checks import ContrastCheck, check
from qkprism.contrasts.contrast import check_name
from qkprism.contrasts.lines import Mistake
from qkprism.contrasts.tasks import task
from qkprism.contrasts.templates import SHELF, read_template, shelf_names
from qkprism.encoding import Encoding
from qkprism.errors import QKPrismError
from qkprism.explorer.answers import FORMAT, number
from qkprism.models.encoding import encode_text
from qkprism.models.model import Model
from qkprism.models.quick import without_space, word_offsets
from qkprism.options import Center

SIGNS = ("+", "-", "target", "?", "none")
MOST_LINES, SHOWN, DRAWN = 400, 12, 100


@dataclass(frozen=True)
class Draft:
    """A name, and marked prompts (one a line) or a template."""

    name: str
    lines: tuple[str, ...] = ()
    template: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if set(self.name) & set("/\\:") or self.name.startswith("."):
            raise QKPrismError(f"{self.name!r} is not a name for a contrast: leave out / \\ : and a dot in front.")
        if len(self.lines) > MOST_LINES:
            raise QKPrismError(
                f"{len(self.lines)} prompts are too many for the page: {MOST_LINES} at most. Use a file."
            )
        if self.template is None and not self.lines:
            raise QKPrismError("Write a prompt, or open a template.")

    @property
    def file(self) -> tuple[str, str]:
        """The name of its file, and what that holds."""
        if self.template is not None:
            return f"{self.name}.toml", self.template
        records = [{"contrast": self.name}, *({"text": line} for line in self.lines)]
        return f"{self.name}.jsonl", "".join(json.dumps(record) + "\n" for record in records)

    @contextmanager
    def _written(self) -> Iterator[Path]:
        file, text = self.file
        with TemporaryDirectory() as folder:
            place = Path(folder) / file
            place.write_text(text, encoding="utf-8")
            yield place

    def check(self, model: Model) -> ContrastCheck:
        """What `qkprism check` says of it, with this model's tokens."""
        with self._written() as place:
            return check(place, tokenizer=model.tokenizer, offsets=word_offsets(model.tokenizer), n=DRAWN)

    def drawn(self, model: Model, n: int) -> Drawn:
        """The prompts as written, or `n` that the template draws."""
        with self._written() as place:
            if self.template is None:
                contrast = Contrast.read(place)
                return Drawn(contrast, {contrast.name: contrast}, Encoding(), None)
            made = task(read_template(place), tokenizer=model.tokenizer, n_train=n, n_search=n, n_test=1)
        return Drawn(made.search, made.contrasts, made.encoding, made.center)


@dataclass(frozen=True)
class Drawn:
    """What heads are found with, what is decomposed, and how texts are to be read."""

    search: Contrast
    contrasts: Mapping[str, Contrast]
    encoding: Encoding
    center: Center | None


def shelf_answer() -> dict[str, Any]:
    """The templates of the shelf: name, question and text."""
    rows = [
        {"name": name, "question": read_template(name).question, "source": (SHELF / f"{name}.toml").read_text("utf-8")}
        for name in shelf_names()
    ]
    return {"format": FORMAT, "templates": rows}


def draft_answer(draft: Draft, model: Model) -> dict[str, Any]:
    """How a draft falls on tokens, and what the check says of it."""
    if model.tokenizer is None or not model.tokenizer.is_fast:
        raise QKPrismError(f"{model.name} has no tokenizer that tells where its tokens are.")
    texts = [Text.parse(line) for line in draft.lines]
    if unmarked := [place for place, text in enumerate(texts, 1) if not text.positive or not text.negative]:
        wanted = "mark a positive key (+) and a negative key (-)"
        found = ContrastCheck(draft.name, tuple(Mistake(place, wanted) for place in unmarked))
    else:
        found = draft.check(model)
        texts = [] if found.contrast is None else [example.text for example in found.contrast]
    most = SHOWN if draft.template else MOST_LINES
    return {
        "format": FORMAT,
        "mistakes": [{"line": one.line, "message": one.message} for one in found.mistakes],
        "notes": list(found.notes),
        "balance": [
            {"predictor": r.predictor, "auc": number(r.auc), "error": number(r.error), "tells": r.tells, "n": r.n}
            for r in found.balance
        ],
        "declared": list(found.declared),
        "n": len(texts),
        "examples": [marked_answer(text, model) for text in texts[:most]],
    }


def marked_answer(text: Text, model: Model) -> dict[str, Any]:
    """The tokens of a text, and the signs on them: [place, sign]; `said` is whether the query is marked."""
    assert model.tokenizer is not None
    encoded = encode_text(model.tokenizer, text, causal=model.is_causal)
    signs = [[key.position, "+" if key.positive else "target" if key.target else "-"] for key in encoded.keys]
    tokens = [str(model.tokenizer.decode([one])) for one in encoded.ids]
    return {"tokens": tokens, "marks": [*signs, [encoded.query, "?"]], "said": text.query is not None}


def marked_line(line: str, place: int, sign: str, model: Model) -> str:
    """A line with another sign on one of its tokens."""
    if sign not in SIGNS:
        raise QKPrismError(f"{sign!r} is not a mark. Use one of {', '.join(SIGNS)}.")
    text = Text.parse(line)
    span = _span(text.text, place, model)
    kept: dict[str, list[Span]] = {
        side: [one for one in getattr(text, side) if one.end <= span.start or span.end <= one.start]
        for side in ("positive", "negative")
    }
    query = text.query
    if query is not None and query.start < span.end and span.start < query.end:
        query = None
    if sign == "target":
        kept["negative"] = [replace(one, target=False) for one in kept["negative"]]
    if sign in ("-", "target"):
        kept["negative"].append(replace(span, target=sign == "target"))
    if sign == "+":
        kept["positive"].append(span)
    return Text(text.text, span if sign == "?" else query, tuple(kept["positive"]), tuple(kept["negative"])).markup()


def _span(text: str, place: int, model: Model) -> Span:
    """The letters of one token, without the space before it."""
    assert model.tokenizer is not None
    places = model.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    if not 0 <= place < len(places) or places[place][0] == places[place][1]:
        raise QKPrismError(f"Token {place} is no part of the text, so it cannot be marked.")
    start, end = places[place]
    return Span(*without_space(text, start, end))


def draft_of(question: Mapping[str, Any]) -> Draft:
    """The draft that the page sends."""
    name, lines, template = (question.get(key) for key in ("name", "lines", "template"))
    if not isinstance(name, str) or not isinstance(template, str | None):
        raise QKPrismError("A draft has a name, and lines or a template, as texts.")
    if not isinstance(lines, Sequence) or isinstance(lines, str) or not all(isinstance(one, str) for one in lines):
        raise QKPrismError("The lines of a draft are a list of texts.")
    return Draft(name, tuple(line for line in lines if line.strip()), template)
