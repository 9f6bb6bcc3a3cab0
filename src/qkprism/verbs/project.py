"""`project`: the queries and marked keys of examples, in the heads that have features."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkprism.capture.readers import read_together
from qkprism.capture.source import Site, sites_of
from qkprism.contrasts import Contrast, Example
from qkprism.heads import Head
from qkprism.models.batches import Batch
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import EncodedExample
from qkprism.options import Frame
from qkprism.results.features import Features
from qkprism.results.projections import Projections
from qkprism.verbs.inputs import AnySource, Heads, encode_like, heads_with_features, provenance_of_run


def project(
    source: AnySource,
    examples: Contrast | Iterable[Example],
    features: Features,
    *,
    heads: Heads = None,
    batch_size: int | None = None,
    progress: bool = True,
) -> Projections:
    """The vectors of examples in some heads, to be seen in the features' subspaces.

    >>> qk.project(model, test, features, progress=False).n == len(test)
    True

    source       the model of the features, or a `VectorSource`
    examples     whose queries and marked keys are kept: a contrast or a list; of a `VectorSource` a contrast's name
    features     what `decompose` gave; they say how texts are encoded
    heads        some of the heads that have features; all by default
    batch_size   texts that are run at once; None (default) goes by tokens, and halves where memory runs out
    progress     whether a bar is shown after two seconds; default True
    """
    reader = projections_reader(source, examples, features, heads=heads)
    read_together(source, [reader], batch_size=batch_size, progress=progress)
    return reader.result()


def projections_reader(
    model: AnySource, examples: Contrast | Iterable[Example], features: Features, *, heads: Heads = None
) -> ProjectionsReader:
    """The reader of `project`, to share a pass with others."""
    chosen = heads_with_features(model, features, heads)
    encoded = encode_like(model, examples, features, chosen)
    return ProjectionsReader(encoded, sites_of(model, chosen), features.encoding.rope, provenance_of_run(model))


@dataclass
class ProjectionsReader:
    """Keeps the vectors of queries and marked keys."""

    examples: Sequence[EncodedExample]
    sites: Mapping[int, Site]
    rope: Frame
    provenance: Mapping[str, object]
    current: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    queries: dict[Head, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    keys: dict[Head, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    order: list[EncodedExample] = field(default_factory=list)

    @property
    def layers(self) -> Sequence[int]:
        return sorted(self.sites)

    def visit(self, call: AttentionCall, batch: Batch) -> None:
        query, key = self.sites[call.layer].gather(call, batch)
        self.current[call.layer] = (query.float().cpu(), key.float().cpu())

    def keep(self, batch: Batch) -> None:
        for layer, site in self.sites.items():
            query, key = self.current[layer]
            for i, head in enumerate(site.heads):
                self.queries[head].append(query[:, i].clone())
                self.keys[head].append(key[:, site.kv_index[i]].clone())
        self.order += batch.examples

    def result(self) -> Projections:
        marked = [key for example in self.order for key in example.text.keys]
        names = list(dict.fromkeys(name for key in marked for name in key.labels))
        return Projections(
            query={head: torch.cat(query) for head, query in self.queries.items()},
            key={head: torch.cat(key) for head, key in self.keys.items()},
            example=torch.tensor([place for place, example in enumerate(self.order) for _ in example.text.keys]),
            positive=torch.tensor([key.positive for key in marked]),
            labels={name: tuple(key.labels.get(name) for key in marked) for name in names},
            provenance=self.provenance,
        )
