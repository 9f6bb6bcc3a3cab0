"""Which box holds the jam? The binding study (paper, section 5.2 and appendix) on any causal language model.

    search -> heads -> features (all recipes, one pass) -> intervene, validate, attribute, project (one pass) | outcome

Contrasts are made of some entities and tested on others. Everything is kept in one folder. Our order contrast is the
one without a fixed entity: with one, as in the paper, what the query knows of the answer's label is in it too.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from qkprism.capture.readers import read_together
from qkprism.contrasts.tasks import Task
from qkprism.core.decomposition import few_examples
from qkprism.core.feature import Feature
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.models.model import Model
from qkprism.progress import part
from qkprism.results.attribution import Attribution, Attributions
from qkprism.results.effects import Effects
from qkprism.results.features import Features
from qkprism.results.projections import Projections
from qkprism.results.scores import HeadScores
from qkprism.results.validation import Validation
from qkprism.runs.folder import json_value
from qkprism.runs.store import Parts, Unfinished, check_study, read_study
from qkprism.studies.binding_prompts import BindingPrompts, binding_prompts
from qkprism.studies.binding_study import (
    CONTRASTS,
    EFFECTS,
    EXAMPLES,
    KIND,
    RECIPES,
    REFLEXIVE,
    BindingQuestion,
    BindingStudy,
    EntityRanks,
    example_folder,
    folder_of,
)
from qkprism.studies.jobs import job_of, size_of, template_of
from qkprism.subspaces.comparison import CONDITIONAL, Comparison
from qkprism.subspaces.modulation import why_not_conditional
from qkprism.verbs.attribute import attribute, attributions_reader
from qkprism.verbs.decompose import decompose
from qkprism.verbs.find_heads import find_heads
from qkprism.verbs.intervene import effects_readers, intervene
from qkprism.verbs.project import projections_reader
from qkprism.verbs.validate import validation_reader

THRESHOLD = 0.3  # the paper's, of the accuracy among the marked keys
MOST_HEADS = 9
FEWEST_HEADS = 3


@dataclass(frozen=True)
class BindingSize:
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
    "quick": BindingSize(256, 300, 104, 128, 64, 10, 4),
    "paper": BindingSize(1000, 3000, 1000, 1000, 256, 10, 10, entities=(10, 13, 18, 25, 34)),
}
MOST_FOR_ENTITIES = 300
PARTS = 4  # that take their time


def study_binding(
    model: Model,
    folder: str | os.PathLike[str],
    *,
    n_pairs: int = 9,
    schema: str | Path = "boxes",
    phrasing: str = "cloze",
    size: str = "quick",
    seed: int = 0,
    entities: Sequence[int] | None = None,
    batch_size: int | None = None,
    progress: bool = True,
) -> BindingStudy:
    """Run the study, or what is missing of it in the folder.

    `schema` is a template: a name of the shelf or a file, with order, entity and label in `exchange` and `twins`.
    `entities` are numbers of entities for which ranks are found anew; by default the size has them.
    """
    numbers = size_of(SIZES, size)
    draw = partial(binding_prompts, schema, n_pairs, seed, phrasing, model.tokenizer)
    prompts = draw(n_train=numbers.train, n_search=numbers.search, n_test=numbers.test)
    task = prompts.task
    example = task.test[0].text
    answer = example.text[example.positive[0].start : example.positive[0].end]
    about = BindingQuestion(
        model.name, n_pairs, task.name, phrasing, size, seed, example.text, answer, entity=prompts.entity
    )
    recipes = {recipe: asdict(choices) for recipe, choices in RECIPES.items()}
    names: dict[str, Any] = {"schema": task.name, "phrasing": phrasing, "recipes": recipes}
    names |= template_of(model, task.chat)
    drawn = {**prompts.contrasts, **prompts.extra}
    job = job_of(
        model, replace(numbers, entities=()), drawn, n_pairs=n_pairs, seed=seed, test=task.test.digest, **names
    )
    chosen, dropped = numbers_of_entities(draw, entities, numbers.entities or kept_entities(folder, job))
    numbers, about = replace(numbers, entities=chosen), replace(about, entities=chosen)
    parts = Parts.open(folder, KIND, job, asdict(about))
    work = _BindingWork(model, prompts, numbers, seed, parts, {"batch_size": batch_size, "progress": progress})
    with part(1, PARTS, "heads"):
        scores = work.scores()
    heads, notes = choose_heads(scores)
    with part(2, PARTS, "features"):
        found = work.features(heads)
    # Contrasts have done their part.
    work = replace(work, prompts=replace(prompts, task=replace(task, contrasts={}), contrasts={}, extra={}))
    del prompts, task, drawn
    features = found["ours"]
    method, why = split_method(features)
    about = replace(about, notes=(*notes, *why, *few_twins(found["three mechanisms"]), *dropped))
    Parts.open(folder, KIND, job, asdict(about))
    with part(3, PARTS, "the answer, edited"):  # needs most memory, so before there are projections
        outcome = work.outcome(features)
    with part(4, PARTS, "attention, edited and split"):
        tests = work.tests(found, method)
    return BindingStudy(
        about=about,
        scores=scores,
        recipes=found,
        effects=tests[EFFECTS["ours"]],
        effects_paper=tests[EFFECTS["paper"]],
        outcome=outcome,
        validation=tests["validation"],
        attributions=tests["attributions"],
        examples=work.examples(found, method),
        projections=tests["projections"],
        entities=work.entities(draw, heads),
    )


def check_options(folder: Path, schema: str, phrasing: str, size: str) -> None:
    """Refuse what the study would refuse, before a model is loaded."""
    size_of(SIZES, size)
    binding_prompts(schema, 2, 0, phrasing, n_train=1, n_search=1, n_test=1)
    check_study(folder.resolve(), KIND)


def numbers_of_entities(
    draw: Callable[..., BindingPrompts], wanted: Sequence[int] | None, usual: Sequence[int]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The numbers that there are words for; those that nobody asked for are left out with a note, not refused."""
    possible, notes = [], []
    for n in sorted(set(usual if wanted is None else wanted)):
        try:
            draw(n_train=1, n_search=1, n_test=1, n_entities=n)
            possible.append(n)
        except QKPrismError as error:
            if wanted is not None:
                raise
            notes.append(f"No ranks with {n} entities: {error}")
    return tuple(possible), tuple(notes)


