"""`BindingStudy`: what a binding study found, read from its folder; `EntityRanks`, a part of it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qkprism.heads import Head
from qkprism.results.attribution import Attribution, Attributions
from qkprism.results.effects import Effects
from qkprism.results.features import Features
from qkprism.results.projections import Projections
from qkprism.results.scores import HeadScores
from qkprism.results.stored import Result
from qkprism.results.validation import Validation
from qkprism.runs.store import load_part, read_finished
from qkprism.verbs.decompose import Recipe

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

KIND = "binding"
CONTRASTS = ("order", "lexical")
REFLEXIVE = "reflexive"
BOTH = "+".join(CONTRASTS)
EXAMPLES = tuple(f"{name}, {whose}" for name in CONTRASTS for whose in ("ours", "paper"))
EFFECTS = {"ours": "effects", "paper": "effects-paper"}  # whose features are edited, and the part that has it
OURS = {name: name for name in CONTRASTS}
PAPER = OURS | {"order": "order_fixed"}
RECIPES = {
    "ours": Recipe(contrasts=OURS),
    "ours, paired twins": Recipe(reading="paired", contrasts=OURS),
    "ours, matched twins": Recipe(reading="matched", contrasts=OURS),
    "three mechanisms": Recipe(contrasts={**OURS, REFLEXIVE: REFLEXIVE}),
    "paper": Recipe(preset="paper", contrasts=PAPER),
    "paper code": Recipe(preset="paper-code", contrasts=PAPER),
}


@dataclass(frozen=True)
class BindingQuestion:
    """What was asked, of which model: the first test prompt and its answer among it; `entity` is its label of keys."""

    model: str
    n_pairs: int
    schema: str
    phrasing: str
    size: str
    seed: int
    example: str
    answer: str
    entity: str = "entity"
    entities: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> BindingQuestion:
        """From the JSON of a study's folder."""
        return cls(**{**saved, **{name: tuple(saved.get(name, ())) for name in ("entities", "notes")}})


class EntityRank(NamedTuple):
    """The ranks of one feature, found with so many entities."""

    entities: int
    contrast: str
    head: Head
    balanced: float
    energy: int
    heldout: int
    n: int


@dataclass(frozen=True)
class EntityRanks(Result, kind="entity_ranks"):
    """Ranks against the number of entities that a contrast draws from (the appendix figure of the paper)."""

    rows: tuple[EntityRank, ...]

    @classmethod
    def of(cls, found: Sequence[tuple[int, Features]]) -> EntityRanks:
        """The ranks of features that were found with different numbers of entities."""
        return cls(
            tuple(
                EntityRank(
                    entities,
                    feature.contrast,
                    feature.head,
                    math.nan if feature.rank_balanced is None else feature.rank_balanced,
                    feature.rank_energy,
                    feature.rank_heldout or 0,
                    feature.n,
                )
                for entities, features in found
                for feature in features.values()
            )
        )

    def to_frame(self) -> pd.DataFrame:
        """A row a number of entities, contrast and head."""
        import pandas as pd

        frame = pd.DataFrame(self.rows, columns=EntityRank._fields)
        return frame.astype({"head": str}).rename(columns={"contrast": "feature"})

    def plot(self) -> go.Figure:
        """Ranks by three rules against the number of entities."""
        from qkprism.figures.lines import entities_figure

        return entities_figure(self)


