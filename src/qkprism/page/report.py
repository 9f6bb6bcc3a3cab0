"""One self-contained page that shows the features of a run: what was asked, what was found, how sure it is."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from plotly.offline import get_plotlyjs

from qkprism.figures.theme import CONFIG

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from qkprism.core.effects import Effects
    from qkprism.core.feature_set import Features
    from qkprism.core.features import Feature
    from qkprism.core.scores import HeadScores

SHOWN = 6  # spectra drawn in full

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 1240px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: 14px; } th, td { padding: .25rem .7rem; text-align: right; }
th { border-bottom: 2px solid #222; } td { border-bottom: 1px solid #ddd; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; } .scroll { overflow-x: auto; } .note { color: #555; }
"""

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
        parts += ["<h2>Which heads attend to the positive keys</h2>", html_figure(scores.plot())]
    parts += ["<h2>Features</h2>", _table(best), *(f"<p class=note>{escape(note)}</p>" for note in _notes(features))]
    parts += [html_figure(features.plot()), "<h2>The evidence, direction by direction</h2>"]
    parts += [html_figure(feature.plot()) for feature in best[:SHOWN]]
    return html_page(names, parts)


def effects_report(effects: Effects) -> str:
    """The page of an intervention: what moved, beside all controls, as HTML that needs no network."""
    model = escape(str(effects.provenance.get("model", "vectors")))
    parts = [
        f"<h1>Interventions on {', '.join(map(escape, effects.features))}</h1>",
        f"<p>{escape(effects.edit)} in {len(effects.heads)} heads of {model}, {int(effects.n[0])} examples. A feature "
        "is proved as far as editing it moves more than the controls of the same rank do: <b>permuted labels</b> (the "
        "same pipeline on sides dealt at random), subspaces <b>drawn from the keys</b>, <b>Gaussian</b> ones (weak), "
        "and the leading <b>principal directions</b> of the keys (strong).</p>",
        *(html_figure(effects.plot(target=target)) for target in effects.targets),
        "<h2>In words</h2><ul>",
        *(f"<li>{escape(sentence)}</li>" for sentence in effects.verdict()),
        "</ul>",
        *(f"<p class=note>{escape(note)}</p>" for note in effects.notes),
    ]
    return html_page("interventions", parts)


def html_page(title: str, parts: list[str], style: str = "") -> str:
    """Parts of HTML as a page with plotly in it."""
    script = f"<script>{get_plotlyjs()}</script>"
    head = f"<meta charset=utf-8><title>qkprism: {title}</title><style>{_STYLE}{style}</style>{script}"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _best_first(features: Features, scores: HeadScores | None) -> list[Feature]:
    """In the order of the heads' scores where these are known, else by the evidence for the first direction."""
    if scores is not None:
        place = {head: i for i, head in enumerate(scores.heads)}
        return sorted(features.values(), key=lambda feature: place[feature.head])
    return sorted(features.values(), key=lambda feature: -float(feature.spectrum.t[0].nan_to_num()))


def _notes(features: Features) -> list[str]:
    return list(dict.fromkeys(note for feature in features.values() for note in feature.notes))


def _table(features: list[Feature], most: int = 40) -> str:
    rows = [feature.summary() for feature in features[:most]]
    head = "".join(f"<th>{title}</th>" for title in _COLUMNS.values())
    body = "".join("<tr>" + "".join(f"<td>{_cell(row[name])}</td>" for name in _COLUMNS) + "</tr>" for row in rows)
    rest = len(features) - len(rows)
    more = f"<p class=note>{rest} more features are in the run folder.</p>" if rest else ""
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"


def _cell(value: object) -> str:
    if value is None or value != value:
        return "–"
    return escape(f"{value:.3g}" if isinstance(value, float) else str(value))


def html_figure(figure: go.Figure) -> str:
    """A figure as a part of a page."""
    return f"<div class=scroll>{figure.to_html(full_html=False, include_plotlyjs=False, config=CONFIG)}</div>"
