"""`OpenRun`: a run folder as the explorer has it: what it is, its choices, its tables, and features that name parts.

A study is a folder of runs, and so is the toy: each part that has a table gives one. Tables are read when they are
looked at, features when they name something.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qkprism.contrasts import Contrast, Text
from qkprism.controls import EVIDENCE, WEAK, Control
from qkprism.errors import QKPrismError
from qkprism.explorer.mail import KeptAnswer, kept_note, read_kept
from qkprism.explorer.studies import LEGEND, told_of_study
from qkprism.figures.words import BELIEVE
from qkprism.findings import Claim, Finding, findings
from qkprism.models.model import Model
from qkprism.results.attribution import Attribution, Attributions
from qkprism.results.effects import Effects
from qkprism.results.features import Features
from qkprism.results.interaction import Interactions
from qkprism.results.scores import HeadScores
from qkprism.results.validation import Validation
from qkprism.results.words import effects_in_words, features_in_words, heads_in_words
from qkprism.runs.catalogue import choices_of, entry_of, is_run
from qkprism.runs.folder import MANIFEST, read_manifest
from qkprism.studies.shelf_result import Shelf
from qkprism.subspaces.modulation import interactions_in_words

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

TOY, HEADS = "toy-table", "heads"
TOLD, PROMPTS = 4, 2  # sentences of a table, prompts of a contrast
Table = Callable[[], "pd.DataFrame"]
Drawing = Callable[[], "go.Figure"]


class Kind(NamedTuple):
    """What a result is, what it says, and what it draws that no view of the page shows."""

    result: Any  # a class with `load`
    words: Callable[[Any], Sequence[str]]
    drawings: Callable[[Any], Mapping[str, Drawing]] = lambda _: {}
    caption: str = ""  # of its table


def _effects_drawings(effects: Effects) -> Mapping[str, Drawing]:
    several = len(effects.targets) > 1
    return {
        f"effects, target {target}" if several else "effects": partial(effects.plot, target=target)
        for target in effects.targets
    }


def _named(controls: Sequence[Control]) -> str:
    return ", ".join(f"{control.title} ({control.meaning}; {control.strength})" for control in controls)


CONTROLS_SAID = f"It is evidence to move more than {_named(EVIDENCE)}. It is none to move more than {_named(WEAK)}."
KINDS: Mapping[str, Kind] = {
    "features": Kind(Features, lambda found: features_in_words(found, interactions_in_words(found)), caption=BELIEVE),
    "scores": Kind(HeadScores, heads_in_words),
    "effects": Kind(Effects, effects_in_words, _effects_drawings, CONTROLS_SAID),
    "validation": Kind(Validation, lambda found: found.verdict()[:TOLD], lambda found: {"validation": found.plot}),
    "attributions": Kind(Attributions, lambda found: found.notes, lambda found: {"attributions": found.plot}),
    "interactions": Kind(
        Interactions, lambda found: found.verdict()[:TOLD], lambda found: {"interactions": found.plot}
    ),
    "shelf": Kind(Shelf, lambda found: found.in_words(), lambda found: {"best": found.plot}, " ".join(LEGEND)),
    "attribution": Kind(Attribution, lambda found: (repr(found),), lambda found: {"attribution": found.plot}),
}


@dataclass(frozen=True)
class OpenRun:
    """A run that is open.

    naming    features or a shelf by name, which name parts; "" is the run itself
    scores    the scores of heads by name, and `effects` of edits, for the map
    captions  of tables, by their names
    findings  in words, `notes` of what to be careful about, and `claims`: what a paper says beside it
    figures   what only a study draws; `picture` is the one that matters, where that is not the map of heads
    prompts   that the run may have explained, by the features of the part `named`; `kept`: answers that took the model
    """

    name: str
    what: str
    model: str
    choices: Mapping[str, str]
    tables: Mapping[str, Table]
    naming: Mapping[str, Features | Shelf] = field(default_factory=dict)
    scores: Mapping[str, HeadScores] = field(default_factory=dict)
    effects: Mapping[str, Effects] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    file: Path | None = None  # of its contrast, where it was kept beside the run
    captions: Mapping[str, str] = field(default_factory=dict)
    findings: Callable[[], Sequence[Finding]] = tuple
    notes: Sequence[str] = ()
    claims: Callable[[], Sequence[Claim]] = tuple
    figures: Mapping[str, Drawing] = field(default_factory=dict)
    picture: str = ""
    prompts: tuple[Text, ...] = ()
    named: str = ""
    kept: Sequence[KeptAnswer] = ()

    def figure(self, name: str) -> go.Figure:
        """One of the figures."""
        if name not in self.figures:
            raise QKPrismError(f"{self.name} has no figure {name!r}. It has: {', '.join(self.figures) or 'none'}.")
        return self.figures[name]()

    def table(self, name: str) -> pd.DataFrame:
        """One of the tables."""
        if name not in self.tables:
            raise QKPrismError(f"{self.name} has no table {name!r}. It has: {', '.join(self.tables)}.")
        return self.tables[name]()

    def check(self, model: Model) -> None:
        """Refuse a run of other weights, in one sentence."""
        digest, theirs = (self.provenance.get(key) for key in ("model_digest", "model"))
        wrong = digest != model.digest if digest is not None else theirs not in (None, model.name)
        if wrong:
            raise QKPrismError(
                f"{self.name} is a run of {theirs}, and the weights of {model.name} are others. "
                f"Open it with --model {theirs}."
            )


def open_runs(folders: Iterable[Path]) -> dict[str, OpenRun]:
    """Runs by short names: those of their folders, and the whole path where two have the same."""
    found: dict[str, OpenRun] = {}
    for folder in folders:
        name = short_name(folder, found)
        found[name] = open_run(folder, name)
    return found


def short_name(folder: Path, taken: Container[str] = ()) -> str:
    """What a run is called that is opened from a folder."""
    name = folder.resolve().name
    return str(folder) if name in taken else name


def open_run(folder: Path, name: str | None = None) -> OpenRun:
    """The run, study or toy study in a folder, under a name, else the folder's."""
    called = short_name(folder) if name is None else name
    if not folder.is_dir() or not is_run(folder):
        raise QKPrismError(f"{folder} is not a run folder. `qkprism runs` lists those there are.")
    run = _readable(_single(folder, called) if (folder / MANIFEST).is_file() else _study(folder, called))
    return replace(run, notes=(*run.notes, *kept_note(folder)))


