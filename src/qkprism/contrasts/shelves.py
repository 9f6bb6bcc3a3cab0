"""The shelf: the contrasts that come with the package, and what was found for each in a model.

What was found in the default model is kept beside the templates in `found.json`, which `qkprism shelf --run` wrote into
its folder, with where it comes from; the fields are those of `qkprism.studies.shelf_result.ShelfRow`:

    {"provenance": {"command": ..., "model": ..., "model_digest": ..., "n": 300, "seed": 0},
     "found": {"induction": {"digest": ..., "head": "L17H4", "accuracy": 0.98, "chance": 0.17, "rank": 9, ...,
                             "made": {"date": "2026-11-18", "qkprism": "0.1.0", "torch": ..., ...}}}}

Rows may be of different days. A finding counts only as long as the template is the one it was made with: `digest`
says so.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from qkprism.contrasts.templates import SHELF, read_template, shelf_names
from qkprism.errors import QKPrismError

FOUND = "found.json"


def check_on_shelf(name: str) -> str:
    """The name of a contrast of the shelf."""
    if name in shelf_names():
        return name
    near = difflib.get_close_matches(name, shelf_names(), n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise QKPrismError(f"{name!r} is not on the shelf.{hint} There are: {', '.join(shelf_names())}.")


def findings() -> Mapping[str, Any]:
    """What is kept, or nothing."""
    file = SHELF / FOUND
    if not file.is_file():
        return {"provenance": {}, "found": {}}
    kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return kept


def shelf_rows() -> list[dict[str, Any]]:
    """A row a contrast: its name, question, frame, what it can exchange, and what was found with this very template."""
    kept = findings()["found"]
    rows = []
    for name in shelf_names():
        template = read_template(name)
        found = kept.get(name, {})
        rows.append(
            {
                "contrast": name,
                "question": template.question,
                "frame": template.frame,
                "exchange": list(template.exchange),
                "confounds": list(template.confounds),
                "literature": list(template.literature),
                "digest": template.digest,
                "found": found if found.get("digest") == template.digest else {},
            }
        )
    return rows
