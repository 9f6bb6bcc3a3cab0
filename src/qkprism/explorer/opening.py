"""`OpenRun`: a run folder as the explorer has it: what it is, its choices, its tables, and features that name parts.

A study is a folder of runs, and so is the toy: each part that has a table gives one. Tables are read when they are
looked at, features when they name something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkprism.catalogue import choices_of, entry_of, is_run
from qkprism.errors import QKPrismError
from qkprism.models.digest import model_digest
from qkprism.models.model import Model
from qkprism.results.effects import Effects
from qkprism.results.features import Features
from qkprism.results.scores import HeadScores
from qkprism.results.validation import Validation
from qkprism.runs import MANIFEST, read_manifest
from qkprism.store import STUDY
from qkprism.studies.shelf_result import TABLE, Shelf

if TYPE_CHECKING:
    import pandas as pd

LOADERS: Mapping[str, Callable[[Path], Any]] = {
    "features": Features.load,
    "scores": HeadScores.load,
    "effects": Effects.load,
    "validation": Validation.load,
}
TOY = "toy-table"
Table = Callable[[], "pd.DataFrame"]


@dataclass(frozen=True)
class OpenRun:
    """A run that is open.

    naming    features or a shelf by name, which name parts; "" is the run itself
    scores    the scores of heads by name, for the map
    """

    name: str
    what: str
    model: str
    choices: Mapping[str, str]
    tables: Mapping[str, Table]
    naming: Mapping[str, Features | Shelf] = field(default_factory=dict)
    scores: Mapping[str, HeadScores] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    file: Path | None = None  # of its contrast, where it was kept beside the run

    def table(self, name: str) -> pd.DataFrame:
        """One of the tables."""
        if name not in self.tables:
            raise QKPrismError(f"{self.name} has no table {name!r}. It has: {', '.join(self.tables)}.")
        return self.tables[name]()

    def check(self, model: Model) -> None:
        """Refuse a run of other weights, in one sentence."""
        digest, theirs = (self.provenance.get(key) for key in ("model_digest", "model"))
        wrong = digest != model_digest(model.hf) if digest is not None else theirs not in (None, model.name)
        if wrong:
            raise QKPrismError(
                f"{self.name} is a run of {theirs}, and the weights of {model.name} are others. "
                f"Open it with --model {theirs}."
            )


def open_run(folder: Path) -> OpenRun:
    """The run, study or toy study in a folder."""
    if not folder.is_dir() or not is_run(folder):
        raise QKPrismError(f"{folder} is not a run folder. `qkprism runs` lists those there are.")
    if (folder / TABLE).is_dir() and (folder / STUDY).is_file():
        return _shelf(folder)
    if (folder / MANIFEST).is_file():
        return _single(folder)
    return _study(folder)


def contrast_file(folder: Path) -> Path | None:
    """The file of the contrast that the page kept beside a run."""
    return next((folder / name for name in ("contrast.toml", "contrast.jsonl") if (folder / name).is_file()), None)


def opened(name: str, run: Features | HeadScores, folder: Path | None = None) -> OpenRun:
    """A run that was made just now."""
    kind = "features" if isinstance(run, Features) else "scores"
    choices = {key: str(value) for key, value in run.provenance.items() if isinstance(value, str | int | float)}
    tables, model = {kind: run.to_frame}, str(run.provenance.get("model", "-"))
    naming, scores = ({"": run}, {}) if isinstance(run, Features) else ({}, {name: run})
    file = None if folder is None else contrast_file(folder)
    return OpenRun(name, kind, model, choices, tables, naming, scores, run.provenance, file)


def _shelf(folder: Path) -> OpenRun:
    shelf = Shelf.load(folder)
    entry, choices = entry_of(folder), choices_of(read_manifest(folder / TABLE))
    told = {key: value for key, value in choices.items() if key.startswith(("provenance", "kind"))}
    return OpenRun(
        str(folder), entry.what, entry.model, told, {"shelf": shelf.to_frame}, {"": shelf}, provenance=shelf.provenance
    )


def _single(folder: Path) -> OpenRun:
    manifest, name = read_manifest(folder), str(folder)
    kind, provenance = str(manifest["kind"]), manifest.get("provenance") or {}
    result = LOADERS[kind](folder) if kind in LOADERS else None
    tables = {} if result is None else {kind: result.to_frame}
    return OpenRun(
        name,
        kind,
        str(provenance.get("model", "-")),
        choices_of(manifest),
        tables,
        naming={"": result} if isinstance(result, Features) else {},
        scores={name: result} if isinstance(result, HeadScores) else {},
        provenance=provenance,
        file=contrast_file(folder),
    )


def _study(folder: Path) -> OpenRun:
    """A study: a table for each part, and features by the names of parts."""
    entry, name = entry_of(folder), str(folder)
    tables: dict[str, Table] = {}
    naming: dict[str, Features | Shelf] = {}
    scores: dict[str, HeadScores] = {}
    provenance: Mapping[str, Any] = {}
    for part, kind in _parts(folder):
        if kind == TOY:
            tables |= _toy_tables(folder, part)
        elif kind in LOADERS:
            tables[part] = partial(_frame, folder / part, kind)
        if kind == "features":
            naming[part] = Features.load(folder / part)
            provenance = provenance or naming[part].provenance
        if kind == "scores":
            scores[f"{name} / {part}"] = HeadScores.load(folder / part)
    choices = {"what": entry.what, "state": entry.state, "model": entry.model}
    return OpenRun(name, entry.what, entry.model, choices, tables, naming, scores, provenance)


def _parts(folder: Path) -> Iterator[tuple[str, str]]:
    for manifest in sorted(folder.rglob(MANIFEST)):
        if not manifest.is_symlink() and manifest.resolve().is_relative_to(folder.resolve()):
            yield str(manifest.parent.relative_to(folder)), str(read_manifest(manifest.parent)["kind"])


def _frame(folder: Path, kind: str) -> pd.DataFrame:
    frame: pd.DataFrame = LOADERS[kind](folder).to_frame()
    return frame


def _toy_tables(folder: Path, part: str) -> dict[str, Table]:
    manifest = read_manifest(folder / part)
    return {f"{part}: {name}": partial(_toy_table, folder / part, name) for name in manifest.get("tables", {})}


def _toy_table(folder: Path, name: str) -> pd.DataFrame:
    import pandas as pd

    manifest = read_manifest(folder)
    columns = dict(manifest["tables"][name])
    cells = [" ".join(f"{key}={value}" for key, value in cell.items()) for cell in manifest["cells"]]
    if "cell" in columns:
        columns["cell"] = [cells[number] for number in columns["cell"]]
    return pd.DataFrame(columns)
