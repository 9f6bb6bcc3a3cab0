"""The page of a shelf: what each head does best, and for each contrast its best head with all figures."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

from qkprism.controls import BY_NAME
from qkprism.page.layout import figure, notes, page, table

if TYPE_CHECKING:
    from qkprism.studies.shelf_result import Shelf, ShelfRow

COLUMNS = {
    "contrast": "contrast",
    "question": "question",
    "heads": "best heads",
    "head": "head",
    "feature": "feature",
    "accuracy": "accuracy",
    "chance": "chance",
    "q": "q",
    "rank": "rank",
    "q_feature": "q of the feature",
    "effect": "effect",
    "nearest": "nearest control",
    "permuted": "above permuted labels",
    "part_off": "part off by",
    "holds": "holds",
}


def shelf_report(shelf: Shelf) -> str:
    """One page that needs no network."""
    model, held = escape(str(shelf.provenance.get("model", ""))), sum(row.holds for row in shelf.rows)
    parts = [
        f"<h1>The shelf in {model}</h1>",
        f"<p>{len(shelf.rows)} contrasts, {len(shelf.heads)} heads. Head and feature of a row were chosen on texts of "
        "the contrast's own words; every figure is of texts with held-out words. "
        f"<b>{held} of {len(shelf.rows)} contrasts hold</b>: the head is right in at least 80% of the prompts, its "
        "feature moves more attention than permuted labels by more than three errors, and where a variable can really "
        "be exchanged the attributed part is off by at most a third of the true one.</p>",
        figure(shelf.plot()),
        "<h2>Contrast by contrast</h2>",
        table([shown(row) for row in shelf.rows], COLUMNS, words=True),
        *notes(_LEGEND),
        *notes([f"{shelf.provenance.get('n')} examples a contrast, seed {shelf.provenance.get('seed')}."]),
    ]
    return page(f"the shelf in {model}", parts)


def shown(row: ShelfRow) -> dict[str, Any]:
    """A row for people: errors beside values, names for controls."""
    off = "nothing to exchange" if row.factor is None else f"{row.part_off:.0%} of {row.true_part:.2f}"
    return row._asdict() | {
        "heads": ", ".join(row.heads),
        "accuracy": _with(row.accuracy, row.accuracy_error),
        "effect": _with(row.effect, row.effect_error),
        "nearest": f"{BY_NAME[row.control].title} {row.control_effect:+.2f}",
        "permuted": f"{_with(row.permuted, row.permuted_error)} ({row.errors_above:.1f} errors)",
        "part_off": off,
        "holds": "yes" if row.holds else "no",
    }


def _with(value: float, error: float) -> str:
    return f"{value:.2f}" if math.isnan(error) else f"{value:.2f} ± {error:.2f}"


_LEGEND = (
    "Accuracy: how often the head attends more to a positive key than to any negative one. q: Benjamini and "
    "Hochberg's, over all heads; of the feature, by the held-out test of its first direction.",
    "Effect: how much attention moves to the target when the two keys exchange the feature. Nearest control: the one "
    "of permuted labels, key draws and key PCA, of the same rank, that moves most. The error of what is above permuted "
    "labels has the spread over their draws in it.",
    "Part off by: the feature's part of the logit gap against half of what the gap loses when the variable is really "
    "exchanged in the text.",
)
