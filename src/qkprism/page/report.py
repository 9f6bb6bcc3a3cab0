"""One self-contained page that shows the features of a run: what was asked, what was found, how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from qkprism.controls import EVIDENCE, WEAK, Control
from qkprism.core.feature import NO_EVIDENCE
from qkprism.figures.words import BELIEVE
from qkprism.page.layout import figure, notes, page, table

if TYPE_CHECKING:
    from qkprism.core.feature import Feature
    from qkprism.heads import Head
    from qkprism.results.effects import Effects
    from qkprism.results.features import Features
    from qkprism.results.scores import HeadScores

SHOWN = 6  # spectra drawn in full

_COLUMNS = {
    "contrast": "contrast",
    "head": "head",
    "rank": "rank",
    "rank_heldout": "held-out rank",
    "rank_energy": "energy rank (paper)",
    "t": "t of direction 1",
    "q": "q",
    "logit_gap": "logit gap",
    "logit_gap_error": "± error",
    "salience_energy": "salience share",
    "key_agreement": "split-half agreement",
    "n": "examples",
}


def features_report(features: Features, scores: HeadScores | None = None) -> str:
    """The page of a run, as HTML that needs no network."""
    best = _best_first(features, scores)
    model = escape(str(features.provenance.get("model", "vectors")))
    names = ", ".join(map(escape, features.contrasts))
    parts = [
        f"<h1>Query-key features of {names}</h1>",
        f"<p>{len(features.heads)} heads of {model}. A feature is a low-rank subspace of a head's query-key space in "
        "which positive keys agree with the query and negative keys do not. Its <b>held-out rank</b> counts the "
        "leading directions that also hold on examples that did not choose them; 0 means that none can be told from "
        "chance by itself. The <b>logit gap</b> is how much more logit the head gives positive keys than negative "
        f"ones. {escape(BELIEVE)}</p>",
    ]
    if scores is not None:
        parts += ["<h2>Which heads attend to the positive keys</h2>", figure(scores.plot())]
        parts += notes([f"By accuracy, {scores.count_found()}."])
    parts += ["<h2>Features</h2>", _table(features, best), *notes(_counts(features))]
    parts += [*_at_rank_zero(best), *notes(_notes(features))]
    parts += [figure(features.plot()), "<h2>The evidence, direction by direction</h2>"]
    parts += [figure(feature.plot()) for feature in best[:SHOWN]]
    return page(names, parts)


def effects_report(effects: Effects) -> str:
    """The page of an intervention: what moved, beside all controls, as HTML that needs no network."""
    model = escape(str(effects.provenance.get("model", "vectors")))
    parts = [
        f"<h1>Interventions on {', '.join(map(escape, effects.features))}</h1>",
        f"<p>{escape(effects.title)} in {len(effects.heads)} heads of {model}, {int(effects.n[0])} examples. A feature "
        f"is proved as far as editing it moves more than controls of the same rank do: {_named(EVIDENCE)}. No evidence "
        f"is to move more than {_named(WEAK)}: noise does too.</p>",
        *(figure(effects.plot(target=target)) for target in effects.targets),
        "<h2>In words</h2><ul>",
        *(f"<li>{escape(sentence)}</li>" for sentence in effects.verdict()),
        "</ul>",
        *notes(effects.notes),
    ]
    return page("interventions", parts)


def _named(controls: Sequence[Control]) -> str:
    return ", ".join(f"<b>{control.title}</b> ({control.meaning}; {control.strength})" for control in controls)


def _best_first(features: Features, scores: HeadScores | None) -> list[Feature]:
    """In the order of the heads' scores where these are known, else by the evidence for the first direction."""
    if scores is None:
        return features.by_evidence()
    place = {head: i for i, head in enumerate(scores.heads)}
    return sorted(features.values(), key=lambda feature: place[feature.head])


def _at_rank_zero(features: Sequence[Feature]) -> list[str]:
    """Features of held-out rank 0 for which something else speaks."""
    told = {
        f"{feature.contrast} in {feature.head}": feature.evidence for feature in features if not feature.rank_heldout
    }
    open_ = [f"{name}: {said}." for name, said in told.items() if not said.endswith(NO_EVIDENCE)]
    if not open_:
        return []
    more = [f"And {len(open_) - SHOWN} more such features."] if len(open_) > SHOWN else []
    return notes(["Held-out rank 0, but not without evidence:", *open_[:SHOWN], *more])


def _notes(features: Features) -> list[str]:
    """Each note once, after the heads it is about where it is not about all."""
    heads: dict[str, list[Head]] = {}
    for feature in features.values():
        for note in feature.notes:
            heads.setdefault(note.removeprefix(f"{feature.head}: "), []).append(feature.head)
    return [
        note if {*where} == {*features.heads} else f"{_heads(sorted({*where}))}: {note}"
        for note, where in heads.items()
    ]


def _heads(heads: Sequence[Head]) -> str:
    """The first heads by name, and how many more."""
    rest = len(heads) - SHOWN
    return ", ".join(map(str, heads[:SHOWN])) + (f" and {rest} more heads" if rest > 0 else "")


def _counts(features: Features) -> list[str]:
    """Of each contrast, how many heads are found and how many of them chance would show."""
    return [f"{name}, by the held-out test, {found}." for name, found in features.count_found().items()]


def _table(features: Features, ordered: list[Feature], most: int = 40) -> str:
    q = features.q_values()
    shown = table([f.summary() | {"q": q[f.contrast, f.head]} for f in ordered[:most]], _COLUMNS)
    rest = len(ordered) - most
    return shown + (f"<p class=note>{rest} more features are in the run folder.</p>" if rest > 0 else "")
