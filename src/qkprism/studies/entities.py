"""Ranks against the number of entities that a contrast draws from (the appendix figure of the paper)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qkprism.results.features import Features
from qkprism.results.stored import load_result, save_result

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

KIND = "entity_ranks"


class EntityRank(NamedTuple):
    """The ranks of one feature, found with so many entities."""

    entities: int
    contrast: str
    head: str
    balanced: float
    energy: int
    heldout: int
    n: int


@dataclass(frozen=True)
class EntityRanks:
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
                    str(feature.head),
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

        return pd.DataFrame(self.rows, columns=EntityRank._fields)

    def plot(self) -> go.Figure:
        """Ranks by three rules against the number of entities."""
        from qkprism.figures.entities import entities_figure

        return entities_figure(self)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a run folder, from which `EntityRanks.load` gives the same."""
        return save_result(self, folder, KIND)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> EntityRanks:
        """Read a run folder that `save` wrote."""
        return load_result(cls, folder, KIND, rows=lambda rows: tuple(map(_row, rows)))


def _row(row: Sequence[Any]) -> EntityRank:
    return EntityRank._make(math.nan if value is None else value for value in row)
