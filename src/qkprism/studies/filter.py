"""Find the fruits: the categories study (paper, section 5.1) on any causal language model.

    search -> heads -> features of single categories and of all pooled (one pass) -> separation | intervene | project

Two sets of categories: the paper's five, and all thirteen. The paper's subspace is the span of the directions of single
categories, not centred; ours is the pooled feature, centred. Features are made of some items and tested on others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkprism.contrasts import Contrast
from qkprism.heads import Head
from qkprism.models.model import Model
from qkprism.progress import part
from qkprism.results.effects import Effects
from qkprism.results.features import Features
from qkprism.results.projections import Projections
from qkprism.results.scores import HeadScores
from qkprism.runs.store import Parts, check_study, load_part, read_finished
from qkprism.studies.categories import (
    CATEGORIES,
    FIVE,
    ITEM,
    LABEL,
    POOLED,
    FilterPrompts,
    Scope,
    compared_features,
    filter_prompts,
    groups_of,
    with_items,
)
from qkprism.studies.jobs import job_of, size_of, template_of
from qkprism.subspaces.comparison import Comparison
from qkprism.subspaces.separation import ACCURACY, SILHOUETTE, separation
from qkprism.verbs.decompose import Recipe, decompose
from qkprism.verbs.find_heads import find_heads
from qkprism.verbs.intervene import intervene
from qkprism.verbs.project import project

if TYPE_CHECKING:
    import pandas as pd

KIND = "filter"
FLOOR = 0.1  # of the attention that goes to items at all: below it a ratio is of next to nothing
N_HEADS = 3  # the paper's
MARKED = {"labels": [LABEL, ITEM]}  # of keys, in parts that need the items: the digests of contrasts do not have them
SETS = {"five": FIVE, "all": CATEGORIES}
SEARCHED = "all"  # heads are found with these


@dataclass(frozen=True)
class FilterSize:
    """How many prompts each part of a study runs; `train` is of each category in a set of categories."""

    search: int
    train: dict[str, int]
    test: int
    pictured: int
    draws: int


SIZES = {
    "quick": FilterSize(256, {"five": 64, "all": 64}, 128, 104, 10),
    "paper": FilterSize(2000, {"five": 400, "all": 154}, 1000, 104, 10),
}


@dataclass(frozen=True)
class FilterQuestion:
    """What was asked, of which model: the first test list and the items that it asks for among it."""

    model: str
    phrasing: str
    size: str
    seed: int
    categories: dict[str, tuple[str, ...]]
    example: str
    answer: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, model: Model, tasks: Mapping[str, FilterPrompts], phrasing: str, size: str, seed: int
    ) -> FilterQuestion:
        """What is known before anything is run."""
        categories = {name: task.categories for name, task in tasks.items()}
        first = tasks["five"].test[0].text
        answer = tuple(first.text[key.start : key.end] for key in first.positive)
        return cls(model.name, phrasing, size, seed, categories, first.text, answer)

    @classmethod
    def read(cls, saved: Mapping[str, Any]) -> FilterQuestion:
        """From the JSON of a study's folder."""
        categories = {name: tuple(members) for name, members in saved["categories"].items()}
        lists = {"categories": categories, "answer": tuple(saved["answer"]), "notes": tuple(saved["notes"])}
        return cls(**{**saved, **lists})


