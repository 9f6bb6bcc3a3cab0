"""What values of a template are, and what may be done with them: their kinds, their sizes, filters.

What a template does wrong is a `Fault` with its line. A piece that is more than text is a `Mark`, which comes out as
it is: whoever puts the pieces together knows where it stands, whatever the text contains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Undefined, UndefinedError

from qkprism.contrasts.markup import Labels
from qkprism.errors import QKPrismError

TEXT_LIMIT = 20_000  # characters of a prompt, and of any text on the way
ITEM_LIMIT = 5_000  # of a list, with all lists in it
NUMBER_LIMIT = 10**15


class Fault(QKPrismError):
    """What is wrong in a template, and in which of its lines."""

    def __init__(self, message: str, line: int = 1, word: str = "") -> None:
        super().__init__(" ".join(message.split()) or "it cannot be read")
        self.line, self.word = line, word


@dataclass(frozen=True, slots=True)
class Mark:
    """A piece of a text with a sign: `+` a positive key, `-` a negative key, `?` the query."""

    text: str
    sign: str
    labels: Labels = field(default_factory=dict)
    target: bool = False


def defined(*values: Any) -> None:
    """Refuse what a name or an item that is not there comes to."""
    for value in values:
        if isinstance(value, Undefined):
            try:
                value._fail_with_undefined_error()
            except UndefinedError as error:
                raise Fault(str(error), word=str(value._undefined_name or "")) from None


def number(value: Any) -> Any:
    """A value that is no number of thousands of digits."""
    if isinstance(value, int | float) and not abs(value) <= NUMBER_LIMIT:
        raise Fault("a number is too large; use smaller ones")
    return value


def kind(value: Any) -> str:
    """What a value is, in words."""
    if value is None:
        return "nothing"
    words = {str: "a text", list: "a list", tuple: "a list", dict: "a table", bool: "true or false", Mark: "a mark"}
    return words.get(type(value), "a number" if isinstance(value, int | float) else "a function")


def size(value: Any) -> int:
    """How many items there are, with everything in them as often as it stands there; counting stops at the limit."""
    if isinstance(value, str):
        return len(value)
    count, inside = 0, [value]
    while inside and count <= ITEM_LIMIT:
        one = inside.pop()
        if isinstance(one, list | tuple | dict):
            count += len(one)
            within = one.values() if isinstance(one, dict) else one
            inside += [deeper for deeper in within if isinstance(deeper, list | tuple | dict)]
    return count


_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))


def items(value: Any) -> list[Any]:
    """What a loop goes through."""
    if isinstance(value, str | list | tuple | dict) or type(value) in _VIEWS:
        return list(value)
    raise Fault(f"{kind(value)} has no items to go through")


def _joined(values: Any, between: Any = "") -> str:
    parts = []
    for value in items(values):
        defined(value)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise Fault(f"{kind(value)} cannot be joined to a text; write it by itself, in its own {{{{ }}}}")
        parts.append(str(value))
    if sum(map(len, parts)) + len(str(between)) * len(parts) > TEXT_LIMIT:
        raise Fault(f"a text is longer than {TEXT_LIMIT} characters")
    return str(between).join(parts)


def _case(name: str) -> Callable[[Any], str]:
    def changed(value: Any) -> str:
        if not isinstance(value, str):
            raise Fault(f"{kind(value)} has no {name!r}; only a text has")
        return str(getattr(value, name)())

    return changed


def _end(place: int) -> Callable[[Any], Any]:
    def item(value: Any) -> Any:
        found = items(value)
        if not found:
            raise Fault("there is no item in an empty list")
        return found[place]

    return item


def _of_numbers(function: Callable[[Sequence[Any]], Any]) -> Callable[[Any], Any]:
    return lambda value: number(function(items(value)))


FILTERS: dict[str, Callable[..., Any]] = {
    "upper": _case("upper"),
    "lower": _case("lower"),
    "capitalize": _case("capitalize"),
    "title": _case("title"),
    "trim": _case("strip"),
    "join": _joined,
    "length": lambda value: len(items(value)),
    "first": _end(0),
    "last": _end(-1),
    "list": items,
    "sort": lambda value: sorted(items(value)),
    "reverse": lambda value: items(value)[::-1],
    "unique": lambda value: list(dict.fromkeys(items(value))),
    "min": _of_numbers(min),
    "max": _of_numbers(max),
    "sum": _of_numbers(sum),
}
