"""How well the parts of the split rebuild rows of attention, on text that nothing was learned from.

Parts are added one after another, and each time the row that they give alone is compared with the true one:

    first token; + position; + salience; + asked position; + the first 4, 16, 32 directions of the match
    instead of directions: + what named features span of the match; + what permuted labels span of it

Total variation is half the sum of absolute differences; a head at rest on the first token has little of it with nothing
explained, so it is also given for the row without its first token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from qkprism.atlas.atlas import STRONGEST, SUFFICE, HeadMeans
from qkprism.atlas.rows import STAGES, RotatedRows
from qkprism.atlas.spans import NAMED, NamedSpans
from qkprism.atlas.sums import Kinds
from qkprism.core.row_split import PARTS
from qkprism.core.variation import variation_of, without_first
from qkprism.heads import Head
from qkprism.models.calls import AttentionCall
from qkprism.models.devices import float64_device
from qkprism.models.rotation import Rotation


@dataclass
class CoverageSums:
    """Sums over rows of one layer: variation at each stage with and without the first token, and what decides."""

    variation: Float64[Tensor, "head stage"]
    variation_later: Float64[Tensor, "head stage"]
    suffice: Float64[Tensor, "head stage"]
    decides: Float64[Tensor, "head part"]
    rows: Float64[Tensor, ""]
    strongest: Float64[Tensor, "head kept"]  # attention of the strongest rows on a token that is not the first
    places: Int64[Tensor, "head kept 3"]  # their window, query and key

    @classmethod
    def zeros(cls, heads: int, *, named: bool = False) -> CoverageSums:
        """Sums of nothing; with the stages of named features among them or not."""
        shapes = ((heads, len(STAGES) + named * len(NAMED)), (heads, len(PARTS)), ())
        stages, parts, one = (torch.zeros(shape, dtype=torch.float64) for shape in shapes)
        strongest, places = torch.zeros(heads, STRONGEST, dtype=torch.float64), torch.zeros(heads, STRONGEST, 3).long()
        return cls(stages.clone(), stages.clone(), stages.clone(), parts, one, strongest, places)

    def keep_strongest(self, attention: Float[Tensor, "window head row token"], rows: slice, first_window: int) -> None:
        """Remember the rows that attend most to one token that is not the first."""
        value, key = attention[..., 1:].double().cpu().max(-1)
        windows, _, count = value.shape
        query = torch.arange(rows.start, rows.start + count * rows.step, rows.step)
        where = torch.stack(torch.meshgrid(torch.arange(windows) + first_window, query, indexing="ij"), -1)
        place = torch.cat([where[:, None].expand(-1, value.shape[1], -1, -1), key[..., None] + 1], -1)
        values = torch.cat([self.strongest, value.transpose(0, 1).flatten(1)], 1)
        places = torch.cat([self.places, place.transpose(0, 1).flatten(1, 2)], 1)
        self.strongest, order = values.topk(STRONGEST, 1)
        self.places = places.gather(1, order[..., None].expand(-1, -1, 3))

    def scores(self, layer: int) -> dict[str, dict[Head, float]]:
        """Means over rows, by name."""
        found: dict[str, dict[Head, float]] = {}
        tables = {"variation": self.variation, "variation without first": self.variation_later, "suffice": self.suffice}
        for name, table in tables.items():
            for stage, values in zip((*STAGES, *NAMED), table.mT / self.rows, strict=False):
                found[f"{name}: {stage}"] = {Head(layer, i): float(v) for i, v in enumerate(values)}
        for part, values in zip(PARTS, self.decides.mT / self.rows, strict=True):
            found[f"decides: {part}"] = {Head(layer, i): float(v) for i, v in enumerate(values)}
        return found


def add_rows(
    sums: CoverageSums,
    call: AttentionCall,
    rotation: Rotation | None,
    means: HeadMeans,
    kinds: Kinds,
    first_window: int,
    named: NamedSpans | None = None,
) -> None:
    """Split the rows of a batch in every head of a layer, rebuild them stage by stage, and add up."""
    home = float64_device(call.query.device)
    rows = RotatedRows.of(call, rotation, means, kinds.rows)
    logits = call.logits(rows=kinds.rows)
    true, parts = call.softmax(logits), rows.split.parts()
    there = kinds.there[:, None].to(true)
    for number, stage in enumerate(rows.stages(parts, named)):
        rebuilt = call.softmax(call.finish(stage, rows=kinds.rows))
        variation = variation_of(true, rebuilt) * there
        later = variation_of(without_first(true), without_first(rebuilt)) * there
        sums.variation[:, number] += variation.sum((0, 2)).to(home).double()
        sums.variation_later[:, number] += later.sum((0, 2)).to(home).double()
        sums.suffice[:, number] += ((variation < SUFFICE) * there).sum((0, 2)).to(home).double()
    sums.decides += decides(parts, logits, there).to(home).double()
    sums.rows += float(kinds.there.sum())
    sums.keep_strongest(true * there.unsqueeze(-1), kinds.rows, first_window)


def decides(
    parts: Float[Tensor, "part window head row token"], logits: Tensor, there: Tensor
) -> Float[Tensor, "head part"]:
    """How often each part decides: of the lead of the most attended key over the mean of the later keys it has most.

    Where that key is the first token, the first token decides.
    """
    seen = logits.isfinite()
    best = logits.argmax(-1, keepdim=True)
    later = seen.clone()
    later[..., 0] = False
    weight = later / later.sum(-1, keepdim=True).clamp(min=1)
    lead = parts.gather(-1, best.expand(len(parts), *best.shape)).squeeze(-1) - (parts * weight).sum(-1)
    which = lead[1:].argmax(0) + 1
    which = torch.where(best.squeeze(-1) == 0, 0, which)
    hot: Int64[Tensor, "window head row part"] = torch.nn.functional.one_hot(which, len(parts))
    return (hot * there.unsqueeze(-1)).sum((0, 2))
