"""`Lines`: where things stand in a template's file, so that every mistake is told with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from qkprism.contrasts.values import Fault

Path = tuple[str | int, ...]  # ("draw", "thing") is a field, ("prompt", 1) the second of several texts


@dataclass(frozen=True)
class Mistake:
    """What is wrong in a file, and where; `word` is what to point at."""

    line: int
    message: str
    word: str = ""

    def picture(self, source: str) -> str:
        """The line with its number, and what is wrong underlined."""
        lines = source.splitlines()
        if not 1 <= self.line <= len(lines):
            return ""
        text, margin = lines[self.line - 1].expandtabs(4), f"{self.line:>5} | "
        at = text.find(self.word) if self.word else -1
        start, width = (at, len(self.word)) if at >= 0 else (len(text) - len(text.lstrip()), len(text.strip()) or 1)
        return f"{margin}{text}\n{' ' * 5} | {' ' * start}{'^' * width}"


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """The line of a field, or of what it is in."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def mistake_of(source: str, lines: Mapping[Path, int], path: Path, fault: Fault) -> Mistake:
    """A fault of an expression, as a mistake in the file."""
    first, within = line_of(lines, path), (*path, "text") in lines
    line = lines[(*path, "text")] + fault.line - 1 if within else first
    return Mistake(min(line, source.count("\n") + 1), str(fault), fault.word or ("" if within else str(path[-1])))


_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*|[\[\]{},=\n]|[^\s\[\]{},=#\"']+",
    re.DOTALL,
)


def lines_of(source: str) -> dict[Path, int]:
    """The line of every field of a TOML file that can be read.

    (..., "text") is the first line of a text that runs over several lines.
    """
    lines: dict[Path, int] = {}
    section: tuple[str, ...] = ()
    for number, tokens in _statements(source):
        first = tokens[0][1]
        if first == "[":
            section = tuple(_bare(text) for _, text in tokens if text not in "[]")
            section = tuple(part for name in section for part in name.split("."))
            lines.setdefault(section, number)
        elif any(text == "=" for _, text in tokens):
            equals = next(at for at, (_, text) in enumerate(tokens) if text == "=")
            keys = tuple(part for _, text in tokens[:equals] for part in _bare(text).split("."))
            path: Path = (*section, *keys)
            lines.setdefault(path, number)
            lines.update(_values(path, tokens[equals + 1 :]))
    return lines


def _statements(source: str) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """Statements as numbered tokens, each with its first line; a statement may run over lines inside brackets."""
    tokens: list[tuple[int, str]] = []
    depth, line, end = 0, 1, 0
    for match in _TOKEN.finditer(source):
        line += source.count("\n", end, match.start())
        end, text = match.start(), match[0]
        if text == "\n":
            if depth == 0 and tokens:
                yield tokens[0][0], tokens
                tokens = []
        elif not text.startswith("#"):
            depth += (text in ("[", "{")) - (text in ("]", "}"))
            tokens.append((line, text))
    if tokens:
        yield tokens[0][0], tokens


def _values(path: Path, tokens: Sequence[tuple[int, str]]) -> dict[Path, int]:
    """The lines of a field's texts."""
    lines: dict[Path, int] = {}
    listed = bool(tokens) and tokens[0][1] == "["
    place = 0
    for line, text in tokens:
        if text == ",":
            place += 1
        elif text[0] in "\"'":
            here = (*path, place) if listed else path
            lines.setdefault(here, line)
            if text[:3] in ('"""', "'''"):
                lines.setdefault((*here, "text"), line + text[3:].startswith("\n"))
    return lines


def _bare(text: str) -> str:
    return text.strip("\"'")
