"""`BindingStudy`: what a binding study found, read from its folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkprism.core.attribution import Attribution, Attributions
from qkprism.core.effects import Effects
from qkprism.core.feature_set import Features
from qkprism.core.projection import Projections
from qkprism.core.scores import HeadScores
from qkprism.core.validation import Validation
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.pipeline import Way
from qkprism.studies.entities import EntityRanks
from qkprism.studies.parts import load_part, read_study

if TYPE_CHECKING:
    import pandas as pd

KIND = "binding"
CONTRASTS = ("order", "lexical")
REFLEXIVE = "reflexive"
OURS = {"order": "order_free", "lexical": "lexical"}
WAYS = {
    "ours": Way(rank="larger", contrasts=OURS),
    "ours, paired twins": Way(rank="larger", reading="paired", contrasts=OURS),
    "ours, matched twins": Way(rank="larger", reading="matched", contrasts=OURS),
    "three mechanisms": Way(rank="larger", contrasts={**OURS, REFLEXIVE: REFLEXIVE}),
    "paper": Way(preset="paper", contrasts={name: name for name in CONTRASTS}),
}


@dataclass(frozen=True)
class About:
    """What was asked, of which model: the first test prompt and its answer among it."""

    model: str
    n_pairs: int
    schema: str
    phrasing: str
    size: str
    seed: int
    example: str
    answer: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class BindingStudy:
    """What was found: heads, features by our choices and by the paper's, and their proofs."""

    about: About
    scores: HeadScores
    ways: Mapping[str, Features]
    effects: Effects
    outcome: Effects
    validation: Validation
    attributions: Attributions
    example: Attribution
    projections: Projections
    entities: EntityRanks

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> BindingStudy:
        """A finished study from its folder, without the model."""
        place = Path(folder)
        study = read_study(place)
        if study["study"] != KIND:
            raise QKPrismError(f"{place} holds a study of another kind: {study['study']!r}.")
        about = study["about"] | {"notes": tuple(study["about"].get("notes", ()))}
        try:
            known = About(**about)
        except TypeError:
            raise QKPrismError(f"{place} is of another version. Start the study again with --save {place}.") from None
        ways = {way: load_part(place, folder_of(way), Features.load) for way in WAYS}
        parts: dict[str, Any] = {name: load_part(place, name, load) for name, load in _PARTS.items()}
        return cls(known, ways=ways, scores=load_part(place, "heads", HeadScores.load), **parts)

    @property
    def notes(self) -> tuple[str, ...]:
        return self.about.notes

    @property
    def features(self) -> Features:
        """The features by our choices."""
        return self.ways["ours"]

    @property
    def heads(self) -> tuple[Head, ...]:
        return self.features.heads

    @property
    def paper(self) -> Features:
        """The features by the paper's choices."""
        return self.ways["paper"]

    @property
    def mechanisms(self) -> Features:
        """Order, lexical and reflexive features, decomposed together."""
        return self.ways["three mechanisms"]

    def summary(self) -> pd.DataFrame:
        """A row a head: accuracy, and of each feature its ranks, its part of the gap, and what moving it does."""
        import pandas as pd

        at = {head: i for i, head in enumerate(self.scores.heads)}
        rows = []
        for head in self.heads:
            row: dict[str, Any] = {"head": str(head), "accuracy": float(self.scores.values["accuracy"][at[head]])}
            row["works_by"] = self.works_by(head)
            for name in CONTRASTS:
                row |= {f"{name}_rank": self.features[name, head].rank_heldout}
                row |= {f"{name}_energy": self.paper[name, head].rank_energy}
                row[f"{name}_gap"] = self.gap(name, head)
                row[f"{name}_shift"] = self.gain(name, head)
                row[f"{name}_alignment"] = self.projections.alignment(self.features, name, head)[0]
            row["both_shift"] = self.gain("+".join(CONTRASTS), head)
            row["reflexive_rank"] = self.mechanisms[REFLEXIVE, head].rank_heldout
            rows.append(row)
        return pd.DataFrame(rows)

    def gap(self, name: str, head: Head) -> float:
        """A feature's mean part of the logit gap between the right label and the others."""
        row, term = self.attributions.heads.index(str(head)), self.attributions.terms.index(name)
        return float(self.attributions.values["gap"][row, term])

    def gain(self, feature: str, head: Head) -> float:
        """How much of the attention a swap moves to the target."""
        moved = self.effects.value("shift", head=head, feature=feature)[0]
        return moved - self.effects.value("shift", head=head, control="none")[0]

    def works_by(self, head: Head) -> str:
        """Which feature makes more of the head's gap between the right label and the others."""
        return max(CONTRASTS, key=lambda name: self.gap(name, head))


_PARTS: Mapping[str, Callable[[Path], Any]] = {
    "effects": Effects.load,
    "outcome": Effects.load,
    "validation": Validation.load,
    "attributions": Attributions.load,
    "example": Attribution.load,
    "projections": Projections.load,
    "entities": EntityRanks.load,
}


def folder_of(way: str) -> str:
    return f"features-{way.replace(', ', '-').replace(' ', '-')}"
