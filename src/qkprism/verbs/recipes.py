"""`Recipe`: how contrasts become features. Ours is the default; the paper's are presets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from qkprism.core.feature import Choices
from qkprism.errors import QKPrismError
from qkprism.options import PRESETS, Center, Preset, Rank, Reading, by_name, choice, resolve_metric

TWINS_OF: dict[Preset, Reading] = {"paper": "paired", "paper-code": "matched"}


@dataclass(frozen=True)
class Recipe:
    """How to decompose: what is None is the preset's choice, else ours.

    Both presets are uncentred, in the raw metric, with the rank by energy. `paper` reads twins as the paper's text,
    E[q (k - k')^T]; `paper-code` as its authors' programs, E[q k^T] - E[q' k'^T] (docs/method.md).

    `contrasts` picks and names contrasts: {"order": "fixed"} decomposes the contrast `fixed` as `order`.
    """

    preset: Preset | None = None
    center: Center | None = None
    reading: Reading | None = None
    metric: Literal["raw", "contrast"] | None = None
    rank: Rank | None = None
    contrasts: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.preset is not None:
            choice(self.preset, PRESETS, "a preset")

    @property
    def chosen_reading(self) -> Reading | None:
        """How twins are read; None is the default of twins."""
        return TWINS_OF[self.preset] if self.preset and self.reading is None else self.reading

    def pick(self, contrasts: Collection[str]) -> dict[str, str]:
        """The contrasts of this recipe: their names in it, and as they were given."""
        picked = {name: name for name in contrasts} if self.contrasts is None else self.contrasts
        chosen = dict(by_name(picked, "contrasts"))
        if unknown := [name for name in chosen.values() if name not in contrasts]:
            raise QKPrismError(f"There is no contrast {unknown[0]!r}. There are: {', '.join(contrasts)}.")
        if not chosen:
            raise QKPrismError("A recipe needs at least one contrast.")
        return chosen

    def choices(self, n_contrasts: int, seed: int) -> Choices:
        """What is chosen for that many contrasts."""
        paper = self.preset is not None
        metric = resolve_metric("raw" if paper and self.metric is None else self.metric, n_contrasts)
        rank = ("energy" if paper else "own") if self.rank is None else self.rank
        return Choices(center=self.center or ("none" if paper else "query"), metric=metric, rank=rank, seed=seed)
