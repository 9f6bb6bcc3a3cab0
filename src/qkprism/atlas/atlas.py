"""`Atlas`: what is known of every head of a model from plain text, before any contrast.

For each head the means that the exact split needs, the covariances of queries and of keys within rows, where its
attention goes, and on held-out text how well the parts of the split rebuild its rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import Float64
from torch import Tensor

from qkprism.atlas.sums import KINDS, LayerSums, by_layer
from qkprism.core.row_split import MatchDirections
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.runs.folder import of_another_version, read_run, write_run

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

KIND = "atlas"
SUFFICE = 0.1  # total variation below which parts are said to suffice
STRONGEST = 8  # rows of a head that are kept


@dataclass(frozen=True)
class HeadMeans:
    """The heads of one layer on plain text: means and covariances without rotation, and where attention goes."""

    sums: LayerSums
    scaling: float

    @cached_property
    def mean_query(self) -> Float64[Tensor, "head d_head"]:
        """The mean query of every head, over all tokens but the first."""
        return self.sums.query / self.sums.tokens

    @cached_property
    def mean_key(self) -> Float64[Tensor, "kv_head d_head"]:
        """The mean key of every key head, over all tokens but the first."""
        return self.sums.key / self.sums.tokens

    @cached_property
    def first_key(self) -> Float64[Tensor, "kv_head d_head"]:
        """The mean key of the first token."""
        return self.sums.first_key / self.sums.texts

    @cached_property
    def attention(self) -> Float64[Tensor, "head kind"]:
        """Mean attention by kind of key (`KINDS`)."""
        return self.sums.attention / self.sums.attention_rows

    @cached_property
    def entropy(self) -> Float64[Tensor, " head"]:
        """Mean entropy of a row of attention."""
        return self.sums.entropy / self.sums.attention_rows

    @cached_property
    def query_covariance(self) -> Float64[Tensor, "head d_head d_head"]:
        """The covariance of queries."""
        square = self.sums.query_square / self.sums.tokens
        return square - self.mean_query.unsqueeze(-1) * self.mean_query.unsqueeze(-2)

    @property
    def key_head(self) -> list[int]:
        """The key head of each query head."""
        group = len(self.sums.query) // len(self.sums.key)
        return [head // group for head in range(len(self.sums.query))]

    @cached_property
    def directions(self) -> MatchDirections:
        """The directions of the match of every head, strongest first."""
        key_covariance = (self.sums.row_covariance / self.sums.rows)[self.key_head]
        return MatchDirections.of(self.query_covariance, key_covariance, self.scaling)


@dataclass(frozen=True)
class StrongRow:
    """A row of held-out text in which a head attends strongly to one token that is not the first."""

    attention: float
    distance: int
    before: str  # the text in front of the key
    key: str
    between: str
    query: str


@dataclass(frozen=True, repr=False)
class Atlas:
    """What is known of every head of a model from plain text.

    `layers` holds means and covariances, `scores` a number a head by name (see `to_frame`), `strongest` the rows of
    each head that attend most to one token. `provenance` says which model and which text.
    """

    layers: Mapping[int, HeadMeans]
    scores: Mapping[str, Mapping[Head, float]]
    strongest: Mapping[Head, tuple[StrongRow, ...]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __add__(self, other: Atlas) -> Atlas:
        """The atlas of both texts: sums are added, and of the strongest rows the strongest are kept.

        Scores on held-out text are means of what both had, by the rows that each was tested on.
        """
        texts = self.provenance["text"], other.provenance["text"]
        if self.provenance["model_digest"] != other.provenance["model_digest"]:
            raise QKPrismError(
                f"These atlases are of different weights: {self.provenance['model']} and {other.provenance['model']}. "
                "Only surveys of one model can be merged."
            )
        first, second = ({piece["digest"]: piece["origin"] for piece in _pieces(text)} for text in texts)
        if shared := dict.fromkeys(origin for digest, origin in first.items() if digest in second):
            raise QKPrismError(
                f"Both atlases have read {' and '.join(shared)}: merged, the same text would count twice. Survey other "
                "text, or with another seed."
            )
        layers = {
            layer: replace(means, sums=means.sums + other.layers[layer].sums) for layer, means in self.layers.items()
        }
        weights = tuple(text["held_out_rows"] for text in texts)
        named = self.provenance["features"] == other.provenance["features"]
        scores = {
            name: _mean_scores((values, other.scores[name]), weights)
            for name, values in self.scores.items()
            if name in other.scores and (named or not _of_features(name))
        }
        strongest = {
            head: tuple(sorted((*rows, *other.strongest[head]), key=lambda row: -row.attention)[:STRONGEST])
            for head, rows in self.strongest.items()
            if head in other.strongest
        }
        about = dict(self.provenance) | {"text": _both_texts(*texts)} | ({} if named else {"features": []})
        return Atlas(layers, scores, strongest, about)

    @property
    def heads(self) -> tuple[Head, ...]:
        """Every head, layer by layer."""
        return tuple(self._heads())

    def _heads(self) -> Iterator[Head]:
        for layer, means in self.layers.items():
            yield from (Head(layer, index) for index in range(len(means.mean_query)))

    def to_frame(self) -> pd.DataFrame:
        """A row a head: where its attention goes on plain text, what decides, how well the split rebuilds its rows."""
        import pandas as pd

        columns: dict[str, Any] = {"head": [str(head) for head in self.heads]}
        columns["entropy"] = [float(self.layers[head.layer].entropy[head.index]) for head in self.heads]
        for number, kind in enumerate(KINDS):
            name = f"attention: {kind}" if number < 3 else f"attention: distance {kind}"
            columns[name] = [float(self.layers[head.layer].attention[head.index, number]) for head in self.heads]
        for name, values in self.scores.items():
            columns[name] = [values.get(head, float("nan")) for head in self.heads]
        return pd.DataFrame(columns)

    def coverage(self) -> pd.DataFrame:
        """A row a stage of the split: how far its rows are from the true ones on held-out text, over all heads.

        `variation` and `without first` (token) are medians over heads; then the mean share of rows within 0.1, and the
        share of heads whose mean variation is.
        """
        import pandas as pd

        frame = self.to_frame()
        stages = [str(name).partition(": ")[2] for name in frame if str(name).startswith("suffice: ")]
        return pd.DataFrame(
            {
                "with": stages,
                "variation": [float(frame[f"variation: {stage}"].median()) for stage in stages],
                "without first": [float(frame[f"variation without first: {stage}"].median()) for stage in stages],
                f"rows within {SUFFICE}": [float(frame[f"suffice: {stage}"].mean()) for stage in stages],
                f"heads within {SUFFICE}": [float((frame[f"variation: {stage}"] < SUFFICE).mean()) for stage in stages],
            }
        )

    def plot(self, score: str = "variation: + asked position") -> go.Figure:
        """Layers against heads, coloured by a column of `to_frame`."""
        from qkprism.figures.maps import atlas_figure

        return atlas_figure(self.to_frame(), score, str(self.provenance.get("model", "")))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a run folder, from which `Atlas.load` gives the same."""
        sums = {
            f"{layer}/{name}": value for layer, means in self.layers.items() for name, value in vars(means.sums).items()
        }
        manifest = {
            "scaling": {str(layer): means.scaling for layer, means in self.layers.items()},
            "scores": {name: {str(head): value for head, value in one.items()} for name, one in self.scores.items()},
            "strongest": {str(head): [vars(row) for row in rows] for head, rows in self.strongest.items()},
            "provenance": dict(self.provenance),
        }
        return write_run(folder, KIND, manifest, {"sums": sums})

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Atlas:
        """Read a run folder that `save` wrote."""
        manifest, files = read_run(folder, KIND)
        try:
            sums = {int(layer): LayerSums(**tensors) for layer, tensors in by_layer(files["sums"]).items()}
            layers = {layer: HeadMeans(one, manifest["scaling"][str(layer)]) for layer, one in sums.items()}
            scores = {
                name: {Head.parse(head): float("nan") if value is None else value for head, value in one.items()}
                for name, one in manifest["scores"].items()
            }
            stored = manifest["strongest"].items()
            strongest = {Head.parse(head): tuple(StrongRow(**row) for row in rows) for head, rows in stored}
            return cls(layers, scores, strongest, manifest["provenance"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise of_another_version(folder, repr(error)) from error

    def __repr__(self) -> str:
        text = self.provenance.get("text", {})
        read = f"{text.get('tokens')} tokens of {text.get('origin')}"
        return f"Atlas({self.provenance.get('model')}: {len(self.heads)} heads; {read})"

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False, max_rows=20, float_format="{:.3g}".format))


def _of_features(score: str) -> bool:
    return score.startswith("named: ") or score.endswith((": + named", ": + permuted labels"))


def _mean_scores(
    both: tuple[Mapping[Head, float], Mapping[Head, float]], weights: Sequence[float]
) -> dict[Head, float]:
    """The mean of a score in each head; of a head that only one judges it is that one's."""
    found = {}
    for head in both[0]:
        pairs = [(one[head], weight) for one, weight in zip(both, weights, strict=True) if not isnan(one[head])]
        total = sum(weight for _, weight in pairs)
        found[head] = sum(value * weight for value, weight in pairs) / total if pairs else nan
    return found


def _pieces(text: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The texts of a merged atlas, or the one of another."""
    return list(text.get("merged", [text]))


def _both_texts(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of two texts together: counts are added."""
    counts = ("tokens", "windows", "held_out_tokens", "held_out_windows", "held_out_rows")
    total = {name: first[name] + second[name] for name in counts}
    origins = dict.fromkeys((first["origin"], second["origin"]))
    return {"origin": " and ".join(origins), **total, "merged": _pieces(first) + _pieces(second)}
