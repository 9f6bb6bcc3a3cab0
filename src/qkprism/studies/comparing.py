"""Binding studies side by side: what holds over seeds and schemas, with its spread.

First how far swaps and parts are right, in the heads in which the clue matters (results/validation.py); then the same
over all heads, where those without the clue look right by any method; then heads, ranks, and what swaps move beside
their controls.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from qkprism.controls import RIVALS
from qkprism.errors import QKPrismError
from qkprism.results.effects import GIVEN
from qkprism.results.validation import ALL, MATTERS
from qkprism.studies.binding import THRESHOLD, binding_heads
from qkprism.studies.binding_study import BOTH, CONTRASTS, BindingStudy

if TYPE_CHECKING:
    import pandas as pd

_RANDOM = {control.name: control.title for control in RIVALS}
Unit = Literal["number", "share", "ratio", "logits"]
_FORMS: Mapping[Unit, str] = {"number": ".1f", "share": ".0%", "ratio": ".2f", "logits": ".2f"}


class ComparedMeasure(NamedTuple):
    """What a row says, in which unit, under which title, and of whose features or which control."""

    group: str
    what: str
    whose: str
    unit: Unit


Numbers = Mapping[ComparedMeasure, float]


@dataclass(frozen=True)
class ComparedStudies:
    """Numbers of several studies, a number a seed, for each kind (schema and what else differs).

    `common` is what all kinds share; `heads` of each kind are those that every seed chose.
    """

    common: str
    kinds: tuple[str, ...]
    values: Mapping[ComparedMeasure, Mapping[str, tuple[float, ...]]]
    heads: Mapping[str, tuple[str, ...]]

    def to_frame(self) -> pd.DataFrame:
        """A row a measure, a column a kind: mean and standard deviation over seeds."""
        import pandas as pd

        return pd.DataFrame(
            [
                measure._asdict() | {kind: _with_spread(found[kind], measure.unit) for kind in self.kinds}
                for measure, found in self.values.items()
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """The same with a number for each seed."""
        rows = [measure._asdict() | {"values": found} for measure, found in self.values.items()]
        return {"common": self.common, "kinds": self.kinds, "heads": self.heads, "rows": rows}


def compare(studies: Sequence[BindingStudy]) -> ComparedStudies:
    """Put studies side by side; those that differ in their seed only are one kind."""
    if not studies:
        raise QKPrismError("Give at least one study to compare.")
    common, names = _kinds(studies)
    kinds: dict[str, list[BindingStudy]] = {}
    for name, study in zip(names, studies, strict=True):
        kinds.setdefault(name, []).append(study)
    for kind, alike in kinds.items():
        if len({study.about.seed for study in alike}) < len(alike):
            raise QKPrismError(f"Two studies of {kind} have the same seed.")
    numbers = {kind: [_numbers(study) for study in alike] for kind, alike in kinds.items()}
    measures = dict.fromkeys(measure for rows in numbers.values() for row in rows for measure in row)
    return ComparedStudies(
        common,
        tuple(kinds),
        {
            measure: {kind: tuple(row[measure] for row in rows if measure in row) for kind, rows in numbers.items()}
            for measure in measures
        },
        {kind: _in_every(alike) for kind, alike in kinds.items()},
    )


def _kinds(studies: Sequence[BindingStudy]) -> tuple[str, list[str]]:
    """What all studies share, and of each its schema and whatever else they do not."""
    abouts = [study.about for study in studies]
    facts = [
        {"size": a.size, "pairs": f"{a.n_pairs} pairs", "phrasing": a.phrasing, "model": a.model, "schema": a.schema}
        for a in abouts
    ]
    differ = [name for name in facts[0] if len({fact[name] for fact in facts}) > 1]
    shared = [value for name, value in facts[0].items() if name not in differ and name != "schema"]
    names = [", ".join([fact["schema"], *(fact[name] for name in differ if name != "schema")]) for fact in facts]
    return ", ".join(shared), names


def _in_every(studies: Iterable[BindingStudy]) -> tuple[str, ...]:
    chosen = [[str(head) for head in study.heads] for study in studies]
    return tuple(sorted(head for head in chosen[0] if all(head in heads for heads in chosen)))


def _numbers(study: BindingStudy) -> Numbers:
    """The numbers of one study, in the order of the table."""
    return {
        **_truth(study, MATTERS, "Against prompts that really changed, heads in which the clue matters"),
        **_truth(study, ALL, "The same over all heads studied"),
        **_heads(study),
        **_moved(study),
        **_beaten(study),
        **_outcome(study),
    }


# which features, and by which method a swap and a part of theirs is made
_JUDGED = {
    "ours": ("ours", "contrast", "contrast"),
    "ours, conditional": ("ours", "conditional", "conditional"),
    "paper": ("paper", "raw", "raw sequential"),
}


def _truth(study: BindingStudy, heads: str, group: str) -> Numbers:
    """How near swaps and parts come to prompts that really changed, over some heads."""
    rows, found = study.validation.over(heads), dict[ComparedMeasure, float]()
    for name in CONTRASTS:
        judged = [whose for whose, (features, swap, _) in _JUDGED.items() if (features, name, swap) in rows]
        if judged and heads == MATTERS:
            features, swap, _ = _JUDGED[judged[0]]
            row = rows[features, name, swap]
            found[ComparedMeasure(group, f"{name}: heads in which it matters", "", "number")] = float(row["n_heads"])
            found[ComparedMeasure(group, f"{name}: heads studied", "", "number")] = float(row["of_heads"])
        for what, unit, at, column in _TRUTH:
            for whose in judged:
                features, *methods = _JUDGED[whose]
                row = rows[features, name, methods[at]]
                value = row[column] / row["n_heads"] if column == "nearer" and row["n_heads"] else row[column]
                found[ComparedMeasure(group, f"{name}: {what}", whose, unit)] = float(value)
    return found


# a row of the table, its unit, whether it is of the swap (0) or of the part (1), and where it is in the summary
_TRUTH: tuple[tuple[str, Unit, int, str], ...] = (
    ("error of the part / true part", "share", 1, "relative_part_error"),
    ("error of the part / true part, median head", "share", 1, "relative_part_error_median"),
    ("error of the part in logits", "logits", 1, "absolute_part_error"),
    ("error of the swap's two logits / no edit's", "ratio", 0, "logit"),
    ("heads whose swap is nearer to the truth than no edit", "share", 0, "nearer"),
    ("swap's distance / no edit's, median head", "ratio", 0, "tv_median"),
    ("swap's distance / no edit's, ratio of means", "ratio", 0, "tv"),
)


def _heads(study: BindingStudy) -> Numbers:
    """How many heads attend to the right label, by which clue, and the ranks of their features."""
    group, frame = "Heads and ranks", study.summary()
    reach = f"heads that look at the right label in {THRESHOLD:.0%} of the prompts"
    found = {
        ComparedMeasure(group, f"{reach}, among labels", "", "number"): float(len(binding_heads(study.scores))),
        ComparedMeasure(group, f"{reach}, among all tokens", "", "number"): float(
            len(study.scores.above(accuracy_all=THRESHOLD))
        ),
        ComparedMeasure(group, "accuracy of the best head, among labels", "", "share"): float(frame["accuracy"].max()),
    }
    for name in CONTRASTS:
        works = float((frame["works_by"] == name).sum())
        found[ComparedMeasure(group, f"heads that work by {name}", "", "number")] = works
        for whose, column in (("paper", "energy"), ("paper's code", "code"), ("ours", "rank")):
            found[ComparedMeasure(group, f"{name}: rank", whose, "number")] = float(frame[f"{name}_{column}"].mean())
        held = float(frame[f"{name}_heldout"].mean())
        found[ComparedMeasure(group, f"{name}: directions that hold on other examples", "ours", "number")] = held
    return found


def _moved(study: BindingStudy) -> Numbers:
    """What swaps of our features move, and what controls of the rank of both do."""
    group, frame = "Share of attention that a swap moves to the target, mean over heads", study.summary()
    found = {(name, "ours"): frame[f"{name}_shift"].mean() for name in (*CONTRASTS, "both")}
    found |= {(f"{word}, rank of both", "control"): _gain(study, control) for control, word in _RANDOM.items()}
    found["whole keys", "control"] = _gain(study, "full")
    return {ComparedMeasure(group, what, whose, "share"): float(value) for (what, whose), value in found.items()}


def _gain(study: BindingStudy, control: str) -> float:
    """How much more of the attention a control moves than no edit, mean over heads."""
    return statistics.fmean(study.effects.gain(head=head, feature=BOTH, control=control)[0] for head in study.heads)


def _beaten(study: BindingStudy) -> Numbers:
    """The share of heads and features whose swap moves clearly more attention than each control, in every metric."""
    group = "Share of heads and features whose swap clearly moves more than"
    wins: dict[ComparedMeasure, list[bool]] = {}
    for whose, effects in (("ours", study.effects), ("paper", study.effects_paper)):
        for row in effects.beats():
            if row["target"] == GIVEN and row["evidence"]:
                measure = ComparedMeasure(group, _RANDOM[row["control"]], f"{whose}, {row['method']}", "share")
                wins.setdefault(measure, []).append(row["beaten"])
    ordered = sorted(wins, key=lambda measure: list(_RANDOM.values()).index(measure.what))
    return {measure: statistics.fmean(wins[measure]) for measure in ordered}


def _outcome(study: BindingStudy) -> Numbers:
    """What swapping both features in all heads does to logit(target) - logit(original)."""
    group = "Change of the target answer's logit less the original's, all heads edited"
    effects = study.outcome
    head, measure = effects.heads[0], effects.measures[0]
    wanted = {"feature": "both features", **_RANDOM, "full": "whole keys"}
    controls = {entry.control for entry in effects.entries}
    return {
        ComparedMeasure(group, word, "ours" if control == "feature" else "control", "logits"): effects.value(
            measure, head=head, feature=BOTH, control=control
        )[0]
        for control, word in wanted.items()
        if control in controls
    }


def _with_spread(values: Sequence[float], unit: Unit) -> str:
    finite, form = [value for value in values if math.isfinite(value)], _FORMS[unit]
    if not finite:
        return "-"
    mean = format(statistics.fmean(finite), form)
    spread = f" ± {format(statistics.stdev(finite), form)}" if len(finite) > 1 else ""
    return mean + spread + (f" ({len(finite)} of {len(values)} seeds)" if len(finite) < len(values) else "")
