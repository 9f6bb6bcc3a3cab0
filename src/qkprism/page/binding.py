"""The page of a binding study: what was asked, what was found, and where it differs from the paper."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from qkprism.page.layout import figure, notes, page, table

if TYPE_CHECKING:
    import pandas as pd

    from qkprism.heads import Head
    from qkprism.studies.binding import BindingStudy

SHOWN = 4  # spectra drawn in full

_COLUMNS = {
    "head": "head",
    "mechanism": "works by",
    "accuracy": "accuracy",
    "order_rank": "order: held-out rank",
    "order_energy": "order: energy rank (paper's rule)",
    "lexical_rank": "lexical: held-out rank",
    "lexical_energy": "lexical: energy rank (paper's rule)",
    "order_gap": "order: part of the gap",
    "lexical_gap": "lexical: part of the gap",
    "order_shift": "order: shift",
    "lexical_shift": "lexical: shift",
    "both_shift": "both: shift",
    "order_alignment": "order alone finds it",
    "lexical_alignment": "lexical alone finds it",
}


def binding_report(study: BindingStudy) -> str:
    """The page of a study, as HTML that needs no network."""
    example = study.task.test[0].text.text
    answer = example[study.task.test[0].text.positive[0].start : study.task.test[0].text.positive[0].end]
    parts = [
        "<h1>How does this model know which label belongs to which entity?</h1>",
        f"<p>{escape(study.model)}; {escape(study.task.schema.name)}, {escape(study.task.phrasing.name)}; size "
        f"{escape(study.size)}, seed {study.seed}. A prompt such as</p><blockquote>{escape(example)}</blockquote>"
        f"<p>asks for <b>{escape(answer)}</b>. Some attention heads look from the last token straight at the right "
        "label. They can find it by the <b>order</b> of its clause (which place it has), by the <b>lexical</b> item in "
        "it (the thing that is asked for), or by both. This page shows which heads do it, how many dimensions each "
        "clue takes in their query-key space, and proves it by editing keys: features are found on some entities and "
        "tested on others.</p>",
        *notes(study.notes),
        "<h2>Which heads look at the right label</h2>",
        figure(study.scores.plot()),
        "<h2>What was found</h2>",
        table(_rows(study), _COLUMNS),
        "<p class=note>Part of the gap: how much of the logit gap between the right label and the others a feature "
        "makes. Shift: how much of the attention moves from the right label to another one when the two keys exchange "
        "the feature.</p>",
        "<h2>The paper and this run</h2>",
        table(
            comparison(study), {"what": "", "paper": "paper (Llama 3.1 8B, Qwen3 4B)", "here": "this run"}, words=True
        ),
        "<h2>How many dimensions, and how sure</h2>",
        figure(study.features.plot()),
        *(
            figure(study.features[name, head].plot())
            for head in study.heads[: SHOWN // 2]
            for name in ("order", "lexical")
        ),
        "<h2>What the subspaces hold</h2>",
        *(
            figure(study.projections.plot(study.features, name, head, color={"lexical": "entity"}.get(name, name)))
            for name, head in _pictured(study)
        ),
        "<h2>Editing keys: does the attention follow?</h2>",
        *(figure(study.effects.plot(target=target)) for target in study.effects.targets),
        "<h2>And does the model's answer follow?</h2>",
        figure(study.outcome.plot()),
        "<ul>",
        *(f"<li>{escape(sentence)}</li>" for sentence in study.outcome.verdict()),
        "</ul><h2>Against prompts that really changed</h2>",
        "<p>In the true counterfactuals two clauses, or two entities, really change places. The closer an edit comes "
        "to what their keys do, the more it is about that one clue and nothing else.</p>",
        figure(study.validation.plot()),
        table(
            _records(study.validation.summary()),
            {
                "features": "features",
                "factor": "factor",
                "method": "method",
                "tv": "distance to the truth (no edit = 1)",
                "absolute_part_error": "error of the part (logits)",
                "slope_own": "slope, own factor (truth 1)",
                "slope_other": "slope, other factor (truth 0)",
            },
        ),
        "<h2>Why did it attend to that token?</h2>",
        figure(study.example.plot()),
        figure(study.attributions.plot()),
    ]
    return page("binding", parts)


def _rows(study: BindingStudy) -> list[dict[str, Any]]:
    rows = zip(_records(study.summary()), study.heads, strict=True)
    return [row | {"mechanism": study.mechanism(head)} for row, head in rows]


def _pictured(study: BindingStudy) -> list[tuple[str, Head]]:
    """For each feature the head in which it alone finds the right label most often."""
    aligned = {key: study.projections.alignment(study.features, *key)[0] for key in study.features}
    return [
        max((key for key in aligned if key[0] == name), key=lambda key: aligned[key]) for name in ("order", "lexical")
    ]


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def comparison(study: BindingStudy) -> list[dict[str, str]]:
    """The paper's findings beside this run's, where they agree and where not."""
    frame = study.summary()
    error = study.validation.summary().set_index(["features", "factor", "method"])["absolute_part_error"]
    ours, paper = ("contrast", "raw sequential")

    def span(column: str) -> str:
        return f"{int(frame[column].min())} to {int(frame[column].max())}"

    def beaten(control: str, method: str) -> str:
        rows = [r for r in study.effects.beats() if r["control"] == control and r["method"] == method]
        rows = [r for r in rows if r["target"] == "given"]
        return f"{sum(r['beaten'] for r in rows)} of {len(rows)}"

    methods = study.effects.methods
    rows = [
        ("heads above 30% accuracy", "the threshold, no number", str(len(study.scores.above(accuracy=0.3)))),
        (
            "rank of order",
            "usually 2 or 3",
            f"{span('order_energy')} by the paper's rule, {span('order_rank')} held out",
        ),
        (
            "rank of lexical",
            "usually 9 or 10",
            f"{span('lexical_energy')} by the paper's rule, {span('lexical_rank')} held out",
        ),
        (
            "swapping both moves most of the attention",
            "yes",
            f"{frame['both_shift'].mean():.2f} of it on average, the whole key {_whole(study):.2f}",
        ),
        (
            "random subspaces have negligible effects",
            "yes (Gaussian)",
            f"edits of features beat Gaussian subspaces in {beaten('gaussian', methods[-1])} cases in the paper's "
            f"metric; they beat permuted labels in {beaten('permuted', methods[-1])} there and in "
            f"{beaten('permuted', methods[0])} in the contrast metric",
        ),
        (
            "attribution against the truth",
            "not tested",
            "; ".join(
                f"{name}: our parts err by {error['ours', name, ours]:.2f} logits, the paper's by "
                f"{error['paper', name, paper]:.2f}"
                for name in ("order", "lexical")
                if ("ours", name, ours) in error.index
            ),
        ),
    ]
    return [dict(zip(("what", "paper", "here"), row, strict=True)) for row in rows]


def _whole(study: BindingStudy) -> float:
    gains = [
        study.effects.value("shift", head=head, control="full")[0]
        - study.effects.value("shift", head=head, control="none")[0]
        for head in study.heads
    ]
    return sum(gains) / len(gains)
