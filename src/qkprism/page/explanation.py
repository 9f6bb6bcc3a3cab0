"""The page of an explanation: sentences first, then the numbers, then a figure for each of the first heads."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from qkprism.figures.attribution import shown_token
from qkprism.figures.explanation import explanation_figure
from qkprism.page.layout import figure, page, table

if TYPE_CHECKING:
    from qkprism.atlas.explanation import Explanation

DRAWN = 4  # heads

_STYLE = """
.text { font: 15px/2 ui-monospace, monospace; } .text span { padding: .15rem .1rem; border-radius: 3px; }
.text .query { outline: 2px solid #CC79A7; } ol li { margin: .4rem 0; }
"""


def explanation_page(explanation: Explanation) -> str:
    """One self-contained page."""
    query = shown_token(explanation.tokens[explanation.query])
    parts = [
        f"<h1>Why do heads attend there from {escape(repr(query))}?</h1>",
        f"<p>{escape(str(explanation.provenance.get('model', '')))}. The token with a frame is the query; the darker a "
        "token, the more attention the heads below give it together.</p>",
        _text(explanation),
        "<ol>",
        *(f"<li>{escape(edge.sentence)}</li>" for edge in explanation.edges),
        "</ol>",
        "<p class=note>Every logit is split exactly: <b>position</b> is what the average query gives the average key "
        "at this distance; <b>salience</b> what the average query gives this key; <b>asked position</b> what this "
        "query gives the average key there; <b>match</b> what this query and this key do together. Shares are of "
        "the <b>height</b>: how far a key's logit is above the mean of the tokens after the first. The <b>lead</b> is "
        "over the rival, the most attended other token but the first.</p>",
        _table(explanation),
    ]
    heads = list(dict.fromkeys(edge.head for edge in explanation.edges))[:DRAWN]
    parts += [figure(explanation_figure(explanation, head)) for head in heads]
    return page(f"why from {escape(repr(query))}", parts, _STYLE)


def _text(explanation: Explanation) -> str:
    spans = []
    for place, (token, shade) in enumerate(zip(explanation.tokens, explanation.shades(), strict=True)):
        kind = " class=query" if place == explanation.query else ""
        spans.append(f"<span{kind} style='background:rgba(0,114,178,{0.55 * shade:.2f})'>{escape(token)}</span>")
    return f"<p class=text>{''.join(spans)}</p>"


def _table(explanation: Explanation) -> str:
    frame = explanation.to_frame().drop(columns="sentence")
    for name in ("query", "key", "rival"):
        frame[name] = [None if token is None else repr(token) for token in frame[name]]
    records: Any = frame.to_dict("records")
    return table(records, {str(name): str(name) for name in frame})
