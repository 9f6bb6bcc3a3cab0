"""Where a model is put and in which precision, decided from what the machine has and what was asked for.

What was asked for is taken. For the rest: CUDA where there is some, else MPS, else the CPU; bfloat16 on an accelerator
that computes in it, else float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from qkprism.errors import QKPrismError
from qkprism.options import check_one_place, checked_dtype, show

Dtype = torch.dtype | Literal["auto"]
"""A precision, or "auto": that of the checkpoint."""


@dataclass(frozen=True)
class Machine:
    """The kind of accelerator that there is, if any, whether it computes in bfloat16, and how many there are."""

    accelerator: Literal["cuda", "mps"] | None = None
    bfloat16: bool = False
    count: int = 1

    @classmethod
    def here(cls) -> Machine:
        """This machine."""
        if torch.cuda.is_available():
            # Older cards emulate bfloat16, more slowly than they compute in float32.
            return cls("cuda", torch.cuda.is_bf16_supported(including_emulation=False), torch.cuda.device_count())
        if torch.backends.mps.is_available():
            return cls("mps", torch.backends.mps.is_macos_or_newer(14, 0))
        return cls()


@dataclass(frozen=True)
class Placement:
    """The two arguments of `from_pretrained`: a device map (None is the CPU) and a dtype."""

    device_map: str | Mapping[str, Any] | None
    dtype: Dtype


def place(
    machine: Machine,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    device_map: str | Mapping[str, Any] | None = None,
) -> Placement:
    """What was asked for, and the best of the machine where nothing was.

    >>> place(Machine("cuda", bfloat16=True))
    Placement(device_map={'': device(type='cuda')}, dtype=torch.bfloat16)
    >>> place(Machine("cuda", bfloat16=True), device="cpu").dtype
    torch.float32
    """
    check_one_place(device, device_map)
    if device_map is None:
        chosen = torch.device(machine.accelerator or "cpu") if device is None else _device(device, machine)
        device_map = None if chosen.type == "cpu" else {"": chosen}
    return Placement(device_map, _dtype(dtype) or _best_dtype(_kinds(device_map, machine), machine))


def float64_device(device: torch.device) -> torch.device:
    """Where sums in float64 are kept: on the device itself, unless it has none (MPS)."""
    return torch.device("cpu") if device.type == "mps" else device


def _device(device: str | torch.device, machine: Machine) -> torch.device:
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise QKPrismError(f"{show(device)} is not a device. Use cpu, cuda, cuda:1 or mps.") from None
    if chosen.type == "meta":
        raise QKPrismError("A model on the meta device has no weights. Use cpu, cuda, cuda:1 or mps.")
    if chosen.type in ("cuda", "mps") and chosen.type != machine.accelerator:
        there = "only a CPU" if machine.accelerator is None else f"only {machine.accelerator} and a CPU"
        raise QKPrismError(f"torch sees no {chosen.type} here, {there}. Leave the device out, or use cpu.")
    if chosen.type == machine.accelerator and (chosen.index or 0) >= machine.count:
        raise QKPrismError(f"There is no {chosen} here: {chosen.type} devices run from 0 to {machine.count - 1}.")
    return chosen


def _kinds(device_map: str | Mapping[str, Any] | None, machine: Machine) -> set[str]:
    """The kinds of device in a map; a number is an accelerator, and a word such as auto takes the best there is."""
    device_map = "cpu" if device_map is None else device_map
    values = device_map.values() if isinstance(device_map, Mapping) else [device_map]
    kinds = {str(value).split(":")[0] for value in values} - {"disk"}
    best = machine.accelerator or "cpu"
    return {best if kind.isdigit() or kind in _SPREADING else kind for kind in kinds} or {"cpu"}


_SPREADING = ("auto", "balanced", "balanced_low_0", "sequential")


def _best_dtype(kinds: set[str], machine: Machine) -> Dtype:
    if machine.accelerator in kinds:
        return torch.bfloat16 if machine.bfloat16 else torch.float32
    return torch.float32 if kinds == {"cpu"} else "auto"  # of a device that is not known here nothing is assumed


def _dtype(dtype: str | torch.dtype | None) -> Dtype | None:
    if dtype is None:
        return None
    name = checked_dtype(str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else dtype)
    return "auto" if name == "auto" else getattr(torch, name)