@dataclass(frozen=True)
class FilterStudy:
    """What was found: heads, and for both sets of categories features and their proofs."""

    about: FilterQuestion
    scores: HeadScores
    scopes: dict[str, Scope]

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> FilterStudy:
        """A finished study from its folder, without the model."""
        place = Path(folder)
        about, job = read_finished(place, KIND, FilterQuestion.read)
        scopes = {name: _load_scope(place, job, name, category) for name, category in about.categories.items()}
        return cls(about, load_part(place, job, "heads", HeadScores.load), scopes)

    @property
    def model(self) -> str:
        return self.about.model

    @property
    def notes(self) -> tuple[str, ...]:
        return self.about.notes

    @property
    def heads(self) -> tuple[Head, ...]:
        """The chosen heads, highest ratio first."""
        chosen = next(iter(self.scopes.values())).features.heads
        return tuple(head for head in self.scores.heads if head in chosen)

    def summary(self) -> pd.DataFrame:
        """A row a set of categories and head: ranks, accuracies on held-out items, and what swaps move."""
        import pandas as pd

        return pd.DataFrame([self._row(scope, head) for scope in self.scopes.values() for head in self.heads])

    def _row(self, scope: Scope, head: Head) -> dict[str, Any]:
        heldout = scope.features[POOLED, head].rank_heldout
        row = {"categories": len(scope.categories), "head": str(head), "ratio": self.ratio(head)}
        row |= {"pooled_heldout": heldout, "pooled_rank": scope.effects.rank(head=head, feature=POOLED)}
        row["span_rank"] = scope.effects.rank(head=head, feature=scope.span)
        for title, group in (("pooled", POOLED), ("span", scope.span)):
            row[f"{title}_accuracy"] = scope.score(ACCURACY, head, group)
            row[f"{title}_silhouette"] = scope.score(SILHOUETTE, head, group)
            row[f"{title}_shift"] = scope.gain(head, group)[0]
        row["whole_accuracy"] = scope.score(ACCURACY, head, control="full")
        return row | {"whole_shift": scope.gain(head, "", "full")[0]}

    def ratio(self, head: Head) -> float:
        """The share of the attention on items that goes to those asked for."""
        return float(self.scores.values["ratio"][self.scores.heads.index(head)])


def study_filter(
    model: Model,
    folder: str | os.PathLike[str],
    *,
    phrasing: str = "cloze",
    size: str = "quick",
    seed: int = 0,
    batch_size: int | None = None,
    progress: bool = True,
) -> FilterStudy:
    """Run the study, or what is missing of it in the folder."""
    numbers = size_of(SIZES, size)
    tasks = {
        name: filter_prompts(
            categories, seed, phrasing, model.tokenizer,
            n_train=numbers.train[name], n_search=numbers.search if name == SEARCHED else 1, n_test=numbers.test,
        )
        for name, categories in SETS.items()
    }  # fmt: skip
    template = template_of(model, tasks[SEARCHED].encoding.chat)
    job = job_of(model, numbers, _prompts(tasks), phrasing=phrasing, seed=seed, **template)
    about = FilterQuestion.of(model, tasks, phrasing, size, seed)
    parts = Parts.open(folder, KIND, job, asdict(about))
    common: dict[str, Any] = {"batch_size": batch_size, "progress": progress}
    with part(1, 1 + len(tasks), "heads"):
        scores = _scores(parts, model, tasks[SEARCHED], common)
    heads, notes = choose_heads(scores)
    about = replace(about, notes=notes + shared_keys(model, heads))
    Parts.open(folder, KIND, job, asdict(about))
    scopes = {}
    for number, name in enumerate([*tasks], start=2):
        with part(number, 1 + len(SETS), f"{name} categories"):  # a task that has been run is not kept
            scopes[name] = _scope(parts, model, name, tasks.pop(name), heads, numbers, seed, common)
    return FilterStudy(about, scores, scopes)


def check_options(folder: Path, phrasing: str, size: str) -> None:
    """Refuse what the study would refuse, before a model is loaded."""
    size_of(SIZES, size)
    filter_prompts(FIVE, 0, phrasing, n_train=1, n_search=1, n_test=1)
    check_study(folder.resolve(), KIND)


def shared_keys(model: Model, heads: Sequence[Head]) -> tuple[str, ...]:
    """A note on heads of which the keys are the same: what is of keys alone is then the same in both."""
    groups: dict[tuple[int, int], list[str]] = {}
    for head in heads:
        groups.setdefault((head.layer, model.kv_head(head)), []).append(str(head))
    return tuple(
        f"{' and '.join(group)} share their keys (grouped-query attention): what is said of keys alone is the same."
        for group in groups.values()
        if len(group) > 1
    )


