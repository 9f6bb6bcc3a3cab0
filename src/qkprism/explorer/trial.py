"""A draft run through the model: heads found, features decomposed in the best of them, and a run folder of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkprism.errors import QKPrismError
from qkprism.explorer.answers import number
from qkprism.explorer.draft import Draft
from qkprism.explorer.jobs import Errand
from qkprism.explorer.mail import write_kept
from qkprism.models.model import Model
from qkprism.options import whole_number
from qkprism.results.features import Features
from qkprism.results.scores import HeadScores
from qkprism.runs.catalogue import SCORES
from qkprism.runs.files import is_unused, path_of, write_text
from qkprism.verbs.decompose import Recipe, decompose
from qkprism.verbs.find_heads import find_heads

HEADS_TOLD = 12
MOST, MOST_HEADS = 2000, 40
LONGEST = 200  # characters of a folder's name


@dataclass(frozen=True)
class Trial:
    """What is to be run.

    place      the folder of the run
    n          examples that a template draws
    top        heads that are decomposed; 0 for none: then the run is the scores of all heads
    """

    draft: Draft
    place: Path
    n: int = 128
    top: int = 4

    def __post_init__(self) -> None:
        whole_number(self.n, "n", 8, MOST)
        whole_number(self.top, "top", 0, MOST_HEADS)

    def run(self, model: Model, job: Errand) -> dict[str, Any]:
        """Run and save it; what the page is told of it."""
        job.enter("1/2 heads" if self.top else "heads")
        drawn = self.draft.drawn(model, self.n)
        options: dict[str, Any] = {"encoding": drawn.encoding, "progress": False}
        scores = find_heads(model, drawn.search, **options)
        found: Features | HeadScores = scores
        if self.top:
            job.enter("2/2 features")
            heads = scores.top(self.top)
            found = decompose(model, drawn.contrasts, heads=heads, recipe=Recipe(center=drawn.center), **options)
        found.save(self.place)
        if found is not scores:
            scores.save((self.place / SCORES).parent)
        file, text = self.draft.file
        contrast = write_text(self.place / f"contrast{Path(file).suffix}", text)
        write_kept(self.place, (), [contrast.name, *([SCORES] if found is not scores else [])])
        return _told(scores, found, str(self.place))


def _told(scores: HeadScores, found: Features | HeadScores, place: str) -> dict[str, Any]:
    rows = scores.to_frame().head(HEADS_TOLD).to_dict("records")
    heads = [{str(key): number(v) if isinstance(v, float) else v for key, v in row.items()} for row in rows]
    told: dict[str, Any] = {"place": place, "n": scores.n, "chance": number(scores.chance), "heads": heads}
    if isinstance(found, Features):
        told["features"] = [
            {"contrast": f.contrast, "head": str(f.head), "rank": f.rank, "p": number(f.p, 6), "evidence": f.evidence}
            for f in found.values()
        ]
        told["notes"] = list(found.notes)
    return told


def place_below(root: Path, name: str) -> Path:
    """The folder that a name means: the page writes new ones below the root alone, and links do not lead out of it.

    >>> place_below(Path("."), "../elsewhere")
    Traceback (most recent call last):
    qkprism.errors.QKPrismError: '../elsewhere' leads out of the folder that the explorer was started in. ...
    """
    text = name.strip()
    if not text or len(text) > LONGEST:
        raise QKPrismError(f"Name a folder to save in, such as runs/mine, of up to {LONGEST} letters.")
    path, home = path_of(text), root.resolve()
    place = (home / path).resolve()
    if path.is_absolute() or ".." in path.parts or not place.is_relative_to(home) or place == home:
        raise QKPrismError(
            f"{text!r} leads out of the folder that the explorer was started in. Name one below it: runs/mine."
        )
    if not is_unused(place):
        raise QKPrismError(f"{text} is there already. Name another folder.")
    return place