@dataclass(frozen=True)
class _BindingWork:
    """The parts of the study, each computed once."""

    model: Model
    prompts: BindingPrompts
    numbers: BindingSize
    seed: int
    parts: Parts
    common: Mapping[str, Any]

    @property
    def task(self) -> Task:
        return self.prompts.task

    def scores(self) -> HeadScores:
        return self.parts.get(
            "heads",
            lambda: find_heads(self.model, self.task.search, encoding=self.task.encoding, **self.common),
            HeadScores.load,
        )

    def features(self, heads: Sequence[Head]) -> dict[str, Features]:
        """The features by every recipe, from one pass if any is missing."""
        contrasts = {**self.prompts.contrasts, **self.prompts.extra}
        contrasts[REFLEXIVE] = contrasts[REFLEXIVE][: self.numbers.reflexive]
        options: dict[str, Any] = {"heads": heads, "encoding": self.task.encoding, "seed": self.seed, **self.common}

        def compute() -> dict[str, Features]:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Only .* effective examples")  # a note of the study says so
                return decompose(self.model, contrasts, recipe=RECIPES, checkpoint=kept.folder, **options)

        with self.parts.keeping("features") as kept:
            return self.parts.get_all({recipe: folder_of(recipe) for recipe in RECIPES}, compute, Features.load)

    def tests(self, recipes: Mapping[str, Features], method: str | None) -> dict[str, Any]:
        """All that is read of the test prompts as they are, from one pass if any of it is missing.

        Edits of our features and of the paper's; edits and attributions against texts in which clauses, entities or
        labels really changed places; attributions and projections of the prompts that are shown.
        """
        loads: dict[str, Any] = dict.fromkeys(EFFECTS.values(), Effects.load)
        loads |= {"validation": Validation.load, "attributions": Attributions.load, "projections": Projections.load}
        with self.parts.keeping("tests") as kept:
            compute = partial(self._read_tests, recipes, method, kept)
            return self.parts.get_all({name: name for name in loads}, compute, loads)

    def _read_tests(self, recipes: Mapping[str, Features], method: str | None, kept: Unfinished) -> dict[str, Any]:
        model, features, shown = self.model, recipes["ours"], self.task.test[: self.numbers.shown]
        factors = {name: name for name in CONTRASTS} | {REFLEXIVE: "label"}
        pairs = {name: self.prompts.counterfactuals(factor) for name, factor in factors.items()}
        edited = {part: recipes[recipe] for recipe, part in EFFECTS.items()}
        compare = Comparison(labels={"lexical": self.prompts.entity}, draws=self.numbers.draws, seed=self.seed)
        readers: dict[str, Any] = {
            **effects_readers(model, self.task.test, edited, compare),
            "validation": validation_reader(model, pairs, recipes),
            "attributions": attributions_reader(model, shown, features, method=method),
            "projections": projections_reader(model, shown, features),
        }
        read_together(model, [*readers.values()], kept=kept, **self.common)
        return {name: reader.result() for name, reader in readers.items()}

    def outcome(self, features: Features) -> Effects:
        """The output is followed for our edits alone: every condition is a run of the model."""
        more = [CONDITIONAL] if why_not_conditional(features) is None else []
        methods, draws = [features.choices.metric, *more], self.numbers.outcome_draws
        options = {"compare": Comparison(methods=methods, draws=draws, seed=self.seed), **self.common}
        with self.parts.keeping("outcome") as kept:
            return self.parts.get(
                "outcome",
                lambda: intervene(
                    self.model, self.task.test, features, outcome="logits", checkpoint=kept.folder, **options
                ),
                Effects.load,
            )

    def examples(self, recipes: Mapping[str, Features], method: str | None) -> dict[str, Attribution]:
        """The first prompt in the head with the largest part of each feature, by our split and by the paper's."""
        splits = {"ours": (recipes["ours"], method), "paper": (recipes["paper"], "sequential")}
        found = {}
        for name in EXAMPLES:
            contrast, whose = name.split(", ")
            head = max(recipes["ours"].heads, key=lambda head: _worth(recipes["ours"][contrast, head]))
            features, split = splits[whose]
            compute = partial(self._example, features, head, split)
            found[name] = self.parts.get(example_folder(name), compute, Attribution.load)
        return found

    def _example(self, features: Features, head: Head, method: str | None) -> Attribution:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*depends on its order")  # the paper's split does, and the page says so
            return attribute(self.model, self.task.test[0], features, head, method=method)

    def entities(self, draw: Callable[..., BindingPrompts], heads: Sequence[Head]) -> EntityRanks:
        """Ranks with other numbers of entities to draw from."""
        options: dict[str, Any] = {"heads": heads, "encoding": self.task.encoding, "seed": self.seed, **self.common}

        def features(n_entities: int) -> Features:
            n_train = min(self.numbers.train, MOST_FOR_ENTITIES)
            few = draw(n_train=n_train, n_search=1, n_test=1, n_entities=n_entities)
            return decompose(self.model, few.contrasts, **options)

        def compute() -> EntityRanks:
            return EntityRanks.of([(n, features(n)) for n in self.numbers.entities])

        return self.parts.get("entities", compute, EntityRanks.load, {"entities": self.numbers.entities})


