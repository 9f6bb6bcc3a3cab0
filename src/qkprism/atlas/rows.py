"""Rows of a call split by the means of an atlas: the one place where means are put at their positions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from jaxtyping import Float
from torch import Tensor

from qkprism.atlas.atlas import HeadMeans
from qkprism.atlas.spans import NAMED, NamedSpans
from qkprism.core.row_split import RowSplit
from qkprism.models.calls import AttentionCall
from qkprism.models.rotation import Rotation

CUTS = (4, 16, 32)  # directions of the match
STAGES = ("first token", "+ position", "+ salience", "+ asked position", *(f"+ match {cut}" for cut in CUTS))


@dataclass(frozen=True)
class RotatedRows:
    """Some rows of all heads of a layer, their split, and the directions of their match."""

    split: RowSplit
    rotation: Rotation | None  # of the rows
    means: HeadMeans

    @classmethod
    def of(
        cls,
        call: AttentionCall,
        rotation: Rotation | None,
        means: HeadMeans,
        rows: slice,
        dtype: torch.dtype = torch.float32,
    ) -> RotatedRows:
        """The rows of a call; where a text is explained, in float64."""
        at_rows = None if rotation is None else rotation.at(rows)
        query, key = call.query[:, :, rows].to(dtype), call.key.to(dtype)
        mean_query = means.mean_query.to(query)[None, :, None].expand(1, -1, query.shape[2], -1)
        mean_key = means.mean_key.to(key)[None, :, None].repeat(1, 1, key.shape[2], 1)
        mean_key[:, :, 0] = means.first_key.to(key)
        if rotation is not None and at_rows is not None:
            mean_query, mean_key = at_rows.turn(mean_query), rotation.turn(mean_key)
        return cls(RowSplit(query, mean_query, key, mean_key, float(call.scaling)), at_rows, means)

    def stages(
        self, parts: Float[Tensor, "part text head row token"], named: NamedSpans | None = None
    ) -> list[Float[Tensor, "text head row token"]]:
        """Logits from more and more of the parts, in the order of `STAGES`; then with what is named instead."""
        added = list(accumulate(parts[:-1]))
        matches = [self._asked(self.means.directions.form(cut)) for cut in CUTS]
        if named is not None:
            matches += [self._named(named, stage) for stage in range(len(NAMED))]
        return [*added, *(added[-1] + match for match in matches)]

    def _named(self, named: NamedSpans, stage: int) -> Tensor:
        """The match that is named, of the heads that count positions one way and those that do it the other."""
        found = [self._asked(forms[stage], relative=frame) for frame, forms in named.forms.items()]
        return sum(found[1:], found[0]) * self.split.scaling

    def _asked(
        self, forms: Float[Tensor, "head d_head d_head"], *, relative: bool = True
    ) -> Float[Tensor, "text head row token"]:
        """dq^T F dk, in the frame without rotation or in that of the model."""
        change, rotation = self.split.query_change, self.rotation if relative else None
        plain = change if rotation is None else rotation.back(change)
        turned = torch.einsum("bhrd,hde->bhre", plain, forms.to(plain))
        return self.split.asks(turned if rotation is None else rotation.turn(turned))
