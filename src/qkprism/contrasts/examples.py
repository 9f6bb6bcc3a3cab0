"""`Example` and `Contrast`: which query, which positive keys and which negative keys define a feature.

On disk a contrast is JSON lines, one example a line, with an optional first line of metadata:

    {"contrast": "boxes", "description": "which box holds the object"}
    {"text": "The hat is in Box [-O], the jam is in Box [+Z]. The jam is in [?Box]", "labels": {"entity": "jam"}}
    {"text": "the jam is in Box [+Z]. The jam is in Box", "twin": "the pen is in Box [+Z]. The pen is in Box"}

A text without the fields query, positive and negative is read as markup, with any of them it is literal; a twin is read
by the same rule on its own. All is checked here, before any model is loaded, and an error names file, line and reason.
"""

from __future__ import annotations

import difflib
import hashlib
import html
import json
import os
import re
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn, overload

from qkprism.contrasts.markup import (
    SIDES,
    Labels,
    Span,
    Text,
    check_string,
    check_unicode,
    checked_labels,
    chip,
    marked_html,
)
from qkprism.contrasts.tables import TABLES, is_dataset, table_rows
from qkprism.errors import QKPrismError
from qkprism.files import path_of, whole_file, writing
from qkprism.options import as_float, show

LARGE = 2**25  # bytes of a file whose examples are not kept in memory
_TEXT_FIELDS = ("text", "query", "positive", "negative")
_LINE_FIELDS = (*_TEXT_FIELDS, "twin", "weight", "group", "labels")
_SPAN_FIELDS = ("span", "tokens", "labels", "target")
_METADATA_FIELDS = ("contrast", "description")
_SPANS = re.compile(r"\d{1,9}:\d{1,9}([\s,;]+\d{1,9}:\d{1,9})*")
_TYPES = {"weight": ((int, float), "a number"), "target": ((bool,), "true or false")}  # the others are strings


@contextmanager
def located(source: str) -> Iterator[None]:
    """Let errors say where the input came from."""
    try:
        yield
    except QKPrismError as error:
        raise QKPrismError(f"{source}: {error}") from error


