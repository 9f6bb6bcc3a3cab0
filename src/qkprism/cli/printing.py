"""What commands print: tables for people, JSON for programs.

A table is never wider than the terminal (80 columns in a pipe) and no number in it is cut: the columns that come first
matter most, and those that do not fit are named below the table. `--wide` prints all of them.
"""

from __future__ import annotations

import json
import shutil
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import typer

from qkprism.cli.settings import SETTINGS

_GAP, _LEAST = "  ", 24  # between columns; the least width of a column whose texts can go on in another line


def print_table(frame: Any, columns: Sequence[str], title: str, by: str | None = None) -> None:
    """Rows of a frame under the names of columns, the most important first."""
    print_rows(frame.to_dict("records"), columns, title, by=by)


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    title: str,
    *,
    by: str | None = None,
    fold: Sequence[str] = (),
) -> None:
    """Rows under the names of columns, the most important first.

    by     a column whose values stand as titles above their rows
    fold   columns of sentences, which may go on in another line
    """
    width = None if SETTINGS.wide else terminal_width()
    for line in table_lines(rows, columns, title, width=width, by=by, fold=fold):
        typer.echo(line)


def terminal_width() -> int:
    """Columns of the terminal, or what COLUMNS says, or 80."""
    return shutil.get_terminal_size((80, 24)).columns


def table_lines(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    title: str,
    *,
    width: int | None = 80,
    by: str | None = None,
    fold: Sequence[str] = (),
) -> list[str]:
    """The lines of a table that is at most `width` wide (any width if None).

    >>> table_lines([{"head": "L1H0", "q": 0.0123}], ["head", "q"], "Heads")
    ['Heads', 'head       q', '----  ------', 'L1H0  0.0123', '']
    """
    made = [_column(name, rows, name in fold) for name in columns]
    shown = made if width is None else _that_fit(made, width)
    lines = [*(textwrap.wrap(title, width) if width else [title])]
    lines += [_line(cells, shown).rstrip() for cells in _header(shown)]
    lines.append(_GAP.join("-" * column.width for column in shown))
    last = None
    for number, row in enumerate(rows):
        if by is not None and row[by] != last:
            last = row[by]
            lines.append(f"{_cell(last)}:")
        lines += _row_lines(number, shown)
    left_out = [column.name.replace("_", " ") for column in made if column.name not in {each.name for each in shown}]
    if left_out:
        told = f"{len(left_out)} more with --wide: {', '.join(left_out)}."
        lines += textwrap.wrap(told, width or 80)
    return [*lines, ""]


@dataclass(frozen=True)
class _Column:
    """A column as it is printed: its cells as texts, and how wide it is."""

    name: str
    cells: list[str]
    width: int
    right: bool
    folds: bool = False


def _column(name: str, rows: Sequence[Mapping[str, Any]], folds: bool) -> _Column:
    cells = [_cell(row[name]) for row in rows]
    words = max(map(_length, name.replace("_", " ").split()), default=0)
    right = any(isinstance(row[name], int | float) for row in rows)
    return _Column(name, cells, max([words, *map(_length, cells)]), right, folds)


def _that_fit(columns: Sequence[_Column], width: int) -> list[_Column]:
    """The columns that fit, the first always; one that folds takes the room that is left."""
    shown: list[_Column] = []
    for column in columns:
        used = sum((min(each.width, _LEAST) if each.folds else each.width) + len(_GAP) for each in shown)
        if not shown or used + (min(column.width, _LEAST) if column.folds else column.width) <= width:
            shown.append(column)
    fixed = sum(each.width for each in shown if not each.folds) + len(_GAP) * (len(shown) - 1)
    folding = sum(each.folds for each in shown)
    room = max(_LEAST, (width - fixed) // folding) if folding else 0
    return [replace(each, width=min(each.width, room)) if each.folds else each for each in shown]


def _header(columns: Sequence[_Column]) -> list[list[str]]:
    """The names, their words one below the other where a name is wider than its column."""
    names = [textwrap.wrap(column.name.replace("_", " "), max(1, column.width)) or [""] for column in columns]
    height = max(map(len, names))
    padded = [[""] * (height - len(lines)) + lines for lines in names]
    return [[lines[i] for lines in padded] for i in range(height)]


def _row_lines(number: int, columns: Sequence[_Column]) -> list[str]:
    cells = [textwrap.wrap(c.cells[number], c.width) if c.folds else [c.cells[number]] for c in columns]
    height = max(1, *map(len, cells)) if cells else 1
    return [_line([each[i] if i < len(each) else "" for each in cells], columns).rstrip() for i in range(height)]


def _line(cells: Sequence[str], columns: Sequence[_Column]) -> str:
    padded = []
    for cell, column in zip(cells, columns, strict=True):
        space = " " * (column.width - _length(cell))
        padded.append(space + cell if column.right else cell + space)
    return _GAP.join(padded)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "-"
    text = f"{value:.3g}" if isinstance(value, float) else str(value).replace("\n", "⏎")
    return "".join(one if one.isprintable() else "·" for one in text)


def _length(text: str) -> int:
    """How many columns of a terminal a text takes: letters of East Asia take two, accents none."""
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )


def print_json(body: dict[str, Any]) -> None:
    from qkprism.runs.folder import json_value

    typer.echo(json.dumps(json_value(body), indent=1, allow_nan=False))


def print_sentences(sentences: Sequence[str]) -> None:
    """A paragraph for a person, as wide as the terminal and no wider than reads well."""
    typer.echo("\n".join([*textwrap.wrap(" ".join(sentences), min(100, terminal_width())), ""]))


def print_item(number: str, sentence: str) -> None:
    """A sentence of a list, its further lines below its first word."""
    width = min(100, terminal_width())
    typer.echo(textwrap.fill(sentence, width, initial_indent=number, subsequent_indent=" " * len(number)))
