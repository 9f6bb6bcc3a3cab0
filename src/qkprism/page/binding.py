"""The page of a binding study: what was asked, what was found, and where it differs from the paper."""

from __future__ import annotations

from html import escape
from itertools import product
from typing import TYPE_CHECKING, Any

from qkprism.page.binding_claims import CONTRASTS, comparison
from qkprism.page.layout import figure, notes, page, table, with_errors
from qkprism.results.validation import ALL, CLEAR, LEAST, MATTERS
from qkprism.subspaces.modulation import interactions, why_not_conditional

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    import plotly.graph_objects as go

    from qkprism.heads import Head
    from qkprism.results.features import Features
    from qkprism.results.validation import Validation
    from qkprism.studies.binding_study import BindingStudy

_NO_ENTITIES = (
    "Ranks against the number of entities, the figure of the paper's appendix, are part of --size paper; here "
    "--entities 10,18,34 adds them without computing the rest again."
)
SHOWN = 4  # spectra drawn in full
REFLEXIVE = "reflexive"
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

_COLUMNS = {
    "head": "head",
    "works_by": "works by",
    "accuracy": "accuracy among labels",
    "accuracy_all": "among all tokens",
    "order_rank": "order: rank",
    "order_code": "the paper's",
    "lexical_rank": "lexical: rank",
    "lexical_code": "the paper's ",
    "lexical_energy": "as its text reads",
    "order_gap": "order: part of the gap",
    "lexical_gap": "lexical: part of the gap",
    "order_shift": "order: shift",
    "lexical_shift": "lexical: shift",
    "both_shift": "both: shift",
    "order_alignment": "order alone finds it",
    "lexical_alignment": "lexical alone finds it",
    "reflexive_heldout": "reflexive: held out",
}


