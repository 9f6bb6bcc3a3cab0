"""`decompose`: from contrasts to features in one streaming pass, by one recipe or several."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, overload

from qkprism.capture.model_source import ModelSource
from qkprism.capture.source import Checkpoint, ContrastReading, Outline, Site, Source, Sums, moments_of, provenance_of
from qkprism.capture.streaming import ModelStream
from qkprism.capture.vector_source import VectorSource
from qkprism.core.decomposition import few_examples
from qkprism.core.feature import Choices
from qkprism.core.moments import N_FOLDS
from qkprism.encoding import Encoding, checked_encoding
from qkprism.errors import QKPrismError
from qkprism.models.model import Model
from qkprism.notes import Note, warn_of
from qkprism.options import (
    METRICS,
    PRESETS,
    READINGS,
    Center,
    Preset,
    Rank,
    Reading,
    by_name,
    checked_seed,
    choice,
    either,
    show,
)
from qkprism.progress import bar
from qkprism.results.features import Features, LayerMoments
from qkprism.results.scores import HeadScores
from qkprism.runs.store import Unfinished, check_checkpoint
from qkprism.verbs.inputs import Contrasts, Heads, heads_of, named_contrasts

TWINS_OF: dict[Preset, Reading] = {"paper": "paired", "paper-code": "matched"}


@dataclass(frozen=True)
class Recipe:
    """How moments become features; what is None is the preset's choice, else ours.

    >>> qk.Recipe("paper", rank=4).rank
    4

    preset      None (default) is ours; `paper` is the paper as it is written, E[q (k - k')^T] of twins; `paper-code` as
                its authors computed it, E[q k^T] - E[q' k'^T]. Both are uncentred, raw, with the rank by energy
    center      `query` (ours) takes the mean query off: what depends on the query. `none` keeps what the head likes
                whatever the query says
    reading     how twins are read: symmetric (ours), paired or matched; for contrasts without twins leave it out
    metric      `contrast` (ours) does not depend on the head's coordinates, and makes features orthogonal where
                contrasts are independent; `raw` is those coordinates, and ours for one contrast of few examples (fewer
                than 4 a dimension of a head) or whose keys do not span the key space
    rank        a number, or a rule: own (ours), balanced, energy or heldout; features can be cut anew later
    contrasts   picks and names contrasts: {"order": "fixed"} decomposes the contrast `fixed` as `order`; all by default
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

    def choices(self, seed: int) -> Choices:
        """What is chosen, by the preset where nothing else is said."""
        paper = self.preset is not None
        usual = "raw" if paper else "contrast"
        metric = choice(usual if self.metric is None else self.metric, METRICS, "a metric")
        rank = ("energy" if paper else "own") if self.rank is None else self.rank
        return Choices(center=self.center or ("none" if paper else "query"), metric=metric, rank=rank, seed=seed)


ENOUGH = 4  # examples a dimension of a head: with half of it the metric of one contrast is too noisy to be the default
_THIN = "Raw metric, in which permuted labels move nearly as much: with {} examples one contrast has its own metric."

Named = Recipe | Preset  # a recipe, or the name of a preset
_TWINS = ", ".join(READINGS[1:])


@overload
def decompose(
    source: Model | VectorSource,
    contrasts: Contrasts | None = None,
    *,
    heads: Heads = None,
    recipe: Named = Recipe(),  # noqa: B008  (it is frozen)
    encoding: Encoding = Encoding(),  # noqa: B008
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
    heads: Heads = None,
    recipe: Mapping[str, Named],
    encoding: Encoding = Encoding(),  # noqa: B008
    batch_size: int | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> dict[str, Features]: ...
def decompose(
    source: Model | VectorSource,
    contrasts: Contrasts | None = None,
    *,
    heads: Heads = None,
    recipe: Named | Mapping[str, Named] = Recipe(),  # noqa: B008
    encoding: Encoding = Encoding(),  # noqa: B008
    batch_size: int | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Features | dict[str, Features]:
    """The query-key features of contrasts in some heads, in one streaming pass.

    >>> features = qk.decompose(model, {"order": order, "lexical": lexical}, heads=["L0H1"], progress=False)
    >>> list(features)
    [('order', Head(layer=0, index=1)), ('lexical', Head(layer=0, index=1))]
    >>> both = qk.decompose(model, order, recipe={"ours": qk.Recipe(rank=2), "theirs": "paper"}, progress=False)
    >>> both["ours"]["L0H1"].rank, both["theirs"].choices.center
    (2, 'none')

    source       a model that `load` gave, or a `VectorSource`, which has its contrasts
    contrasts    a contrast, the path of its file, several of them, or several by name. Give those that belong to one
                 question together: their features are then told apart
    heads        such as "L18H6" or ["L18H6", "L21H7"], or the scores of `find_heads`; all by default
    recipe       how moments become features: a `Recipe` (default: ours), or `paper` or `paper-code`. Several by name
                 share the pass, and the result is then features by name
    encoding     how texts become tokens; change it for chat models and for contrasts about distance
    batch_size   texts that are run at once; None (default) goes by tokens, and halves where memory runs out
    seed         of folds and nulls; default 0. Change it to see what depends on them
    checkpoint   a folder in which a pass that was killed goes on where it was, to the identical result; None (default)
                 keeps nothing. For passes of more than minutes
    progress     whether bars are shown after two seconds; default True
    """
    by_recipe = _decompose(
        source_of(source, contrasts, heads, checked_encoding(encoding), batch_size),
        recipes_of(recipe),
        seed=checked_seed(seed),
        checkpoint=checkpoint,
        progress=progress,
    )
    return by_recipe if isinstance(recipe, Mapping) else by_recipe[""]


def recipes_of(recipe: Named | Mapping[str, Named]) -> dict[str, Recipe]:
    """Recipes by name; a single one has none."""
    named = by_name(recipe, "recipe") if isinstance(recipe, Mapping) else {"": recipe}
    if not named:
        raise QKPrismError("Give at least one recipe by its name: {'ours': Recipe()}.")
    return {name: _recipe(one) for name, one in named.items()}


def _recipe(recipe: Named) -> Recipe:
    if isinstance(recipe, str):
        return Recipe(recipe)
    if not isinstance(recipe, Recipe):
        raise QKPrismError(
            f"{show(recipe)} is not a recipe. Give Recipe(...), {either(PRESETS)}, or several by name: "
            "{'ours': Recipe(), 'theirs': 'paper'}."
        )
    return recipe


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
    texts = ModelSource(source, named, heads_of(source, heads), encoding, batch_size)
    assert texts.batches  # refuses a batch size that is none
    return texts


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
    if checkpoint is not None and not isinstance(source, ModelSource):
        raise QKPrismError("A checkpoint is of a pass through a model: vectors are there already. Leave it out.")
    jobs = {name: _Job.of(recipe, source, seed) for name, recipe in recipes.items()}
    readings = list(dict.fromkeys(reading for job in jobs.values() for reading in job.readings.values()))
    outlines = source.outlines([*dict.fromkeys(reading.contrast for reading in readings)], progress=progress)
    for job in jobs.values():
        job.check_possible(outlines, source.layers)
    notes = {name: job.notes(outlines) for name, job in jobs.items()}
    warn_of((note for by_contrast in notes.values() for several in by_contrast.values() for note in several), 3)
    provenance = {name: provenance_of(source, job.readings, outlines, notes[name]) for name, job in jobs.items()}
    stream = source.stream(readings, seed)
    kept = None
    if checkpoint is not None and isinstance(source, ModelSource) and isinstance(stream, ModelStream):
        same = {"provenance": provenance, "heads": list(map(str, source.heads)), "seed": seed, **source.job()}
        kept = Checkpoint.of(Unfinished(Path(checkpoint), same | {"passes": stream.sharing}), stream)
    with bar(len(stream), "examples", progress) as tick, kept.work.stoppable() if kept else nullcontext():
        sums = moments_of(stream, seed=seed, kept=kept, progress=tick)
    if kept:
        kept.finish(sums)
    features, enough = {}, ENOUGH * max(site.d_head for site in source.layers.values())
    with bar(len(source.heads) * len(recipes), "heads", progress) as tick:
        for name, job in jobs.items():
            layers = layer_moments(source.layers, job.readings, sums)
            moments = [*next(iter(layers.values())).moments.values()]
            thin = job.else_raw and moments[0].n_effective < enough
            features[name] = Features.from_moments(
                layers,
                replace(job.choices, metric="raw") if thin else job.choices,
                provenance[name],
                encoding=source.encoding,
                else_raw=job.else_raw,
                progress=tick,
            )
            if thin:
                features[name] = features[name].noted(_THIN.format(enough))
            elif job.choices.metric == "contrast" and (few := few_examples(moments)) and not job.else_raw:
                warnings.warn(few, stacklevel=3)
    return features


@dataclass(frozen=True)
class _Job:
    """A recipe applied to contrasts: by the name in the result, the contrast in the source and how it is read."""

    readings: Mapping[str, ContrastReading]
    choices: Choices
    twins: Reading | None  # how the recipe wants twins to be read, if it says so
    else_raw: bool  # the raw metric will do where there is no other

    @classmethod
    def of(cls, recipe: Recipe, source: Source, seed: int) -> _Job:
        picked = recipe.pick(source.contrasts)
        readings = {
            name: ContrastReading(contrast, _reading(name, source.twins(contrast), recipe.chosen_reading))
            for name, contrast in picked.items()
        }
        if recipe.reading not in (None, "plain") and all(one.reading == "plain" for one in readings.values()):
            raise QKPrismError(
                f"reading={recipe.reading!r} is of twins, and the examples of {', '.join(map(repr, readings))} have "
                "none. Leave reading out, or give every example a twin."
            )
        else_raw = recipe.metric is None and recipe.preset is None and len(picked) == 1
        return cls(readings, recipe.choices(seed), recipe.reading, else_raw)

    def check_possible(self, outlines: Mapping[str, Outline], layers: Mapping[int, Site]) -> None:
        """Refuse before the pass what would fail after it."""
        rank, d_heads = self.choices.rank, [site.d_head for site in layers.values()]
        if isinstance(rank, int) and rank > min(d_heads):
            raise QKPrismError(f"A rank of {rank} is not possible: d_head is {max(d_heads)}.")
        for name, (contrast, _) in self.readings.items():
            if rank == "heldout" and (groups := outlines[contrast].grouping.n_groups) < N_FOLDS:
                raise QKPrismError(
                    f"The held-out rank of {name!r} needs {N_FOLDS} groups of examples or more, and there are {groups} "
                    "(examples with the same text are one group). Give more examples, or choose another rank."
                )
        freedom = sum(outlines[contrast].freedom for contrast, _ in self.readings.values())
        if self.choices.metric == "contrast" and not self.else_raw and freedom < max(d_heads):
            raise QKPrismError(
                f"The marked keys of all examples do not span the key space of d_head {max(d_heads)} (too few "
                "examples), so the contrast metric is not defined. Give more examples, or use Recipe(metric='raw')."
            )

    def notes(self, outlines: Mapping[str, Outline]) -> dict[str, list[Note]]:
        """What is to be said of the examples of each contrast."""
        notes = {name: outlines[contrast].notes(name) for name, (contrast, _) in self.readings.items()}
        for name, (_, reading) in self.readings.items():
            if reading == "plain" and self.twins not in (None, "plain"):
                notes[name].append(Note(f"{name!r} has no twins: reading={self.twins!r} has no effect on it."))
        return notes


def layer_moments(
    sites: Mapping[int, Site], readings: Mapping[str, ContrastReading], sums: Sums
) -> dict[int, LayerMoments]:
    """The moments of each layer by the names of contrasts in the result."""
    return {
        number: LayerMoments(
            site.heads, site.scaling, {name: sums[reading.name][number] for name, reading in readings.items()}
        )
        for number, site in sites.items()
    }


def _reading(name: str, twins: set[bool], recipe: Reading | None) -> Reading:
    """`plain` without twins; with twins what the recipe says, `symmetric` by default."""
    if recipe is not None:
        choice(recipe, READINGS, "a reading of twins")
    if len(twins) > 1:
        raise QKPrismError(f"Some examples of {name!r} have a twin and some do not. Split the contrast in two.")
    if twins == {False}:
        return "plain"
    if recipe == "plain":
        raise QKPrismError(f"reading='plain' is of texts without twins, and {name!r} has twins. Use {_TWINS}.")
    return recipe or "symmetric"
