"""`Scene`: which entity has which label and which one is asked for; what it is as text, and with one factor exchanged.

A key, the token of a label, has three factors: its order among the clauses, the entity of its clause, and the label
itself. An exchange gives the positive key and the target key each other's value of one factor and leaves the other two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from qkprism.contrasts import Label, Span, Text
from qkprism.tasks.schemas import Phrasing, Schema

Factor = Literal["order", "lexical", "label"]
FACTORS: tuple[Factor, ...] = ("order", "lexical", "label")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Scene:
    """Entities and labels in the order of their clauses, the entity asked for, and the places of two keys."""

    entities: tuple[str, ...]
    labels: tuple[str, ...]
    asked: str
    positive: int
    target: int | None = None


def exchange(scene: Scene, factor: Factor) -> Scene:
    """The scene after the positive and the target key exchanged one factor; `positive` and `target` follow their keys.

    Whoever asks still asks for the same entity, also where it now has another label.
    """
    assert scene.target is not None
    ours, theirs = scene.positive, scene.target
    if factor == "lexical":
        return replace(scene, entities=_swapped(scene.entities, ours, theirs))
    labels = _swapped(scene.labels, ours, theirs)
    if factor == "label":
        return replace(scene, labels=labels)
    entities = _swapped(scene.entities, ours, theirs)
    return replace(scene, entities=entities, labels=labels, positive=theirs, target=ours)


def _swapped(values: Sequence[Value], first: int, second: int) -> tuple[Value, ...]:
    swapped = list(values)
    swapped[first], swapped[second] = values[second], values[first]
    return tuple(swapped)


def text_of(scene: Scene, schema: Schema, phrasing: Phrasing, *, name_labels: bool = False) -> Text:
    """The scene in words, its labels marked as keys; the query is the last token.

    A key is labelled with its order and its entity, and on request with its own label.
    """
    text, keys = schema.opening, list[Span]()
    for order, (entity, label) in enumerate(zip(scene.entities, scene.labels, strict=True)):
        text += phrasing.join if order else ""
        head, _, tail = schema.clause.partition("{label}")
        text += _sentence(text, head.format(entity=entity))
        named: dict[str, Label] = {"order": order, "entity": entity}
        if name_labels:
            named["label"] = label
        keys.append(Span(len(text), len(text) + len(label), named, target=order == scene.target))
        text += f"{label}{tail}"
    text += f". {_asking(scene.asked, schema, phrasing)}"
    return Text(text, None, (keys[scene.positive],), tuple(keys[: scene.positive] + keys[scene.positive + 1 :]))


def _sentence(text: str, words: str) -> str:
    """The words with a capital where they begin a sentence."""
    return words if text and not text.endswith(". ") else words[0].upper() + words[1:]


def _asking(asked: str, schema: Schema, phrasing: Phrasing) -> str:
    cloze, question = (sentence.format(entity=asked) for sentence in (schema.cloze, schema.question))
    return phrasing.ask.format(cloze=cloze, question=question, answer=schema.answer)
