"""The evidence for the features of a head, and where keys and queries of texts lie in one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.capture.readers import read_together
from qkprism.contrasts import Contrast
from qkprism.core.projectors import projector
from qkprism.explorer.answers import FORMAT, number, numbers
from qkprism.heads import Head
from qkprism.models.encoding import EncodedExample
from qkprism.models.model import Model
from qkprism.results.features import Features
from qkprism.results.projections import Projections
from qkprism.verbs.project import projections_reader

SHOWN = 20  # directions
TOLD = 4  # examples of each kind
BEFORE = 24  # tokens in front of a query


def evidence_answer(head: Head, sets: Mapping[str, Features]) -> dict[str, Any]:
    """Every feature of a head: ranks, held-out test, logit gap, and its spectrum beside the nulls."""
    rows = [
        _feature(run, name, features, head)
        for run, features in sets.items()
        for name in features.contrasts
        if (name, head) in features
    ]
    return {"format": FORMAT, "head": str(head), "features": rows}


def _feature(run: str, name: str, features: Features, head: Head) -> dict[str, Any]:
    feature = features[name, head]
    spectrum, gap = feature.spectrum, feature.logit_gap
    shown = min(SHOWN, max(8, 2 * feature.rank))
    return {
        "run": run,
        "name": name,
        "evidence": feature.evidence,
        "rank": feature.rank,
        "ranks": {"held-out": feature.rank_heldout, "balanced": feature.rank_balanced, "energy": feature.rank_energy},
        "q": number(features.q_values().get((name, head), float("nan")), 6),
        "gap": None if gap is None else {"total": number(gap.total), "error": number(gap.error)},
        "salience": number(feature.salience_energy),
        "n": feature.n,
        "strength": numbers(spectrum.strength[:shown].tolist()),
        "null": numbers(spectrum.null_high[:shown].tolist()),
        "shuffled": numbers(spectrum.shuffled_high[:shown].tolist()),
        "t": numbers(spectrum.t[:shown].tolist()),
        "threshold": feature.choices.threshold,
    }


def seen_answer(model: Model, texts: Contrast, features: Features, name: str, head: Head) -> dict[str, Any]:
    """Keys and queries of texts in a feature's first two directions, and the texts where it is clearest and wrong."""
    reader = projections_reader(model, texts, features, heads=head)
    read_together(model, [reader], batch_size=None, progress=False)
    found = reader.result()
    keys, queries = found.scaled_coordinates(features, name, head)
    parts = _parts(found, features, name, head)
    margins = _margins(found, parts)
    right, error = found.alignment(features, name, head)
    words = _Words(model, reader.order)  # the vectors are in the order in which texts were run
    return {
        "format": FORMAT,
        "labels": list(found.labels),
        "keys": [
            {
                "at": _two(keys[place]),
                "example": example,
                "positive": bool(found.positive[place]),
                "labels": [None if values[place] is None else str(values[place]) for values in found.labels.values()],
                "token": words.key(place),
            }
            for place, example in enumerate(found.example.tolist())
        ],
        "queries": [{"at": _two(one), "example": place} for place, one in enumerate(queries)],
        "texts": [words.text(place) for place in range(found.n)],
        "right": number(right),
        "error": number(error),
        **_told(margins, words),
    }


@dataclass(frozen=True)
class _Words:
    """The tokens of encoded texts."""

    model: Model
    encoded: Sequence[EncodedExample]

    def text(self, place: int) -> str:
        text = self.encoded[place].text
        first = max(0, text.query - BEFORE)
        return ("…" if first else "") + self._said(text.ids[first : text.query + 1])

    def key(self, place: int) -> str:
        """The token of one key, counted over all texts."""
        for example in self.encoded:
            if place < len(example.text.keys):
                return self._said([example.text.ids[example.text.keys[place].position]])
            place -= len(example.text.keys)
        return ""

    def _said(self, ids: Sequence[int]) -> str:
        assert self.model.tokenizer is not None
        return str(self.model.tokenizer.decode(list(ids)))


def _two(point: Float64[Tensor, " rank"]) -> list[float | None]:
    return numbers([*point[:2].tolist(), 0.0][:2])


def _parts(found: Projections, features: Features, name: str, head: Head) -> Float64[Tensor, " key"]:
    """What the feature gives each key of its example's query, in logits."""
    feature, joint = features[name, head], features.joint(head)
    p = projector(feature) if joint.subspaces is None else joint[name]
    scaling = features.layers[head.layer].scaling
    query, key = found.query[str(head)].double(), found.key[str(head)].double()
    return torch.einsum("kd,de,ke->k", query[found.example], p, key) * scaling


def _margins(found: Projections, parts: Float64[Tensor, " key"]) -> Float64[Tensor, " example"]:
    """By how much the best positive key is above the best negative one, by the feature alone."""
    least = torch.full((found.n,), -torch.inf, dtype=torch.float64)
    best = [
        least.scatter_reduce(0, found.example[side], parts[side], "amax") for side in (found.positive, ~found.positive)
    ]
    return best[0] - best[1]


def _told(margins: Float64[Tensor, " example"], words: _Words) -> dict[str, Any]:
    order = margins.argsort(descending=True).tolist()
    right = [place for place in order if margins[place] > 0]
    wrong = [place for place in reversed(order) if margins[place] <= 0]
    chosen = {"strongest": right[:TOLD], "weakest": right[::-1][:TOLD], "wrong": wrong[:TOLD]}
    return {
        kind: [{"text": words.text(place), "margin": number(float(margins[place]))} for place in places]
        for kind, places in chosen.items()
    }
