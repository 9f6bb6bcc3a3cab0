"""What is here and what is missing: doctor, models."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from qkprism.cli.app import JsonOption, app
from qkprism.cli.printing import print_json, print_rows, print_sentences
from qkprism.errors import QKPrismError

PACKAGES = ("torch", "transformers", "safetensors", "numpy", "pandas", "plotly", "typer")
EXTRAS = {
    "gguf": ("GGUF files, also the default model's", "pip install gguf"),
    "kaleido": ("figures as images", "pip install kaleido"),
    "umap-learn": ("--umap", "pip install umap-learn"),
}
BROWSERS = (
    "google-chrome",
    "google-chrome-stable",
    "chromium",
    "chromium-browser",
    "chrome",
    "msedge",
    "brave-browser",
)


@dataclass(frozen=True)
class Fact:
    """One thing that was looked at: what was seen, and what to do if it is missing."""

    what: str
    seen: str
    do: str = ""
    needed: bool = False


@app.command(epilog="Example:  qkprism doctor")
def doctor(as_json: JsonOption = False) -> None:
    """Tell versions, devices, memory, caches and what is missing, and what to do about it."""
    found = [*_versions(), *_machine(), *_models(), *_extras()]
    missing = [one for one in found if one.do]
    if as_json:
        print_json({"findings": [asdict(one) for one in found], "missing": len(missing)})
    else:
        print_rows([asdict(one) for one in found], ("what", "seen"), "What qkprism sees", fold=("seen",))
        for one in missing:
            typer.echo(f"{one.what}: {one.do}")
        typer.echo("Nothing is missing." if not missing else f"{len(missing)} things could be better.")
    if any(one.needed for one in missing):
        raise SystemExit(1)


def _versions() -> Iterator[Fact]:
    from importlib.metadata import PackageNotFoundError, version

    yield Fact("python", f"{sys.version.split()[0]} at {sys.executable}")
    for name in ("qkprism", *PACKAGES):
        try:
            yield Fact(name, version(name))
        except PackageNotFoundError:
            yield Fact(name, "not installed", f"pip install {name}", needed=True)


def _machine() -> Iterator[Fact]:
    import torch

    devices = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    yield Fact("devices", ", ".join([*devices, f"cpu with {torch.get_num_threads()} threads"]))
    yield Fact("memory", _memory())


def _memory() -> str:
    from qkprism.runs.catalogue import told_size

    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return "not known on this system"
    return f"{told_size(total)}, of which {told_size(free)} are free"


def _models() -> Iterator[Fact]:
    from qkprism.models.places import DEFAULT_MODEL, cache_folder, hub_answers, hub_cache, packaged_gguf
    from qkprism.runs.catalogue import told_size

    place = cache_folder()
    above = next(one for one in (place, *place.parents) if one.is_dir())
    writable = os.access(above, os.W_OK)
    free = told_size(shutil.disk_usage(above).free)
    yield Fact(
        "cache",
        f"{place} ({free} free)",
        "" if writable else f"{above} cannot be written; set QKPRISM_CACHE to a folder that can.",
    )
    try:
        packaged, do = str(packaged_gguf(DEFAULT_MODEL)), ""
    except QKPrismError as error:
        packaged, do = "not installed", str(error)
    yield Fact("default model", packaged, do)
    answers = hub_answers()
    yield Fact(
        "model hub",
        f"{'answers' if answers else 'cannot be reached'}; downloads are in {hub_cache()}",
        "" if answers else "Models of the hub cannot be loaded unless they are in its cache; folders and smollm2 can.",
    )


def _extras() -> Iterator[Fact]:
    from importlib.metadata import PackageNotFoundError, version

    for name, (use, command) in EXTRAS.items():
        try:
            yield Fact(name, version(name))
        except PackageNotFoundError:
            yield Fact(name, f"not installed (for {use})", command)
    browser = os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, BROWSERS)), None)
    yield Fact(
        "browser for images",
        browser or "none found",
        "" if browser else "Figures are .html; for .png: plotly_get_chrome",
    )


@app.command(epilog="Examples:  qkprism models   qkprism models smollm2   qkprism models Qwen/Qwen3-4B-Instruct-2507")
def models(
    name: Annotated[
        str | None, typer.Argument(help="Hub name, folder, or the class of a model; all that were tested if not given.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell whether a model is supported, from its config alone, without its weights."""
    from qkprism.models.places import families

    if name is None:
        rows = [{"class": key, "what is read": _told(one)} for key, one in families().items()]
        if as_json:
            print_json({"models": rows})
        else:
            print_rows(rows, ("class", "what is read"), "Families that were tested", fold=("what is read",))
        return
    config = {"architectures": [name]} if name in families() else _config(name)
    found = _verdict(name, config)
    if as_json:
        print_json(found)
    else:
        print_sentences(found["sentences"])
    if found["supported"] == "no":
        raise SystemExit(1)


def _told(one: dict[str, str]) -> str:
    return one.get("reads") or f"refused: {one['refused']}"


def _config(name: str) -> dict[str, Any]:
    """The config of a model as it is on disk, or from the hub."""
    from qkprism.models.places import check_name, hub_options, is_hub_name

    check_name(name)
    if is_hub_name(name):
        options = hub_options(name)
        place = _downloaded(name, options)
    else:
        place = _folder(name) / "config.json"
    try:
        config = json.loads(place.read_text(encoding="utf-8"))
        return config if isinstance(config, dict) else {}
    except (OSError, ValueError) as error:
        raise QKPrismError(f"{place} cannot be read: {error}") from None


def _folder(name: str) -> Path:
    from qkprism.models.places import PACKAGES as PACKAGED

    if name in PACKAGED or name.endswith(".gguf"):
        from qkprism.models.loading import locate

        return Path(locate(name)[0])
    return Path(name).expanduser()


def _downloaded(name: str, options: dict[str, Any]) -> Path:
    from huggingface_hub import hf_hub_download

    download: Callable[..., str] = hf_hub_download
    try:
        return Path(download(name, "config.json", **options))
    except Exception as error:  # the hub has many errors of its own
        raise QKPrismError(f"The config of {name} cannot be had: {str(error).splitlines()[0]}") from None


def _verdict(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Whether a model with this config is supported, in words."""
    from qkprism.models.places import families

    architecture = (config.get("architectures") or ["a class that its config does not name"])[0]
    family = families().get(architecture)
    sentences = [f"{name} is {architecture}{_shape(config)}."]
    if family is None:
        sentences.append("This family is not among those that were tested; `qkprism heads induction --limit 8 --model")
        sentences[-1] += f" {name}` decides it: at load it is proved on a short batch, or refused in one sentence."
    elif "refused" in family:
        sentences.append(f"It is not supported: {family['refused']}")
    else:
        sentences.append(f"Its family is supported; what is read: {family['reads']}.")
        sentences.append("At load this is proved for the model itself.")
    supported = "unknown" if family is None else "no" if "refused" in family else "yes"
    return {"name": name, "architecture": architecture, "supported": supported, "sentences": sentences}


def _shape(config: dict[str, Any]) -> str:
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config
    layers, heads = text.get("num_hidden_layers"), text.get("num_attention_heads")
    if not layers or not heads:
        return ""
    keys = text.get("num_key_value_heads")
    return f" with {layers} layers of {heads} heads" + (f" over {keys} key heads" if keys and keys != heads else "")
