"""One self-contained page that shows the features of a run: what was asked, what was found, how sure it is."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from qkprism.page.layout import figure, notes, page, table

if TYPE_CHECKING:
    from qkprism.core.effects import Effects
    from qkprism.core.feature_set import Features
    from qkprism.core.features import Feature
    from qkprism.core.scores import HeadScores

SHOWN = 6  # spectra drawn in full

_COLUMNS = {
    "contrast": "contrast",
    "head": "head",
    "rank": "rank",
    "rank_heldout": "held-out rank",
    "rank_energy": "energy rank (paper)",
    "t": "t of direction 1",
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
        "directions that also hold on examples that did not choose them; 0 means that there is no evidence of a "
        "feature. The <b>logit gap</b> is how much more logit the head gives positive keys than negative ones.</p>",
    ]
    if scores is not None:
        parts += ["<h2>Which heads attend to the positive keys</h2>", figure(scores.plot())]
    parts += ["<h2>Features</h2>", _table(best), *notes(features.notes)]
    parts += [figure(features.plot()), "<h2>The evidence, direction by direction</h2>"]
    parts += [figure(feature.plot()) for feature in best[:SHOWN]]
    return page(names, parts)


def effects_report(effects: Effects) -> str:
    """The page of an intervention: what moved, beside all controls, as HTML that needs no network."""
    model = escape(str(effects.provenance.get("model", "vectors")))
    parts = [
        f"<h1>Interventions on {', '.join(map(escape, effects.features))}</h1>",
        f"<p>{escape(effects.edit)} in {len(effects.heads)} heads of {model}, {int(effects.n[0])} examples. A feature "
        "is proved as far as editing it moves more than the controls of the same rank do: <b>permuted labels</b> (the "
        "same pipeline on sides dealt at random), subspaces <b>drawn from the keys</b>, <b>Gaussian</b> ones (weak), "
        "and the leading <b>principal directions</b> of the keys (strong).</p>",
        *(figure(effects.plot(target=target)) for target in effects.targets),
        "<h2>In words</h2><ul>",
        *(f"<li>{escape(sentence)}</li>" for sentence in effects.verdict()),
        "</ul>",
        *notes(effects.notes),
    ]
    return page("interventions", parts)


def _best_first(features: Features, scores: HeadScores | None) -> list[Feature]:
    """In the order of the heads' scores where these are known, else by the evidence for the first direction."""
    if scores is not None:
        place = {head: i for i, head in enumerate(scores.heads)}
        return sorted(features.values(), key=lambda feature: place[feature.head])
    return sorted(features.values(), key=lambda feature: -float(feature.spectrum.t[0].nan_to_num()))


def _table(features: list[Feature], most: int = 40) -> str:
    shown = table([feature.summary() for feature in features[:most]], _COLUMNS)
    rest = len(features) - most
    return shown + (f"<p class=note>{rest} more features are in the run folder.</p>" if rest > 0 else "")
