"""What a binding study draws, and its tables: the spectra, clouds and edits of its heads, and the proofs."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from qkprism.results.validation import ALL, CLEAR, LEAST, MATTERS
from qkprism.studies.binding_study import CONTRASTS
from qkprism.subspaces.modulation import interactions, why_not_conditional

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    import plotly.graph_objects as go

    from qkprism.heads import Head
    from qkprism.results.features import Features
    from qkprism.results.validation import Validation
    from qkprism.studies.binding_study import BindingStudy

SHOWN = 4  # spectra drawn in full
SEEN = ("heads", "spectrum", "subspace")  # what the views of a page show of every head
# sets of features and how they are edited or attributed: what the page compares with the truth
_JUDGED = (
    ("ours", "whole key"),
    ("ours", "conditional"),
    ("ours", "conditional, permuted"),
    ("ours", "contrast"),
    ("three mechanisms", "contrast"),
    ("paper", "raw"),
    ("paper", "raw sequential"),
)
_READINGS = (("ours, paired twins", "contrast"), ("ours, matched twins", "contrast"))


def drawings(study: BindingStudy, *, umap: bool = False) -> dict[str, Callable[[], go.Figure]]:
    """Every figure of a study, by the name of its file."""
    found: dict[str, Callable[[], go.Figure]] = {"heads": study.scores.plot, "ranks": study.features.plot}
    for name, head in [(name, head) for head in study.heads[: SHOWN // 2] for name in CONTRASTS]:
        found[f"spectrum-{name}-{head}"] = study.features[name, head].plot
    if study.entities.rows:
        found["entities"] = study.entities.plot
    for (name, head), color in product(_pictured(study), ("order", study.about.entity)):
        found[f"subspace-{name}-{head}-by-{color}"] = partial(
            study.projections.plot, study.features, name, head, color=color, umap=umap
        )
    found |= {f"effects-{target}": partial(study.effects.plot, target=target) for target in study.effects.targets}
    found["paper-effects"] = study.effects_paper.plot
    found |= {"outcome": study.outcome.plot, "validation": study.validation.pick(*_JUDGED).plot}
    if why_not_conditional(study.features) is None:
        found["interactions"] = lambda: interactions(study.features).plot()
    found |= {f"example-{name.replace(', ', '-')}": example.plot for name, example in study.examples.items()}
    return found | {"attributions": study.attributions.plot}


TRUTH = "truth, heads in which the clue matters"


def tables(study: BindingStudy) -> dict[str, Callable[[], pd.DataFrame]]:
    """A row a head; the truth, first of the heads in which a clue matters; how far the mechanisms overlap."""
    truth = study.validation.pick(*_JUDGED, *_READINGS)
    return {
        "summary": study.summary,
        TRUTH: lambda: _of_heads(truth, MATTERS),
        "truth, all heads": lambda: _of_heads(truth, ALL),
        "overlaps": lambda: overlaps(study.mechanisms),
    }


_TRUTH = (
    "In the true counterfactuals two clauses, entities or labels really change places. A clue matters in a head if its "
    f"true part is more than {CLEAR:g} standard errors and {LEAST:g} logits from 0; elsewhere there is nothing to get "
    "right or wrong. logit: mean absolute error of the logits of the two edited keys, over that without an edit. "
    "tv_pair, tv: total variation to the truth in which only the two keys changed, and to the whole one. floor: what "
    "two keys alone would leave. error_by_chance: what parts that are right on average would show with this many pairs."
)
CAPTIONS = {
    "summary": "Accuracy is on the prompts that chose the heads, so a little too high. works_by: the feature whose "
    "part of the gap is clear and twice the other's. gap: how much of the logit gap between the right label and the "
    "others a feature makes. shift: of the attention on the right label and a target, how much moves when their keys "
    "exchange the feature. alignment: how often the right label has the largest part of the logit by this feature "
    "alone. code: the paper's rank as its authors computed it; energy: as its text reads.",
    TRUTH: _TRUTH,
    "truth, all heads": _TRUTH,
    "overlaps": "Mean squared cosine of principal angles (0: orthogonal, 1: one inside the other), over heads. The "
    "contrast metric is made so that factors are orthogonal in it; the raw one shows the head's own coordinates.",
}


def _of_heads(truth: Validation, heads: str) -> pd.DataFrame:
    frame = truth.summary()
    return frame[frame["heads"] == heads].sort_values("feature", kind="stable")


def overlaps(features: Features) -> pd.DataFrame:
    """Of each pair of contrasts and metric: the mean overlap of keys over heads, lowest and highest; and of queries."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for metric, frame in (("contrast", features.overlaps()), ("raw", features.with_metric("raw").overlaps())):
        for (first, second), pair in frame.groupby(["feature", "other"], sort=False):
            keys = {"mean": pair["keys"].mean(), "lowest": pair["keys"].min(), "highest": pair["keys"].max()}
            rows.append({"pair": f"{first} and {second}", "metric": metric, **keys, "queries": pair["queries"].mean()})
    return pd.DataFrame(rows)


def used(validation: Validation) -> str:
    """In how many heads each mechanism matters, whatever its rank."""
    heads: dict[str, dict[Head, bool]] = {}
    for check in validation.checks:
        heads.setdefault(check.factor, {})[check.head] = check.matters
    told = ", ".join(
        f"{factor} matters in {sum(by_head.values())} of {len(by_head)} heads" for factor, by_head in heads.items()
    )
    return (
        "A rank says that queries and keys share the information, not that the head uses it. Against prompts that "
        f"really changed, {told}."
    )


def _pictured(study: BindingStudy) -> list[tuple[str, Head]]:
    """For each feature the head in which it alone finds the right label most often."""
    aligned = {key: study.projections.alignment(study.features, *key)[0] for key in study.features}
    return [max((key for key in aligned if key[0] == name), key=lambda key: aligned[key]) for name in CONTRASTS]
