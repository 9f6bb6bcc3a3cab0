"""Ranks against the number of entities that a contrast draws from (the appendix figure of the paper)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from qkprism.heads import Head
from qkprism.results.features import Features
from qkprism.results.stored import Result

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


class EntityRank(NamedTuple):
    """The ranks of one feature, found with so many entities."""

    entities: int
    contrast: str
    head: Head
    balanced: float
    energy: int
    heldout: int
    n: int


@dataclass(frozen=True)
class EntityRanks(Result, kind="entity_ranks"):
    """A row a number of entities, contrast and head."""

    rows: tuple[EntityRank, ...]

    @classmethod
    def of(cls, found: Sequence[tuple[int, Features]]) -> EntityRanks:
        """The ranks of features that were found with different numbers of entities."""
        return cls(
            tuple(
                EntityRank(
                    entities,
                    feature.contrast,
                    feature.head,
                    math.nan if feature.rank_balanced is None else feature.rank_balanced,
                    feature.rank_energy,
                    feature.rank_heldout or 0,
                    feature.n,
                )
                for entities, features in found
                for feature in features.values()
            )
        )

    def to_frame(self) -> pd.DataFrame:
        """A row a number of entities, contrast and head."""
        import pandas as pd

        frame = pd.DataFrame(self.rows, columns=EntityRank._fields)
        return frame.astype({"head": str}).rename(columns={"contrast": "feature"})

    def plot(self) -> go.Figure:
        """Ranks by three rules against the number of entities."""
        from qkprism.figures.lines import entities_figure

        return entities_figure(self)