def check_name(name: Any) -> None:
    """Refuse what cannot name a contrast in tables and files."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise QKPrismError(f"the name of a contrast is one line of printable text, not {show(name)}")
    check_unicode(name)


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


@dataclass(frozen=True)
class Written(Sequence[Example]):
    """Examples that are made of something smaller each time they are asked for, and not kept: `write(sources[i])`."""

    sources: Sequence[Any]
    write: Callable[[Any], Example]

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[Example]:
        return map(self.write, self.sources)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Written: ...
    def __getitem__(self, index: int | slice) -> Example | Written:
        if isinstance(index, slice):
            return Written(self.sources[index], self.write)
        return self.write(self.sources[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


def text_digest(text: str) -> bytes:
    """Five bytes: of 20,000 texts one in 50 million others has a digest that is known."""
    return hashlib.blake2b(text.encode(), digest_size=5).digest()


@dataclass(frozen=True, repr=False)
class Contrast:
    """A named set of examples: what defines a feature.

    >>> Contrast.from_texts("boxes", ["in Box [-O], in Box [+Z]. In [?Box]"])
    Contrast('boxes', 1 example)
    """

    name: str
    examples: Sequence[Example]  # a tuple, or written when asked for
    description: str = ""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_string(self.description, "the description of a contrast")
        if not isinstance(self.examples, Written):
            object.__setattr__(self, "examples", _examples(self.examples))
        if not self.examples:
            raise QKPrismError(f"the contrast {self.name!r} has no examples; it needs at least one")

    @classmethod
    def from_texts(cls, name: str, texts: Iterable[str], description: str = "") -> Contrast:
        """Make a contrast of texts with markup, each with weight 1."""
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise QKPrismError(f"texts is a list of texts with marks, not {show(texts)}")
        examples = []
        for number, text in enumerate(texts, start=1):
            source = f"{name}:{number}"
            with located(source):
                examples.append(Example.parse(text, source=source))
        return cls(name, tuple(examples), description)

    @classmethod
    def stream(cls, name: str, examples: Iterable[Example], description: str = "") -> Contrast:
        """A contrast of more examples than memory holds, as a generator makes them: they go to a temporary file.

        >>> Contrast.stream("boxes", (Example.parse(f"in Box [-O], in Box [+{z}]. In [?Box]") for z in "XYZ"))
        Contrast('boxes', 3 examples)
        """
        check_name(name)
        file = tempfile.NamedTemporaryFile(prefix="qkprism-", suffix=".jsonl", delete=False)  # noqa: SIM115
        place = Path(file.name)
        try:
            with writing(place), file:
                file.writelines(f"{_line(example)}\n".encode() for example in examples)
            written = _examples_at(place, name, _places(place))
            found = cls(name, written, description)
        except BaseException:
            place.unlink()
            raise
        weakref.finalize(written.write.__self__, place.unlink, missing_ok=True)  # type: ignore[attr-defined]
        return found

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Contrast:
        """Read JSON lines, or a table with the fields of a line as columns: .csv, .tsv, .parquet, a folder of .parquet
        files, a dataset that `datasets` saved to disk.

        Without a metadata line the name is the file's stem. The examples of a large file are checked once, and read
        again each time they are asked for: memory holds 16 bytes of each.
        """
        place = path_of(path)
        is_table = place.suffix.lower() in TABLES or is_dataset(place)
        return _read_table(place) if is_table else _read(place)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write JSON lines, all or nothing; `Contrast.read` gives the same contrast back."""
        with whole_file(path) as file:
            file.writelines(f"{line}\n".encode() for line in json_lines(self))

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[Example]:
        return iter(self.examples)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Contrast: ...
    def __getitem__(self, index: int | slice) -> Example | Contrast:
        if isinstance(index, slice):
            return Contrast(self.name, self.examples[index], self.description)
        return self.examples[index]

    def __add__(self, other: object) -> Contrast:
        """Pool the examples of two contrasts; the name is both names, or the one they share."""
        if not isinstance(other, Contrast):
            return NotImplemented
        names, descriptions = (self.name, other.name), (self.description, other.description)
        description = "; ".join(dict.fromkeys(filter(None, descriptions)))
        return Contrast("+".join(dict.fromkeys(names)), (*self.examples, *other.examples), description)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of name and examples, whatever the form of the file; description and source do not count."""
        digest = hashlib.sha256(_dump(self.name).encode())
        for example in self.examples:
            digest.update(b"\n" + json.dumps(_example_record(example, _text_fields), sort_keys=True).encode())
        return digest.hexdigest()

    @cached_property
    def text_digests(self) -> frozenset[bytes]:
        """Short digests of all texts, twins too: enough to tell whether a text was among them."""
        return frozenset(text_digest(text.text) for example in self.examples for text in example.texts)

    @property
    def key_labels(self) -> tuple[str, ...]:
        """The names of the labels that keys carry, in order of appearance."""
        texts = (text for example in self.examples for text in example.texts)
        spans = (span for text in texts for span in (*text.positive, *text.negative))
        return tuple(dict.fromkeys(name for span in spans for name in span.labels))

    def __repr__(self) -> str:
        return f"Contrast({self.name!r}, {len(self)} example{'' if len(self) == 1 else 's'})"

    def _repr_html_(self) -> str:
        return _page(self)


def _examples(several: Any) -> tuple[Example, ...]:
    """Examples as a tuple, after it is clear that they are examples."""
    examples = tuple(several) if isinstance(several, Iterable) and not isinstance(several, str) else (several,)
    return tuple(map(_checked_example, examples))


def _checked_example(example: Any) -> Example:
    if not isinstance(example, Example):
        raise QKPrismError(f"a contrast is made of examples, such as Example.parse(text), not {show(example)}")
    return example


# JSON lines: reading


def _read(path: Path) -> Contrast:
    metadata: dict[str, Any] = {}
    examples: list[Example] = []
    places, large = _LinePlaces(), _is_large(path)
    for number, start, line in _lines(path):
        source = f"{path}:{number}"
        with located(source):
            record = _load(line, first=number == 1)
            if "text" not in record and not set(record).isdisjoint(_METADATA_FIELDS):
                metadata = _metadata(record, first=not metadata and not examples and not places)
            elif (example := _example(record, source)) and large:
                places.add(number, start)
            else:
                examples.append(example)
    with located(f"{path}:1"):
        if not examples and not places:
            raise QKPrismError('the file has no examples; write one a line, such as {"text": "... [-O] ... [+Z] ..."}')
        name, description = _typed(metadata, "contrast", path.stem), _typed(metadata, "description", "")
        return Contrast(name, _examples_at(path, str(path), places) if large else tuple(examples), description)


@dataclass(frozen=True)
class _LinePlaces(Sequence[tuple[int, int]]):
    """Where the examples of a file are: the number and the first byte of each one's line."""

    numbers: array[int] = field(default_factory=lambda: array("Q"))
    starts: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, number: int, start: int) -> None:
        self.numbers.append(number)
        self.starts.append(start)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> tuple[int, int]: ...
    @overload
    def __getitem__(self, index: slice) -> _LinePlaces: ...
    def __getitem__(self, index: int | slice) -> tuple[int, int] | _LinePlaces:
        if isinstance(index, slice):
            return _LinePlaces(self.numbers[index], self.starts[index])
        return self.numbers[index], self.starts[index]