def split_method(features: Features) -> tuple[str | None, tuple[str, ...]]:
    """The oblique split, or Shapley's for all heads if one of them has no joint projectors."""
    reasons = [joint.reason for joint in map(features.joint, features.heads) if joint.subspaces is None]
    if not reasons:
        return None, ()
    return "shapley", (f"{reasons[0]} Logits are split by Shapley's method instead.",)


def few_twins(features: Features) -> tuple[str, ...]:
    """Whether the contrast metric of all three mechanisms is noisy."""
    few = few_examples([*next(iter(features.layers.values())).moments.values()])
    return (f"Three mechanisms: {few}",) if few else ()


def _worth(feature: Feature) -> float:
    """The logit gap that a feature's contrast makes."""
    return feature.logit_gap.total if feature.logit_gap else 0.0


def kept_entities(folder: str | os.PathLike[str], job: Mapping[str, Any]) -> tuple[int, ...]:
    """The numbers of entities that were asked for before, in the same study."""
    try:
        before = read_study(folder)
    except QKPrismError:
        return ()
    return tuple(before["about"].get("entities", ())) if before["job"] == json_value(job) else ()


def binding_heads(scores: HeadScores) -> tuple[Head, ...]:
    """The heads that reach the paper's threshold and are clearly above chance, best first."""
    ordered = scores.sort("accuracy")
    values, errors = ordered.values["accuracy"], ordered.errors["accuracy"]
    good = (values >= THRESHOLD) & (values > scores.chance + 2 * errors)
    return tuple(head for head, fine in zip(ordered.heads, good.tolist(), strict=True) if fine)


def choose_heads(scores: HeadScores) -> tuple[tuple[Head, ...], tuple[str, ...]]:
    """The best nine of the heads that bind; the best few if there are too few. What was left out is said."""
    good = binding_heads(scores)
    reach = (
        f"{len(good)} heads attend to the right label more than to the others in {THRESHOLD:.0%} of the prompts or more"
    )
    if len(good) > MOST_HEADS:
        return good[:MOST_HEADS], (f"{reach}; the study takes the best {MOST_HEADS}.",)
    if len(good) >= FEWEST_HEADS:
        return good, ()
    best = tuple(scores.top(FEWEST_HEADS, "accuracy"))
    return best, (f"{reach} and clearly above chance; the study goes on with the best {len(best)}.",)
