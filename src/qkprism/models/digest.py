"""A short fingerprint of a model's weights, so that features are not used with another model."""

from __future__ import annotations

import hashlib

import torch
from transformers import PreTrainedModel

_SAMPLES = 64


def model_digest(hf: PreTrainedModel) -> str:
    """SHA-256 of the names, shapes and a strided sample of all weights.

    The sample is rounded to bfloat16, so that one checkpoint has one digest in whatever dtype it is loaded.
    """
    digest = hashlib.sha256(type(hf.config).__name__.encode())
    for name, weight in sorted(hf.base_model.named_parameters()):
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        if weight.device.type != "meta":  # offloaded weights are known by name and shape only
            flat = weight.detach().reshape(-1)
            sample = flat[:: max(1, flat.numel() // _SAMPLES)].float().to("cpu").to(torch.bfloat16)
            digest.update(sample.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]
