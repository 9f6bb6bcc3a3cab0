"""Tables of examples: CSV, TSV and Parquet, a row an example and a column a field."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkprism.errors import QKPrismError
from qkprism.options import show

TABLES = (".csv", ".tsv", ".parquet")
_CELL_LIMIT = 1_000_000  # characters


def table_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The line of each row in the file, and its cells by column; empty cells are left out."""
    rows = _parquet(path) if path.suffix.lower() == ".parquet" else _separated(path)
    found = False
    for number, cells in rows:
        found = True
        yield number, {name: cell for name, cell in cells.items() if cell is not None and cell != ""}
    if not found:
        raise QKPrismError(f"{path}:1: the table has no rows; a row is an example, with a column text")


def _separated(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(_CELL_LIMIT)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
            columns = reader.fieldnames  # reads the first line
            line = reader.line_num + 1 if columns else 1
            for row in reader:
                if None in row:
                    raise QKPrismError(f"{path}:{line}: the row has more cells than there are columns")
                yield line, dict(row)
                line = reader.line_num + 1
    except OSError as error:
        raise QKPrismError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise QKPrismError(f"{path} is not UTF-8: {error.reason}") from error
    except csv.Error as error:
        raise QKPrismError(f"{path}:{reader.line_num + 1}: broken table: {error}") from error


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    import pandas as pd

    if not path.is_file():
        raise QKPrismError(f"{path} cannot be read: there is no such file")
    try:
        frame = pd.read_parquet(path)
    except ImportError as error:
        raise QKPrismError(
            f"{path}: Parquet needs pyarrow; install it (pip install pyarrow), or save as CSV."
        ) from error
    except Exception as error:  # whatever the reader of a broken file raises
        raise QKPrismError(f"{path} cannot be read as Parquet: {show(str(error))}") from error
    for number, row in enumerate(frame.to_dict("records"), start=1):
        yield number, {str(name): _listed(cell) for name, cell in row.items()}


def _listed(cell: Any) -> Any:
    """A cell in plain types: arrays as lists, what is missing as None."""
    if hasattr(cell, "tolist"):
        cell = cell.tolist()
    if isinstance(cell, list | tuple):
        return [_listed(one) for one in cell]
    if isinstance(cell, dict):
        return {name: _listed(one) for name, one in cell.items() if one is not None}
    return None if cell != cell else cell
