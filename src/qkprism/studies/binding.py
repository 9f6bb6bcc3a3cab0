"""Which box holds the jam? The binding study (paper, section 5.2 and appendix) on any causal language model.

    search -> heads -> features (ours and the paper's, one pass) -> intervene | outcome | validate | attribute

Contrasts are made of some entities and tested on others. Everything is kept in one folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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
from qkprism.pipeline import Way, attribute, decompose_ways, find_heads, intervene, project, validate
from qkprism.pipeline.inputs import versions
from qkprism.studies.parts import Parts
from qkprism.tasks import BindingTask, Schema, binding

if TYPE_CHECKING:
    import pandas as pd

KIND = "binding"
THRESHOLD = 0.3  # the paper's, of the accuracy among the marked keys
MOST_HEADS = 9
FEWEST_HEADS = 3
CONTRASTS = ("order", "lexical")
LABELS = {"lexical": "entity"}


@dataclass(frozen=True)
class Size:
    """How many prompts each part of a study runs."""

    search: int
    train: int
    test: int
    draws: int
    outcome_draws: int


SIZES = {"quick": Size(256, 300, 128, 10, 4), "paper": Size(1000, 3000, 1000, 10, 10)}


@dataclass(frozen=True)
class BindingStudy:
    """What was found: heads, features by our choices and by the paper's, and their proofs."""

    model: str
    task: BindingTask
    size: str
    seed: int
    scores: HeadScores
    features: Features
    paper: Features
    effects: Effects
    outcome: Effects
    validation: Validation
    attributions: Attributions
    example: Attribution
    projections: Projections
    notes: tuple[str, ...]

    @property
    def heads(self) -> tuple[Head, ...]:
        return self.features.heads

    def summary(self) -> pd.DataFrame:
        """A row a head: accuracy, and of each feature its ranks, its part of the gap, and what moving it does."""
        import pandas as pd

        rows = []
        at = {head: i for i, head in enumerate(self.scores.heads)}
        for head in self.heads:
            row: dict[str, Any] = {"head": str(head), "accuracy": float(self.scores.values["accuracy"][at[head]])}
            for name in CONTRASTS:
                feature = self.features[name, head]
                row |= {f"{name}_rank": feature.rank_heldout, f"{name}_energy": self.paper[name, head].rank_energy}
                row[f"{name}_gap"] = float(self.attributions.values["gap"][self._row(head), self._term(name)])
                row[f"{name}_shift"] = self._gain(name, head)
                row[f"{name}_alignment"] = self.projections.alignment(self.features, name, head)[0]
            row["both_shift"] = self._gain("+".join(CONTRASTS), head)
            rows.append(row)
        return pd.DataFrame(rows)

    def _row(self, head: Head) -> int:
        return self.attributions.heads.index(str(head))

    def _term(self, name: str) -> int:
        return self.attributions.terms.index(name)

    def _gain(self, feature: str, head: Head) -> float:
        moved = self.effects.value("shift", head=head, feature=feature)[0]
        return moved - self.effects.value("shift", head=head, control="none")[0]

    def mechanism(self, head: Head) -> str:
        """Which feature makes more of the head's gap between the right label and the others."""
        parts = {name: float(self.attributions.values["gap"][self._row(head), self._term(name)]) for name in CONTRASTS}
        return max(parts, key=lambda name: parts[name])


def study_binding(
    model: Model,
    folder: str | os.PathLike[str],
    *,
    n_pairs: int = 9,
    schema: str | Schema = "boxes",
    phrasing: str = "cloze",
    size: str = "quick",
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
) -> BindingStudy:
    """Run the study, or what is missing of it in the folder."""
    if size not in SIZES:
        raise QKPrismError(f"{size!r} is not a size of this study. Use one of {', '.join(SIZES)}.")
    numbers = SIZES[size]
    task = binding(
        n_pairs, seed, schema, phrasing, model.tokenizer,
        n_train=numbers.train, n_search=numbers.search, n_test=numbers.test,
    )  # fmt: skip
    parts = Parts.open(folder, KIND, _job(model, task, n_pairs, size, seed))
    common: dict[str, Any] = {"batch_size": batch_size, "progress": progress}
    scores = parts.get("heads", lambda: find_heads(model, task.search, chat=task.chat, **common), HeadScores.load)
    heads, notes = choose_heads(scores)
    features, paper = _features(parts, model, task, heads, seed, common)
    test: dict[str, Any] = {"seed": seed, **common}
    effects = parts.get(
        "effects",
        lambda: intervene(model, task.test, features, labels=LABELS, draws=numbers.draws, **test),
        Effects.load,
    )
    outcome = parts.get(
        "outcome",
        lambda: intervene(
            model,
            task.test,
            features,
            outcome="logits",
            methods=features_methods(features),
            draws=numbers.outcome_draws,
            **test,
        ),
        Effects.load,
    )
    pairs = {name: task.counterfactuals(name) for name in CONTRASTS}  # type: ignore[arg-type]
    validation = parts.get(
        "validation", lambda: validate(model, pairs, {"ours": features, "paper": paper}, **common), Validation.load
    )
    method, why = split_method(features)
    attributions = parts.get(
        "attributions", lambda: attribute(model, task.test, features, method=method, **common), Attributions.load
    )
    example = parts.get(
        "example", lambda: attribute(model, task.test[0], features, heads[0], method=method), Attribution.load
    )
    notes += why
    projections = parts.get("projections", lambda: project(model, task.test, features, **common), Projections.load)
    return BindingStudy(
        model=model.name,
        task=task,
        size=size,
        seed=seed,
        scores=scores,
        features=features,
        paper=paper,
        effects=effects,
        outcome=outcome,
        validation=validation,
        attributions=attributions,
        example=example,
        projections=projections,
        notes=notes,
    )


def features_methods(features: Features) -> list[str]:
    """The output is followed for our edit alone: every condition is a run of the model."""
    return [features.choices.metric]


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


def _features(
    parts: Parts, model: Model, task: BindingTask, heads: Sequence[Head], seed: int, common: dict[str, Any]
) -> tuple[Features, Features]:
    """Ours and the paper's features, from one pass if either is missing."""
    contrasts = {name: task.contrasts[name] for name in CONTRASTS}
    ways = {"ours": Way(), "paper": Way(preset="paper")}
    made: dict[str, Features] = {}

    def compute(way: str) -> Features:
        if not made:
            made.update(decompose_ways(model, contrasts, ways, heads=heads, chat=task.chat, seed=seed, **common))
        return made[way]

    return tuple(parts.get(f"features-{way}", lambda way=way: compute(way), Features.load) for way in ways)  # type: ignore[return-value, misc]


def _job(model: Model, task: BindingTask, n_pairs: int, size: str, seed: int) -> dict[str, Any]:
    return {
        "model": model.name,
        "model_digest": model_digest(model.hf),
        "dtype": str(model.dtype),
        "n_pairs": n_pairs,
        "schema": task.schema.name,
        "phrasing": task.phrasing.name,
        "size": asdict(SIZES[size]),
        "seed": seed,
        "prompts": {name: contrast.digest for name, contrast in task.contrasts.items()},
        "test": task.test.digest,
        "versions": versions(),
    }
