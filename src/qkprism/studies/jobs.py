"""What studies share: their sizes by name, and what their parts depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, TypeVar

from qkprism.capture.model_source import versions
from qkprism.contrasts import Contrast
from qkprism.errors import QKPrismError
from qkprism.models.model import Model

StudySize = TypeVar("StudySize")


def size_of(sizes: Mapping[str, StudySize], name: str) -> StudySize:
    """How many prompts a study of this size runs."""
    if name not in sizes:
        raise QKPrismError(f"{name!r} is not a size of this study. Use one of {', '.join(sizes)}.")
    return sizes[name]


def template_of(model: Model, chat: object) -> dict[str, str]:
    """The chat template that prompts are put into, if they are."""
    return {"chat_template": str(getattr(model.tokenizer, "chat_template", ""))} if chat else {}


def job_of(model: Model, size: Any, prompts: Mapping[str, Contrast], **options: Any) -> dict[str, Any]:
    """All that the parts of a study depend on: if any of it changes, they are computed again."""
    return {
        "model": model.name,
        "model_digest": model.digest,
        "dtype": str(model.dtype),
        "size": asdict(size) if is_dataclass(size) and not isinstance(size, type) else size,
        "prompts": {name: contrast.digest for name, contrast in prompts.items()},
        "versions": versions(),
        **options,
    }
