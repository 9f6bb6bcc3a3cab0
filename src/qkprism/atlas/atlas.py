"""`Atlas`: what is known of every head of a model from plain text, before any contrast.

For each head the means that the exact split needs, the covariances of queries and of keys within rows, where its
attention goes, and on held-out text how well the parts of the split rebuild its rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import Float64
from torch import Tensor

from qkprism.atlas.sums import KINDS, LayerSums
from qkprism.core.row_split import MatchDirections
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.runs import read_run, write_run

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

KIND = "atlas"
SUFFICE = 0.1  # total variation below which parts are said to suffice


@dataclass(frozen=True)
class HeadMeans:
    """The heads of one layer on plain text: means and covariances without rotation, and where attention goes.

    `key_head` says which key head each query head uses.
    """

    mean_query: Float64[Tensor, "head d_head"]
    mean_key: Float64[Tensor, "kv_head d_head"]
    first_key: Float64[Tensor, "kv_head d_head"]
    query_covariance: Float64[Tensor, "head d_head d_head"]
    key_covariance: Float64[Tensor, "kv_head d_head d_head"]
    attention: Float64[Tensor, "head kind"]
    entropy: Float64[Tensor, " head"]
    scaling: float

    @classmethod
    def of(cls, sums: LayerSums, scaling: float) -> HeadMeans:
        """From the sums of a pass."""
        query = sums.query / sums.tokens
        square = sums.query_square / sums.tokens
        return cls(
            mean_query=query,
            mean_key=sums.key / sums.tokens,
            first_key=sums.first_key / sums.texts,
            query_covariance=square - query.unsqueeze(-1) * query.unsqueeze(-2),
            key_covariance=sums.row_covariance / sums.rows,
            attention=sums.attention / sums.attention_rows,
            entropy=sums.entropy / sums.attention_rows,
            scaling=scaling,
        )

    @property
    def key_head(self) -> list[int]:
        """The key head of each query head."""
        group = len(self.mean_query) // len(self.mean_key)
        return [head // group for head in range(len(self.mean_query))]

    @cached_property
    def directions(self) -> MatchDirections:
        """The directions of the match of every head, strongest first."""
        return MatchDirections.of(self.query_covariance, self.key_covariance[self.key_head], self.scaling)


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

        `variation` and `later` (without the first token) are medians over heads, `suffice` is the mean share of rows
        within 0.1, and `heads` the share of heads whose mean variation is.
        """
        import pandas as pd

        frame = self.to_frame()
        stages = [str(name).partition(": ")[2] for name in frame if str(name).startswith("suffice: ")]
        return pd.DataFrame(
            {
                "with": stages,
                "variation": [float(frame[f"variation: {stage}"].median()) for stage in stages],
                "later": [float(frame[f"variation without first: {stage}"].median()) for stage in stages],
                "suffice": [float(frame[f"suffice: {stage}"].mean()) for stage in stages],
                "heads": [float((frame[f"variation: {stage}"] < SUFFICE).mean()) for stage in stages],
            }
        )

    def plot(self, score: str = "variation: + asked position") -> go.Figure:
        """Layers against heads, coloured by a column of `to_frame`."""
        from qkprism.figures.atlas import atlas_figure

        return atlas_figure(self.to_frame(), score, str(self.provenance.get("model", "")))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a run folder, from which `Atlas.load` gives the same."""
        tensors = {
            f"{layer}/{name}": value
            for layer, means in self.layers.items()
            for name, value in vars(means).items()
            if isinstance(value, Tensor)
        }
        manifest = {
            "scaling": {str(layer): means.scaling for layer, means in self.layers.items()},
            "scores": {name: {str(head): value for head, value in one.items()} for name, one in self.scores.items()},
            "strongest": {str(head): [vars(row) for row in rows] for head, rows in self.strongest.items()},
            "provenance": dict(self.provenance),
        }
        return write_run(folder, KIND, manifest, {"means": {name: value.float() for name, value in tensors.items()}})

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Atlas:
        """Read a run folder that `save` wrote."""
        manifest, files = read_run(folder, KIND)
        tensors = {name: value.double() for name, value in files["means"].items()}
        try:
            layers = {
                int(layer): HeadMeans(
                    **{name.partition("/")[2]: t for name, t in tensors.items() if name.startswith(f"{layer}/")},
                    scaling=scaling,
                )
                for layer, scaling in manifest["scaling"].items()
            }
            scores = {
                name: {Head.parse(head): float("nan") if value is None else value for head, value in one.items()}
                for name, one in manifest["scores"].items()
            }
            stored = manifest["strongest"].items()
            strongest = {Head.parse(head): tuple(StrongRow(**row) for row in rows) for head, rows in stored}
            return cls(layers, scores, strongest, manifest["provenance"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise QKPrismError(f"{folder} is damaged: its manifest does not fit its tensors ({error!r}).") from error

    def __repr__(self) -> str:
        text = self.provenance.get("text", {})
        read = f"{text.get('tokens')} tokens of {text.get('origin')}"
        return f"Atlas({self.provenance.get('model')}: {len(self.heads)} heads; {read})"

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False, max_rows=20, float_format="{:.3g}".format))
