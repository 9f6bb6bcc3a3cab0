"""What the page is told of the model and of the runs that are open: sentences, choices, tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qkprism.core.evidence import LEVEL
from qkprism.explorer.answers import FORMAT, number
from qkprism.results.features import Features
from qkprism.studies.shelf_result import Shelf

if TYPE_CHECKING:
    import pandas as pd

    from qkprism.atlas.atlas import Atlas
    from qkprism.explorer.opening import OpenRun
    from qkprism.models.model import Model

ROWS = 5000  # of a table that the page is sent
WORD = 400  # letters of a choice
COPIES = "attention: after the same token"

Sentence = list[str | dict[str, str]]  # words, and heads that can be opened


def start_answer(model: Model, atlas: Atlas, runs: Mapping[str, OpenRun]) -> dict[str, Any]:
    """Three sentences: the model, what decides in its heads, and what the runs found."""
    return {"format": FORMAT, "sentences": [_model(model, atlas), _decides(atlas), _found(atlas, runs)]}


def _model(model: Model, atlas: Atlas) -> Sentence:
    text = atlas.provenance.get("text", {})
    layers, heads = len(model.heads_per_layer), sum(model.heads_per_layer.values())
    return [
        f"{model.name} has {layers} layers with {heads} attention heads. Its atlas says what each of them does on "
        f"{text.get('tokens')} tokens of {text.get('origin')}."
    ]


def _decides(atlas: Atlas) -> Sentence:
    """Which part decides most rows, over heads."""
    frame = atlas.to_frame()
    parts = [name for name in frame if str(name).startswith("decides: ")]
    best = Counter(map(str, frame[parts].fillna(0).idxmax(axis=1))) if parts else Counter()
    told = ", ".join(f"{name.removeprefix('decides: ')} in {count}" for name, count in best.most_common())
    return [f"What most often decides where a head attends, counted over heads: {told}."]


def _found(atlas: Atlas, runs: Mapping[str, OpenRun]) -> Sentence:
    found: Sentence = []
    for name, run in runs.items():
        for part, naming in run.naming.items():
            found += _of_shelf(name, naming) if isinstance(naming, Shelf) else _of_features(name, part, naming)
        if not run.naming:
            found.append(f"{name}: {run.what}. ")
    if found:
        return found
    frame = atlas.to_frame()
    if COPIES not in frame:
        return ["No run is open; Try a contrast makes one."]
    copies, head = max(zip(frame[COPIES].tolist(), frame["head"].tolist(), strict=True))
    return [
        "No run is open, so matches have no names yet; Try a contrast makes some. The head that attends most to what "
        "followed the same token before is ",
        {"head": str(head)},
        f" ({copies:.2f} of its attention).",
    ]


def _of_shelf(name: str, shelf: Shelf) -> Sentence:
    best, held = max(shelf.rows, key=lambda row: row.accuracy - row.chance), sum(row.holds for row in shelf.rows)
    return [
        f"{name}: of {len(shelf.rows)} contrasts {held} have a head that holds on held-out "
        f"words; the clearest is {best.contrast} in ",
        {"head": best.head},
        f" (accuracy {best.accuracy:.2f}, chance {best.chance:.2f}). ",
    ]


def _of_features(name: str, part: str, features: Features) -> Sentence:
    best, q = features.by_evidence()[0], features.q_values()
    sure = sum(value < LEVEL for value in q.values())
    return [
        f"{f'{name} / {part}' if part else name}: {', '.join(features.contrasts)} in {len(features.heads)} heads, "
        f"{sure} of {len(q)} significant (q < {LEVEL:g}); the best evidence is for {best.contrast} in ",
        {"head": str(best.head)},
        f" (held-out t {float(best.spectrum.t[0]):.1f}, rank {best.rank}). ",
    ]


def runs_answer(runs: Mapping[str, OpenRun]) -> dict[str, Any]:
    """What was run, and with which choices."""
    return {
        "format": FORMAT,
        "runs": [
            {
                "name": name,
                "what": run.what,
                "model": run.model,
                "choices": [[key, value[:WORD]] for key, value in run.choices.items()],
                "tables": list(run.tables),
            }
            for name, run in runs.items()
        ],
    }


def table_answer(frame: pd.DataFrame) -> dict[str, Any]:
    """A table: its columns and rows, the first of very many."""
    rows = frame.head(ROWS).to_dict("records")
    cells = [[_cell(value) for value in row.values()] for row in rows]
    return {"format": FORMAT, "names": [str(name) for name in frame], "rows": cells, "n": len(frame)}


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return number(value, 6)
    if value is None or isinstance(value, bool | int | str):
        return value
    return value.item() if hasattr(value, "item") else str(value)
