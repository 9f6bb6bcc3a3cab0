"""Vectors in the place of forward passes: attention calls whose tokens are the marked keys of an example.

A reader sees a text of m keys and a query, which attends to the m keys. So whatever reads attention calls (edits,
attributions, scores of heads) reads vectors that were kept, over the keys that are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from qkprism.capture.batching import RunPart, Visit
from qkprism.capture.source import CHUNK
from qkprism.capture.vector_source import VectorSource
from qkprism.models.batches import Batch, collate
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import EncodedExample, EncodedKey, EncodedText


def encoded_vectors(source: VectorSource, contrast: str) -> list[EncodedExample]:
    """The examples of a contrast as if they were texts: the first two ids say which contrast and example it is."""
    vectors, number = source.deepest(contrast), [*source.contrasts].index(contrast)
    positive, negative = vectors.keys_of_sides
    count = positive if vectors.twin_query is not None else positive + negative
    labels = [one if one is None else one.reshape(len(vectors.query), -1).tolist() for one in vectors.labels]
    found = []
    for i in range(len(vectors.query)):
        keys = []
        for j in range(count):
            side, place = (labels[0], j) if j < positive else (labels[1], j - positive)
            keys.append(EncodedKey(j, j < positive, {} if side is None else {"label": side[i][place]}, False))
        text = EncodedText((number, i, *range(count - 1)), count, tuple(keys))
        weight = 1.0 if vectors.weight is None else float(vectors.weight[i])
        group = None if vectors.group is None else str(vectors.group[i])
        found.append(EncodedExample(i, text, None, weight, group, f"{contrast}:{i}"))
    return found


@dataclass(frozen=True)
class VectorBatches:
    """Runs examples that `encoded_vectors` made."""

    source: VectorSource
    layers: Sequence[int]

    def plan(self, examples: Sequence[EncodedExample]) -> list[RunPart]:
        """What shows the calls of every layer, a chunk of examples at a time."""
        size = CHUNK["cpu"]
        return [partial(self._run, examples[at : at + size]) for at in range(0, len(examples), size)]

    def _run(self, examples: Sequence[EncodedExample], visit: Visit) -> Iterator[Batch]:
        batch = collate(examples)
        for layer in self.layers:
            visit(self._call(layer, batch), batch)
        yield batch

    def _call(self, layer: int, batch: Batch) -> AttentionCall:
        texts = [batch.examples[place].texts[which] for place, which in batch.rows]
        heads, kv_heads, d_head = self.source.size(layer)
        query = torch.zeros(len(texts), heads, batch.input_ids.shape[1], d_head)
        key = torch.zeros(len(texts), kv_heads, batch.input_ids.shape[1], d_head)
        seen = torch.zeros(len(texts), 1, batch.input_ids.shape[1], batch.input_ids.shape[1], dtype=torch.bool)
        for row, text in enumerate(texts):
            vectors = self.source.example(text.ids[0], text.ids[1], layer)
            query[row, :, text.query] = vectors[0]
            key[row, :, : text.query] = vectors[1][:, : text.query]
            seen[row, :, text.query, : text.query] = True
        scaling, name = self.source.layers[layer].scaling, f"layer {layer}"
        return AttentionCall(nn.Identity(), "vectors", query, key, key, seen, scaling, layer=layer, name=name)
