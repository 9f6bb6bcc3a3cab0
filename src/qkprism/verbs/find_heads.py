"""`find_heads`: how well every head attends to the positive keys, in one pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkprism.capture.readers import read_together
from qkprism.capture.source import Site, sites_of
from qkprism.capture.texts import Texts
from qkprism.capture.vector_source import VectorSource
from qkprism.contrasts import Contrast
from qkprism.core.means import Means, Pool
from qkprism.encoding import Encoding, checked_encoding
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.models.batches import Batch
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import EncodedExample
from qkprism.notes import Note, warn_of
from qkprism.options import HEAD_MEASURES as MEASURES
from qkprism.options import Frame, choice
from qkprism.results.scores import HeadScores
from qkprism.verbs.inputs import (
    AnySource,
    Examples,
    Heads,
    KeptExamples,
    encode_single,
    examples_of,
    heads_of,
    provenance_of_run,
)


def find_heads(
    source: AnySource,
    examples: Examples,
    *,
    heads: Heads = None,
    by: str = "accuracy",
    encoding: Encoding = Encoding(),  # noqa: B008  (it is frozen)
    batch_size: int | None = None,
    progress: bool = True,
) -> HeadScores:
    """Score every head by how it attends to the positive keys, in one pass; the best comes first.

    >>> scores = qk.find_heads(model, contrast, progress=False)
    >>> len(scores), len(scores.top(2))
    (8, 2)

    source       a model that `load` gave, or a `VectorSource`, whose attention is that among the marked keys
    examples     a contrast, the path of its file, or a list of examples, each with a negative key in its text; of a
                 `VectorSource` the name of a contrast
    heads        some heads, such as ["L18H6", "L21H7"]; all by default
    by           the measure to sort by: accuracy (default; the best of the marked keys is positive), accuracy_all (of
                 all tokens), attention_positive, attention_negative, ratio or logit_gap
    encoding     how texts become tokens; change it for chat models, or take the one that a task has
    batch_size   texts that are run at once; None (default) goes by tokens, and halves where memory runs out
    progress     whether a bar is shown after two seconds; default True
    """
    choice(by, MEASURES, "a measure of heads")
    chosen, texts = heads_of(source, heads), examples_of(examples, source)
    encoded = encode_single(source, texts, chosen, checked_encoding(encoding))
    group, notes = _groups(source, texts, encoded, encoding)
    warn_of(notes, 2)
    reader = ScoresReader.of(source, encoded, chosen, group)
    read_together(source, [reader], batch_size=batch_size, progress=progress)
    about = {"contrast": _name(texts), "notes": [note.text for note in notes]}
    return reader.result(provenance_of_run(source) | about).sort(by)


def _name(examples: object) -> str | None:
    if isinstance(examples, KeptExamples):
        return examples.contrast
    return examples.name if isinstance(examples, Contrast) else None


def _groups(
    source: AnySource, examples: Any, encoded: Sequence[EncodedExample], encoding: Encoding
) -> tuple[tuple[int, ...], list[Note]]:
    """Which examples are not independent, and what is to be said of them."""
    if isinstance(source, VectorSource):
        grouping = source.deepest(examples.contrast).grouping()
        return grouping.group, grouping.notes_on_repeats(examples.contrast, "vectors")
    texts = Texts.of(encoded, examples)
    return texts.grouping.group, texts.notes_on_search(_name(examples) or "search", encoding.token)


@dataclass
class ScoresReader:
    """Reads how the heads of some layers attend to the marked keys of examples, which need a negative key each.

    `group` says of each example which others it is a copy of: a group counts as one in the errors.
    """

    examples: Sequence[EncodedExample]
    sites: Mapping[int, Site]
    group: Sequence[int]
    rope: Frame = "post"

    @classmethod
    def of(
        cls,
        source: AnySource,
        encoded: Sequence[EncodedExample],
        heads: Sequence[Head],
        group: Sequence[int],
        rope: Frame = "post",
    ) -> ScoresReader:
        """For the first texts of encoded examples."""
        if lacking := [example.source for example in encoded if not example.text.negative]:
            raise QKPrismError(f"{lacking[0]}: finding heads needs a negative key in the text.")
        alone = [EncodedExample(e.index, e.text, None, e.weight, e.group, e.source) for e in encoded]
        return cls(alone, sites_of(source, heads), group, rope)

    def __post_init__(self) -> None:
        self.pools = {layer: Pool.of(self.group) for layer in self.sites}
        self.sums = {layer: Means.zeros(len(MEASURES), len(site.heads)) for layer, site in self.sites.items()}
        self.current: dict[int, Tensor] = {}

    @property
    def layers(self) -> Sequence[int]:
        return sorted(self.sites)

    def visit(self, call: AttentionCall, batch: Batch) -> None:
        self.current[call.layer] = _measure(call, batch, self.sites[call.layer]).cpu()

    def keep(self, batch: Batch) -> None:
        here = [self.group[example.index] for example in batch.examples]
        for layer, measured in self.current.items():
            self.sums[layer].add(*self.pools[layer].add(measured, batch.weight, here))
        self.current.clear()

    def result(self, provenance: Mapping[str, Any]) -> HeadScores:
        """The scores of all heads, in their order in the model."""
        every = [*self.sums.values()]
        values, errors = (
            dict(zip(MEASURES, torch.cat(parts, 1), strict=True))
            for parts in ([sums.mean() for sums in every], [sums.error() for sums in every])
        )
        heads = tuple(head for site in self.sites.values() for head in site.heads)
        gaps = zip(heads, values["logit_gap"], strict=True)
        if broken := [str(head) for head, gap in gaps if not bool(gap.isfinite())]:
            raise QKPrismError(
                f"The logits of {', '.join(broken[:3])} are not finite. Check the weights, or use float32."
            )
        n = len(self.examples)
        chance = sum(len(e.text.positive) / len(e.text.keys) for e in self.examples) / n
        return HeadScores(heads, values, errors, n, chance, provenance=provenance, n_independent=every[0].n_effective)


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
