"""`decompose`: from contrasts to features in one streaming pass."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from qkprism.capture import Batches, Marked, Site, sites_of, stream_moments
from qkprism.checkpoint import Checkpoint
from qkprism.contrasts import Contrast
from qkprism.core.decomposition import few_examples, resolve_metric
from qkprism.core.feature_set import Features, Layer
from qkprism.core.features import Center, Choices, Rank
from qkprism.core.moments import N_FOLDS, READINGS, Moments, Reading
from qkprism.errors import QKPrismError
from qkprism.models.chat import Chat
from qkprism.models.encoding import TokenChoice
from qkprism.models.model import Frame, Model
from qkprism.pipeline.inputs import Contrasts, Heads, bar, encode_for, heads_of, named_contrasts, provenance_of


def decompose(
    model: Model,
    contrasts: Contrasts,
    *,
    heads: Heads = None,
    preset: Literal["paper"] | None = None,
    center: Center | None = None,
    reading: Reading | None = None,
    metric: Literal["raw", "contrast"] | None = None,
    rank: Rank | None = None,
    rope: Frame = "post",
    token: TokenChoice = "last",
    chat: bool | Chat | None = None,
    max_length: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Features:
    """The query-key features of contrasts in some heads (all by default), in one streaming pass.

    >>> decompose(model, {"order": order, "lexical": lexical}, heads=["L21H7"])   # doctest: +SKIP

    With a folder as `checkpoint` a pass that was killed goes on where it was, to the identical result.
    """
    named = named_contrasts(contrasts)
    center, reading, rank = _preset(preset, center, reading, rank)
    choices = Choices(center=center, metric=_metric(preset, metric, len(named)), rank=rank, seed=seed)
    chosen = heads_of(model, heads)
    readings = {name: _reading(contrast, reading) for name, contrast in named.items()}
    encoded = {name: encode_for(model, contrast, chosen, token, chat, max_length) for name, contrast in named.items()}
    marked = [Marked.of(name, encoded[name], readings[name], seed) for name in named]
    sites = sites_of(model, chosen)
    _check_possible(choices, marked, sites)
    batches = Batches(model, sorted(sites), rope, batch_size)
    provenance = provenance_of(model, named, readings, rope=rope, token=token, chat=chat, max_length=max_length)
    job = {"provenance": provenance, "heads": list(map(str, chosen)), "batch_size": batch_size, "seed": seed}
    kept = None if checkpoint is None else Checkpoint(Path(checkpoint), job)
    sums = _stream(batches, sites, marked, seed, kept, progress)
    layers = {
        layer: Layer(site.heads, site.scaling, {own.name: sums[own.name][layer] for own in marked})
        for layer, site in sites.items()
    }
    if choices.metric == "contrast" and (few := few_examples([*next(iter(layers.values())).moments.values()])):
        warnings.warn(few, stacklevel=2)
    with bar(len(chosen), "heads", progress) as tick:
        return Features.from_moments(layers, choices, provenance, tick)


def _check_possible(choices: Choices, marked: Sequence[Marked], sites: Mapping[int, Site]) -> None:
    """Refuse before the pass what would fail after it."""
    d_head = max(site.d_head for site in sites.values())
    if isinstance(choices.rank, int) and choices.rank > min(site.d_head for site in sites.values()):
        raise QKPrismError(f"A rank of {choices.rank} is not possible: d_head is {d_head}.")
    for own in marked:
        if choices.rank == "heldout" and len(set(own.fold)) < N_FOLDS:
            raise QKPrismError(f"The held-out rank of {own.name!r} needs {N_FOLDS} groups of examples or more.")
    freedom = sum(sum(len(text.keys) for text in e.texts) - 1 for own in marked for e in own.examples)
    if choices.metric == "contrast" and freedom < d_head:
        raise QKPrismError(
            f"The marked keys of all examples do not span the key space of d_head {d_head} (too few examples), so the "
            "contrast metric is not defined. Give more examples, or use metric='raw'."
        )


def _stream(
    batches: Batches,
    sites: Mapping[int, Site],
    marked: Sequence[Marked],
    seed: int,
    kept: Checkpoint | None,
    progress: bool,
) -> dict[str, dict[int, Moments]]:
    """The moments of every contrast, from where a checkpoint stands if there is one."""
    if kept:
        kept.read(marked, sites)
    sums = {}
    with bar(sum(len(own.examples) for own in marked), "examples", progress) as tick:
        for own in marked:
            found = stream_moments(
                batches,
                sites,
                own,
                seed=seed,
                start=kept.done.get(own.name, 0) if kept else 0,
                moments=kept.sums.get(own.name) if kept else None,
                progress=tick,
                on_chunk=partial(kept.note, marked, own.name) if kept else None,
            )
            sums[own.name] = {layer: moments.to("cpu") for layer, moments in found.items()}
    if kept:
        kept.write(marked)
    return sums


def _preset(
    preset: str | None, center: Center | None, reading: Reading | None, rank: Rank | None
) -> tuple[Center, Reading | None, Rank]:
    """The paper's choices where nothing else is said, or ours."""
    if preset not in (None, "paper"):
        raise QKPrismError(f"{preset!r} is not a preset. The one preset is 'paper'.")
    if preset == "paper":
        return center or "none", reading or "paired", "energy" if rank is None else rank
    return center or "query", reading, "balanced" if rank is None else rank


def _metric(preset: str | None, metric: str | None, n_contrasts: int) -> Literal["raw", "contrast"]:
    return resolve_metric("raw" if preset == "paper" and metric is None else metric, n_contrasts)


def _reading(contrast: Contrast, asked: Reading | None) -> Reading:
    """`plain` without twins; with twins what was asked for, `symmetric` by default."""
    twins = {example.twin is not None for example in contrast}
    if asked is not None and asked not in READINGS:
        raise QKPrismError(f"{asked!r} is not a reading of twins. Use {', '.join(READINGS[1:])}.")
    if len(twins) > 1:
        raise QKPrismError(
            f"Some examples of {contrast.name!r} have a twin and some do not. Split the contrast in two."
        )
    if twins == {False}:
        return "plain"
    return "symmetric" if asked in (None, "plain") else asked