def _readable(run: OpenRun) -> OpenRun:
    """A run whose shelf names parts only if its features can be read; else a note says why it names none."""
    shelves = {part: one for part, one in run.naming.items() if isinstance(one, Shelf)}
    faults = {part: fault for part, shelf in shelves.items() if (fault := shelf.fault())}
    tables = {part: replace(shelves[part], folder=None) for part in faults}
    notes = [
        f"{run.name} is of another version, or a part of it is missing, so its features name no parts here. "
        f"Make it anew with qkprism shelf --run --save {run.folder}. ({fault})"
        for fault in faults.values()
    ]
    return replace(run, naming={**run.naming, **tables}, notes=(*run.notes, *notes))


def contrast_file(folder: Path) -> Path | None:
    """The file of the contrast that the page kept beside a run."""
    return next((folder / name for name in ("contrast.toml", "contrast.jsonl") if (folder / name).is_file()), None)


def opened(name: str, result: Any, folder: Path | None = None) -> OpenRun:
    """A result that was made just now, or read."""
    kind = kind_of(result)
    provenance = getattr(result, "provenance", {})
    choices = {key: str(value) for key, value in provenance.items() if isinstance(value, str | int | float)}
    file = None if folder is None else contrast_file(folder)
    return OpenRun(
        name,
        kind,
        str(provenance.get("model", "-")),
        choices,
        {kind: result.to_frame},
        naming={"": result} if isinstance(result, Features | Shelf) else {},
        scores={name: result} if isinstance(result, HeadScores) else {},
        effects={name: result} if isinstance(result, Effects) else {},
        provenance=provenance,
        folder=folder,
        file=file,
        findings=lambda: findings(KINDS[kind].words(result), kind),
        captions={kind: KINDS[kind].caption},
        notes=getattr(result, "notes", ()),
        figures=KINDS[kind].drawings(result),
        prompts=_prompts(file),
        kept=_kept(folder, name),
    )


