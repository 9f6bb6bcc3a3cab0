"""`project`: the queries and marked keys of examples, in the heads that have features."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from qkprism.capture import Batches, sites_of
from qkprism.contrasts import Contrast, Example
from qkprism.core.feature_set import Features
from qkprism.core.projection import Projections
from qkprism.models.batches import Batch
from qkprism.models.calls import AttentionCall
from qkprism.models.model import Model
from qkprism.pipeline.inputs import Heads, bar, encode_like, heads_with_features, versions


def project(
    model: Model,
    examples: Contrast | Iterable[Example],
    features: Features,
    *,
    heads: Heads = None,
    batch_size: int | None = None,
    progress: bool = True,
) -> Projections:
    """The vectors of examples in some heads (all that have features), to be seen in the features' subspaces.

    >>> project(model, task.test, features).plot(features, "order", "L21H7", color="order")   # doctest: +SKIP
    """
    chosen = heads_with_features(model, features, heads)
    encoded = encode_like(model, examples, features, chosen)
    sites = sites_of(model, chosen)
    current: dict[int, tuple[Tensor, Tensor]] = {}
    queries: dict[str, list[Tensor]] = {str(head): [] for head in chosen}
    keys: dict[str, list[Tensor]] = {str(head): [] for head in chosen}
    order: list[int] = []

    def visit(call: AttentionCall, batch: Batch) -> None:
        query, key = sites[call.layer].gather(call, batch)
        current[call.layer] = (query.float().cpu(), key.float().cpu())

    batches = Batches(model, sorted(sites), features.provenance["options"]["rope"], batch_size)
    with bar(len(encoded), "examples", progress) as tick:
        for batch in batches.run(encoded, visit):
            for layer, site in sites.items():
                for i, head in enumerate(site.heads):
                    queries[str(head)].append(current[layer][0][:, i].clone())
                    keys[str(head)].append(current[layer][1][:, site.kv_index[i]].clone())
            order += [example.index for example in batch.examples]
            tick(len(batch.examples))
    marked = [key for index in order for key in encoded[index].text.keys]
    names = list(dict.fromkeys(name for key in marked for name in key.labels))
    return Projections(
        query={head: torch.cat(own) for head, own in queries.items()},
        key={head: torch.cat(own) for head, own in keys.items()},
        example=torch.tensor([place for place, index in enumerate(order) for _ in encoded[index].text.keys]),
        positive=torch.tensor([key.positive for key in marked]),
        labels={name: tuple(key.labels.get(name) for key in marked) for name in names},
        provenance={"model": model.name, "revision": model.revision, "versions": versions()},
    )
