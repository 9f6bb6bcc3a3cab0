"""The paper's models: the same studies with another configuration."""

from __future__ import annotations

from dataclasses import dataclass

from qkprism.errors import QKPrismError


@dataclass(frozen=True)
class StudyPreset:
    """What a study of a model is run with, where nothing else is asked for."""

    model: str
    dtype: str | None = None
    phrasing: str = "cloze"
    size: str = "quick"


PRESETS = {
    "smollm2": StudyPreset("smollm2"),
    "llama3.1-8b": StudyPreset("meta-llama/Llama-3.1-8B-Instruct", "bfloat16", "chat", "paper"),
    "qwen3-4b": StudyPreset("Qwen/Qwen3-4B-Instruct-2507", "bfloat16", "chat", "paper"),
}


def preset_named(name: str) -> StudyPreset:
    """A preset by its name."""
    if name not in PRESETS:
        raise QKPrismError(f"{name!r} is not a preset. Use one of {', '.join(PRESETS)}.")
    return PRESETS[name]
