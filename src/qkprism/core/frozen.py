"""Results that cannot be changed by accident: their tensors refuse to be written in place.

PyTorch has no read-only tensors, but those made in inference mode are: `feature.strengths[0] = 1` is an error that says
to make a clone. Reading and computing with them is as always.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor


class Frozen:
    """A frozen dataclass whose tensors, alone or in a dictionary, cannot be written in place."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            object.__setattr__(self, field.name, read_only(getattr(self, field.name)))


def read_only(value: Any) -> Any:
    """A tensor that cannot be written in place (a copy, unless it is one already); other values as they are.

    >>> read_only(torch.zeros(2)).add_(1)
    Traceback (most recent call last):
    RuntimeError: Inplace update to inference tensor outside InferenceMode is not allowed...
    """
    if isinstance(value, Tensor):
        if value.is_inference():
            return value
        with torch.inference_mode():
            return value.clone()
    if isinstance(value, dict) and any(isinstance(item, Tensor) for item in value.values()):
        return {key: read_only(item) for key, item in value.items()}
    return value
