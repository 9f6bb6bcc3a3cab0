"""What a binding study found, in a few plain sentences: which heads, by which clue, how sure, against what control."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from qkprism.controls import BY_NAME
from qkprism.findings import Finding, findings
from qkprism.results.validation import over_heads
from qkprism.studies.binding_figures import TRUTH, used
from qkprism.studies.binding_study import CONTRASTS
from qkprism.subspaces.modulation import interactions_in_words

if TYPE_CHECKING:
    from qkprism.studies.binding_study import BindingStudy

CLUES = {"order": "by the place of its clause", "lexical": "by the thing that is asked for", "neither": "by neither"}


def told(study: BindingStudy) -> list[Finding]:
    """What was asked, and three to six sentences, each with the table that it is made from."""
    about = study.about
    return [
        Finding(f"A prompt such as \u201c{about.example}\u201d asks for {about.answer}."),
        Finding(_heads(study), "summary"),
        *(Finding(_moved(study, name), "outcome") for name in CONTRASTS),
        *findings(interactions_in_words(study.features), "interactions"),
        Finding(_parts(study), TRUTH),
        Finding(used(study.validation), TRUTH),
    ]


def _heads(study: BindingStudy) -> str:
    found: dict[str, list[str]] = {}
    for row in study.summary().to_dict("records"):
        found.setdefault(row["works_by"], []).append(f"{row['head']} ({row['accuracy']:.0%} right)")
    said = [f"{', '.join(heads)} {CLUES.get(clue, f'by {clue}')}" for clue, heads in found.items()]
    return f"Of {study.about.n_pairs} labels a guess is right in {1 / study.about.n_pairs:.0%}. " + _listed(
        "Heads that find the right one: ", said
    )


def _listed(start: str, parts: list[str]) -> str:
    return start + "; ".join(parts) + "."


def _moved(study: BindingStudy, name: str) -> str:
    """What an exchange of one clue does to the answer of the model, beside the strongest control."""
    outcome = study.outcome
    (head,), method = outcome.heads, outcome.methods[-1]  # the conditional exchange, if there is one
    key = (head, name, method, True)
    rows = [row for row in outcome.beats() if (row["head"], row["feature"], row["method"], row["evidence"]) == key]
    gain, error = outcome.gain(head=head, feature=name, method=method)
    start = f"Exchanging {name} between two keys in all of these moves the answer by {gain:+.2f} ± {error:.2f} logits"
    if not rows or math.isnan(error):
        return f"{start}."
    strongest = min(rows, key=lambda row: row["advantage"])
    verb = "clearly more than" if strongest["beaten"] else "not clearly more than"
    control = BY_NAME[strongest["control"]].title
    return f"{start}, {verb} the strongest control ({control}: {gain - strongest['advantage']:+.2f})."


def _parts(study: BindingStudy) -> str:
    """How right the parts of the logits are, against prompts in which the clue really changed places."""
    said = []
    for whose, method in (("ours", "contrast"), ("paper", "raw sequential")):
        errors = []
        for name in CONTRASTS:
            kind = (whose, name, method)
            checks = [c for c in study.validation.checks if (c.features, c.factor, c.method) == kind and c.matters]
            errors += [f"{over_heads(checks)['relative_part_error']:.0%} ({name})"] if checks else []
        said += [f"{' and '.join(errors)} with {'our features' if whose == 'ours' else 'the paper as it is written'}"]
    if not any("%" in one for one in said):
        return "No clue matters clearly in these heads, so prompts that really changed test nothing."
    return _listed("Against prompts that really changed, the parts of the logits are off by ", said)
