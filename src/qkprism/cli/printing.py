"""What commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from typing import Any

import typer

_TEXTS = (
    "contrast",
    "head",
    "feature",
    "method",
    "control",
    "token",
    "mark",
    "variant",
    "room",
    "works_by",
    "what",
    "whose",
)


def print_table(frame: Any, columns: list[str], title: str, by: str | None = None) -> None:
    """Rows under the names of columns; `by` is a column whose values stand as titles above their rows."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", header_style="bold")
    for name in columns:
        table.add_column(escape(name.replace("_", " ")), justify="left" if name in _TEXTS else "right")
    last = None
    for row in frame.to_dict("records"):
        if by is not None and row[by] != last:
            last = row[by]
            table.add_section()
            table.add_row(escape(_cell(last)), style="bold")
        table.add_row(*(escape(_cell(row[name])) for name in columns))
    width = None if sys.stdout.isatty() else 140  # a pipe has no width of its own
    Console(width=width).print(table)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def print_json(body: dict[str, Any]) -> None:
    from qkprism.runs import json_value

    typer.echo(json.dumps(json_value(body), indent=1, allow_nan=False))