def _prompts(file: Path | None) -> tuple[Text, ...]:
    """The first texts of the contrast that was kept."""
    examples = Contrast.read(file)[:PROMPTS] if file is not None and file.suffix == ".jsonl" else ()
    return tuple(example.text for example in examples)


def _kept(folder: Path | None, name: str) -> tuple[KeptAnswer, ...]:
    """Answers that were kept beside a run, for its name here; those of parts are of `name / part`."""

    def here(words: Mapping[str, Any]) -> Mapping[str, Any]:
        part = words.get("run")
        return words if part is None else {**words, "run": f"{name} / {part}" if part else name}

    return tuple(one._replace(words=here(one.words)) for one in (() if folder is None else read_kept(folder)))


def kind_of(result: Any) -> str:
    """The kind of run that a result is."""
    for kind, one in KINDS.items():
        if isinstance(result, one.result):
            return kind
    raise QKPrismError(f"There is no page of {type(result).__name__}. Save it, and give the folder of the run.")


def _single(folder: Path, name: str) -> OpenRun:
    """A result, and the scores of heads that were kept beside it."""
    manifest = read_manifest(folder)
    kind, choices = str(manifest["kind"]), choices_of(manifest)
    if kind not in KINDS:
        return OpenRun(name, kind, "-", choices, {}, folder=folder)
    run = opened(name, KINDS[kind].result.load(folder), folder)
    beside = folder / HEADS
    if not (beside / MANIFEST).is_file():
        return replace(run, choices=choices)
    scores = HeadScores.load(beside)
    return replace(
        run,
        choices=choices,
        scores={name: scores},
        tables={**run.tables, HEADS: scores.to_frame},
        findings=lambda: [*findings(heads_in_words(scores)[:1], HEADS), *run.findings()],
    )


def _study(folder: Path, name: str) -> OpenRun:
    """A study: a table for each part, and features by the names of parts."""
    entry = entry_of(folder)
    tables: dict[str, Table] = {}
    naming: dict[str, Features | Shelf] = {}
    scores: dict[str, HeadScores] = {}
    provenance: Mapping[str, Any] = {}
    for part, kind in parts_of(folder):
        if kind == TOY:
            tables |= _toy_tables(folder, part)
        elif kind in KINDS:
            tables[part] = partial(_frame, folder / part, kind)
        if kind == "features":
            naming[part] = Features.load(folder / part)
            provenance = provenance or naming[part].provenance
        if kind == "scores":
            scores[name if part == HEADS else f"{name} / {part}"] = HeadScores.load(folder / part)
    choices = {"what": entry.what, "state": entry.state, "model": entry.model}
    run = OpenRun(name, entry.what, entry.model, choices, tables, naming, scores, provenance=provenance, folder=folder)
    return replace(run, kept=_kept(folder, name), **told_of_study(folder))


def parts_of(folder: Path) -> Iterator[tuple[str, str]]:
    """The runs in a folder with their kinds, "." for the folder itself; links do not lead out of it."""
    for manifest in sorted(folder.rglob(MANIFEST)):
        if not manifest.is_symlink() and manifest.resolve().is_relative_to(folder.resolve()):
            yield str(manifest.parent.relative_to(folder)), str(read_manifest(manifest.parent)["kind"])


def _frame(folder: Path, kind: str) -> pd.DataFrame:
    frame: pd.DataFrame = KINDS[kind].result.load(folder).to_frame()
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
