"""What the paper says of binding beside what a run found, where they agree and where not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from qkprism.studies.binding_study import BindingStudy

CONTRASTS = ("order", "lexical")


def comparison(study: BindingStudy) -> list[dict[str, str]]:
    """A row a finding of the paper."""
    frame = study.summary()
    truth = study.validation.summary().set_index(["features", "factor", "method"])
    rows = [
        (
            "heads that look at the right label (30% of the time or more)",
            "9",
            f"{len(study.scores.above(accuracy=0.3))} (chance {study.scores.chance:.0%})",
        ),
        *(
            (
                f"rank of {name}",
                usual,
                f"{_span(frame, f'{name}_energy')} by the paper's contrast and rule; {_span(frame, f'{name}_rank')} "
                "directions of ours hold on held-out examples",
            )
            for name, usual in zip(CONTRASTS, ("usually 2 or 3", "usually 9 or 10"), strict=True)
        ),
        *_of_entities(study),
        (
            "swapping one feature shifts some attention, swapping both most of it",
            "yes",
            ", ".join(f"{name} {frame[f'{name}_shift'].mean():.2f}" for name in (*CONTRASTS, "both"))
            + f" of it on average; whole keys {_whole(study):.2f}",
        ),
        ("random subspaces have little effect", "yes (Gaussian)", _controls(study)),
        (
            "a swap changes one feature",
            "not tested",
            f"distance to prompts in which it really changed (no edit: 1): {_each(truth, 'tv', 'raw')}",
        ),
        (
            "logits split into features",
            "shown, not tested",
            f"mean error of the parts in logits: {_each(truth, 'absolute_part_error', 'raw sequential')}",
        ),
    ]
    return [dict(zip(("what", "paper", "here"), row, strict=True)) for row in rows]


def _span(frame: pd.DataFrame, column: str) -> str:
    return f"{int(frame[column].min())} to {int(frame[column].max())}"


def _of_entities(study: BindingStudy) -> list[tuple[str, str, str]]:
    """Whether ranks depend on how many entities there are to draw from."""
    if not study.entities.rows:
        return []
    frame = study.entities.to_frame()
    found = [
        f"{name} " + ", ".join(f"{mean:.1f}" for mean in own.groupby("entities")["energy"].mean())
        for name, own in frame.groupby("contrast", sort=False)
    ]
    counts = ", ".join(str(n) for n in sorted(set(frame["entities"])))
    return [("ranks plateau with enough entities", "yes", f"energy rank with {counts} entities: {'; '.join(found)}")]


def _controls(study: BindingStudy) -> str:
    ours, paper = study.effects.methods[0], study.effects.methods[-1]

    def beaten(control: str, method: str) -> str:
        found = [row for row in study.effects.beats() if (row["control"], row["method"]) == (control, method)]
        given = [row["beaten"] for row in found if row["target"] == "given"]
        return f"{sum(given)} of {len(given)}"

    return (
        f"features beat Gaussian subspaces in {beaten('gaussian', paper)} cases in the paper's metric; permuted labels "
        f"in {beaten('permuted', paper)} there and in {beaten('permuted', ours)} in the contrast metric"
    )


def _each(truth: pd.DataFrame, column: str, papers: str) -> str:
    """Ours and the paper's for every feature."""
    rows = [(name, ("ours", name, "contrast"), ("paper", name, papers)) for name in CONTRASTS]
    known = [row for row in rows if row[1] in truth.index and row[2] in truth.index]
    return "; ".join(
        f"{name}: ours {float(truth[column][ours]):.2f}, the paper's {float(truth[column][paper]):.2f}"
        for name, ours, paper in known
    )


def _whole(study: BindingStudy) -> float:
    gains = [
        study.effects.value("shift", head=head, control="full")[0]
        - study.effects.value("shift", head=head, control="none")[0]
        for head in study.heads
    ]
    return sum(gains) / len(gains)
