"""`Library`: the runs and the atlas that are open, and all that can be told of them without a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkprism.atlas.atlas import Atlas
from qkprism.contrasts.templates import shelf_names
from qkprism.errors import QKPrismError
from qkprism.explorer.answers import FORMAT, PALETTE, head_answer, heads_answer
from qkprism.explorer.clouds import cloud_answer
from qkprism.explorer.columns import run_columns
from qkprism.explorer.evidence import evidence_answer
from qkprism.explorer.opening import OpenRun
from qkprism.explorer.proofs import Proofs, projections_of
from qkprism.explorer.run_answers import figure_answer, runs_answer, start_answer, table_answer
from qkprism.explorer.sets import SEPARATOR, FeatureSets
from qkprism.heads import Head
from qkprism.options import show
from qkprism.results.features import Features
from qkprism.results.projections import has_umap
from qkprism.results.scores import HeadScores
from qkprism.studies.shelf_result import Shelf

ATLAS, COVERAGE = "", "coverage"  # the name that the atlas has among tables, and its second table
OWN, STORED = "own", "stored"  # the texts of a run's own contrast; the vectors that a study kept


@dataclass
class Library:
    """What is open. `naming` are the features and shelves of runs by name, `sets` what can be edited of them."""

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
        self.sets = FeatureSets(self.naming)

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
        told: dict[str, Any] = {"format": FORMAT, "stage": "ready", "failure": None, "palette": PALETTE}
        return told | start_answer(self.model, self.loads_as, self.atlas, self.runs)

    def tell_heads(self) -> dict[str, Any]:
        """Every score of every head."""
        return heads_answer(self.heads, self.atlas, run_columns(self.runs, self.heads))

    def head(self, name: str) -> dict[str, Any]:
        """One head."""
        return head_answer(self.atlas, self._head(name), self.shelves, self.scores)

    @property
    def shelves(self) -> dict[str, Shelf]:
        """The runs that are shelves."""
        return {name: run for name, run in self.naming.items() if isinstance(run, Shelf)}

    @property
    def scores(self) -> dict[str, HeadScores]:
        """How often heads are right, by the runs that looked for heads."""
        return {name: scores for run in self.runs.values() for name, scores in run.scores.items()}

    def evidence(self, name: str) -> dict[str, Any]:
        """What speaks for the features of a head."""
        wanted = self._head(name)
        sets = {str(one["run"]): self.sets.features(one["run"]) for one in self.sets.of_head(wanted)}
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
        return cloud_answer(kept, self.sets.features(run), feature, head, umap=umap)

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
        like = [word for word in (*words, *self.sets.features(run).contrasts) if word in on_shelf]
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
