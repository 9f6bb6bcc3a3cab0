"""Tables of examples: CSV, TSV, Parquet and datasets on disk, a row an example and a column a field."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qkprism.errors import QKPrismError
from qkprism.options import show

TABLES = (".csv", ".tsv", ".parquet")
_CELL_LIMIT = 1_000_000  # characters
_AT_ONCE = 256  # rows of Parquet


def table_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The line of each row in the file, and its cells by column; empty cells are left out."""
    rows = _separated(path) if path.suffix.lower() in (".csv", ".tsv") else _columns(path)
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


def is_dataset(path: Path) -> bool:
    """Whether a folder holds Parquet files, or a dataset as `datasets.save_to_disk` writes it."""
    return path.is_dir() and bool(_shards(path))


def _shards(path: Path) -> list[Path]:
    """The files of a table, in their order."""
    if not path.is_dir():
        return [path]
    if (path / "state.json").is_file() and (path / "dataset_info.json").is_file():
        return sorted(path.glob("*.arrow"))
    return sorted(path.glob("*.parquet"))


def _columns(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of Parquet or Arrow files, some at a time: no file is held whole."""
    if not path.exists():
        raise QKPrismError(f"{path} cannot be read: there is no such file")
    number = 0
    try:
        for shard in _shards(path):
            for batch in _batches(shard):
                for row in batch.to_pylist():
                    number += 1
                    yield number, {str(name): _listed(cell) for name, cell in row.items()}
    except ImportError as error:
        raise QKPrismError(
            f"{path}: Parquet needs pyarrow; install it (pip install pyarrow), or save as CSV."
        ) from error
    except QKPrismError:
        raise
    except Exception as error:  # whatever the reader of a broken file raises
        raise QKPrismError(f"{path} cannot be read as Parquet: {show(str(error))}") from error


def _batches(shard: Path) -> Iterator[Any]:
    if shard.suffix == ".arrow":
        from pyarrow import OSFile, ipc

        with OSFile(str(shard)) as file, ipc.open_stream(file) as stream:
            for batch in stream:
                yield from (batch.slice(start, _AT_ONCE) for start in range(0, len(batch), _AT_ONCE))
        return
    from pyarrow.parquet import ParquetFile

    with ParquetFile(shard) as file:
        for group in range(file.num_row_groups):
            yield from file.iter_batches(_AT_ONCE, row_groups=[group])


def _listed(cell: Any) -> Any:
    """A cell in plain types: arrays as lists, what is missing as None."""
    if hasattr(cell, "tolist"):
        cell = cell.tolist()
    if isinstance(cell, list | tuple):
        return [_listed(one) for one in cell]
    if isinstance(cell, dict):
        return {name: _listed(one) for name, one in cell.items() if one is not None}
    return None if cell != cell else cell
