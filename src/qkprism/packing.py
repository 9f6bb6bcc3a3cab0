"""Values as bytes without pickle: JSON for what is simple, safetensors for tensors, our own records by their name.

    values_of(bytes_of({"head": ("L1H2", tensor)}))

What processes of a job give each other goes this way, so nothing that comes over the network is run. Tensors come back
on the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

_SIMPLE = (str, int, float, bool, type(None))


def bytes_of(value: Any) -> bytes:
    """A value of numbers, strings, lists, tuples, dicts, tensors, and records of these (dataclasses, named tuples)."""
    from safetensors.torch import save

    tensors: dict[str, Any] = {}
    told = json.dumps(_told(value, tensors))
    return save(tensors, metadata={"value": told})


def values_of(body: bytes) -> Any:
    """The value that `bytes_of` wrote."""
    from safetensors.torch import load

    size = int.from_bytes(body[:8], "little")
    return _restored(json.loads(json.loads(body[8 : 8 + size])["__metadata__"]["value"]), load(body))


def _told(value: Any, tensors: dict[str, Any]) -> Any:
    if isinstance(value, _SIMPLE):
        return value
    if hasattr(value, "data_ptr"):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if is_dataclass(value) and not isinstance(value, type):
        return _record(value, [getattr(value, one.name) for one in fields(value)], tensors)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _record(value, list(value), tensors)
    if isinstance(value, Mapping):
        return {"dict": [[_told(key, tensors), _told(item, tensors)] for key, item in value.items()]}
    if isinstance(value, Sequence):
        items = [_told(item, tensors) for item in value]
        return {"tuple": items} if isinstance(value, tuple) else items
    raise TypeError(f"{type(value).__name__} cannot be given to other processes.")


def _record(value: Any, items: list[Any], tensors: dict[str, Any]) -> dict[str, Any]:
    kind = type(value)
    return {"record": [kind.__module__, kind.__qualname__, [_told(item, tensors) for item in items]]}


def _restored(told: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(told, list):
        return [_restored(item, tensors) for item in told]
    if not isinstance(told, dict):
        return told
    ((kind, items),) = told.items()
    if kind == "tensor":
        return tensors[items]
    if kind == "dict":
        return {_restored(key, tensors): _restored(item, tensors) for key, item in items}
    if kind == "tuple":
        return tuple(_restored(item, tensors) for item in items)
    module, name, values = items
    if module.partition(".")[0] != "qkprism":
        raise TypeError(f"{module}.{name} is no record of qkprism.")
    record = getattr(import_module(module), name)
    if not (is_dataclass(record) or hasattr(record, "_fields")):
        raise TypeError(f"{module}.{name} is no record.")
    return record(*(_restored(item, tensors) for item in values))
