"""From a template to marked texts: seeded draws, marks as offsets, twins and true counterfactuals.

Every variable of a prompt has its own random numbers, so that a text and its twin differ in what was changed and in
what follows from it, and in nothing else. Two ways to change a prompt:

    twin       one value is drawn anew, and what is made of it follows: another thing in its clause and in the question
    exchange   two values change places, and nothing else: the two clauses change their things, the question stays
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count, islice
from random import Random
from typing import Any, TypeVar

from qkprism.contrasts.lines import Mistake
from qkprism.contrasts.markup import Span, Text
from qkprism.contrasts.sandbox import Compiled
from qkprism.contrasts.templates import ORDER, Template
from qkprism.contrasts.values import ITEM_LIMIT, Fault, Mark
from qkprism.errors import QKPrismError

Values = Mapping[str, Any]
Value = TypeVar("Value")
_TRIES = 50


@dataclass(frozen=True, slots=True)
class Roll:
    """What is settled of a prompt before its variables are drawn; `seed` says of which task and part it is."""

    seed: str
    number: int
    prompt: int
    asked: int = 0
    other: int = 0

    def rng(self, name: str) -> Random:
        """The numbers of one variable."""
        return Random(f"{self.seed} {self.number} {name}")


def rolls(template: Template, count: int, seed: str) -> list[Roll]:
    """The places and the wordings of prompts, each equally often."""
    prompts = balanced(range(len(template.prompts)), count, Random(f"{seed} prompts"))
    if not template.places:
        return [Roll(seed, number, prompt) for number, prompt in enumerate(prompts, start=1)]
    places = balanced_pairs(range(template.places), count, Random(f"{seed} places"))
    return [
        Roll(seed, number, prompt, asked, other)
        for number, (prompt, (asked, other)) in enumerate(zip(prompts, places, strict=True), start=1)
    ]


@dataclass(frozen=True)
class Writer:
    """A template and the words that it draws from."""

    template: Template
    lists: Mapping[str, tuple[str, ...]]

    def text(self, roll: Roll, changed: Values | None = None, label: str = "") -> Text:
        """The text of a roll, perhaps with other values of some variables; keys are labelled with `label` too."""
        with self.template.sandbox.one_prompt():
            return self._write(roll, self.values(roll, changed), label)

    def twin(self, roll: Roll, variable: str) -> Text:
        """The text in which one value of a variable is another, with all that follows from it."""
        if variable == ORDER:
            return self.exchanged(roll, ORDER)
        with self.template.sandbox.one_prompt():
            changed = self._redrawn(roll, self.values(roll), variable)
        return self.text(roll, {variable: changed}, variable)

    def exchanged(self, roll: Roll, variable: str) -> Text:
        """The text in which the values at the places asked and other changed places, and nothing else."""
        with self.template.sandbox.one_prompt():
            return self._write(roll, self._exchanged(self.values(roll), variable))

    def values(self, roll: Roll, changed: Values | None = None) -> dict[str, Any]:
        """Every variable, drawn or given."""
        template, changed = self.template, changed or {}
        values: dict[str, Any] = {name: list(words) for name, words in self.lists.items()}
        if template.places:
            values |= {"places": template.places, "asked": roll.asked, "other": roll.other}
        for name, draw in template.draws.items():
            values[name] = changed[name] if name in changed else self._drawn(roll, name, draw, values)
        return values

    def _drawn(
        self, roll: Roll, name: str, draw: Any, values: Values, rng: Random | None = None, *, twin: bool = False
    ) -> Any:
        if not isinstance(draw, Compiled):
            return draw
        with placed(self.template, ("draw", name)):
            drawing = _Drawing(roll, name, rng or roll.rng(name), twin, shared=self.template.shared)
            return self.template.sandbox.value(draw, {**values, **functions(drawing, self.lists, values)})

    def _write(self, roll: Roll, values: Values, label: str = "") -> Text:
        with placed(self.template, prompt_path(self.template, roll)):
            drawing = _Drawing(roll, "prompt", roll.rng("prompt"), label=label, shared=self.template.shared)
            variables = {**values, **functions(drawing, self.lists, values)}
            return joined(self.template.sandbox.write(self.template.prompts[roll.prompt], variables))

    # changes

    def _exchanged(self, values: Values, variable: str) -> dict[str, Any]:
        positive, other = values["asked"], values["other"]
        rows = [variable] if variable != ORDER else [n for n in self.template.draws if self._is_row(values[n])]
        changed = dict(values)
        for name in rows:
            if not isinstance(values[name], list) or max(positive, other) >= len(values[name]):
                raise self._wrong("exchange", variable, "is no list with a value for every place")
            changed[name] = _swapped(values[name], positive, other)
        if variable == ORDER:
            changed |= {"asked": other, "other": positive}
        return changed

    def _is_row(self, value: Any) -> bool:
        return isinstance(value, list) and len(value) == self.template.places

    def _redrawn(self, roll: Roll, values: Values, variable: str) -> Any:
        value, draw = values[variable], self.template.draws[variable]
        if (twin := self._drawn(roll, variable, draw, values, twin=True)) != value:
            return twin
        rng = roll.rng(f"{variable} of the twin")
        if isinstance(value, list) and self.template.places and roll.asked < len(value):
            return [
                *value[: roll.asked],
                self._unused(value[roll.asked], values, variable, rng),
                *value[roll.asked + 1 :],
            ]
        for _ in range(_TRIES):
            again = self._drawn(roll, variable, draw, values, rng)
            if again != value:
                return again
        raise self._wrong("twins", variable, f"is the same in {_TRIES} draws")

    def _unused(self, value: Any, values: Values, variable: str, rng: Random) -> str:
        """A word of the list that a value was drawn from, which is not in the prompt."""
        used = {word for name in self.template.draws for word in _words(values[name])}
        candidates = [w for words in self.lists.values() if value in words for w in words if w not in used]
        if value in self.lists:  # the value is a list itself, by its name
            candidates = [name for name in self.lists if name not in used]
        if not candidates:
            raise self._wrong("twins", variable, f"has {value!r}, and no list has another word in its place")
        return rng.choice(candidates)

    def _wrong(self, field: str, variable: str, reason: str) -> TemplateError:
        fault = Fault(f"{field}: {variable!r} {reason}", word=variable)
        return TemplateError(self.template.file, self.template.mistake((field,), fault))


def prompt_path(template: Template, roll: Roll) -> tuple[str | int, ...]:
    """Where the prompt of a roll stands in the file."""
    named = template.phrasings[roll.prompt] if template.phrasings else roll.prompt
    one_of_several: tuple[str | int, ...] = ("prompt", named)
    return one_of_several if one_of_several in template.lines else ("prompt",)


class TemplateError(QKPrismError):
    """A fault of a template while it is drawn, with the mistake in the file."""

    def __init__(self, file: str, mistake: Mistake) -> None:
        self.file, self.mistake = file, mistake
        super().__init__(f"{file}:{mistake.line}: {mistake.message}")

    def noting(self, notes: Iterable[str]) -> TemplateError:
        """The same with what may be the reason."""
        message = "; ".join([self.mistake.message, *notes])
        return TemplateError(self.file, replace(self.mistake, message=message))


@contextmanager
def placed(template: Template, path: tuple[str | int, ...]) -> Iterator[None]:
    """Let a fault say in which file and line it is."""
    try:
        yield
    except TemplateError:
        raise
    except QKPrismError as error:
        fault = error if isinstance(error, Fault) else Fault(str(error))
        raise TemplateError(template.file, template.mistake(path, fault)) from None


def joined(pieces: Iterable[str | Mark]) -> Text:
    """A text of pieces; marks become spans."""
    text, length = [], 0
    spans: dict[str, list[Span]] = {"+": [], "-": [], "?": []}
    for piece in pieces:
        written = piece.text if isinstance(piece, Mark) else piece
        if isinstance(piece, Mark):
            spans[piece.sign].append(Span(length, length + len(written), piece.labels, piece.target))
        text.append(written)
        length += len(written)
    if len(spans["?"]) > 1:
        raise Fault(f"{len(spans['?'])} words are marked as the query; a text has one")
    query = spans["?"][0] if spans["?"] else None
    return Text("".join(text), query, tuple(spans["+"]), tuple(spans["-"]))


def _swapped(values: Sequence[Any], first: int, second: int) -> list[Any]:
    swapped = list(values)
    swapped[first], swapped[second] = values[second], values[first]
    return swapped


def _words(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for one in value:
            yield from _words(one)
    elif isinstance(value, str):
        yield value


# Draws in which every value comes equally often, so that no factor of a prompt leans to one value


def balanced(values: Sequence[Value], count: int, rng: Random) -> list[Value]:
    """`count` values in random order; how often two of them come differs by at most 1."""
    return [first for first, _ in balanced_pairs(values, count, rng)]


def balanced_pairs(values: Sequence[Value], count: int, rng: Random) -> list[tuple[Value, Value]]:
    """`count` pairs of two different values, each value equally often first and equally often second.

    In a round every value comes once on each side: a shuffled row beside itself, turned by a random step.
    """
    return list(islice(_rounds(values, rng), count))


def pair_at(values: Sequence[Value], number: int, seed: str) -> tuple[Value, Value]:
    """The pair of a number, counted from 0, as `balanced_pairs` has them: without those before it."""
    rounds, place = divmod(number, len(values))
    return _round(values, Random(f"{seed} {rounds}"))[place]


def _rounds(values: Sequence[Value], rng: Random) -> Iterator[tuple[Value, Value]]:
    while True:
        yield from _round(values, rng)


def _round(values: Sequence[Value], rng: Random) -> list[tuple[Value, Value]]:
    row = rng.sample(values, len(values))
    step = rng.randrange(1, len(row)) if len(row) > 1 else 0
    return list(zip(row, row[step:] + row[:step], strict=True))


# What can be called in a template


@dataclass(frozen=True, slots=True)
class _Drawing:
    """For which variable of which prompt functions draw, and from which numbers; `label` is one that keys get too.

    Of the lists that are `shared` nothing is held out.
    """

    roll: Roll
    name: str
    rng: Random
    twin: bool = False
    label: str = ""
    shared: Sequence[str] = ()


def functions(drawing: _Drawing, lists: Mapping[str, Sequence[str]], values: Values) -> dict[str, Callable[..., Any]]:
    """The functions of a template, with the numbers that they draw from."""
    roll, rng, turns = drawing.roll, drawing.rng, count()

    def pair(pool: Sequence[Any]) -> tuple[Any, Any]:
        """What comes next, each item equally often on either side, and what a twin has in its place."""
        if not pool:
            raise Fault("there is nothing to choose from")
        return pair_at(pool, roll.number - 1, f"{roll.seed} {drawing.name} {next(turns)}")

    def too_few(what: str, wanted: int, items: Any, pool: Sequence[Any]) -> Fault:
        """What to do about a list of which a part is kept for the test, or about another."""
        few = f"a {what} of {wanted} is more than the {len(pool)} there are"
        name = next((name for name, words in lists.items() if name not in drawing.shared and [*words] == items), "")
        if not name:
            return Fault(f"{few}; use a longer list", word=what)
        tested = roll.seed.endswith(" test")
        side = f"the {len(pool)} of {name!r} {'held out' if tested else 'not held out'} for the test"
        more = " hold out more (held_out = 0.5)," if tested else ""
        share = f'or let contrasts and test share it (shared = ["{name}"])'
        return Fault(f"{few}; use a longer list,{more} {share}: these are {side}", word=what)

    def turn(items: Any, without: Any = ()) -> Any:
        """One item; over the prompts, and over their twins, each comes equally often."""
        return pair(_pool(items, without))[drawing.twin]

    def row(items: Any, without: Any = ()) -> list[Any]:
        """An item for every place, none twice; over the prompts each stands equally often at the place asked."""
        if "asked" not in values:
            raise Fault("row() needs places: say how many there are (places = 5), or use sample()", word="row")
        pool, places = _pool(items, without), values["places"]
        if len(pool) < places:
            raise too_few("row", places, items, pool)
        both = pair(pool) if len(pool) > places else pair(pool)[:1] * 2  # without one to spare there is no twin
        others = rng.sample([item for item in pool if item not in both], places - 1)
        return [*others[: roll.asked], both[drawing.twin], *others[roll.asked :]]

    def sample(items: Any, count: Any, without: Any = ()) -> list[Any]:
        """`count` items, none twice, in random order."""
        pool = _pool(items, without)
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise Fault(f"sample takes a list and a whole number, not {count!r}", word="sample")
        if count > len(pool):
            raise too_few("sample", count, items, pool)
        return rng.sample(pool, count)

    def choice(items: Any, without: Any = ()) -> Any:
        """One item."""
        pool = _pool(items, without)
        if not pool:
            raise Fault("there is nothing to choose from", word="choice")
        return rng.choice(pool)

    def shuffle(items: Any) -> list[Any]:
        """All items, in random order."""
        pool = _pool(items)
        return rng.sample(pool, len(pool))

    def number(low: Any, high: Any) -> int:
        """A whole number from `low` to `high`."""
        if not all(isinstance(end, int) for end in (low, high)) or low > high:
            raise Fault(f"number takes a lower and an upper whole number, not {low!r} and {high!r}", word="number")
        return rng.randint(low, high)

    def each(names: Any, without: Any = ()) -> list[str]:
        """A word of each list that is named, none twice."""
        drawn: list[str] = []
        left_out, seed = _listed(without), rng.random()
        for place, name in enumerate(_pool(names)):
            if name not in lists:
                raise Fault(f"{name!r} is no list of words; there are {', '.join(lists)}", word=str(name))
            # Each place has its own numbers, so that another list in one of them changes nothing in the others.
            mixed = Random(f"{seed} {place}").sample(lists[name], len(lists[name]))
            found = next((word for word in mixed if word not in drawn and word not in left_out), None)
            if found is None:
                raise Fault(f"no word of {name!r} is left; use a longer list", word="each")
            drawn.append(found)
        return drawn

    def key(place: Any, word: Any, /, **labels: Any) -> Mark:
        """A key: positive at the place asked, the target at the other, else negative."""
        if "asked" not in values:
            raise Fault("key() needs places: say how many there are (places = 5), or use pos() and neg()", word="key")
        labelled = values.get(drawing.label)
        if isinstance(labelled, list) and isinstance(place, int) and 0 <= place < len(labelled):
            labels.setdefault(drawing.label, labelled[place])
        if place == values["asked"]:
            return _mark("+", word, labels)
        return _mark("-", word, labels, target=place == values.get("other", _NOWHERE))

    return {
        "sample": sample,
        "choice": choice,
        "shuffle": shuffle,
        "number": number,
        "each": each,
        "turn": turn,
        "row": row,
        "range": _range,
        "part": _part,
        "key": key,
        "pos": lambda word, /, **labels: _mark("+", word, labels),
        "neg": lambda word, /, **labels: _mark("-", word, labels),
        "target": lambda word, /, **labels: _mark("-", word, labels, target=True),
        "query": lambda word, /, **labels: _mark("?", word, labels),
    }


_NOWHERE = object()


def _mark(sign: str, word: Any, labels: dict[str, Any], *, target: bool = False) -> Mark:
    if isinstance(word, bool) or not isinstance(word, str | int | float) or not str(word):
        raise Fault(f"a mark is a word or a number that is not empty, not {word!r}"[:200])
    for name, value in labels.items():
        if not isinstance(value, str | int | float):
            raise Fault(f"the label {name!r} is a word, a number, true or false, not {value!r}"[:200], word=name)
    return Mark(str(word), sign, labels, target)


def _pool(items: Any, without: Any = ()) -> list[Any]:
    if not isinstance(items, list | tuple):
        raise Fault(f"a draw is from a list, not from {items!r}"[:200])
    left_out = _listed(without)
    return [item for item in items if item not in left_out]


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _part(words: Any, number: Any) -> Any:
    """One of several words that are written together: `part("hot/cold", 1)` is "cold"; of a list, one of each."""
    if isinstance(words, list | tuple):
        return [_part(word, number) for word in words]
    parts = words.split("/") if isinstance(words, str) else []
    if not isinstance(number, int) or not 0 <= number < len(parts):
        raise Fault(f"there is no part {number!r} in {words!r}; parts are counted from 0"[:200], word="part")
    return parts[number]


def _range(*bounds: Any) -> list[int]:
    if not 1 <= len(bounds) <= 3 or not all(isinstance(bound, int) for bound in bounds) or 0 in bounds[2:]:
        raise Fault("range takes whole numbers, such as range(5)", word="range")
    found = range(*bounds)
    if len(found) > ITEM_LIMIT:
        raise Fault(f"a range has more than {ITEM_LIMIT} numbers; use a shorter one", word="range")
    return list(found)
