"""The shelf: the contrasts that come with the package, and what was found for each in a model.

What was found is kept beside the templates in `found.json`, with where it comes from:

    {"provenance": {"command": ..., "model": ..., "revision": ..., "versions": {...}, "n": 300, "seed": 0},
     "found": {"induction": {"digest": ..., "heads": ["L5H3"], "accuracy": 0.98, "chance": 0.17, "rank": 9, ...}}}

A finding counts only as long as the template is the one it was made with: `digest` says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from qkprism.contrasts.templates import SHELF, read_template, shelf_names

FOUND = "found.json"


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
