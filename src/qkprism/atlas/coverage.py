"""How well the parts of the split rebuild rows of attention, on text that nothing was learned from.

Parts are added one after another, and each time the row that they give alone is compared with the true one:

    first token; + position; + salience; + asked position; + the first 4, 16, 32 directions of the match

Total variation is half the sum of absolute differences; a head at rest on the first token has little of it with nothing
explained, so it is also given for the row without its first token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from qkprism.atlas.atlas import HeadMeans
from qkprism.atlas.rows import RotatedRows
from qkprism.atlas.sums import Kinds
from qkprism.core.row_split import PARTS, total_variation, without_first
from qkprism.heads import Head
from qkprism.models.calls import AttentionCall
from qkprism.models.devices import float64_device
from qkprism.models.rotation import Rotation

CUTS = (4, 16, 32)
STAGES = ("first token", "+ position", "+ salience", "+ asked position", *(f"+ match {cut}" for cut in CUTS))
SUFFICE = 0.1  # total variation below which parts are said to suffice
DECIDING = PARTS


@dataclass
class CoverageSums:
    """Sums over rows of one layer: variation at each stage with and without the first token, and what decides."""

    variation: Float64[Tensor, "head stage"]
    variation_later: Float64[Tensor, "head stage"]
    suffice: Float64[Tensor, "head stage"]
    decides: Float64[Tensor, "head part"]
    rows: float = 0.0
    strongest: list[StrongRow] = field(default_factory=list)

    @classmethod
    def zeros(cls, heads: int) -> CoverageSums:
        stages, parts = (torch.zeros(heads, len(one), dtype=torch.float64) for one in (STAGES, DECIDING))
        return cls(stages.clone(), stages.clone(), stages.clone(), parts)

    def scores(self, layer: int) -> dict[str, dict[Head, float]]:
        """Means over rows, by name."""
        found: dict[str, dict[Head, float]] = {}
        tables = {"variation": self.variation, "variation without first": self.variation_later, "suffice": self.suffice}
        for name, table in tables.items():
            for stage, values in zip(STAGES, table.mT / self.rows, strict=True):
                found[f"{name}: {stage}"] = {Head(layer, i): float(v) for i, v in enumerate(values)}
        for part, values in zip(DECIDING, self.decides.mT / self.rows, strict=True):
            found[f"decides: {part}"] = {Head(layer, i): float(v) for i, v in enumerate(values)}
        return found


@dataclass(frozen=True)
class StrongRow:
    """A row in which a head attends strongly to a token that is not the first: where, and to what."""

    head: Head
    window: int
    query: int
    key: int
    attention: float


def add_rows(
    sums: CoverageSums,
    call: AttentionCall,
    rotation: Rotation | None,
    means: HeadMeans,
    kinds: Kinds,
) -> None:
    """Split the rows of a batch in every head of a layer, rebuild them stage by stage, and add up."""
    home = float64_device(call.query.device)
    rows = RotatedRows.of(call, rotation, means, kinds.rows)
    logits = call.logits(rows=kinds.rows)
    true, parts = call.softmax(logits), rows.split.parts()
    there = kinds.there[:, None].to(true)
    total = parts[0]
    stages = [total, *(total := total + part for part in parts[1:4])]
    stages += [total + rows.match(cut) for cut in CUTS]
    for number, stage in enumerate(stages):
        rebuilt = call.softmax(call.finish(stage, rows=kinds.rows))
        variation = total_variation(true, rebuilt) * there
        later = total_variation(without_first(true), without_first(rebuilt)) * there
        sums.variation[:, number] += variation.sum((0, 2)).to(home).double()
        sums.variation_later[:, number] += later.sum((0, 2)).to(home).double()
        sums.suffice[:, number] += ((variation < SUFFICE) * there).sum((0, 2)).to(home).double()
    sums.decides += decides(parts, logits, there).to(home).double()
    sums.rows += float(kinds.there.sum())


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
