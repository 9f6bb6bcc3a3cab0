"""Which box holds the jam? The binding study (paper, section 5.2 and appendix) on any causal language model.

    search -> heads -> features (several ways, one pass) -> intervene | outcome | validate | attribute | project

Contrasts are made of some entities and tested on others. Everything is kept in one folder. Our order contrast is the
one without a fixed entity: with one, as in the paper, what the query knows of the answer's label is in it too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from qkprism.models.digest import model_digest
from qkprism.models.model import Model
from qkprism.pipeline import Way, attribute, decompose, decompose_ways, find_heads, intervene, project, validate
from qkprism.pipeline.inputs import versions
from qkprism.studies.entities import EntityRanks
from qkprism.studies.parts import Parts, load_part, read_study
from qkprism.tasks import BindingTask, Schema, binding

if TYPE_CHECKING:
    import pandas as pd

KIND = "binding"
THRESHOLD = 0.3  # the paper's, of the accuracy among the marked keys
MOST_HEADS = 9
FEWEST_HEADS = 3
CONTRASTS = ("order", "lexical")
REFLEXIVE = "reflexive"
LABELS = {"lexical": "entity"}
_OURS = {"order": "order_free", "lexical": "lexical"}
WAYS = {
    "ours": Way(rank="larger", contrasts=_OURS),
    "ours, paired twins": Way(rank="larger", reading="paired", contrasts=_OURS),
    "ours, matched twins": Way(rank="larger", reading="matched", contrasts=_OURS),
    "three mechanisms": Way(rank="larger", contrasts={**_OURS, REFLEXIVE: REFLEXIVE}),
    "paper": Way(preset="paper", contrasts={name: name for name in CONTRASTS}),
}


@dataclass(frozen=True)
class Size:
    """How many prompts each part of a study runs; `shown` are those that are attributed and projected.

    `entities`: numbers of entities for which ranks are found anew, from at most 300 examples.
    """

    search: int
    train: int
    reflexive: int
    test: int
    shown: int
    draws: int
    outcome_draws: int
    entities: tuple[int, ...] = ()


SIZES = {
    "quick": Size(256, 300, 100, 128, 64, 10, 4),
    "paper": Size(1000, 3000, 1000, 1000, 256, 10, 10, entities=(10, 13, 18, 25, 34)),
}
MOST_FOR_ENTITIES = 300


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
        ways = {way: load_part(place, _folder(way), Features.load) for way in WAYS}
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


def study_binding(
    model: Model,
    folder: str | os.PathLike[str],
    *,
    n_pairs: int = 9,
    schema: str | Schema = "boxes",
    phrasing: str = "cloze",
    size: str = "quick",
    seed: int = 0,
    entities: Sequence[int] | None = None,
    batch_size: int | None = None,
    progress: bool = True,
) -> BindingStudy:
    """Run the study, or what is missing of it in the folder.

    `entities` are numbers of entities for which ranks are found anew; by default the size has them.
    """
    if size not in SIZES:
        raise QKPrismError(f"{size!r} is not a size of this study. Use one of {', '.join(SIZES)}.")
    numbers = SIZES[size] if entities is None else replace(SIZES[size], entities=tuple(entities))
    world = _World(model, n_pairs, schema, phrasing, seed)
    task = world.task(n_train=numbers.train, n_search=numbers.search, n_test=numbers.test)
    example = task.test[0].text
    answer = example.text[example.positive[0].start : example.positive[0].end]
    about = About(model.name, n_pairs, task.schema.name, task.phrasing.name, size, seed, example.text, answer)
    job = _job(model, task, n_pairs, numbers, seed)
    parts = Parts.open(folder, KIND, job, asdict(about))
    work = _Work(model, task, numbers, seed, parts, {"batch_size": batch_size, "progress": progress})
    scores = work.scores()
    heads, notes = choose_heads(scores)
    ways = work.features(heads)
    features = ways["ours"]
    method, why = split_method(features)
    about = replace(about, notes=notes + why)
    Parts.open(folder, KIND, job, asdict(about))
    return BindingStudy(
        about=about,
        scores=scores,
        ways=ways,
        effects=work.effects(features),
        outcome=work.outcome(features),
        validation=work.validation(ways),
        attributions=work.attributions(features, method),
        example=work.example(features, method),
        projections=work.projections(features),
        entities=work.entities(world, heads),
    )


@dataclass(frozen=True)
class _World:
    """What all prompts of a study are made of."""

    model: Model
    n_pairs: int
    schema: str | Schema
    phrasing: str
    seed: int

    def task(self, **sizes: Any) -> BindingTask:
        return binding(self.n_pairs, self.seed, self.schema, self.phrasing, self.model.tokenizer, **sizes)


@dataclass(frozen=True)
class _Work:
    """The parts of the study, each computed once."""

    model: Model
    task: BindingTask
    numbers: Size
    seed: int
    parts: Parts
    common: Mapping[str, Any]

    def scores(self) -> HeadScores:
        return self.parts.get(
            "heads",
            lambda: find_heads(self.model, self.task.search, chat=self.task.chat, **self.common),
            HeadScores.load,
        )

    def features(self, heads: Sequence[Head]) -> dict[str, Features]:
        """The features by every way, from one pass if any is missing."""
        contrasts = dict(self.task.contrasts)
        contrasts[REFLEXIVE] = contrasts[REFLEXIVE][: self.numbers.reflexive]
        options: dict[str, Any] = {"heads": heads, "chat": self.task.chat, "seed": self.seed, **self.common}
        made: dict[str, Features] = {}

        def compute(way: str) -> Features:
            if not made:
                made.update(decompose_ways(self.model, contrasts, WAYS, **options))
            return made[way]

        return {
            way: self.parts.get(_folder(way), lambda way=way: compute(way), Features.load)  # type: ignore[misc]
            for way in WAYS
        }

    def effects(self, features: Features) -> Effects:
        options: dict[str, Any] = {"labels": LABELS, "draws": self.numbers.draws, "seed": self.seed, **self.common}
        return self.parts.get(
            "effects", lambda: intervene(self.model, self.task.test, features, **options), Effects.load
        )

    def outcome(self, features: Features) -> Effects:
        """The output is followed for our edit alone: every condition is a run of the model."""
        options: dict[str, Any] = {"outcome": "logits", "methods": [features.choices.metric], "seed": self.seed}
        options |= {"draws": self.numbers.outcome_draws, **self.common}
        return self.parts.get(
            "outcome", lambda: intervene(self.model, self.task.test, features, **options), Effects.load
        )

    def validation(self, ways: Mapping[str, Features]) -> Validation:
        """Against texts in which clauses, entities or labels really changed places."""
        pairs = {name: self.task.counterfactuals(name) for name in CONTRASTS}  # type: ignore[arg-type]
        pairs[REFLEXIVE] = self.task.counterfactuals("label")
        return self.parts.get("validation", lambda: validate(self.model, pairs, ways, **self.common), Validation.load)

    def attributions(self, features: Features, method: str | None) -> Attributions:
        shown = self.task.test[: self.numbers.shown]
        return self.parts.get(
            "attributions",
            lambda: attribute(self.model, shown, features, method=method, **self.common),
            Attributions.load,
        )

    def example(self, features: Features, method: str | None) -> Attribution:
        return self.parts.get(
            "example",
            lambda: attribute(self.model, self.task.test[0], features, features.heads[0], method=method),
            Attribution.load,
        )

    def projections(self, features: Features) -> Projections:
        shown = self.task.test[: self.numbers.shown]
        return self.parts.get(
            "projections", lambda: project(self.model, shown, features, **self.common), Projections.load
        )

    def entities(self, world: _World, heads: Sequence[Head]) -> EntityRanks:
        """Ranks with other numbers of entities to draw from."""
        options: dict[str, Any] = {"heads": heads, "chat": self.task.chat, "seed": self.seed, **self.common}

        def features(n_entities: int) -> Features:
            n_train = min(self.numbers.train, MOST_FOR_ENTITIES)
            task = world.task(n_train=n_train, n_search=1, n_test=1, n_entities=n_entities)
            contrasts = {name: task.contrasts[source] for name, source in _OURS.items()}
            return decompose(self.model, contrasts, **options)

        def compute() -> EntityRanks:
            return EntityRanks.of([(n, features(n)) for n in self.numbers.entities])

        return self.parts.get("entities", compute, EntityRanks.load, {"entities": self.numbers.entities})


_PARTS: Mapping[str, Callable[[Path], Any]] = {
    "effects": Effects.load,
    "outcome": Effects.load,
    "validation": Validation.load,
    "attributions": Attributions.load,
    "example": Attribution.load,
    "projections": Projections.load,
    "entities": EntityRanks.load,
}


def _folder(way: str) -> str:
    return f"features-{way.replace(', ', '-').replace(' ', '-')}"


def split_method(features: Features) -> tuple[str | None, tuple[str, ...]]:
    """The oblique split, or Shapley's for all heads if one of them has no joint projectors."""
    reasons = [joint.reason for joint in map(features.joint, features.heads) if joint.subspaces is None]
    if not reasons:
        return None, ()
    return "shapley", (f"{reasons[0]} Logits are split by Shapley's method instead.",)


def choose_heads(scores: HeadScores) -> tuple[tuple[Head, ...], tuple[str, ...]]:
    """The heads that reach the paper's threshold, at most nine; the best few if none does, and it is said."""
    good = scores.above(accuracy=THRESHOLD).top(MOST_HEADS, "accuracy")
    if len(good) >= FEWEST_HEADS:
        return tuple(good), ()
    best = tuple(scores.top(FEWEST_HEADS, "accuracy"))
    note = f"{len(good)} heads reach an accuracy of {THRESHOLD:g}; the study goes on with the best {len(best)}."
    return best, (note,)


def _job(model: Model, task: BindingTask, n_pairs: int, numbers: Size, seed: int) -> dict[str, Any]:
    return {
        "model": model.name,
        "model_digest": model_digest(model.hf),
        "dtype": str(model.dtype),
        "n_pairs": n_pairs,
        "schema": task.schema.name,
        "phrasing": task.phrasing.name,
        "size": asdict(replace(numbers, entities=())),  # which only one part depends on
        "seed": seed,
        "prompts": {name: contrast.digest for name, contrast in task.contrasts.items()},
        "test": task.test.digest,
        "versions": versions(),
    }
