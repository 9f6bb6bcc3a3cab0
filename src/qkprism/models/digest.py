"""A short fingerprint of a model's weights, so that features are not used with another model."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

_SAMPLES = 64


def model_digest(hf: PreTrainedModel) -> str:
    """SHA-256 of the names, shapes and a strided sample of all weights.

    The sample is rounded to bfloat16, so that one checkpoint has one digest in whatever dtype it is loaded, and weights
    that were put away, on the CPU or on disk, are read there: wherever it is loaded.
    """
    digest = hashlib.sha256(type(hf.config).__name__.encode())
    for name, weight in sorted(hf.base_model.named_parameters()):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        weight = _put_away(hf.base_model, name) if weight.is_meta else weight
        if weight is not None:
            weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight  # split over processes
            flat = weight.detach().reshape(-1)
            sample = flat[:: max(1, flat.numel() // _SAMPLES)].float().to("cpu").to(torch.bfloat16)
            digest.update(sample.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


def _put_away(model: nn.Module, name: str) -> Tensor | None:
    """A weight that accelerate holds elsewhere until its module runs; None if it is nowhere."""
    owner, _, leaf = name.rpartition(".")
    hook = getattr(model.get_submodule(owner), "_hf_hook", None)
    for one in (hook, *getattr(hook, "hooks", ())):
        held = getattr(one, "weights_map", None)
        if held is not None:
            return held[leaf]
    return None
