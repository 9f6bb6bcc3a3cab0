"""`find_heads`: how well every head attends to the positive keys, in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkprism.capture.batching import Batches
from qkprism.capture.sites import Site, sites_of
from qkprism.capture.texts import Texts
from qkprism.contrasts import Contrast
from qkprism.core.means import Means, Pool
from qkprism.encoding import Encoding, checked_encoding
from qkprism.errors import QKPrismError
from qkprism.models.batches import Batch
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import EncodedExample
from qkprism.models.model import Model
from qkprism.notes import warn_of
from qkprism.options import HEAD_MEASURES as MEASURES
from qkprism.options import choice
from qkprism.progress import bar
from qkprism.results.scores import HeadScores
from qkprism.verbs.inputs import Examples, Heads, encode_for, examples_of, heads_of, versions


def find_heads(
    model: Model,
    examples: Examples,
    *,
    heads: Heads = None,
    by: str = "accuracy",
    encoding: Encoding = Encoding(),  # noqa: B008  (it is frozen)
    batch_size: int | None = None,
    progress: bool = True,
) -> HeadScores:
    """Score every head by how it attends to the positive keys, in one pass; the best comes first."""
    choice(by, MEASURES, "a measure of heads")
    chosen, examples = heads_of(model, heads), examples_of(examples)
    name = examples.name if isinstance(examples, Contrast) else None
    sites = sites_of(model, chosen)
    batches = Batches(model, sorted(sites), batch_size=batch_size)
    encoded = encode_for(model, examples, chosen, checked_encoding(encoding))
    if lacking := [example.source for example in encoded if not example.text.negative]:
        raise QKPrismError(f"{lacking[0]}: finding heads needs a negative key in the text.")
    encoded = [EncodedExample(e.index, e.text, None, e.weight, e.group, e.source) for e in encoded]
    texts = Texts.of(encoded, examples)
    notes, group = texts.notes_on_search(name or "search", encoding.token), texts.grouping.group
    warn_of(notes, 2)
    pools = {layer: Pool.of(group) for layer in sites}
    sums = {layer: Means.zeros(len(MEASURES), len(site.heads)) for layer, site in sites.items()}
    current: dict[int, Tensor] = {}

    def visit(call: AttentionCall, batch: Batch) -> None:
        current[call.layer] = _measure(call, batch, sites[call.layer]).cpu()

    with bar(len(encoded), "examples", progress) as tick:
        for batch in batches.run(encoded, visit):
            here = [group[example.index] for example in batch.examples]
            for layer, measured in current.items():
                sums[layer].add(*pools[layer].add(measured, batch.weight, here))
            current.clear()
            tick(len(batch.examples))
    values, errors = (
        dict(zip(MEASURES, torch.cat(parts, 1), strict=True))
        for parts in ([own.mean() for own in sums.values()], [own.error() for own in sums.values()])
    )
    ordered = tuple(head for site in sites.values() for head in site.heads)
    broken = [str(head) for head, gap in zip(ordered, values["logit_gap"], strict=True) if not bool(gap.isfinite())]
    if broken:
        raise QKPrismError(f"The logits of {', '.join(broken[:3])} are not finite. Check the weights, or use float32.")
    chance = sum(len(e.text.positive) / len(e.text.keys) for e in encoded) / len(encoded)
    provenance: dict[str, Any] = {"model": model.name, "revision": model.revision, "contrast": name}
    provenance |= {"notes": [note.text for note in notes], "versions": versions()}
    independent = next(iter(sums.values())).n_effective
    return HeadScores(
        ordered, values, errors, len(encoded), chance, provenance=provenance, n_independent=independent
    ).sort(by)


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
    return torch.stack([best[0] > best[1], best[0] >= all_best, side[0], side[1], side[0] / total, gap], 1)


def _largest(values: Tensor, row: Tensor, rows: int) -> Tensor:
    """The largest value of each row and head."""
    empty = values.new_full((rows, values.shape[1]), -1.0)
    return empty.scatter_reduce(0, row[:, None].expand_as(values), values, "amax")