def binding_figures(study: BindingStudy, *, umap: bool = False) -> dict[str, go.Figure]:
    """Every figure of a study, by the name of its file."""
    figures = {"heads": study.scores.plot(), "ranks": study.features.plot()}
    for name, head in [(name, head) for head in study.heads[: SHOWN // 2] for name in CONTRASTS]:
        figures[f"spectrum-{name}-{head}"] = study.features[name, head].plot()
    if study.entities.rows:
        figures["entities"] = study.entities.plot()
    for (name, head), color in product(_pictured(study), ("order", "entity")):
        figures[f"subspace-{name}-{head}-by-{color}"] = study.projections.plot(
            study.features, name, head, color=color, umap=umap
        )
    figures |= {f"effects-{target}": study.effects.plot(target=target) for target in study.effects.targets}
    figures["paper-effects"] = study.effects_paper.plot()
    figures |= {"outcome": study.outcome.plot(), "validation": study.validation.pick(*_JUDGED).plot()}
    if why_not_conditional(study.features) is None:
        figures["interactions"] = interactions(study.features).plot()
    figures |= {f"example-{name.replace(', ', '-')}": example.plot() for name, example in study.examples.items()}
    return figures | {"attributions": study.attributions.plot()}


def binding_report(study: BindingStudy, figures: Mapping[str, go.Figure] | None = None) -> str:
    """The page of a study, as HTML that needs no network; its figures are made unless given."""
    made = figures or binding_figures(study)

    def shown(*names: str) -> list[str]:
        return [figure(fig) for name, fig in made.items() if name.startswith(names)]

    parts = [
        *_opening(study),
        *notes(study.notes),
        "<h2>Which heads look at the right label</h2>",
        *shown("heads"),
        "<h2>What was found</h2>",
        table([with_errors(row) for row in _records(study.summary())], _COLUMNS),
        "<p class=note>± standard errors. Accuracy: how often the right label has the most attention of all labels "
        f"(chance {study.scores.chance:.2f}), and of all tokens, on the prompts that chose the heads, so a little too "
        "high. Works by: the feature whose part of the gap is clear and twice the other's, as our split has it. Part "
        "of the gap: how much of the logit gap between the right label and the others a feature makes. Shift: of the "
        "attention on the right label and a target, how much moves to the target when their keys exchange the feature. "
        "Alone finds it: how often the right label has the largest part of the logit by this feature alone (chance "
        f"{study.scores.chance:.2f}). "
        f"Held out: the leading run of directions with t above {study.features.choices.threshold:g} on examples that "
        "did not choose them; one weak direction ends it, so 0 can stand before directions that hold. Rank: those of "
        "them in which keys differ more by this clue than by the others and noise, or the energy rule in balanced "
        "coordinates if that is more. The paper's: its contrast and its rule.</p>",
        "<h2>The paper and this run</h2>",
        table(
            comparison(study),
            {"what": "", "paper": "paper (Llama 3.1 8B, Qwen3 4B)", "verdict": "", "here": "this run"},
            words=True,
        ),
        "<h2>How many dimensions, and how sure</h2>",
        *shown("ranks", "spectrum", "entities"),
        *([] if study.entities.rows else notes([_NO_ENTITIES])),
        "<h2>What the subspaces hold</h2>",
        "<p>Pictured is for each feature the head in which it alone finds the right label most often: the clearest "
        "picture, not a typical one. The other heads are in the table.</p>",
        *shown("subspace"),
        "<h2>Three mechanisms</h2>",
        *_mechanisms(study),
        "<h2>Editing keys: does the attention follow?</h2>",
        "<h3>Our features</h3>",
        *shown("effects"),
        "<h3>The paper's, by its own choices: its main figure, with the controls it lacks</h3>",
        *shown("paper-effects"),
        "<h2>And does the model's answer follow?</h2>",
        *shown("outcome"),
        "<ul>",
        *(f"<li>{escape(sentence)}</li>" for sentence in study.outcome.verdict()),
        "</ul><h2>Against prompts that really changed</h2>",
        *_truth(study),
        *shown("validation"),
        "<h2>Do factors add up?</h2>",
        *_interactions(study),
        *shown("interactions"),
        "<h2>Why did it attend to that token?</h2>",
        "<p>The first test prompt in the heads whose logits tell right from wrong most in the order and in the lexical "
        "contrast, split by our features and, for comparison, by the paper's (sequential: what features share counts "
        "for the first). One prompt shows how a split reads; the means over prompts below show what holds.</p>",
        *shown("example", "attributions"),
    ]
    return page("binding", parts)


def _opening(study: BindingStudy) -> list[str]:
    about = study.about
    return [
        "<h1>How does this model know which label belongs to which entity?</h1>",
        f"<p>{escape(about.model)}; {about.n_pairs} pairs, {escape(about.schema)}, {escape(about.phrasing)}; size "
        f"{escape(about.size)}, seed {about.seed}. A prompt such as</p><blockquote>{escape(about.example)}</blockquote>"
        f"<p>asks for <b>{escape(about.answer)}</b>. Some attention heads look from the last token straight at the "
        "right label. They can find it by the <b>order</b> of its clause (which place it has), by the <b>lexical</b> "
        "item in it (the thing that is asked for), or because the label is known already (<b>reflexive</b>). This page "
        "shows which heads do it, how many dimensions each clue takes in their query-key space, and tests it by "
        "editing keys: features are found on some entities and tested on others.</p>",
    ]


def _mechanisms(study: BindingStudy) -> list[str]:
    """The reflexive mechanism, and how far the three overlap."""
    found = study.mechanisms
    rows = [
        {"head": str(head), **{name: found[name, head].rank_heldout for name in found.contrasts}}
        | {f"t {name}": float(found[name, head].spectrum.t[0]) for name in found.contrasts}
        for head in study.heads
    ]
    return [
        "<p>The third mechanism of the literature, which the paper names and does not study: the query would hold the "
        "right label itself, because earlier layers have found it. Its twins differ in the label of the queried clause "
        f"only. All three are decomposed together ({found[REFLEXIVE, study.heads[0]].n} twins for reflexive). Held-out "
        f"ranks, and the held-out t of the first direction (above {found.choices.threshold:g} counts):</p>",
        table(rows, {name: name for name in rows[0]}),
        f"<p>{escape(_used(study.validation))}</p>",
        "<p>Overlap of the subspaces, as the mean squared cosine of their principal angles (0: orthogonal, 1: one "
        "inside the other); means over heads, lowest and highest:</p>",
        table(
            _overlaps(found),
            {"pair": "", "contrast": "keys, contrast metric", "raw": "keys, raw", "queries": "queries, raw"},
        ),
        "<p class=note>The contrast metric is made so that different factors are orthogonal in it; the raw metric "
        "shows how far they are in the head's own coordinates, where a swap of one feature moves some of the other. "
        "Queries vary in few directions, so their subspaces overlap whatever they hold.</p>",
    ]


def _interactions(study: BindingStudy) -> list[str]:
    """How strong features are at each place, in a sentence for each head, or why that is not known."""
    if (reason := why_not_conditional(study.features)) is not None:
        return [f"<p>Not tested: {escape(reason)}</p>"]
    sentences = interactions(study.features).verdict()
    return [
        "<p>A projector moves as much of a feature wherever the key stands. That is right only if factors add up in a "
        "key. Where a feature is stronger at some places than at others, the conditional exchange goes by the place: "
        "it standardises keys within it, exchanges them and puts them back.</p>",
        "<ul>",
        *(f"<li>{escape(sentence)}</li>" for sentence in sentences),
        "</ul>",
    ]


def _used(validation: Validation) -> str:
    """In how many heads each mechanism matters, whatever its rank."""
    heads: dict[str, dict[str, bool]] = {}
    for check in validation.checks:
        heads.setdefault(check.factor, {})[check.head] = check.matters
    told = ", ".join(
        f"{factor} matters in {sum(by_head.values())} of {len(by_head)} heads" for factor, by_head in heads.items()
    )
    return (
        "A rank says that queries and keys share the information, not that the head uses it. Against prompts that "
        f"really changed (below), {told}."
    )


def _overlaps(features: Features) -> list[dict[str, Any]]:
    def span(values: pd.Series[float]) -> str:
        return f"{values.mean():.2f} ({values.min():.2f} to {values.max():.2f})"

    metrics = {"contrast": features.overlaps(), "raw": features.with_metric("raw").overlaps()}
    rows = []
    for (first, second), own in metrics["contrast"].groupby(["contrast", "other"], sort=False):
        raw = metrics["raw"].query("contrast == @first and other == @second")
        row = {"pair": f"{first} and {second}", "contrast": span(own["keys"])}
        rows.append(row | {"raw": span(raw["keys"]), "queries": span(raw["queries"])})
    return rows


def _truth(study: BindingStudy) -> list[str]:
    rows = sorted(_records(study.validation.pick(*_JUDGED, *_READINGS).summary()), key=_factor_of)
    return [
        "<p>In the true counterfactuals two clauses, two entities or two labels really change places. An edit of that "
        "one clue and nothing else would give the attention that their keys do. Where a clue has no "
        "part in the logits there is nothing to get right or wrong, so the first table is of the heads in which it "
        f"<b>matters</b>: the true part is more than {CLEAR:g} standard errors and {LEAST:g} logits from 0.</p>",
        "<h3>Heads in which the clue matters</h3>",
        table([_of_heads(row) for row in rows if row["heads"] == MATTERS], _TRUTH_COLUMNS),
        "<h3>All heads of the study</h3>",
        table([_of_heads(row) for row in rows if row["heads"] == ALL], _TRUTH_COLUMNS),
        "<p class=note>Error of the two logits: mean absolute error of the logits of the two edited keys, over that "
        "without an edit (ratio of means over heads). Distance: total variation between the attention after the edit "
        "and the truth, likewise: first the truth in which only the two keys changed, which an edit can reach, then "
        "the whole one, in which other keys change too. Error of the part: the size of the "
        "error of a head's mean part, as a share of the true part (mean error over mean part) and in logits. By "
        "chance: the error in logits that parts which are right on average would show with this number of prompts. "
        "Where the true parts are small, as over all heads, a share says little. A small error with a slope far from 1 "
        "means parts that are right on average, and not prompt by prompt. The paper's swap is raw, its "
        "attribution raw sequential (which has no edit). Twins are read as symmetric unless it says paired or "
        "matched. All other combinations are in the folder <code>validation</code>.</p>",
    ]


_TRUTH_COLUMNS = {
    "factor": "clue",
    "features": "features",
    "method": "method",
    "of": "heads",
    "logit": "error of the two logits (no edit = 1)",
    "nearer": "smaller than no edit's",
    "tv_pair": "distance, two keys changed",
    "tv": "distance, whole truth",
    "floor": "two keys alone would leave",
    "relative_part_error": "error of the part / true part",
    "absolute_part_error": "error of the part (logits)",
    "error_by_chance": "by chance",
    "part_rms": "error for a single prompt",
    "slope_own": "slope, own clue (truth 1)",
    "slope_other": "slope, other clue (truth 0)",
}


def _of_heads(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose counts say of how many, and whose share is in percent."""
    nearer, share = row["logit_nearer"], row["relative_part_error"]
    told: dict[str, Any] = {"of": f"{row['n_heads']} of {row['of_heads']}"}
    told["nearer"] = nearer if nearer != nearer else f"{nearer:.0f} of {row['n_heads']}"
    told["relative_part_error"] = share if share != share else f"{share:.0%}"
    return {**row, **told}


def _factor_of(row: Mapping[str, Any]) -> int:
    return (*CONTRASTS, REFLEXIVE).index(row["factor"])


def _pictured(study: BindingStudy) -> list[tuple[str, Head]]:
    """For each feature the head in which it alone finds the right label most often."""
    aligned = {key: study.projections.alignment(study.features, *key)[0] for key in study.features}
    return [max((key for key in aligned if key[0] == name), key=lambda key: aligned[key]) for name in CONTRASTS]


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
