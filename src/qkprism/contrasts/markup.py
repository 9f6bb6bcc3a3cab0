"""`Text`: a prompt with a marked query, positive keys and negative keys, as character spans or as inline markup.

    The hat is in Box [-O], the jam is in Box [+Z]. The jam is in [?Box]

`[+` opens a positive key, `[-` a negative key, `[?` the query, and `]` closes them; `[[` is a literal `[`, and inside a
mark `]]` is a literal `]`. Any other bracket is literal. Marks do not nest, are not empty, and there is one query.
`[-*Z]` is a negative key that is the target of interventions; a star at the start of a negative key is written `**`.
"""

from __future__ import annotations

import html
import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NoReturn
from weakref import WeakValueDictionary

from qkprism.errors import QKPrismError
from qkprism.options import show

Label = str | int | float | bool
Labels = Mapping[str, Label]

SIDES = {"+": "positive key", "-": "negative key", "?": "query"}
_MARKUP = re.compile(r"\[\[|\[-\**|\[[+?]|\]\]|\]|\[|[^\[\]]+")
_COLOURS = {"+": "#9ecae1", "-": "#fdbe85", "?": "#d0d0d0"}  # blue, orange, grey: for every kind of colour vision


@dataclass(frozen=True, slots=True)
class Span:
    """Characters (or, with `unit="token"`, tokens of the final encoding) from `start` up to but without `end`.

    >>> Span(39, 40, labels={"order": 1}, target=True)
    Span(start=39, end=40, labels={'order': 1}, target=True, unit='char')
    """

    start: int
    end: int
    labels: Labels = field(default_factory=dict, hash=False)
    target: bool = False
    unit: Literal["char", "token"] = "char"

    def __post_init__(self) -> None:
        start, end = (_bound(self, name) for name in ("start", "end"))
        if not 0 <= start < end:
            raise QKPrismError(f"a span is [start, end] with 0 <= start < end, not [{start}, {end}]")
        if self.unit not in ("char", "token"):
            raise QKPrismError(f"the unit of a span is 'char' or 'token', not {show(self.unit)}")
        object.__setattr__(self, "labels", checked_labels(self.labels))

    def __str__(self) -> str:
        return f"{'tokens ' if self.unit == 'token' else ''}[{self.start}, {self.end}]"

    @property
    def place(self) -> tuple[str, int, int]:
        """What the span covers, without its labels; spans are sorted by it."""
        return (self.unit, self.start, self.end)


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt with its marks; keys are kept in the order of the text.

    >>> Text.parse("in Box [-O], in Box [+Z]. In [?Box]").positive
    (Span(start=17, end=18, labels={}, target=False, unit='char'),)
    """

    text: str
    query: Span | None = None
    positive: tuple[Span, ...] = ()
    negative: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        check_string(self.text, "the text")
        if not self.text:
            raise QKPrismError("the text is empty; it needs at least one character")
        if not isinstance(self.query, Span | None):
            raise QKPrismError(f"the query is a Span such as Span(39, 40), not {show(self.query)}")
        for side in ("positive", "negative"):
            spans = getattr(self, side)
            if not isinstance(spans, tuple | list) or not all(isinstance(span, Span) for span in spans):
                raise QKPrismError(f"{side} keys are a list of spans such as [Span(39, 40)], not {show(spans)}")
            object.__setattr__(self, side, tuple(sorted(spans, key=lambda span: span.place)))
        self._check_places()
        self._check_targets()

    def _check_places(self) -> None:
        for sign, span in self.marks:
            if span.unit == "char" and span.end > len(self.text):
                size = f"the text, which has {len(self.text)} characters"
                raise QKPrismError(f"the {SIDES[sign]} {span} reaches beyond {size}")
        positive, negative = ([span.place for span in side] for side in (self.positive, self.negative))
        if both := set(positive) & set(negative):
            where = next(span for span in self.positive if span.place in both)
            raise QKPrismError(f"{where} is marked as a positive and as a negative key; it can be only one of them")
        if len({*positive, *negative}) < len(positive) + len(negative):
            raise QKPrismError("a key is marked twice; mark each key once")

    def _check_targets(self) -> None:
        targets = [sign for sign, span in self.marks if span.target]
        if set(targets) - {"-"}:
            raise QKPrismError("the target is a negative key: an intervention puts it in the place of the positive one")
        if len(targets) > 1:
            raise QKPrismError(f"{len(targets)} keys are marked as target; an intervention has one")

    @property
    def target(self) -> Span | None:
        """The negative key that is marked as target, or the only one; None if it is open which."""
        marked = [span for span in self.negative if span.target]
        return marked[0] if marked else self.negative[0] if len(self.negative) == 1 else None

    @property
    def marks(self) -> tuple[tuple[str, Span], ...]:
        """Every mark as (sign, span): `?` the query, `+` positive keys, `-` negative keys."""
        query = (("?", self.query),) if self.query is not None else ()
        return (*query, *(("+", span) for span in self.positive), *(("-", span) for span in self.negative))

    @classmethod
    def parse(cls, markup: str) -> Text:
        """Read inline marks: `The jam is in Box [+Z]. The jam is in [?Box]`."""
        check_string(markup, "a text with marks")
        pieces: list[str] = []
        spans: dict[str, list[Span]] = {sign: [] for sign in SIDES}
        sign, stars, start, length = "", 0, 0, 0
        for match in _MARKUP.finditer(markup):
            piece = match[0]
            if piece == "[[":
                piece = "["
            elif len(piece) > 1 and piece[0] == "[":
                _refuse_nested(markup, sign, match.start())
                sign, stars, start = piece[1], len(piece) - 2, length
                piece = "*" * (stars // 2)
            elif piece == "]]" and sign:
                piece = "]"
            elif piece == "]" and sign:
                spans[sign].append(_marked(markup, sign, stars % 2 == 1, start, length, match.end()))
                sign, piece = "", ""
            pieces.append(piece)
            length += len(piece)
        if sign:
            opened = show(f"[{sign}" + "".join(pieces)[start:])
            raise QKPrismError(f"the mark {opened} is never closed by ']'; a literal '[' is written '[['")
        if len(spans["?"]) > 1:
            raise QKPrismError(f"{len(spans['?'])} queries are marked with [?; a text has one")
        query = spans["?"][0] if spans["?"] else None
        return cls("".join(pieces), query, tuple(spans["+"]), tuple(spans["-"]))

    def markup(self) -> str:
        """Write the marks inline, the inverse of `parse`; labels, token spans and overlaps need the fields."""
        reason = self.beyond_markup()
        if reason:
            raise QKPrismError(f"markup cannot say {reason}; write the fields query, positive and negative instead")
        pieces, end = [], 0
        for sign, span in sorted(self.marks, key=lambda mark: mark[1].start):
            inside = _escape(self.text[span.start : span.end]).replace("]", "]]")
            if sign == "-":
                inside = "*" * span.target + inside[: len(inside) - len(inside.lstrip("*"))] + inside
            pieces += [_escape(self.text[end : span.start]), f"[{sign}{inside}]"]
            end = span.end
        return "".join([*pieces, _escape(self.text[end:])])

    def beyond_markup(self) -> str:
        """What `markup` cannot say of this text; empty when it can say all."""
        spans = sorted((span for _, span in self.marks), key=lambda span: span.start)
        if any(span.unit == "token" for span in spans):
            return "token spans"
        if any(span.labels for span in spans):
            return "the labels of a key"
        if any(after.start < before.end for before, after in pairwise(spans)):
            return "overlapping marks"
        if any(self.text[span.end : span.end + 1] == "]" for span in spans):
            return "a mark directly before a literal ']'"
        return ""


def _escape(text: str) -> str:
    """Double each `[` that would otherwise open something."""
    return re.sub(r"\[(?=[-+?\[]|\Z)", "[[", text)


def _refuse_nested(markup: str, sign: str, at: int) -> None:
    if sign:
        raise QKPrismError(
            f"the mark {show(markup[at:])} opens inside a [{sign} mark; marks cannot nest, a literal '[' is '[['"
        )


def _marked(markup: str, sign: str, target: bool, start: int, end: int, at: int) -> Span:
    if start == end:
        mark, literal = (
            ("[-*]", "a star that is a key is '[-**]'") if target else (f"[{sign}]", "a literal '[' is '[['")
        )
        raise QKPrismError(f"the mark {mark} before {show(markup[at:])} is empty; {literal}")
    return Span(start, end, target=target)


def _bound(span: Span, name: str) -> int:
    """Where a span starts or ends, as a plain whole number."""
    bound = getattr(span, name)
    try:
        number = operator.index(bound)
    except TypeError:
        raise QKPrismError(f"a span is [start, end] in whole numbers, not {show(bound)}") from None
    object.__setattr__(span, name, number)
    return number


def checked_labels(labels: Any) -> Labels:
    """The labels, to be read only: names with a string, a finite number, true or false."""
    if not isinstance(labels, Mapping):
        raise QKPrismError(f'labels are names with values, such as {{"order": 1}}, not {show(labels)}')
    labels = {name: _scalar(value) for name, value in labels.items()}
    for name, value in labels.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float):
            raise QKPrismError(f"the label {name!r} is a string, a number, true or false, not {show(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise QKPrismError(f"the label {name!r} is {value}; give a finite number")
        check_unicode(f"{name}{value}")
    plain = [_plain(value) for value in labels.values()]
    return _shared(*map(str.__str__, labels), *plain, *map(type, plain))


def _scalar(value: Any) -> Any:
    """The Python number of a number of numpy or torch; anything else as it is."""
    if isinstance(value, str | int | float) or getattr(value, "ndim", None) != 0:
        return value
    return value.item()


def _plain(value: Label) -> Label:
    """A value of a plain type: what is equal is then the same, once zero has no sign."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        return value
    return int(value) if isinstance(value, int) else float(value) + 0.0


