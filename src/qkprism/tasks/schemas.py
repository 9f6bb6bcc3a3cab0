"""Worlds in which things are bound to labels, and ways to tell of them.

    boxes, cloze      The hat is in Box O, the jam is in Box Z. The jam is in Box
    boxes, question   The hat is in Box O. The jam is in Box Z. Which box is the jam in? Answer: Box

A `Schema` has the words and the sentences of a world; a `Phrasing` joins its clauses and asks.
"""

from __future__ import annotations

from dataclasses import dataclass

from qkprism.tasks.words import words

PEOPLE = words("male_names") + words("female_names")


@dataclass(frozen=True, slots=True)
class Schema:
    """Entities, the labels they are bound to, and the sentences that say so; own worlds are welcome.

    In a clause the entity comes before the label, each after a space; `opening` stands before the first clause, so
    that no entity is the first word of a text, whose token would be another.
    """

    name: str
    entities: tuple[str, ...]
    labels: tuple[str, ...]
    clause: str
    cloze: str
    question: str
    answer: str
    opening: str = ""

    @property
    def before_entity(self) -> str:
        """What stands before an entity, without the space between."""
        return f"{self.opening}{self.clause.partition('{entity}')[0]}".rstrip()

    @property
    def before_label(self) -> str:
        """What stands before a label, back to the entity."""
        return self.clause.partition("{entity}")[2].partition("{label}")[0].strip()

    def after_label(self, phrasing: Phrasing) -> tuple[str, str]:
        """What follows a label inside a text, and after the last clause."""
        rest = self.clause.partition("{label}")[2]
        return f"{rest}{phrasing.join}".rstrip(), f"{rest}."


@dataclass(frozen=True, slots=True)
class Phrasing:
    """How clauses are joined and how the query is asked: as a cloze, or as a question with the answer begun."""

    name: str
    join: str
    question: bool
    chat: bool = False


SCHEMAS = {
    schema.name: schema
    for schema in (
        Schema(
            "boxes",
            words("objects"),
            words("letters"),  # without A and I, which are words of their own
            clause="the {entity} is in Box {label}",
            cloze="The {entity} is in Box",
            question="Which box is the {entity} in?",
            answer="Box",
        ),
        Schema(
            "cities",
            PEOPLE,
            words("cities"),
            clause="{entity} lives in {label}",
            cloze="{entity} lives in",
            question="Where does {entity} live?",
            answer="in",
            opening="We know that ",
        ),
        Schema(
            "drinks",
            PEOPLE,
            words("drinks"),
            clause="{entity} likes {label}",
            cloze="{entity} likes",
            question="What does {entity} like?",
            answer="",
            opening="We know that ",
        ),
    )
}

PHRASINGS = {
    phrasing.name: phrasing
    for phrasing in (
        Phrasing("cloze", join=", ", question=False),
        Phrasing("question", join=". ", question=True),
        Phrasing("chat", join=". ", question=True, chat=True),
    )
}
