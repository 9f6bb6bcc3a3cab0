"""The verbs on a model: `find_heads` and `decompose`.

prompts -> Contrast -> capture (one forward pass) -> Moments -> Features
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm import tqdm

from qkprism.capture import Batches, Marked, Progress, Site, sites_of, stream_moments
from qkprism.checkpoint import Checkpoint
from qkprism.contrasts import Contrast, Example
from qkprism.core.decomposition import few_examples, resolve_metric
from qkprism.core.feature_set import Features, Layer
from qkprism.core.features import Center, Choices, Rank
from qkprism.core.moments import N_FOLDS, READINGS, Moments, Reading
from qkprism.core.scores import MEASURES, HeadScores, ScoreSums
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike, all_heads, check_heads
from qkprism.models.calls import AttentionCall
from qkprism.models.chat import Chat
from qkprism.models.digest import model_digest
from qkprism.models.encoding import Batch, EncodedExample, TokenChoice, check_reach, encode
from qkprism.models.model import Frame, Model

Contrasts = Contrast | Sequence[Contrast] | Mapping[str, Contrast]
Heads = Iterable[HeadLike] | HeadLike | HeadScores | None


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
    named = _named(contrasts)
    center, reading, rank = _preset(preset, center, reading, rank)
    choices = Choices(center=center, metric=_metric(preset, metric, len(named)), rank=rank, seed=seed)
    chosen = _heads(model, heads)
    readings = {name: _reading(contrast, reading) for name, contrast in named.items()}
    encoded = {name: _encode(model, contrast, chosen, token, chat, max_length) for name, contrast in named.items()}
    marked = [Marked.of(name, encoded[name], readings[name], seed) for name in named]
    sites = sites_of(model, chosen)
    _check_possible(choices, marked, sites)
    batches = Batches(model, sorted(sites), rope, batch_size)
    provenance = _provenance(model, named, readings, rope=rope, token=token, chat=chat, max_length=max_length)
    job = {"provenance": provenance, "heads": list(map(str, chosen)), "batch_size": batch_size, "seed": seed}
    kept = None if checkpoint is None else Checkpoint(Path(checkpoint), job)
    sums = _stream(batches, sites, marked, seed, kept, progress)
    layers = {
        layer: Layer(site.heads, site.scaling, {own.name: sums[own.name][layer] for own in marked})
        for layer, site in sites.items()
    }
    if choices.metric == "contrast" and (few := few_examples([*next(iter(layers.values())).moments.values()])):
        warnings.warn(few, stacklevel=2)
    with _bar(len(chosen), "heads", progress) as tick:
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
    with _bar(sum(len(own.examples) for own in marked), "examples", progress) as tick:
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


def find_heads(
    model: Model,
    examples: Contrast | Iterable[Example],
    *,
    heads: Heads = None,
    by: str = "accuracy",
    token: TokenChoice = "last",
    chat: bool | Chat | None = None,
    max_length: int | None = None,
    batch_size: int | None = None,
    progress: bool = True,
) -> HeadScores:
    """Score every head by how it attends to the positive keys, in one pass; the best comes first."""
    if by not in MEASURES:
        raise QKPrismError(f"Heads cannot be sorted by {by!r}. Use one of {', '.join(MEASURES)}.")
    name = examples.name if isinstance(examples, Contrast) else None
    examples = list(examples)
    chosen = _heads(model, heads)
    for i, example in enumerate(examples):
        if not example.text.negative:
            raise QKPrismError(f"{example.source or f'example {i}'}: finding heads needs a negative key in the text.")
    encoded = _encode(model, examples, chosen, token, chat, max_length)
    encoded = [EncodedExample(e.index, e.text, None, e.weight, e.group, e.source) for e in encoded]
    sites = sites_of(model, chosen)
    sums = {layer: ScoreSums.zeros(len(site.heads)) for layer, site in sites.items()}
    current: dict[int, Tensor] = {}

    def visit(call: AttentionCall, batch: Batch) -> None:
        current[call.layer] = _measure(call, batch, sites[call.layer]).cpu()

    with _bar(len(encoded), "examples", progress) as tick:
        for batch in Batches(model, sorted(sites), batch_size=batch_size).run(encoded, visit):
            for layer, measured in current.items():
                sums[layer].add(measured.double(), batch.weight.double())
            current.clear()
            tick(len(batch.examples))
    read = [sums[layer].read() for layer in sites]
    values = {name: torch.cat([means[name] for means, _ in read]) for name in MEASURES}
    errors = {name: torch.cat([deviations[name] for _, deviations in read]) for name in MEASURES}
    ordered = tuple(head for site in sites.values() for head in site.heads)
    broken = [str(head) for head, gap in zip(ordered, values["logit_gap"], strict=True) if not bool(gap.isfinite())]
    if broken:
        raise QKPrismError(f"The logits of {', '.join(broken[:3])} are not finite. Check the weights, or use float32.")
    chance = sum(len(e.text.positive) / len(e.text.keys) for e in encoded) / len(encoded)
    provenance = {"model": model.name, "revision": model.revision, "contrast": name, "versions": _versions()}
    return HeadScores(ordered, values, errors, len(encoded), chance, provenance=provenance).sort(by)


def _measure(call: AttentionCall, batch: Batch, site: Site) -> Tensor:
    """Every measure of `MEASURES` for each example and head of a batch without twins."""
    batch = batch.to(call.query.device)
    attention = call.attention([head.index for head in site.heads], batch.query)[:, :, 0]
    row, column, positive = batch.key_row, batch.key_column, batch.key_positive
    marked = attention[row, :, column]
    side = [torch.zeros_like(attention[:, :, 0]).index_add_(0, row[s], marked[s]) for s in (positive, ~positive)]
    best = [_largest(marked[s], row[s], len(attention)) for s in (positive, ~positive)]
    query, key = (vectors.float() for vectors in site.gather(call, batch))
    difference = torch.einsum("ek,kvd->evd", batch.positive_mean - batch.negative_mean, key)
    gap = (query * difference[:, list(site.kv_index)]).sum(-1) * float(call.scaling)
    total = (side[0] + side[1]).clamp(min=torch.finfo(attention.dtype).tiny)
    all_best = attention.amax(-1)
    return torch.stack([best[0] > best[1], best[0] >= all_best, side[0], side[1], side[0] / total, gap])


def _largest(values: Tensor, row: Tensor, rows: int) -> Tensor:
    """The largest value of each row and head."""
    empty = values.new_full((rows, values.shape[1]), -1.0)
    return empty.scatter_reduce(0, row[:, None].expand_as(values), values, "amax")


def _named(contrasts: Contrasts) -> dict[str, Contrast]:
    if isinstance(contrasts, Contrast):
        return {contrasts.name: contrasts}
    given = list(contrasts.values()) if isinstance(contrasts, Mapping) else list(contrasts)
    if not all(isinstance(contrast, Contrast) for contrast in given):
        raise QKPrismError("Give contrasts: Contrast.read(path), or Contrast(name, examples).")
    named = dict(contrasts) if isinstance(contrasts, Mapping) else {contrast.name: contrast for contrast in given}
    if len(named) < len(given):
        raise QKPrismError("Two contrasts have the same name. Rename one, or give them as {name: contrast}.")
    if not named:
        raise QKPrismError("No contrast was given.")
    return named


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


def _heads(model: Model, heads: Heads) -> tuple[Head, ...]:
    if not isinstance(model, Model):
        raise QKPrismError(f"Give a model that qkprism.load returned, not {type(model).__name__}.")
    if heads is None:
        return all_heads(model.heads_per_layer)
    return check_heads(heads.heads if isinstance(heads, HeadScores) else heads, model.heads_per_layer, model.name)


def _encode(
    model: Model,
    examples: Iterable[Example],
    heads: Sequence[Head],
    token: TokenChoice,
    chat: bool | Chat | None,
    max_length: int | None,
) -> list[EncodedExample]:
    if model.tokenizer is None:
        raise QKPrismError(f"{model.name} has no tokenizer. Load it as (model, tokenizer).")
    if model.hf.config.is_encoder_decoder:
        raise QKPrismError(f"{model.name} is an encoder-decoder: texts can be given to encoders and decoders only.")
    encoded = encode(model.tokenizer, examples, token=token, chat=chat, max_length=max_length, causal=model.is_causal)
    if not encoded:
        raise QKPrismError("There are no examples.")
    for window in {model.layers[head.layer].window for head in heads}:
        check_reach(encoded, window, causal=model.is_causal)
    longest = max(encoded, key=lambda example: example.length)
    if model.max_positions is not None and longest.length > model.max_positions:
        raise QKPrismError(
            f"{longest.source}: {longest.length} tokens are more than the {model.max_positions} positions "
            f"of {model.name}."
        )
    return encoded


def _provenance(
    model: Model, contrasts: Mapping[str, Contrast], readings: Mapping[str, Reading], **options: Any
) -> dict[str, Any]:
    return {
        "model": model.name,
        "revision": model.revision,
        "model_digest": model_digest(model.hf),
        "dtype": str(model.dtype).removeprefix("torch."),
        "contrasts": {
            name: {"digest": c.digest, "n": len(c), "reading": readings[name]} for name, c in contrasts.items()
        },
        "options": options,
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    return {package: version(package) for package in ("qkprism", "torch", "transformers")}


@contextmanager
def _bar(total: int, unit: str, shown: bool) -> Iterator[Progress]:
    """A progress bar that appears after two seconds."""
    with tqdm(total=total, unit=f" {unit}", disable=not shown, delay=2.0, file=sys.stderr, leave=False) as bar:
        yield lambda n: bar.update(n) and None