def choose_heads(scores: HeadScores) -> tuple[tuple[Head, ...], tuple[str, ...]]:
    """The three highest ratios of heads that attend to items at all; the three highest if none does, and it is said."""
    scores = scores.sort("ratio")
    items = scores.values["attention_positive"] + scores.values["attention_negative"]
    good = [head for head, attention in zip(scores.heads, items.tolist(), strict=True) if attention >= FLOOR]
    if len(good) >= N_HEADS:
        return tuple(good[:N_HEADS]), ()
    best = tuple(dict.fromkeys([*good, *scores.heads]))[:N_HEADS]
    note = f"{len(good)} heads give items {FLOOR:.0%} of their attention or more; the study goes on with the best "
    return best, (f"{note}{len(best)} by ratio.",)


def _prompts(tasks: Mapping[str, FilterPrompts]) -> dict[str, Contrast]:
    found: dict[str, Contrast] = {}
    for name, task in tasks.items():
        drawn = {POOLED: task.contrasts[POOLED], "search": task.search, "test": task.test}
        found |= {f"{name}-{part}": contrast for part, contrast in drawn.items()}
    return found


def _scores(parts: Parts, model: Model, task: FilterPrompts, common: Mapping[str, Any]) -> HeadScores:
    def compute() -> HeadScores:
        return find_heads(model, task.search, by="ratio", encoding=task.encoding, **common)

    return parts.get("heads", compute, HeadScores.load)


def _scope(
    parts: Parts,
    model: Model,
    name: str,
    task: FilterPrompts,
    heads: Sequence[Head],
    numbers: FilterSize,
    seed: int,
    common: dict[str, Any],
) -> Scope:
    """All parts of one set of categories."""

    def kept(part: str, compute: Callable[[], Any]) -> Any:
        return parts.get(f"{part}-{name}", compute, LOADS[part], _more(part))

    def vectors(lists: Contrast) -> Projections:
        return project(model, with_items(lists[: numbers.pictured]), features, **common)

    contrasts = {**task.single, **task.contrasts}
    choices = {"heads": heads, "recipe": Recipe(metric="raw"), "encoding": task.encoding, "seed": seed, **common}
    with parts.keeping(f"features-{name}") as unfinished:
        features = kept("features", lambda: decompose(model, contrasts, checkpoint=unfinished.folder, **choices))
    compared = compared_features(features)
    train = kept("train", lambda: vectors(task.contrasts[POOLED]))
    test = kept("test", lambda: vectors(task.test))
    compare = Comparison(groups=groups_of(task.categories), draws=numbers.draws, item=ITEM, seed=seed)
    apart = kept("separation", lambda: separation(train, test, compared, LABEL, compare))
    options = {"compare": compare, **common}
    with parts.keeping(f"effects-{name}") as unfinished:
        effects = kept(
            "effects",
            lambda: intervene(model, with_items(task.test), compared, checkpoint=unfinished.folder, **options),
        )
    return Scope(name, task.categories, features, compared, train, test, apart, effects)


def _load_scope(place: Path, job: Mapping[str, Any], name: str, categories: tuple[str, ...]) -> Scope:
    """All parts of one set of categories from a study's folder."""
    found = {part: load_part(place, job, f"{part}-{name}", load, _more(part)) for part, load in LOADS.items()}
    return Scope(name, categories, compared=compared_features(found["features"]), **found)


# the parts of a set of categories
LOADS: Mapping[str, Callable[[Path], Any]] = {
    "features": Features.load,
    "train": Projections.load,
    "test": Projections.load,
    "separation": Effects.load,
    "effects": Effects.load,
}


def _more(part: str) -> Mapping[str, Any] | None:
    """What a part alone depends on."""
    return None if part == "features" else MARKED
