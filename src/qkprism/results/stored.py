"""Results as run folders: the tensors of a dataclass in a safetensors file, all else in the manifest."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import fields
from html import escape
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from qkprism.core.feature import Frozen
from qkprism.heads import Head, is_name
from qkprism.runs.folder import of_another_version, read_run, write_run

if TYPE_CHECKING:
    import pandas as pd

Condition = Annotated[float, math.inf]  # a condition number: JSON has no infinity, so null stands for it


class Result(Frozen):
    """A frozen dataclass that can be written and read again; `kind` is what its folder says it is."""

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.kind = kind

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a run folder, from which `load` gives the same."""
        tensors: dict[str, Tensor] = {}
        plain: dict[str, Any] = {}
        for name in (field.name for field in fields(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            if isinstance(value, Tensor):
                tensors[name] = value
            elif isinstance(value, Mapping) and value and all(isinstance(item, Tensor) for item in value.values()):
                tensors |= {f"{name}/{key}": item for key, item in value.items()}
            else:
                plain[name] = value
        return write_run(folder, self.kind, plain, {"result": tensors})

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read a run folder that `save` wrote."""
        with torch.inference_mode():  # tensors of results are read only
            manifest, files = read_run(folder, cls.kind)
        tensors, hints = files["result"], get_type_hints(cls, include_extras=True)
        values: dict[str, Any] = {}
        try:
            for name in (field.name for field in fields(cls)):  # type: ignore[arg-type]
                inside = {key.removeprefix(f"{name}/"): t for key, t in tensors.items() if key.startswith(f"{name}/")}
                if name in tensors:
                    values[name] = tensors[name]
                else:
                    values[name] = restored(hints[name], inside or manifest[name])
            return cls(**values)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise of_another_version(folder, repr(error)) from error


class ResultTable(Result):
    """A result that shows in a notebook as its table, with what is to be minded below."""

    def to_frame(self) -> pd.DataFrame:
        """The result as a table."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(index=False, max_rows=40, float_format="{:.3g}".format, escape=True)
        notes = "".join(f"<p>{escape(note)}</p>" for note in getattr(self, "notes", ()))
        return f"<p>{escape(repr(self))}</p>{table}{notes}"


def restored(kind: Any, value: Any) -> Any:
    """A value of a declared type as it was before JSON: heads, rows, tuples, and NaN where there was null.

    >>> restored(tuple[Head, ...], ["L1H2"]), restored(Mapping[int, float], {"3": None})
    ((Head(layer=1, index=2),), {3: nan})
    """
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return inside[1] if value is None else value
    if kind is float and value is None:
        return math.nan
    if kind is Head or (Head in inside and isinstance(value, str) and is_name(value)):
        return Head.parse(value)
    if hasattr(kind, "_fields"):  # a named tuple
        hints = get_type_hints(kind)
        return kind(*(restored(hints[name], item) for name, item in zip(kind._fields, value, strict=True)))
    if isinstance(value, dict):
        key, item = inside or (str, Any)
        return {int(name) if key is int else restored(key, name): restored(item, one) for name, one in value.items()}
    if isinstance(value, list):
        return tuple(restored(inside[0] if origin is tuple else Any, item) for item in value)
    single = [one for one in inside if one is not NoneType]
    return restored(single[0], value) if len(single) == 1 and value is not None else value
