"""Binding studies side by side: what holds over seeds and schemas, with its spread."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qkprism.controls import BY_NAME, RIVALS
from qkprism.core.effects import GIVEN
from qkprism.errors import QKPrismError
from qkprism.studies.binding import THRESHOLD, binding_heads
from qkprism.studies.binding_study import BOTH, CONTRASTS, BindingStudy

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """Numbers of several studies: for each, and for each kind (model, pairs, schema, phrasing) mean and spread."""

    kinds: tuple[str, ...]
    values: Mapping[str, Mapping[str, tuple[float, ...]]]  # by measure and kind, a number a seed
    heads: Mapping[str, tuple[str, ...]]  # of each kind those that every seed chose

    def to_frame(self) -> pd.DataFrame:
        """A row a measure, a column a kind: mean and standard deviation over seeds."""
        import pandas as pd

        rows = [
            {"what": name, **{kind: _with_spread(own[kind]) for kind in self.kinds}}
            for name, own in self.values.items()
        ]
        shared = {"what": "heads in every seed", **{kind: ", ".join(self.heads[kind]) for kind in self.kinds}}
        return pd.DataFrame([shared, *rows])


def compare(studies: Sequence[BindingStudy]) -> Comparison:
    """Put studies side by side; those that differ in their seed only are one kind."""
    if not studies:
        raise QKPrismError("Give at least one study to compare.")
    kinds: dict[str, list[BindingStudy]] = {}
    for study in studies:
        kinds.setdefault(_kind(study), []).append(study)
    for kind, own in kinds.items():
        if len({study.about.seed for study in own}) < len(own):
            raise QKPrismError(f"Two studies of {kind} have the same seed.")
    numbers = {kind: [_numbers(study) for study in own] for kind, own in kinds.items()}
    names = dict.fromkeys(name for own in numbers.values() for row in own for name in row)
    return Comparison(
        tuple(kinds),
        {
            name: {kind: tuple(row[name] for row in own if name in row) for kind, own in numbers.items()}
            for name in names
        },
        {kind: _in_every(own) for kind, own in kinds.items()},
    )


def _kind(study: BindingStudy) -> str:
    about = study.about
    return f"{about.schema}, {about.n_pairs} pairs, {about.phrasing}, {about.size}, {about.model}"


def _in_every(studies: Iterable[BindingStudy]) -> tuple[str, ...]:
    chosen = [[str(head) for head in study.heads] for study in studies]
    return tuple(sorted(head for head in chosen[0] if all(head in own for own in chosen)))


def _numbers(study: BindingStudy) -> dict[str, float]:
    """The numbers of one study, means over its heads."""
    frame, truth = study.summary(), study.validation.summary().set_index(["features", "factor", "method"])
    found = {f"heads with {THRESHOLD:.0%} accuracy": float(len(binding_heads(study.scores)))}
    found[f"heads with {THRESHOLD:.0%} accuracy among all tokens"] = float(
        len(study.scores.above(accuracy_all=THRESHOLD))
    )
    found["best accuracy"] = float(frame["accuracy"].max())
    for name in CONTRASTS:
        found[f"heads that work by {name}"] = float((frame["works_by"] == name).sum())
        found[f"{name}: rank by the paper's rule"] = float(frame[f"{name}_energy"].mean())
        found[f"{name}: our rank"] = float(frame[f"{name}_rank"].mean())
        found[f"{name}: directions that hold out"] = float(frame[f"{name}_heldout"].mean())
    found |= {f"shift of attention, {name}": float(frame[f"{name}_shift"].mean()) for name in (*CONTRASTS, "both")}
    found |= {f"shift, {rival.title} of the rank of both": _gain(study, rival.name) for rival in RIVALS}
    found["shift, whole keys"] = _gain(study, "full")
    found |= _beaten(study) | _outcome(study)
    for name in CONTRASTS:
        for what, column, papers in (("swap", "tv", "raw"), ("part", "absolute_part_error", "raw sequential")):
            for features, method in (("ours", "contrast"), ("paper", papers)):
                if (features, name, method) in truth.index:
                    found[f"{_TRUTH[what]}, {name}, {features}"] = float(truth[column][features, name, method])
    return found


_TRUTH = {"swap": "swap, distance to the truth (no edit: 1)", "part": "part, mean error in logits"}


def _gain(study: BindingStudy, control: str) -> float:
    """How much more of the attention a control moves than no edit, mean over heads."""
    return statistics.fmean(study.effects.gain(head=head, feature=BOTH, control=control)[0] for head in study.heads)


def _beaten(study: BindingStudy) -> dict[str, float]:
    """The share of heads and features whose swap moves clearly more attention than each control, in every metric.

    Of controls that are evidence: noise beats the others too.
    """
    wins: dict[str, list[bool]] = {}
    for whose, effects in (("ours", study.effects), ("paper", study.effects_paper)):
        for row in effects.beats():
            if row["target"] == GIVEN and row["evidence"]:
                name = f"swaps that beat {BY_NAME[row['control']].title}, {whose}, {row['method']}"
                wins.setdefault(name, []).append(row["beaten"])
    return {name: statistics.fmean(own) for name, own in wins.items()}


def _outcome(study: BindingStudy) -> dict[str, float]:
    """What swapping both features in all heads does to logit(target) - logit(original)."""
    effects = study.outcome
    head, measure = effects.heads[0], effects.measures[0]
    wanted = {"feature": "both features", **{own.name: own.title for own in RIVALS}, "full": "whole keys"}
    known = {entry.control for entry in effects.entries}
    return {
        f"change of the answer's logit, {word}": effects.value(measure, head=head, feature=BOTH, control=control)[0]
        for control, word in wanted.items()
        if control in known
    }


def _with_spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = f"{statistics.fmean(values):.2f}"
    return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean
