"""`Example`: a text with its query, its positive and its negative keys; and the line of JSON that says it.

    {"text": "The hat is in Box [-O], the jam is in Box [+Z]. The jam is in [?Box]", "labels": {"entity": "jam"}}
    {"text": "the jam is in Box [+Z]. The jam is in Box", "twin": "the pen is in Box [+Z]. The pen is in Box"}

A text without the fields query, positive and negative is read as markup, with any of them it is literal; a twin is read
by the same rule on its own. All is checked here, before any model is loaded.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from qkprism.contrasts.markup import Labels, Span, Text, check_string, checked_labels
from qkprism.errors import QKPrismError
from qkprism.options import as_float, show

_TEXT_FIELDS = ("text", "query", "positive", "negative")
_LINE_FIELDS = (*_TEXT_FIELDS, "twin", "weight", "group", "labels")
_SPAN_FIELDS = ("span", "tokens", "labels", "target")
_SPANS = re.compile(r"\d{1,9}:\d{1,9}([\s,;]+\d{1,9}:\d{1,9})*")
_TYPES = {"weight": ((int, float), "a number"), "target": ((bool,), "true or false")}  # the others are strings


@dataclass(frozen=True, slots=True)
class Example:
    """A text, and where needed its counterfactual twin, with weight, group and labels.

    >>> Example.parse("the jam is in Box [+Z]. The jam is", twin="the pen is in Box [+Z]. The pen is", group="a").group
    'a'
    """

    text: Text
    twin: Text | None = None
    weight: int | float = 1.0  # kept as float
    group: str | None = None
    labels: Labels = field(default_factory=dict, hash=False)
    source: str = field(default="", compare=False)  # "file:line", for messages

    def __post_init__(self) -> None:
        if not isinstance(self.text, Text) or not isinstance(self.twin, Text | None):
            raise QKPrismError("an Example is made of Text; Example.parse reads a string with markup")
        weight = as_float(self.weight)
        if not 1e-30 <= weight <= 1e30:  # what float32 holds with room to spare
            raise QKPrismError(f"weight is a finite number above 0, from 1e-30 to 1e30, not {show(self.weight)}")
        if self.group is not None:
            check_string(self.group, "the group of an example")
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "labels", checked_labels(self.labels))
        self._check_sides()

    def _check_sides(self) -> None:
        if self.twin is not None and not self.twin.positive:
            raise QKPrismError("the twin has no key; mark the key that answers the text's with [+...]")
        if not self.text.positive:
            raise QKPrismError("no positive key is marked; mark at least one with [+...] or in the field positive")
        if self.twin is None and not self.text.negative:
            raise QKPrismError(
                "no negative key is marked; mark one with [-...] or in the field negative, or give a twin"
            )

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        twin: str | None = None,
        weight: int | float = 1.0,
        group: str | None = None,
        labels: Labels | None = None,
        source: str = "",
    ) -> Example:
        """Read an example from markup: `Example.parse("in Box [-O], in Box [+Z]. In [?Box]")`."""
        parsed = None if twin is None else Text.parse(twin)
        return cls(Text.parse(text), parsed, weight, group, labels or {}, source)

    @property
    def target(self) -> Span | None:
        """The negative key that an intervention puts in the positive one's place: the marked one, or the only one.

        >>> Example.parse("in Box [-O], in Box [+Z]. In [?Box]").target
        Span(start=7, end=8, labels={}, target=False, unit='char')
        """
        return self.text.target

    @property
    def texts(self) -> tuple[Text, ...]:
        """The text, and the twin if there is one."""
        return (self.text,) if self.twin is None else (self.text, self.twin)


# Reading a line


_PLAIN_TEXT = (
    'this is plain text; write a line as one JSON object: {"text": "The [+cat] sat by the [-dog], and the cat"}'
)


def load_line(line: bytes, *, first: bool) -> dict[str, Any]:
    """The fields of a line of a file; `first` is the file's first line."""
    if first and line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise QKPrismError("the file is UTF-16; save it as UTF-8")
    try:
        # A UTF-8 byte order mark, which some editors add, says nothing and is dropped.
        text = line.decode("utf-8-sig" if first else "utf-8").strip()
        record = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise QKPrismError(f"not UTF-8: byte {error.start + 1} of the line is 0x{line[error.start]:02x}") from error
    except json.JSONDecodeError as error:
        if not text.startswith(("{", "[{", '"')):  # a text as it is
            raise QKPrismError(_PLAIN_TEXT) from error
        raise QKPrismError(f"broken JSON at column {error.colno}: {error.msg}; a line is one JSON object") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or brackets of thousands of levels
        raise QKPrismError(f"broken JSON: {error}") from error
    if not isinstance(record, dict):
        raise QKPrismError(f'a line is a JSON object such as {{"text": ...}}, not {show(record)}')
    return record


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        twice = next(name for index, (name, _) in enumerate(pairs) if name in dict(pairs[:index]))
        raise QKPrismError(f"the field {twice!r} is given twice")
    return record


def _refuse_constant(constant: str) -> NoReturn:
    raise QKPrismError(f"{constant} is not a number that JSON has; give a finite one")


def table_record(cells: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row of a table."""
    check_fields(cells, _LINE_FIELDS)
    return {name: _cell(name, cell) for name, cell in cells.items()}


def _cell(name: str, cell: Any) -> Any:
    """What a cell holds: spans are JSON, or `39:40` one after another, and a number may be written as text."""
    if not isinstance(cell, str) or name in ("text", "group") or (name == "twin" and not cell.startswith("{")):
        return cell
    if name in ("query", "positive", "negative") and _SPANS.fullmatch(cell.strip()):
        spans = [[int(bound) for bound in span.split(":")] for span in re.split(r"[\s,;]+", cell.strip())]
        return spans[0] if name == "query" and len(spans) == 1 else spans
    try:
        return json.loads(cell, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise QKPrismError(f"{name} is JSON such as [39, 40], or 39:40, not {show(cell)}") from error


def example_of(record: dict[str, Any], source: str) -> Example:
    """The example that a line says."""
    check_fields(record, _LINE_FIELDS)
    twin = record.get("twin")
    if twin is not None:
        twin = twin if isinstance(twin, dict) else {"text": twin}
        check_fields(twin, _TEXT_FIELDS)
    weight, group = typed(record, "weight", 1.0), typed(record, "group", None)
    labels = checked_labels(record.get("labels", {}))
    return Example(_text(record), None if twin is None else _text(twin), weight, group, labels, source)


def _text(record: dict[str, Any]) -> Text:
    if "text" not in record:
        raise QKPrismError(f"the field text is missing; the fields given are {', '.join(record) or 'none'}")
    text, query = typed(record, "text", ""), record.get("query")
    if set(record).isdisjoint(_TEXT_FIELDS[1:]):
        return Text.parse(text)
    sides = (_spans(record.get(side, []), side) for side in ("positive", "negative"))
    return Text(text, None if query is None else _span(query), *sides)


def _spans(value: Any, side: str) -> tuple[Span, ...]:
    if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], int)):
        value = [value]  # one key need not be wrapped in a list
    if not isinstance(value, list):
        raise QKPrismError(f"{side} is a list of spans such as [[39, 40]], not {show(value)}")
    return tuple(map(_span, value))


def _span(value: Any) -> Span:
    fields = value if isinstance(value, dict) else {"span": value}
    check_fields(fields, _SPAN_FIELDS)
    if ("span" in fields) == ("tokens" in fields):
        raise QKPrismError(f"a span has one of the fields span and tokens, not {show(value)}")
    unit: Literal["char", "token"] = "char" if "span" in fields else "token"
    bounds = fields["span" if unit == "char" else "tokens"]
    if not isinstance(bounds, list) or [type(bound) for bound in bounds] != [int, int]:
        raise QKPrismError(f"a span is [start, end] in whole numbers, not {show(bounds)}")
    start, end = bounds
    return Span(start, end, checked_labels(fields.get("labels", {})), typed(fields, "target", False), unit)


def check_fields(record: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    """Refuse a field that there is not."""
    for name in record:
        if name not in allowed:
            nearest = difflib.get_close_matches(name, allowed, n=1, cutoff=0.0)[0]
            raise QKPrismError(f"unknown field {name!r}, the nearest is {nearest!r} (allowed: {', '.join(allowed)})")


def typed(record: Mapping[str, Any], name: str, default: Any) -> Any:
    """A field's value, of the type that it must have: JSON can hold anything."""
    value = record.get(name, default)
    types, words = _TYPES.get(name, ((str,), "a string"))
    if value is not default and type(value) not in types:
        raise QKPrismError(f"{name} is {words}, not {show(value)}")
    return value


# Writing a line


def example_record(example: Example, write: Callable[[Text], dict[str, Any]]) -> dict[str, Any]:
    """The fields of an example, each text as `write` says it; what is as usual is left out."""
    record = dict(write(example.text))
    if example.twin is not None:
        twin = write(example.twin)
        record["twin"] = twin if len(twin) > 1 else twin["text"]
    optional = {"weight": example.weight, "group": example.group, "labels": dict(example.labels)}
    defaults: dict[str, Any] = {"weight": 1.0, "group": None, "labels": {}}
    return record | {name: value for name, value in optional.items() if value != defaults[name]}


def example_line(example: Example) -> str:
    """The line that says an example, with markup where that says it all."""
    return dump(example_record(example, _text_record))


def _text_record(text: Text) -> dict[str, Any]:
    return text_fields(text) if text.beyond_markup() else {"text": text.markup()}


def text_fields(text: Text) -> dict[str, Any]:
    """A text as it is, with spans."""
    query = {} if text.query is None else {"query": _span_record(text.query)}
    sides = {side: [_span_record(span) for span in getattr(text, side)] for side in ("positive", "negative")}
    return {"text": text.text} | query | {side: spans for side, spans in sides.items() if spans}


def _span_record(span: Span) -> Any:
    bounds = [span.start, span.end]
    if span.unit == "char" and not span.labels and not span.target:
        return bounds
    place = {"span" if span.unit == "char" else "tokens": bounds}
    labels = {"labels": dict(span.labels)} if span.labels else {}
    return place | labels | ({"target": True} if span.target else {})


def dump(record: Any) -> str:
    """One line of JSON."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False)