@dataclass(frozen=True)
class BindingStudy:
    """What was found: heads, features by our choices and by the paper's, and their proofs."""

    about: BindingQuestion
    scores: HeadScores
    recipes: Mapping[str, Features]
    effects: Effects
    effects_paper: Effects
    outcome: Effects
    validation: Validation
    attributions: Attributions
    examples: Mapping[str, Attribution]
    projections: Projections
    entities: EntityRanks

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> BindingStudy:
        """A finished study from its folder, without the model."""
        place = Path(folder)
        about, job = read_finished(place, KIND, BindingQuestion.read)
        part = partial(load_part, place, job)
        return cls(
            about,
            scores=part("heads", HeadScores.load),
            recipes={recipe: part(folder_of(recipe), Features.load) for recipe in RECIPES},
            examples={name: part(example_folder(name), Attribution.load) for name in EXAMPLES},
            entities=part("entities", EntityRanks.load, {"entities": about.entities}),
            **{name: part(folder, load) for name, (folder, load) in _PARTS.items()},
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return self.about.notes

    @property
    def features(self) -> Features:
        """The features by our choices."""
        return self.recipes["ours"]

    @property
    def heads(self) -> tuple[Head, ...]:
        return self.features.heads

    @property
    def paper(self) -> Features:
        """The features by the paper's choices."""
        return self.recipes["paper"]

    @property
    def mechanisms(self) -> Features:
        """Order, lexical and reflexive features, decomposed together."""
        return self.recipes["three mechanisms"]

    def summary(self) -> pd.DataFrame:
        """A row a head: accuracy, and of each feature its ranks, its part of the gap, and what moving it does.

        `accuracy` is among the labels, `accuracy_all` among all tokens; both on the prompts that chose the heads.
        """
        import pandas as pd

        return pd.DataFrame([self._row(head) for head in self.heads])

    def _row(self, head: Head) -> dict[str, Any]:
        at = self.scores.heads.index(head)
        row: dict[str, Any] = {"head": str(head), "works_by": self.works_by(head)}
        for name in ("accuracy", "accuracy_all"):
            row |= _with_error(name, (float(self.scores.values[name][at]), float(self.scores.errors[name][at])))
        for name in CONTRASTS:
            row |= {f"{name}_rank": self.features[name, head].rank}
            row |= {f"{name}_heldout": self.features[name, head].rank_heldout}
            row |= {f"{name}_energy": self.paper[name, head].rank_energy}
            row |= {f"{name}_code": self.recipes["paper code"][name, head].rank_energy}
            row |= _with_error(f"{name}_gap", self.gap(name, head))
            row |= _with_error(f"{name}_shift", self.effects.gain(head=head, feature=name))
            row |= _with_error(f"{name}_alignment", self.projections.alignment(self.features, name, head))
        row |= _with_error("both_shift", self.effects.gain(head=head, feature=BOTH))
        return row | {"reflexive_heldout": self.mechanisms[REFLEXIVE, head].rank_heldout}

    def gap(self, name: str, head: Head) -> tuple[float, float]:
        """A feature's mean part of the logit gap between the right label and the others, with its error."""
        row, term = self.attributions.heads.index(head), self.attributions.terms.index(name)
        return tuple(float(table["gap"][row, term]) for table in (self.attributions.values, self.attributions.errors))  # type: ignore[return-value]

    def works_by(self, head: Head) -> str:
        """Which feature makes the head's gap between the right label and the others, if any clearly does."""
        return main_clue({name: self.gap(name, head) for name in CONTRASTS})


def main_clue(gaps: Mapping[str, tuple[float, float]]) -> str:
    """The feature whose part is clear (two errors) and twice as large as the others'; "both" or "neither" else.

    >>> main_clue({"order": (1.0, 0.1), "lexical": (0.2, 0.05)}), main_clue({"order": (0.1, 0.2), "lexical": (-1, 0.1)})
    ('order', 'neither')
    """
    clear = sorted((name for name, (gap, error) in gaps.items() if gap > 2 * error), key=lambda name: -gaps[name][0])
    if not clear:
        return "neither"
    return clear[0] if len(clear) == 1 or gaps[clear[0]][0] > 2 * gaps[clear[1]][0] else "both"


def _with_error(name: str, found: tuple[float, float]) -> dict[str, float]:
    return {name: found[0], f"{name}_error": found[1]}


_PARTS: Mapping[str, tuple[str, Callable[[Path], Any]]] = {
    "effects": (EFFECTS["ours"], Effects.load),
    "effects_paper": (EFFECTS["paper"], Effects.load),
    "outcome": ("outcome", Effects.load),
    "validation": ("validation", Validation.load),
    "attributions": ("attributions", Attributions.load),
    "projections": ("projections", Projections.load),
}


def folder_of(recipe: str) -> str:
    """The part of a study that holds the features of a recipe."""
    return f"features-{recipe.replace(', ', '-').replace(' ', '-')}"


def example_folder(name: str) -> str:
    """The part that holds an example."""
    return f"example-{name.replace(', ', '-').replace(' ', '-')}"
