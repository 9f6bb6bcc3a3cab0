"""`Contrast`: a named set of examples, which defines a feature; in memory, or in a file that is read when it is wanted.

On disk a contrast is JSON lines, one example a line, with an optional first line of metadata:

    {"contrast": "boxes", "description": "which box holds the object"}

Errors name file, line and reason.
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from qkprism.contrasts.examples import (
    Example,
    check_fields,
    dump,
    example_line,
    example_of,
    example_record,
    load_line,
    table_record,
    text_fields,
    typed,
)
from qkprism.contrasts.markup import SIDES, check_string, check_unicode, chip, marked_html
from qkprism.contrasts.tables import TABLES, is_dataset, table_rows
from qkprism.errors import QKPrismError
from qkprism.options import show
from qkprism.runs.files import path_of, whole_file, writing

LARGE = 2**25  # bytes of a file whose examples are not kept in memory
_METADATA_FIELDS = ("contrast", "description")


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
                file.writelines(f"{example_line(_checked_example(one))}\n".encode() for one in examples)
            lines = _Lines(place, name)
            for number, start, _ in _lines(place):
                lines.add(number, start)
            found = cls(name, lines.written(), description)
        except BaseException:
            place.unlink()
            raise
        weakref.finalize(lines, place.unlink, missing_ok=True)
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
        digest = hashlib.sha256(dump(self.name).encode())
        for example in self.examples:
            digest.update(b"\n" + json.dumps(example_record(example, text_fields), sort_keys=True).encode())
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


# Files


def _read(path: Path) -> Contrast:
    metadata: dict[str, Any] = {}
    examples: list[Example] = []
    lines, large = _Lines(path, str(path)), _is_large(path)
    for number, start, line in _lines(path):
        source = f"{path}:{number}"
        with located(source):
            record = load_line(line, first=number == 1)
            if "text" not in record and not set(record).isdisjoint(_METADATA_FIELDS):
                metadata = _metadata(record, first=not metadata and not examples and not lines.starts)
            elif (example := example_of(record, source)) and large:
                lines.add(number, start)
            else:
                examples.append(example)
    with located(f"{path}:1"):
        if not examples and not lines.starts:
            raise QKPrismError('the file has no examples; write one a line, such as {"text": "... [-O] ... [+Z] ..."}')
        name, description = typed(metadata, "contrast", path.stem), typed(metadata, "description", "")
        return Contrast(name, lines.written() if large else tuple(examples), description)


@dataclass
class _Lines:
    """The lines of a file that are examples, read one by one while it is still the file that was checked."""

    path: Path
    name: str  # in the sources of its examples
    numbers: array[int] = field(default_factory=lambda: array("Q"))
    starts: array[int] = field(default_factory=lambda: array("Q"))  # their first bytes
    state: tuple[int, int] = (0, 0)

    def add(self, number: int, start: int) -> None:
        self.numbers.append(number)
        self.starts.append(start)

    def written(self) -> Written:
        """All examples, read when they are asked for."""
        self.state = _state(self.path.stat())
        return Written(range(len(self.starts)), self.read)

    def read(self, place: int) -> Example:
        number = self.numbers[place]
        try:
            with self.path.open("rb") as file:
                if _state(os.fstat(file.fileno())) != self.state:
                    raise QKPrismError(f"{self.path} has changed since it was read. Start again.")
                file.seek(self.starts[place])
                line = file.readline()
        except OSError as error:
            raise QKPrismError(f"{self.path} cannot be read: {error.strerror}") from error
        source = f"{self.name}:{number}"
        with located(source):
            return example_of(load_line(line, first=number == 1), source)


def _is_large(path: Path) -> bool:
    """Whether examples are read when they are asked for; of Parquet, which is packed, and of folders always."""
    packed = path.is_dir() or path.suffix.lower() == ".parquet"
    return packed or (path.is_file() and path.stat().st_size > LARGE)


def _state(seen: os.stat_result) -> tuple[int, int]:
    return seen.st_size, seen.st_mtime_ns


def _read_table(path: Path) -> Contrast:
    """A table has a row an example; cells of spans and labels are JSON."""
    with located(str(path)):
        check_name(path.stem)
    examples = _table_examples(path)
    return Contrast.stream(path.stem, examples) if _is_large(path) else Contrast(path.stem, tuple(examples))


def _table_examples(path: Path) -> Iterator[Example]:
    for number, cells in table_rows(path):
        with located(f"{path}:{number}"):
            yield example_of(table_record(cells), f"{path}:{number}")


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


def _metadata(record: dict[str, Any], *, first: bool) -> dict[str, Any]:
    if not first:
        raise QKPrismError("metadata stands once, on the first line; every other line is an example with a field text")
    check_fields(record, _METADATA_FIELDS)
    return record


def json_lines(contrast: Contrast) -> Iterator[str]:
    """The lines of a contrast's file: the metadata, then an example a line."""
    description = {"description": contrast.description} if contrast.description else {}
    yield dump({"contrast": contrast.name, **description})
    yield from map(example_line, contrast.examples)


# Notebooks


def _page(contrast: Contrast, shown: int = 5) -> str:
    rows = ["<br>twin: ".join(map(marked_html, example.texts)) for example in contrast.examples[:shown]]
    listed = "".join(f"<li style='white-space:pre-wrap'>{row}</li>" for row in rows)
    more = f"<p>and {len(contrast) - shown} more</p>" if len(contrast) > shown else ""
    title = f"<b>{html.escape(contrast.name)}</b> ({len(contrast)}) {html.escape(contrast.description)}"
    legend = " ".join(chip(sign, name) for sign, name in SIDES.items())
    return f"<div><p>{title} {legend}</p><ol style='max-height:20em;overflow:auto'>{listed}</ol>{more}</div>"