@dataclass(frozen=True)
class _LineReader:
    """Reads single lines of a file, if it is still the one that was checked."""

    path: Path
    name: str  # in the sources of its examples
    state: tuple[int, int]

    def read(self, place: tuple[int, int]) -> Example:
        number, start = place
        try:
            with self.path.open("rb") as file:
                if _state(os.fstat(file.fileno())) != self.state:
                    raise QKPrismError(f"{self.path} has changed since it was read. Start again.")
                file.seek(start)
                line = file.readline()
        except OSError as error:
            raise QKPrismError(f"{self.path} cannot be read: {error.strerror}") from error
        source = f"{self.name}:{number}"
        with located(source):
            return _example(_load(line, first=number == 1), source)


def _is_large(path: Path) -> bool:
    """Whether examples are read when they are asked for; of Parquet, which is packed, and of folders always."""
    packed = path.is_dir() or path.suffix.lower() == ".parquet"
    return packed or (path.is_file() and path.stat().st_size > LARGE)


def _state(seen: os.stat_result) -> tuple[int, int]:
    return seen.st_size, seen.st_mtime_ns


def _places(path: Path) -> _LinePlaces:
    """All lines of a file that was written here."""
    found = _LinePlaces()
    for number, start, _ in _lines(path):
        found.add(number, start)
    return found


def _examples_at(path: Path, name: str, places: _LinePlaces) -> Written:
    return Written(places, _LineReader(path, name, _state(path.stat())).read)


def _read_table(path: Path) -> Contrast:
    """A table has a row an example; cells of spans and labels are JSON."""
    with located(str(path)):
        check_name(path.stem)
    examples = _table_examples(path)
    return Contrast.stream(path.stem, examples) if _is_large(path) else Contrast(path.stem, tuple(examples))


