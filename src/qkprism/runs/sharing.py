"""`push` and `pull`: a run or a study to and from a plain folder, or a repository of the Hugging Face Hub.

    push("runs/induction", "hf://me/induction")      pull("hf://me/induction", "runs/theirs")

Only what cannot hold code goes: JSON, safetensors, and the stamps of a study's parts (a digest each). All digests are
checked before a push and after a pull, and a card says what it is and how to load it. No torch is needed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TypeVar

from qkprism.runs.catalogue import choices_of, damages, entry_of
from qkprism.errors import QKPrismError
from qkprism.runs.files import is_unused, path_of, whole_folder, write_text
from qkprism.runs.folder import MANIFEST, read_manifest
from qkprism.runs.store import STUDY

HUB = "hf://"
CARD = "README.md"
_JSON = (MANIFEST, STUDY, "found.json")
_STAMP = re.compile(r"[0-9a-f]{64}\s*")
_CHOICES = 30  # that a card tells
Made = TypeVar("Made")


def push(run: str | os.PathLike[str], to: str | os.PathLike[str]) -> str:
    """Copy a run or a study to an unused folder, or to a repository of the Hub (`hf://owner/name`); where it is now."""
    place = path_of(run)
    _check(place)
    if str(to).startswith(HUB):
        return _push_to_hub(place, _repository(str(to)))
    target = path_of(to)
    _copy(place, target, shared_files(place))
    write_text(target / CARD, card(place))
    return str(target)


def pull(source: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """Copy a run or a study from a folder, or from a repository of the Hub, to an unused folder, and check it."""
    target = path_of(folder)
    if not is_unused(target):
        raise QKPrismError(f"{target} is in use. Give a folder that is not there yet.")
    with TemporaryDirectory(prefix="qkprism-") as fresh:
        place = path_of(source)
        if str(source).startswith(HUB):
            place = _download(_repository(str(source)), Path(fresh))
        if not place.is_dir():
            raise QKPrismError(f"{place} is not a folder. Give a run's folder, or {HUB}owner/name.")
        _check(place)
        _copy(place, target, shared_files(place))
    return target


def shared_files(folder: Path) -> list[Path]:
    """The files of a run that are shared, relative to it: manifests, what they name, studies and their stamps."""
    found: set[Path] = set()
    for path in folder.rglob("*"):
        if path.name in _JSON and path.is_file():
            found.add(path)
        if path.name == MANIFEST:
            entries = read_manifest(path.parent)["files"].values()
            found |= {path.parent / Path(entry["file"]).name for entry in entries}
        if path.suffix == ".job" and path.is_file() and _STAMP.fullmatch(path.read_text(errors="replace")):
            found.add(path)
    return sorted(path.relative_to(folder) for path in found if not path.is_symlink())  # a link may lead anywhere


def card(folder: Path) -> str:
    """What a run is, for whoever finds it: its kind, model, choices, and how it is loaded."""
    entry = entry_of(folder)
    lines = ["---", "library_name: qkprism", "tags:", "- interpretability", "- attention", "---"]
    lines += [f"# {entry.what} of {entry.model}", ""]
    lines += ["Query-key features of attention heads, written by qkprism. JSON and safetensors only.", ""]
    lines += ["```", f"qkprism runs pull SOURCE runs/{folder.resolve().name}", "```", ""]
    if (folder / MANIFEST).is_file():
        told = [*choices_of(read_manifest(folder)).items()][:_CHOICES]
        lines += ["| what | value |", "|---|---|"]
        lines += [f"| {name} | {_cell(value)} |" for name, value in told]
    return "\n".join(lines) + "\n"


def _cell(value: str) -> str:
    """JSON as it stands in a table: no line of it ends the cell, and no letter of it is markup."""
    text = value.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
    return f"`{text.replace('`', chr(39))}`"


def _check(folder: Path) -> None:
    """Refuse what is no run, or a damaged one."""
    _, wrong = damages(folder)
    if wrong:
        raise QKPrismError(f"{wrong[0]} {folder} is damaged ({len(wrong)} files in all) and is not copied.")
    if (folder / STUDY).is_file():
        try:
            json.loads((folder / STUDY).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise QKPrismError(f"{folder / STUDY} cannot be read. It is not copied.") from None


def _copy(source: Path, target: Path, files: list[Path]) -> None:
    """Copy files to an unused folder, which is there whole or not at all, and check them."""
    if not is_unused(target):
        raise QKPrismError(f"{target} is in use. Give a folder that is not there yet.")
    with whole_folder(target) as part:
        for file in files:
            (part / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file, part / file)
        _check(part)


def _repository(name: str) -> str:
    """The owner and name of a repository of the Hub."""
    found = name.removeprefix(HUB)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", found):
        raise QKPrismError(f"{name!r} is not a repository of the Hub. Write {HUB}owner/name.")
    return found


def _push_to_hub(place: Path, repository: str) -> str:
    from huggingface_hub import CommitOperationAdd, HfApi

    def send() -> str:
        api = HfApi()
        api.create_repo(repository, exist_ok=True)
        files = {str(PurePosixPath(*file.parts)): place / file for file in shared_files(place)}
        sent = [CommitOperationAdd(name, path) for name, path in files.items()]
        sent.append(CommitOperationAdd(CARD, card(place).encode()))
        return str(api.create_commit(repository, sent, commit_message=f"{entry_of(place).what} by qkprism").repo_url)

    return _asking_hub(repository, send)


def _download(repository: str, to: Path) -> Path:
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.safetensors", "*.job"]
    return Path(_asking_hub(repository, lambda: snapshot_download(repository, allow_patterns=wanted, local_dir=to)))


def _asking_hub(repository: str, ask: Callable[[], Made]) -> Made:
    """What the Hub answers; its errors in a sentence."""
    try:
        return ask()
    except Exception as error:  # of the network, of the Hub, of a missing login
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise QKPrismError(f"{HUB}{repository} could not be reached: {told} (`hf auth login` logs in)") from error
