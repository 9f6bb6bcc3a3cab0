"""`Library`: the runs and the atlas that are open, and all that can be told of them without a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkprism.atlas.atlas import Atlas
from qkprism.contrasts.templates import shelf_names
from qkprism.errors import QKPrismError
from qkprism.explorer.answers import head_answer, heads_answer, start_of
from qkprism.explorer.clouds import cloud_answer
from qkprism.explorer.columns import run_columns
from qkprism.explorer.evidence import evidence_answer
from qkprism.explorer.opening import OpenRun
from qkprism.explorer.proofs import Proofs, projections_of
from qkprism.explorer.run_answers import figure_answer, runs_answer, start_answer, table_answer
from qkprism.heads import Head
from qkprism.options import show
from qkprism.results.features import Features
from qkprism.results.projections import has_umap
from qkprism.studies.shelf_result import Shelf
from qkprism.subspaces.modulation import why_not_conditional

SEPARATOR = " / "  # of a run and what is in it
ATLAS, COVERAGE = "", "coverage"  # the name that the atlas has among tables, and its second table
OWN, STORED = "own", "stored"  # the texts of a run's own contrast; the vectors that a study kept


@dataclass
class Library:
    """What is open. `naming` are the features and shelves of runs by name, which name parts."""

    runs: dict[str, OpenRun] = field(default_factory=dict)
    atlas: Atlas | None = None
    loads_as: str = ""  # what `load` takes, where the model is behind the page

    def __post_init__(self) -> None:
        self.read()

    def read(self) -> None:
        """See what is in the runs, also in one that has come."""
        self.naming: dict[str, Features | Shelf] = {
            f"{name} / {part}" if part else name: naming
            for name, run in self.runs.items()
            for part, naming in run.naming.items()
        }
        self._read: dict[str, Features] = {}

    def sets_of(self, head: Head) -> list[dict[str, Any]]:
        """The sets of features that a head has, each with the evidence for them there."""
        found = {name: self.features(name) for name, heads in self._sets().items() if head in heads}
        return [
            {
                "run": name,
                "features": [
                    {"name": one, "rank": features[one, head].rank, "p": round(features[one, head].p, 4)}
                    for one in features.contrasts
                    if (one, head) in features
                ],
                "heads": list(map(str, self._sets()[name])),
                "lacking": why_not_exchanged(features),
            }
            for name, features in found.items()
        ]

    def features(self, name: str) -> Features:
        """The features of a run, or of one contrast of a shelf, which are read when they are first wanted."""
        if name not in self._sets():
            raise QKPrismError(f"There are no features {name!r}. There are: {', '.join(self._sets()) or 'none'}.")
        run = self.naming.get(name)
        if isinstance(run, Features):
            return run
        if name not in self._read:
            folder, _, contrast = name.rpartition(SEPARATOR)
            shelf = self.naming[folder]
            assert isinstance(shelf, Shelf)
            self._read[name] = shelf.features(contrast)
        return self._read[name]

    def _sets(self) -> dict[str, Sequence[Head]]:
        """The heads of every set of features, without reading it."""
        found: dict[str, Sequence[Head]] = {}
        for name, run in self.naming.items():
            if isinstance(run, Features):
                found[name] = run.heads
            elif run.folder is not None and Path(run.folder).is_dir():
                found |= {f"{name}{SEPARATOR}{row.contrast}": row.heads for row in run.rows}
        return found

    @property
    def model(self) -> str:
        """The name of the model."""
        named = [str(self.atlas.provenance.get("model", ""))] if self.atlas is not None else []
        return next(
            (name for name in (*named, *(run.model for run in self.runs.values())) if name not in ("", "-")), ""
        )

    @property
    def heads(self) -> tuple[Head, ...]:
        """All heads of the atlas; else those that a run tells something of."""
        if self.atlas is not None:
            return self.atlas.heads
        found = {head for naming in self.naming.values() for head in naming.heads}
        for run in self.runs.values():
            found.update(*(scores.heads for scores in run.scores.values()))
            found.update(*(effects.alone for effects in run.effects.values()))
        return tuple(sorted(found))

    def answers(self) -> dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]:
        """What can be asked, by name."""
        return {
            "start": lambda _: self.start(),
            "heads": lambda _: self.tell_heads(),
            "head": lambda q: self.head(word_of(q, "head")),
            "evidence": lambda q: self.evidence(word_of(q, "head")),
            "runs": lambda _: runs_answer(self.runs, places=bool(self.loads_as)),
            "table": lambda q: self.table(word_of(q, "run"), word_of(q, "table")),
            "seen": lambda q: self.stored(Head.parse(word_of(q, "head")), word_of(q, "run"), word_of(q, "feature")),
            "figure": lambda q: figure_answer(self._run(word_of(q, "run")).figure(word_of(q, "figure"))),
        }

    def start(self) -> dict[str, Any]:
        """What is open, in sentences."""
        return start_of() | start_answer(self.model, self.loads_as, self.atlas, self.runs)

    def tell_heads(self) -> dict[str, Any]:
        """Every score of every head."""
        return heads_answer(self.heads, self.atlas, run_columns(self.runs, self.heads))

    def head(self, name: str) -> dict[str, Any]:
        """One head."""
        shelves = [run for run in self.naming.values() if isinstance(run, Shelf)]
        scores = {name: scores for run in self.runs.values() for name, scores in run.scores.items()}
        return head_answer(self.atlas, self._head(name), shelves, scores)

    def evidence(self, name: str) -> dict[str, Any]:
        """What speaks for the features of a head."""
        wanted = self._head(name)
        sets = {name: self.features(name) for name, heads in self._sets().items() if wanted in heads}
        tested = self.head(name)["tested"]
        texts = {run: self._texts_of(run, wanted) for run in sets}
        return evidence_answer(wanted, sets, self._proofs, tested) | {"texts": texts, "umap": has_umap()}

    @property
    def _proofs(self) -> Proofs:
        folders = {name: run.folder for name, run in self.runs.items() if run.folder is not None}
        results = {
            name: effects for name, run in self.runs.items() if run.folder is None for effects in run.effects.values()
        }
        return Proofs(folders, results)

    def stored(self, head: Head, run: str, feature: str, *, umap: bool = False) -> dict[str, Any]:
        """Keys and queries in one feature of a head, of the vectors that a study kept."""
        kept = projections_of(self._proofs, run, head)
        return cloud_answer(kept, self.features(run), feature, head, umap=umap)

    def table(self, run: str, table: str) -> dict[str, Any]:
        """One table of a run; `atlas` is the model's own."""
        if run == ATLAS and self.atlas is not None:
            return table_answer(self.atlas.coverage() if table == COVERAGE else self.atlas.to_frame())
        return table_answer(self._run(run).table(table))

    def _texts_of(self, run: str, head: Head) -> list[str]:
        """The texts that a feature can be looked at with, the usual ones first."""
        files = [OWN] if run in self.runs and self.runs[run].file is not None else []
        kept = [STORED for _, found in self._proofs.parts("projections", run) if head in found.heads][:1]
        words = [Path(part).name for part in reversed(run.split(SEPARATOR))]
        on_shelf = shelf_names()
        like = [word for word in (*words, *self.features(run).contrasts) if word in on_shelf]
        return list(dict.fromkeys([*files, *like[:1], *kept, *on_shelf]))

    def _run(self, name: str) -> OpenRun:
        if name not in self.runs:
            raise QKPrismError(f"{name} is not open. There are: {', '.join(self.runs) or 'none'}.")
        return self.runs[name]

    def _head(self, name: str) -> Head:
        wanted = Head.parse(name)
        if wanted not in self.heads:
            raise QKPrismError(f"Nothing is known of {wanted} here. There are: {', '.join(map(str, self.heads))}.")
        return wanted


def word_of(question: Mapping[str, Any], name: str) -> str:
    """A word of a question, which is a text."""
    value = question.get(name)
    if not isinstance(value, str):
        raise QKPrismError(f"{name} is a text, not {show(value)}.")
    return value


def why_not_exchanged(features: Features) -> str | None:
    """Why features have no conditional exchange with a control beside it, in a sentence; None if they have."""
    dealt = (moments.dealt_weight.sum() for layer in features.layers.values() for moments in layer.moments.values())
    reason = why_not_conditional(features)
    if reason is None and not any(float(weight) for weight in dealt):
        reason = "twins without a negative key give the conditional edit no control."
    return reason