class _ReadOnly(dict[str, Label]):
    """Labels that many spans share."""

    __slots__ = ("__weakref__",)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise QKPrismError("labels are read only and shared by all that have the same; make a Span or Example anew")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[_ReadOnly], tuple[dict[str, Label]]]:
        return _ReadOnly, (dict(self),)


_IN_USE: WeakValueDictionary[tuple[Any, ...], _ReadOnly] = WeakValueDictionary()


def _shared(*parts: Any) -> Labels:
    """One object for all spans with the same labels, given as their names, values and types (1 is not True)."""
    if (found := _IN_USE.get(parts)) is not None:
        return found
    count = len(parts) // 3
    made = _IN_USE[parts] = _ReadOnly(zip(parts[:count], parts[count : 2 * count], strict=True))
    return made


def check_string(text: Any, what: str) -> None:
    """Refuse what is not a string that UTF-8 can write."""
    if not isinstance(text, str):
        raise QKPrismError(f"{what} is a string, not {show(text)}")
    check_unicode(text)


def check_unicode(text: str) -> None:
    """Refuse what UTF-8 cannot write."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise QKPrismError(f"{show(text)} holds half of a surrogate pair, which is no character")


def marked_html(text: Text) -> str:
    """The text as HTML, its marks in colour and with their sign."""
    edges = {0, len(text.text)}
    for _, span in text.marks:
        edges |= {span.start, span.end} if span.unit == "char" else set()
    cuts = sorted(edges)
    pieces = []
    for start, end in pairwise(cuts):
        here = [mark for mark in text.marks if mark[1].unit == "char" and mark[1].start <= start and end <= mark[1].end]
        signs, piece = [_shown(*mark) for mark in here], text.text[start:end]
        pieces.append(chip("".join(signs), piece) if signs else html.escape(piece))
    tokens = [chip(_shown(sign, span), str(span)) for sign, span in text.marks if span.unit == "token"]
    return " ".join(["".join(pieces), *tokens])


def _shown(sign: str, span: Span) -> str:
    """A sign as it is written, with a star for the target."""
    return f"{sign}*" if span.target else sign


def chip(signs: str, text: str) -> str:
    """A piece of text in the colour of its mark."""
    style = f"background:{_COLOURS[signs.rstrip('*')[-1]]};color:#000;padding:0 2px;border-radius:2px"
    return f"<span style='{style}'>{html.escape(text)}<sup>{html.escape(signs)}</sup></span>"
