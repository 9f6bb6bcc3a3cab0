"""Worlds in which things are bound to labels, and ways to tell of them.

    cloze      The hat is in box O, the jam is in box Z. The jam is in box
    question   The hat is in box O. The jam is in box Z. Which box is the jam in? Answer: Box
    sentence   The hat is in box O. The jam is in box Z. Which box is the jam in? Answer: The jam is in box
    chat       The hat is in box O. The jam is in box Z. Which box is the jam in?

A `Schema` has the words and the sentences of a world; a `Phrasing` joins its clauses and asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from string import Formatter

from qkprism.contrasts.markup import check_unicode
from qkprism.contrasts.words import check_words, words
from qkprism.errors import QKPrismError

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

    def __post_init__(self) -> None:
        check_words((*self.entities, *self.labels), f"the schema {self.name!r}")
        check_unicode(f"{self.answer}{self.opening}")
        self._check_places("clause", ["entity", "label"])
        self._check_places("cloze", ["entity"])
        self._check_places("question", ["entity"])

    def _check_places(self, field: str, wanted: list[str]) -> None:
        """Refuse a sentence without the places for its words, or with others."""
        sentence = str(getattr(self, field))
        check_unicode(sentence)
        try:
            parts = list(Formatter().parse(sentence))
        except ValueError as error:
            raise QKPrismError(f"the {field} of the schema {self.name!r} is {sentence!r}: {error}.") from error
        found = [(place, form, way) for _, place, form, way in parts if place is not None]
        plain = [(place, "", None) for place in wanted]
        if found != plain and (field == "clause" or set(found) != set(plain)):  # a question may name the entity again
            places = " and then ".join(f"{{{place}}}" for place in wanted)
            raise QKPrismError(f"the {field} of the schema {self.name!r} is {sentence!r}; its places are {places}.")

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
    """How clauses are joined, and what comes after them, of the schema's cloze, question and start of an answer.

    With `chat` the text is a user's message, and the start of the answer comes after it.
    """

    name: str
    join: str
    ask: str
    chat: bool = False


SCHEMAS = {
    schema.name: schema
    for schema in (
        Schema(
            "boxes",
            words("objects"),
            words("letters"),  # without A and I, which are words of their own
            clause="the {entity} is in box {label}",
            cloze="The {entity} is in box",
            question="Which box is the {entity} in?",
            answer="Answer: Box",
        ),
        Schema(
            "cities",
            PEOPLE,
            words("cities"),
            clause="{entity} is from {label}",
            cloze="{entity} is from",
            question="Where is {entity} from?",
            answer="Answer: from",
            opening="We know that ",
        ),
        Schema(
            "drinks",
            PEOPLE,
            words("drinks"),
            clause="{entity} drinks {label}",
            cloze="{entity} drinks",
            question="What does {entity} drink?",
            answer="Answer:",
            opening="We know that ",
        ),
    )
}

PHRASINGS = {
    phrasing.name: phrasing
    for phrasing in (
        Phrasing("cloze", join=", ", ask="{cloze}"),
        Phrasing("question", join=". ", ask="{question} {answer}"),
        Phrasing("sentence", join=". ", ask="{question} Answer: {cloze}"),
        Phrasing("chat", join=". ", ask="{question}", chat=True),
    )
}
