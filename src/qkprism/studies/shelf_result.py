"""`Shelf`: what a model's heads do with every contrast of the shelf, read from a study's folder."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxtyping import Float64
from torch import Tensor

from qkprism.core.feature import Feature
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike
from qkprism.results.features import Features
from qkprism.results.stored import ResultTable
from qkprism.runs.folder import MANIFEST, json_value, read_manifest
from qkprism.subspaces.spaces import Spaces

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

KIND = "shelf"
TABLE = "table"  # the part of a study's folder that this is
RIGHT, ERRORS, WRONG = 0.8, 3.0, 1 / 3  # a contrast has a head if it is right as often, clear by so many errors, ...


class ShelfRow(NamedTuple):
    """One contrast, in the head and feature that texts of its own words chose; all figures are of held-out words.

    accuracy      how often the head attends more to a positive key than to any negative one; `q` over all heads
    rank          of the feature, and `rank_heldout`; `q_feature` of its held-out test over all heads
    effect        how much more attention moves to the target when the two keys exchange the feature than without
    permuted      how much more that is than with permuted labels, and its error, the spread over draws included
    control       the control that comes nearest to the feature, and `control_effect` what it moves
    true_part     of the logit gap: what the exchange of `factor` in the text shows; `part` what the feature says
    """

    contrast: str
    question: str
    digest: str
    heads: tuple[Head, ...]
    head: Head
    feature: str
    accuracy: float
    accuracy_error: float
    chance: float
    q: float
    rank: int
    rank_heldout: int | None
    q_feature: float
    effect: float
    effect_error: float
    permuted: float
    permuted_error: float
    control: str
    control_effect: float
    factor: str | None
    true_part: float
    part: float
    part_error: float
    n: int

    @property
    def part_off(self) -> float:
        """By how much the attributed part is wrong, as a share of the true one; NaN where nothing can be exchanged."""
        return abs(self.part_error / self.true_part) if self.true_part else math.nan

    @property
    def errors_above(self) -> float:
        """By how many errors the effect is above that of permuted labels."""
        return self.permuted / self.permuted_error if self.permuted_error else math.nan

    @property
    def holds(self) -> bool:
        """Right often enough, clearly above permuted labels, and near the truth where there is one."""
        near = self.factor is None or self.part_off <= WRONG
        return self.accuracy >= RIGHT and self.errors_above > ERRORS and near


@dataclass(frozen=True, repr=False)
class Shelf(ResultTable, kind=KIND):
    """The head atlas of a model by named features: a row a contrast, and the accuracy of every head.

    accuracy    on held-out words, a row a contrast, a column a head; `q` of each over the heads of its row
    folder      where the features are; None for a table by itself
    """

    rows: tuple[ShelfRow, ...]
    heads: tuple[Head, ...]
    accuracy: Float64[Tensor, "contrast head"]
    q: Float64[Tensor, "contrast head"]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    folder: str | None = None

    @property
    def contrasts(self) -> tuple[str, ...]:
        return tuple(row.contrast for row in self.rows)

    def __getitem__(self, contrast: str) -> ShelfRow:
        if contrast not in self.contrasts:
            raise QKPrismError(f"There is no contrast {contrast!r}. There are: {', '.join(self.contrasts)}.")
        return self.rows[self.contrasts.index(contrast)]

    def features(self, contrast: str) -> Features:
        """The features of a contrast in its best heads."""
        found: Features = self._part(contrast, "features", Features.load)
        return found

    def spaces(self, contrast: str) -> Spaces:
        """The key directions of a contrast in every head in which they hold, beside those of permuted labels."""
        found: Spaces = self._part(contrast, "spaces", Spaces.load)
        return found

    def _part(self, contrast: str, part: str, load: Callable[[Path], Any]) -> Any:
        if self.folder is None:
            raise QKPrismError("This table has no folder with features. Read that of a run: Shelf.load('runs/shelf').")
        place = Path(self.folder) / part_folder(self[contrast].contrast, part)
        written = place / MANIFEST
        return _read_once(load, place, written.stat().st_mtime_ns if written.is_file() else 0)

    def fault(self) -> str:
        """Why the features of the table cannot be read, as where another version wrote them; nothing if they can."""
        try:
            for row in self.rows if self.folder is not None else ():
                for part in ("features", "spaces"):
                    read_manifest(Path(str(self.folder)) / part_folder(row.contrast, part))
        except QKPrismError as error:
            return str(error)
        return ""

    def named(self, head: HeadLike) -> dict[str, Feature]:
        """The features of a head, by the contrasts among whose best heads it is.

        >>> Shelf.load("runs/shelf").named("L18H6")   # doctest: +SKIP
        {'boxes:thing': Feature(...), ...}
        """
        wanted = Head.parse(head)
        chosen = [row.contrast for row in self.rows if wanted in row.heads]
        sets = {name: self.features(name) for name in chosen}
        return {
            f"{name}:{contrast}": found[contrast, wanted]
            for name, found in sets.items()
            for contrast in found.contrasts
        }

    def to_frame(self) -> pd.DataFrame:
        """A row a contrast."""
        import pandas as pd

        names = [{"head": str(r.head), "heads": tuple(map(str, r.heads))} for r in self.rows]
        more = [{"part_off": r.part_off, "errors_above": r.errors_above, "holds": r.holds} for r in self.rows]
        return pd.DataFrame([row._asdict() | n | m for row, n, m in zip(self.rows, names, more, strict=True)])

    def to_json(self, command: str = "") -> dict[str, Any]:
        """What `found.json` of the shelf holds: where it comes from, and for each contrast what was found and when."""
        about = {"command": command, **self.provenance}
        versions = about.pop("versions", {})
        found = {row["contrast"]: row for row in self.to_frame().to_dict("records")}
        for contrast, row in found.items():
            row["made"] = {"date": self._date(contrast), **versions}
        told: dict[str, Any] = json_value({"provenance": about, "found": found})
        return told

    def _date(self, contrast: str) -> str | None:
        """The day on which the last part of a contrast was computed, as the files of the study have it."""
        stamps = Path(self.folder).glob(f"{contrast}-test-*.job") if self.folder else ()
        times = [stamp.stat().st_mtime for stamp in stamps]
        return datetime.fromtimestamp(max(times), UTC).date().isoformat() if times else None

    def plot(self) -> go.Figure:
        """Layers against heads, coloured by the contrast that each head does best."""
        from qkprism.figures.maps import shelf_figure

        return shelf_figure(self)

    def in_words(self) -> list[str]:
        """How many contrasts have a head, what that takes, and the clearest."""
        held = [row for row in self.rows if row.holds]
        told = [
            f"{len(held)} of {len(self.rows)} contrasts hold in {len(self.heads)} heads: the head is right in at least "
            f"{RIGHT:.0%} of the prompts, its feature moves more attention than permuted labels by more than "
            f"{ERRORS:g} errors, and where a variable can really be exchanged the attributed part is off by at most a "
            "third of the true one."
        ]
        if held:
            best = max(held, key=lambda row: row.errors_above)
            told.append(
                f"The clearest is {best.contrast} in {best.head} (accuracy {best.accuracy:.2f}, chance "
                f"{best.chance:.2f}): its feature {best.feature} moves {best.effect:+.2f} of the attention."
            )
        for word, rows in (("Those that hold", held), ("Those that do not", [r for r in self.rows if not r.holds])):
            if rows:
                told.append(f"{word}: {', '.join(f'{row.contrast} ({row.head})' for row in rows)}.")
        return told

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the table as a run folder of its own, without the features."""
        return super(Shelf, replace(self, folder=None)).save(folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Shelf:
        """Read a study's folder, or a table that `save` wrote."""
        inside = Path(folder) / TABLE
        place = inside if inside.is_dir() else Path(folder)
        found = super().load(place)
        return replace(found, folder=str(Path(folder))) if place is inside else found

    def __repr__(self) -> str:
        held = sum(row.holds for row in self.rows)
        return f"Shelf({len(self.rows)} contrasts, {len(self.heads)} heads; {held} contrasts have a head)"

    def _repr_html_(self) -> str:
        return str(self.to_frame().drop(columns=["digest"]).to_html(index=False, float_format="{:.3g}".format))


@lru_cache(maxsize=64)
def _read_once(load: Callable[[Path], Any], place: Path, written: int) -> Any:  # noqa: ARG001  (read anew if written anew)
    """A part from its folder; an explanation wants those of every contrast again and again."""
    return load(place)


def part_folder(contrast: str, part: str) -> str:
    """The folder of a part of a contrast in that of its study."""
    return f"{contrast}-{part}"