def _table_examples(path: Path) -> Iterator[Example]:
    for number, cells in table_rows(path):
        with located(f"{path}:{number}"):
            _check_fields(cells, _LINE_FIELDS)
            record = {name: _cell(name, cell) for name, cell in cells.items()}
            yield _example(record, f"{path}:{number}")


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


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, first byte and bytes of every line that is not blank."""
    start = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, start, line
                start += len(line)
    except OSError as error:
        raise QKPrismError(f"{path} cannot be read: {error.strerror}") from error


def _load(line: bytes, *, first: bool) -> dict[str, Any]:
    if first and line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise QKPrismError("the file is UTF-16; save it as UTF-8")
    try:
        # A UTF-8 byte order mark, which some editors add, says nothing and is dropped.
        text = line.decode("utf-8-sig" if first else "utf-8").strip()
        record = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise QKPrismError(f"not UTF-8: byte {error.start + 1} of the line is 0x{line[error.start]:02x}") from error
    except json.JSONDecodeError as error:
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


def _metadata(record: dict[str, Any], *, first: bool) -> dict[str, Any]:
    if not first:
        raise QKPrismError("metadata stands once, on the first line; every other line is an example with a field text")
    _check_fields(record, _METADATA_FIELDS)
    return record


def _example(record: dict[str, Any], source: str) -> Example:
    _check_fields(record, _LINE_FIELDS)
    twin = record.get("twin")
    if twin is not None:
        twin = twin if isinstance(twin, dict) else {"text": twin}
        _check_fields(twin, _TEXT_FIELDS)
    weight, group = _typed(record, "weight", 1.0), _typed(record, "group", None)
    labels = checked_labels(record.get("labels", {}))
    return Example(_text(record), None if twin is None else _text(twin), weight, group, labels, source)


def _text(record: dict[str, Any]) -> Text:
    if "text" not in record:
        raise QKPrismError(f"the field text is missing; the fields given are {', '.join(record) or 'none'}")
    text, query = _typed(record, "text", ""), record.get("query")
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
    _check_fields(fields, _SPAN_FIELDS)
    if ("span" in fields) == ("tokens" in fields):
        raise QKPrismError(f"a span has one of the fields span and tokens, not {show(value)}")
    unit: Literal["char", "token"] = "char" if "span" in fields else "token"
    bounds = fields["span" if unit == "char" else "tokens"]
    if not isinstance(bounds, list) or [type(bound) for bound in bounds] != [int, int]:
        raise QKPrismError(f"a span is [start, end] in whole numbers, not {show(bounds)}")
    start, end = bounds
    return Span(start, end, checked_labels(fields.get("labels", {})), _typed(fields, "target", False), unit)


def _check_fields(record: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for name in record:
        if name not in allowed:
            nearest = difflib.get_close_matches(name, allowed, n=1, cutoff=0.0)[0]
            raise QKPrismError(f"unknown field {name!r}, the nearest is {nearest!r} (allowed: {', '.join(allowed)})")


def _typed(record: Mapping[str, Any], name: str, default: Any) -> Any:
    """A field's value, of the type that it must have: JSON can hold anything."""
    value = record.get(name, default)
    types, words = _TYPES.get(name, ((str,), "a string"))
    if value is not default and type(value) not in types:
        raise QKPrismError(f"{name} is {words}, not {show(value)}")
    return value


# JSON lines: writing


def json_lines(contrast: Contrast) -> Iterator[str]:
    """The lines of a contrast's file: the metadata, then an example a line."""
    description = {"description": contrast.description} if contrast.description else {}
    yield _dump({"contrast": contrast.name, **description})
    yield from map(_line, contrast.examples)


def _line(example: Example) -> str:
    return _dump(_example_record(_checked_example(example), _text_record))


def _example_record(example: Example, write: Callable[[Text], dict[str, Any]]) -> dict[str, Any]:
    record = dict(write(example.text))
    if example.twin is not None:
        twin = write(example.twin)
        record["twin"] = twin if len(twin) > 1 else twin["text"]
    optional = {"weight": example.weight, "group": example.group, "labels": dict(example.labels)}
    defaults: dict[str, Any] = {"weight": 1.0, "group": None, "labels": {}}
    return record | {name: value for name, value in optional.items() if value != defaults[name]}


def _text_record(text: Text) -> dict[str, Any]:
    return _text_fields(text) if text.beyond_markup() else {"text": text.markup()}


def _text_fields(text: Text) -> dict[str, Any]:
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


def _dump(record: Any) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False)


# Notebooks


def _page(contrast: Contrast, shown: int = 5) -> str:
    rows = ["<br>twin: ".join(map(marked_html, example.texts)) for example in contrast.examples[:shown]]
    listed = "".join(f"<li style='white-space:pre-wrap'>{row}</li>" for row in rows)
    more = f"<p>and {len(contrast) - shown} more</p>" if len(contrast) > shown else ""
    title = f"<b>{html.escape(contrast.name)}</b> ({len(contrast)}) {html.escape(contrast.description)}"
    legend = " ".join(chip(sign, name) for sign, name in SIDES.items())
    return f"<div><p>{title} {legend}</p><ol style='max-height:20em;overflow:auto'>{listed}</ol>{more}</div>"
