"""One row of attention as a stack of parts: for the most attended tokens, what each part gives their logit.

Logits matter up to a constant a row, so every part is drawn from its mean over the tokens shown but the first: a bar to
the right is what a part gives a token more than it gives the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from torch import Tensor

from qkprism.figures.attribution import shown_token
from qkprism.figures.theme import FEATURE_COLORS, INK, MUTED, ROLES, finish, plain, shortened
from qkprism.heads import Head

if TYPE_CHECKING:
    from qkprism.atlas.explanation import Explanation, HeadRow

MOST = 14  # tokens
COLORS = {
    "first token": "#4D4D4D",
    "position": "#56B4E9",
    "salience": "#E69F00",
    "asked position": "#0072B2",
    "unnamed match": "#B3B3B3",
    "soft cap": "#882255",
    "position bias": "#332288",
}
NAMED = ("#009E73", "#D55E00", "#CC79A7", "#999933", "#117733")


def part_color(name: str, named: list[str]) -> str:
    """The colour of a part, the same in every figure; named features have colours of their own."""
    return COLORS.get(name) or (NAMED + FEATURE_COLORS)[named.index(name) % (len(NAMED) + len(FEATURE_COLORS))]


def explanation_figure(explanation: Explanation, head: Head) -> go.Figure:
    """The parts of the logits of the most attended tokens in one head."""
    row = explanation.row(head)
    seen = row.logits.isfinite().nonzero()[:, 0].tolist()
    best = sorted(seen, key=lambda place: -float(row.attention[place]))[:MOST]
    places = sorted(best)
    labels = [f"{place} {plain(shown_token(explanation.tokens[place]))}" for place in places]
    fig = make_subplots(1, 2, shared_yaxes=True, column_widths=[0.28, 0.72], horizontal_spacing=0.02)
    attention = [float(row.attention[place]) for place in places]
    fig.add_bar(
        y=labels, x=attention, orientation="h", name="attention", showlegend=False,
        marker={"color": INK}, hovertemplate="%{y}: attention %{x:.3f}<extra></extra>", row=1, col=1,
    )  # fmt: skip
    named = [name for name in row.terms if name not in COLORS]
    for name, values in _drawn(row, places).items():
        drawn = values
        if float(drawn.abs().amax()) < 1e-9:
            continue
        fig.add_bar(
            y=labels, x=drawn.tolist(), orientation="h", name=plain(name), marker={"color": part_color(name, named)},
            hovertemplate=f"%{{y}}: {plain(name)} %{{x:+.2f}} logits<extra></extra>", row=1, col=2,
        )  # fmt: skip
    total = _from_mean(row.logits[places], places)
    fig.add_scatter(
        y=labels, x=total.tolist(), mode="markers", name="logit", row=1, col=2,
        marker={"symbol": "diamond", "size": 9, "color": "white", "line": {"color": INK, "width": 2}},
        hovertemplate="%{y}: logit %{x:+.2f}<extra></extra>",
    )  # fmt: skip
    fig.update_layout(
        barmode="relative",
        bargap=0.25,
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.0, "yanchor": "bottom", "traceorder": "normal"},
    )
    fig.update_yaxes(autorange="reversed", showgrid=False, automargin=False, type="category")
    fig.update_xaxes(title_text="attention", range=[0, max(0.05, *attention) * 1.05], row=1, col=1)
    fig.update_xaxes(title_text="logits, each part from its mean over these tokens but the first", row=1, col=2)
    fig.add_vline(x=0, line={"color": MUTED, "width": 1}, row=1, col=2)
    _mark_query(fig, explanation, labels, places)
    left = min(190, 24 + 8 * max(len(f"{p} {shown_token(explanation.tokens[p])}") for p in places))
    return finish(
        fig,
        title=f"{head}: why it attends where it does from {shown_token(explanation.tokens[explanation.query])!r}",
        subtitle=f"{shortened(str(explanation.provenance.get('model', '')))} · token {explanation.query} is the query",
        caption=_caption(explanation, head, len(seen) - len(places)),
        plot_height=max(180, 26 * len(places)),
        left=left,
        above=34,
    )


def _drawn(row: HeadRow, places: list[int]) -> dict[str, Tensor]:
    """The parts as they are drawn: the first token's place is told as being the first."""
    terms = {name: _from_mean(values[places], places) for name, values in row.terms.items()}
    if 0 in places:
        place = _from_mean((row.terms["first token"] + row.terms["position"])[places], places)
        first = torch.tensor([at == 0 for at in places])
        terms |= {"first token": place * first, "position": place * ~first}
    return terms


def _from_mean(values: Tensor, places: list[int]) -> Tensor:
    later = [i for i, place in enumerate(places) if place > 0]
    return values - (values[later].mean() if later else values.mean())


def _mark_query(fig: go.Figure, explanation: Explanation, labels: list[str], places: list[int]) -> None:
    if explanation.query in places:
        label = labels[places.index(explanation.query)]
        fig.add_annotation(
            text="query", x=1, xref="paper", y=label, yref="y2", xanchor="right", showarrow=False,
            font={"size": 11, "color": ROLES["query"]},
        )  # fmt: skip


def _caption(explanation: Explanation, head: Head, hidden: int) -> str:
    row = explanation.row(head)
    three, later = row.variation["+ asked position"], row.variation_later["+ asked position"]
    told = [edge.sentence for edge in explanation.edges if edge.head == head][:2]
    said = (
        f"Rebuilt from first token, position, salience and asked position alone, this row is off by {three:.2f} in "
        f"total variation ({later:.2f} without the first token; 0 is exact, 1 shares nothing)"
    )
    if "+ named" in row.variation:
        said += f"; with the named features by {row.variation['+ named']:.2f}"
    more = f" {hidden} less attended tokens are not drawn." if hidden else ""
    return "\n".join([*told, f"{said}.{more}"])
