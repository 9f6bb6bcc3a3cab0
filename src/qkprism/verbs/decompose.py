"""`decompose`: from contrasts to features in one streaming pass, by one recipe or several."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

from qkprism.capture.checkpoint import Checkpoint
from qkprism.capture.model_source import ModelSource
from qkprism.capture.source import Known, Site, Source, Wanted, moments_of, provenance_of, stream_name
from qkprism.capture.streaming import ModelStream
from qkprism.capture.vectors import VectorSource
from qkprism.core.decomposition import few_examples
from qkprism.core.feature import Choices
from qkprism.core.moments import N_FOLDS, Moments
from qkprism.encoding import Encoding, checked_encoding
from qkprism.errors import QKPrismError
from qkprism.models.model import Model
from qkprism.notes import Note, warn_of
from qkprism.options import (
    PRESETS,
    READINGS,
    Center,
    Preset,
    Rank,
    Reading,
    by_name,
    checked_seed,
    choice,
    resolve_metric,
)
from qkprism.progress import bar
from qkprism.results.features import Features, LayerMoments
from qkprism.results.scores import HeadScores
from qkprism.store import Unfinished, check_checkpoint
from qkprism.verbs.inputs import Contrasts, Heads, heads_of, named_contrasts

TWINS_OF: dict[Preset, Reading] = {"paper": "paired", "paper-code": "matched"}


@dataclass(frozen=True)
class Recipe:
    """How to decompose: what is None is the preset's choice, else ours.

    Both presets are uncentred, in the raw metric, with the rank by energy. `paper` reads twins as the paper's text,
    E[q (k - k')^T]; `paper-code` as its authors' programs, E[q k^T] - E[q' k'^T] (docs/method.md).

    `contrasts` picks and names contrasts: {"order": "fixed"} decomposes the contrast `fixed` as `order`.
    """

    preset: Preset | None = None
    center: Center | None = None
    reading: Reading | None = None
    metric: Literal["raw", "contrast"] | None = None
    rank: Rank | None = None
    contrasts: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.preset is not None:
            choice(self.preset, PRESETS, "a preset")

    @property
    def chosen_reading(self) -> Reading | None:
        """How twins are read; None is the default of twins."""
        return TWINS_OF[self.preset] if self.preset and self.reading is None else self.reading

    def pick(self, contrasts: Collection[str]) -> dict[str, str]:
        """The contrasts of this recipe: their names in it, and as they were given."""
        picked = {name: name for name in contrasts} if self.contrasts is None else self.contrasts
        chosen = dict(by_name(picked, "contrasts"))
        if unknown := [name for name in chosen.values() if name not in contrasts]:
            raise QKPrismError(f"There is no contrast {unknown[0]!r}. There are: {', '.join(contrasts)}.")
        if not chosen:
            raise QKPrismError("A recipe needs at least one contrast.")
        return chosen

    def choices(self, n_contrasts: int, seed: int) -> Choices:
        """What is chosen for that many contrasts."""
        paper = self.preset is not None
        metric = resolve_metric("raw" if paper and self.metric is None else self.metric, n_contrasts)
        rank = ("energy" if paper else "own") if self.rank is None else self.rank
        return Choices(center=self.center or ("none" if paper else "query"), metric=metric, rank=rank, seed=seed)


_TWINS = ", ".join(READINGS[1:])


@overload
def decompose(
    source: Model | VectorSource,
    contrasts: Contrasts | None = None,
    *,
    heads: Heads = None,
    preset: Preset | None = None,
    center: Center | None = None,
    reading: Reading | None = None,
    metric: Literal["raw", "contrast"] | None = None,
    rank: Rank | None = None,
    encoding: Encoding = Encoding(),  # noqa: B008  (it is frozen)
    batch_size: int | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Features: ...
@overload
def decompose(
    source: Model | VectorSource,
    contrasts: Contrasts | None = None,
    *,
    recipes: Mapping[str, Recipe],
    heads: Heads = None,
    encoding: Encoding = Encoding(),  # noqa: B008  (it is frozen)
    batch_size: int | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> dict[str, Features]: ...
def decompose(
    source: Model | VectorSource,
    contrasts: Contrasts | None = None,
    *,
    recipes: Mapping[str, Recipe] | None = None,
    heads: Heads = None,
    preset: Preset | None = None,
    center: Center | None = None,
    reading: Reading | None = None,
    metric: Literal["raw", "contrast"] | None = None,
    rank: Rank | None = None,
    encoding: Encoding = Encoding(),  # noqa: B008  (it is frozen)
    batch_size: int | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Features | dict[str, Features]:
    """The query-key features of contrasts in some heads, in one streaming pass.

    >>> features = qk.decompose(model, {"order": order, "lexical": lexical}, heads=["L0H1"], progress=False)
    >>> list(features)
    [('order', Head(layer=0, index=1)), ('lexical', Head(layer=0, index=1))]
    >>> both = qk.decompose(model, order, recipes={"ours": qk.Recipe(), "paper": qk.Recipe("paper")}, progress=False)
    >>> sorted(both)
    ['ours', 'paper']

    source       a model that `load` gave, or a `VectorSource`, which has its contrasts
    contrasts    a contrast, the path of its file, several of them, or several by name. Give those that belong to one
                 question together: their features are then told apart
    recipes      several recipes by name, which share the pass: the result is a dict of features. Without them (default)
                 the next five make the one recipe
    preset       None (default) is ours; `paper` is the paper as it is written, `paper-code` as its authors computed it
    center       `query` (default) takes the mean query off: what depends on the query. `none` keeps what the head likes
                 whatever the query says
    reading      how twins are read: symmetric (default), paired or matched; for contrasts without twins leave it out
    metric       `contrast` (default from two contrasts on) makes features orthogonal where contrasts are independent;
                 `raw` is the head's own coordinates, and the only one for a single contrast
    rank         a number, or a rule: own (default), balanced, energy or heldout; features can be cut anew later
    heads        such as "L18H6" or ["L18H6", "L21H7"], or the scores of `find_heads`; all by default
    encoding     how texts become tokens; change it for chat models and for contrasts about distance
    batch_size   texts that are run at once; None (default) goes by tokens, and halves where memory runs out
    seed         of folds and nulls; default 0. Change it to see what depends on them
    checkpoint   a folder in which a pass that was killed goes on where it was, to the identical result; None (default)
                 keeps nothing. For passes of more than minutes
    progress     whether bars are shown after two seconds; default True
    """
    single = Recipe(preset=preset, center=center, reading=reading, metric=metric, rank=rank)
    if recipes is not None and single != Recipe():
        raise QKPrismError("preset, center, reading, metric and rank belong in each recipe: {'ours': Recipe(rank=4)}.")
    found = _decompose(
        source_of(source, contrasts, heads, checked_encoding(encoding), batch_size),
        {"": single} if recipes is None else recipes,
        seed=checked_seed(seed),
        checkpoint=checkpoint,
        progress=progress,
    )
    return found[""] if recipes is None else found


def source_of(
    source: Model | VectorSource,
    contrasts: Contrasts | None,
    heads: Heads,
    encoding: Encoding,
    batch_size: int | None,
) -> Source:
    """Contrasts with their vectors: texts and the model that runs them, or vectors as they are."""
    if isinstance(source, VectorSource):
        if contrasts is not None:
            raise QKPrismError("A VectorSource has its contrasts already: leave `contrasts` out.")
        return source.pick(heads.heads if isinstance(heads, HeadScores) else heads)
    if contrasts is None and isinstance(source, Model):
        raise QKPrismError("Give the contrasts whose features are wanted: decompose(model, contrasts).")
    named = named_contrasts(contrasts)
    found = ModelSource(source, named, heads_of(source, heads), encoding, batch_size)
    assert found.batches  # refuses a batch size that is none
    return found


def _decompose(
    source: Source,
    recipes: Mapping[str, Recipe],
    *,
    seed: int,
    checkpoint: str | os.PathLike[str] | None,
    progress: bool,
) -> dict[str, Features]:
    """The features of every recipe, from one stream."""
    if checkpoint is not None:
        check_checkpoint(checkpoint)
    if not by_name(recipes, "recipes") or not all(isinstance(recipe, Recipe) for recipe in recipes.values()):
        raise QKPrismError("Give at least one recipe by its name: {'ours': Recipe()}.")
    if checkpoint is not None and not isinstance(source, ModelSource):
        raise QKPrismError("A checkpoint is of a pass through a model: vectors are there already. Leave it out.")
    jobs = {name: _Job.of(recipe, source, seed) for name, recipe in recipes.items()}
    wanted = list(dict.fromkeys(one for job in jobs.values() for one in job.wanted.values()))
    facts = source.known([*dict.fromkeys(contrast for contrast, _ in wanted)], progress=progress)
    for job in jobs.values():
        job.check_possible(facts, source.layers)
    notes = {name: job.notes(facts) for name, job in jobs.items()}
    warn_of((note for of_recipe in notes.values() for of_contrast in of_recipe.values() for note in of_contrast), 3)
    provenance = {name: provenance_of(source, job.wanted, facts, notes[name]) for name, job in jobs.items()}
    stream = source.stream(wanted, seed)
    kept = None
    if checkpoint is not None and isinstance(source, ModelSource) and isinstance(stream, ModelStream):
        same = {"provenance": provenance, "heads": list(map(str, source.heads)), "seed": seed, **source.job()}
        kept = Checkpoint.of(Unfinished(Path(checkpoint), same | {"passes": stream.sharing}), stream)
    with bar(len(stream), "examples", progress) as tick, kept.work.stoppable() if kept else nullcontext():
        sums = moments_of(stream, seed=seed, kept=kept, progress=tick)
    if kept:
        kept.finish(sums)
    found = {}
    with bar(len(source.heads) * len(recipes), "heads", progress) as tick:
        for name, job in jobs.items():
            layers = {number: job.moments(site, sums, number) for number, site in source.layers.items()}
            if job.choices.metric == "contrast" and (
                few := few_examples([*next(iter(layers.values())).moments.values()])
            ):
                warnings.warn(few, stacklevel=3)
            found[name] = Features.from_moments(
                layers, job.choices, provenance[name], encoding=source.encoding, progress=tick
            )
    return found


@dataclass(frozen=True)
class _Job:
    """A recipe applied to contrasts. `wanted`: by name, the contrast in the source and how its twins are read."""

    wanted: Mapping[str, Wanted]
    choices: Choices
    reading: Reading | None  # that the recipe names

    @classmethod
    def of(cls, recipe: Recipe, source: Source, seed: int) -> _Job:
        picked = recipe.pick(source.contrasts)
        wanted = {
            name: (contrast, _reading(name, source.twins(contrast), recipe.chosen_reading))
            for name, contrast in picked.items()
        }
        if recipe.reading not in (None, "plain") and all(reading == "plain" for _, reading in wanted.values()):
            raise QKPrismError(
                f"reading={recipe.reading!r} is of twins, and the examples of {', '.join(map(repr, wanted))} have "
                "none. Leave reading out, or give every example a twin."
            )
        return cls(wanted, recipe.choices(len(picked), seed), recipe.reading)

    def check_possible(self, facts: Mapping[str, Known], layers: Mapping[int, Site]) -> None:
        """Refuse before the pass what would fail after it."""
        rank, d_heads = self.choices.rank, [site.d_head for site in layers.values()]
        if isinstance(rank, int) and rank > min(d_heads):
            raise QKPrismError(f"A rank of {rank} is not possible: d_head is {max(d_heads)}.")
        for name, (contrast, _) in self.wanted.items():
            if rank == "heldout" and (groups := facts[contrast].grouping.n_groups) < N_FOLDS:
                raise QKPrismError(
                    f"The held-out rank of {name!r} needs {N_FOLDS} groups of examples or more, and there are {groups} "
                    "(examples with the same text are one group). Give more examples, or choose another rank."
                )
        freedom = sum(facts[contrast].freedom for contrast, _ in self.wanted.values())
        if self.choices.metric == "contrast" and freedom < max(d_heads):
            raise QKPrismError(
                f"The marked keys of all examples do not span the key space of d_head {max(d_heads)} (too few "
                "examples), so the contrast metric is not defined. Give more examples, or use metric='raw'."
            )

    def notes(self, facts: Mapping[str, Known]) -> dict[str, list[Note]]:
        """What is to be said of the examples of each contrast."""
        found = {name: facts[contrast].notes(name) for name, (contrast, _) in self.wanted.items()}
        for name, (_, reading) in self.wanted.items():
            if reading == "plain" and self.reading not in (None, "plain"):
                found[name].append(Note(f"{name!r} has no twins: reading={self.reading!r} has no effect on it."))
        return found

    def moments(self, site: Site, sums: Mapping[str, Mapping[int, Moments]], number: int) -> LayerMoments:
        """The moments of this recipe in one layer."""
        named = {name: sums[stream_name(wanted)][number] for name, wanted in self.wanted.items()}
        return LayerMoments(site.heads, site.scaling, named)


def _reading(name: str, twins: set[bool], wanted: Reading | None) -> Reading:
    """`plain` without twins; with twins what is wanted, `symmetric` by default."""
    if wanted is not None:
        choice(wanted, READINGS, "a reading of twins")
    if len(twins) > 1:
        raise QKPrismError(f"Some examples of {name!r} have a twin and some do not. Split the contrast in two.")
    if twins == {False}:
        return "plain"
    if wanted == "plain":
        raise QKPrismError(f"reading='plain' is of texts without twins, and {name!r} has twins. Use {_TWINS}.")
    return wanted or "symmetric"
