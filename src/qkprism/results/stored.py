"""Results as run folders: the tensors of a dataclass in a safetensors file, all else in the manifest."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from qkprism.runs import of_another_version, read_run, write_run

Result = TypeVar("Result")


def save_result(result: Any, folder: str | os.PathLike[str], kind: str) -> Path:
    """Write a dataclass, from which `load_result` gives the same."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for name in (field.name for field in fields(result)):
        value = getattr(result, name)
        if isinstance(value, Tensor):
            tensors[name] = value
        elif isinstance(value, Mapping) and value and all(isinstance(item, Tensor) for item in value.values()):
            tensors |= {f"{name}/{key}": item for key, item in value.items()}
        else:
            plain[name] = value
    return write_run(folder, kind, plain, {"result": tensors})


def load_result(
    cls: type[Result], folder: str | os.PathLike[str], kind: str, **restore: Callable[[Any], Any]
) -> Result:
    """Read a dataclass that `save_result` wrote; `restore` makes of JSON what a field had been, lists become tuples."""
    with torch.inference_mode():  # tensors of results are read only
        manifest, files = read_run(folder, kind)
    tensors = files["result"]
    values: dict[str, Any] = {}
    try:
        for name in (field.name for field in fields(cls)):  # type: ignore[arg-type]
            inside = {key.removeprefix(f"{name}/"): t for key, t in tensors.items() if key.startswith(f"{name}/")}
            if name in tensors or inside:
                values[name] = inside or tensors[name]
            else:
                values[name] = restore.get(name, _tupled)(manifest[name])
        return cls(**values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise of_another_version(folder, repr(error)) from error


def _tupled(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_tupled, value))
    return {key: _tupled(item) for key, item in value.items()} if isinstance(value, dict) else value


def infinite(value: float | None) -> float:
    """JSON has no infinity."""
    return float("inf") if value is None else value
