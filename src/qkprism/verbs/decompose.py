"""`decompose`: from contrasts to features in one streaming pass."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, overload

from qkprism.capture.batching import Batches
from qkprism.capture.checkpoint import KIND as CHECKPOINT
from qkprism.capture.checkpoint import Checkpoint
from qkprism.capture.passes import Census, MarkedContrast, Pass, passes_of
from qkprism.capture.sites import Site, sites_of
from qkprism.capture.streaming import stream_moments
from qkprism.contrasts import Contrast
from qkprism.core.decomposition import few_examples
from qkprism.core.feature import Choices
from qkprism.core.moments import N_FOLDS, Moments
from qkprism.encoding import Encoding, checked_encoding
from qkprism.errors import QKPrismError
from qkprism.models.encoding import Encodings
from qkprism.models.model import Model
from qkprism.notes import Note, warn_of
from qkprism.options import (
    READINGS,
    Center,
    Preset,
    Rank,
    Reading,
    TokenChoice,
    by_name,
    checked_seed,
    choice,
)
from qkprism.progress import bar
from qkprism.results.features import Features, LayerMoments
from qkprism.runs import check_place
from qkprism.verbs.inputs import Contrasts, Heads, checked, encoder_for, heads_of, named_contrasts, provenance_of
from qkprism.verbs.recipes import Recipe

_TWINS = ", ".join(READINGS[1:])


@overload
def decompose(
    model: Model,
    contrasts: Contrasts,
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
    model: Model,
    contrasts: Contrasts,
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
    model: Model,
    contrasts: Contrasts,
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
    """The query-key features of contrasts in some heads (all by default), in one streaming pass.

    >>> decompose(model, {"order": order, "lexical": lexical}, heads=["L21H7"])   # doctest: +SKIP
    >>> decompose(model, contrasts, recipes={"ours": Recipe(), "paper": Recipe("paper")})   # doctest: +SKIP

    Several recipes, by name, share the pass, and each gives a set of features.
    With a folder as `checkpoint` a pass that was killed goes on where it was, to the identical result.
    """
    single = Recipe(preset=preset, center=center, reading=reading, metric=metric, rank=rank)
    if recipes is not None and single != Recipe():
        raise QKPrismError("preset, center, reading, metric and rank belong in each recipe: {'ours': Recipe(rank=4)}.")
    found = _decompose(
        model, contrasts, {"": single} if recipes is None else recipes,
        heads=heads, encoding=checked_encoding(encoding), batch_size=batch_size, seed=seed,
        checkpoint=checkpoint, progress=progress,
    )  # fmt: skip
    return found[""] if recipes is None else found


def _decompose(
    model: Model,
    contrasts: Contrasts,
    recipes: Mapping[str, Recipe],
    *,
    heads: Heads,
    encoding: Encoding,
    batch_size: int | None,
    seed: int,
    checkpoint: str | os.PathLike[str] | None,
    progress: bool,
) -> dict[str, Features]:
    named = named_contrasts(contrasts)
    chosen, seed = heads_of(model, heads), checked_seed(seed)
    sites = sites_of(model, chosen)
    batches = Batches(model, sorted(sites), encoding.rope, batch_size)
    if checkpoint is not None:
        check_place(checkpoint, CHECKPOINT)
    if not by_name(recipes, "recipes") or not all(isinstance(recipe, Recipe) for recipe in recipes.values()):
        raise QKPrismError("Give at least one recipe by its name: {'ours': Recipe()}.")
    jobs = {recipe: _Job.of(own, named, seed) for recipe, own in recipes.items()}
    wanted = list(dict.fromkeys(source for job in jobs.values() for source in job.sources.values()))
    encoder = encoder_for(model, encoding)
    encoded = {name: Encodings(named[name].examples, encoder) for name, _ in wanted}
    with bar(sum(map(len, encoded.values())), "examples encoded", progress) as tick:
        census = {name: Census.of(checked(model, own, chosen, tick), named[name]) for name, own in encoded.items()}
    marked = {
        (name, reading): MarkedContrast.of(f"{name}/{reading}", encoded[name], census[name], reading, seed)
        for name, reading in wanted
    }
    for own in jobs.values():
        _check_possible(own.choices, {name: marked[source] for name, source in own.sources.items()}, sites)
    notes = {recipe: own.notes(census, encoding.token) for recipe, own in jobs.items()}
    warn_of((note for own in notes.values() for of_contrast in own.values() for note in of_contrast), 3)
    provenance = {
        recipe: provenance_of(
            model,
            {name: named[given] for name, (given, _) in own.sources.items()},
            own.readings,
            notes[recipe],
        )
        for recipe, own in jobs.items()
    }
    passes = passes_of([*marked.values()])
    job: dict[str, Any] = {
        "provenance": provenance,
        "encoding": asdict(encoding),
        "heads": list(map(str, chosen)),
        "batch_size": batches.batch_size,
        "seed": seed,
    }
    job["passes"] = [[own.name for own in group.marked] for group in passes]
    kept = None if checkpoint is None else Checkpoint(Path(checkpoint), job)
    sums = _stream(batches, sites, passes, seed, kept, progress)
    found = {}
    with bar(len(chosen) * len(recipes), "heads", progress) as tick:
        for recipe, own in jobs.items():
            layers = {layer: own.layer(site, sums, layer) for layer, site in sites.items()}
            few = few_examples([*next(iter(layers.values())).moments.values()])
            if own.choices.metric == "contrast" and few:
                warnings.warn(few, stacklevel=3)
            found[recipe] = Features.from_moments(
                layers, own.choices, provenance[recipe], encoding=encoding, progress=tick
            )
    return found


@dataclass(frozen=True)
class _Job:
    """A recipe applied to contrasts. `sources`: by name, the contrast as it was given and how its twins are read."""

    sources: Mapping[str, tuple[str, Reading]]
    choices: Choices
    reading: Reading | None  # that was asked for by name

    @classmethod
    def of(cls, recipe: Recipe, named: Mapping[str, Contrast], seed: int) -> _Job:
        picked = recipe.pick(named)
        sources = {name: (given, _reading(name, named[given], recipe.chosen_reading)) for name, given in picked.items()}
        if recipe.reading not in (None, "plain") and all(reading == "plain" for _, reading in sources.values()):
            raise QKPrismError(
                f"reading={recipe.reading!r} is of twins, and the examples of {', '.join(map(repr, sources))} have "
                "none. Leave reading out, or give every example a twin."
            )
        return cls(sources, recipe.choices(len(picked), seed), recipe.reading)

    @property
    def readings(self) -> dict[str, Reading]:
        return {name: reading for name, (_, reading) in self.sources.items()}

    def notes(self, census: Mapping[str, Census], token: TokenChoice) -> dict[str, list[Note]]:
        """What is to be said of the examples of each contrast."""
        found = {name: census[given].texts.notes(name, token) for name, (given, _) in self.sources.items()}
        for name, (_, reading) in self.sources.items():
            if reading == "plain" and self.reading not in (None, "plain"):
                found[name].append(Note(f"{name!r} has no twins: reading={self.reading!r} has no effect on it."))
        return found

    def layer(self, site: Site, sums: Mapping[str, Mapping[int, Moments]], number: int) -> LayerMoments:
        """The moments of this recipe in one layer."""
        own = {name: sums["/".join(source)][number] for name, source in self.sources.items()}
        return LayerMoments(site.heads, site.scaling, own)


def _check_possible(choices: Choices, marked: Mapping[str, MarkedContrast], sites: Mapping[int, Site]) -> None:
    """Refuse before the pass what would fail after it."""
    d_head = max(site.d_head for site in sites.values())
    if isinstance(choices.rank, int) and choices.rank > min(site.d_head for site in sites.values()):
        raise QKPrismError(f"A rank of {choices.rank} is not possible: d_head is {d_head}.")
    for name, own in marked.items():
        if choices.rank == "heldout" and (groups := len(set(own.group))) < N_FOLDS:
            raise QKPrismError(
                f"The held-out rank of {name!r} needs {N_FOLDS} groups of examples or more, and there are {groups} "
                "(examples with the same text are one group). Give more examples, or choose another rank."
            )
    if choices.metric == "contrast" and sum(own.freedom for own in marked.values()) < d_head:
        raise QKPrismError(
            f"The marked keys of all examples do not span the key space of d_head {d_head} (too few examples), so the "
            "contrast metric is not defined. Give more examples, or use metric='raw'."
        )


def _stream(
    batches: Batches,
    sites: Mapping[int, Site],
    passes: Sequence[Pass],
    seed: int,
    kept: Checkpoint | None,
    progress: bool,
) -> dict[str, dict[int, Moments]]:
    """The moments of every contrast, from where a checkpoint stands if there is one."""
    marked = [own for group in passes for own in group.marked]
    if kept:
        kept.read(marked, sites)
    sums: dict[str, dict[int, Moments]] = {}
    with bar(sum(map(len, passes)), "examples", progress) as tick:
        for group in passes:
            found = stream_moments(
                batches,
                sites,
                group,
                seed=seed,
                start=min(kept.done.get(own.name, 0) for own in group.marked) if kept else 0,
                moments=kept.sums if kept else None,
                progress=tick,
                on_chunk=partial(kept.note, marked) if kept else None,
            )
            sums |= {name: {layer: m.to("cpu") for layer, m in own.items()} for name, own in found.items()}
    if kept:
        kept.write(marked)
    return sums


def _reading(name: str, contrast: Contrast, asked: Reading | None) -> Reading:
    """`plain` without twins; with twins what was asked for, `symmetric` by default."""
    twins = {example.twin is not None for example in contrast}
    if asked is not None:
        choice(asked, READINGS, "a reading of twins")
    if len(twins) > 1:
        raise QKPrismError(f"Some examples of {name!r} have a twin and some do not. Split the contrast in two.")
    if twins == {False}:
        return "plain"
    if asked == "plain":
        raise QKPrismError(f"reading='plain' is of texts without twins, and {name!r} has twins. Use {_TWINS}.")
    return asked or "symmetric"
