"""`attributions_figure`: what each term adds to the gap between positive and negative keys, head by head."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from qkprism.errors import QKPrismError
from qkprism.figures.attribution import CONDITION, term_color
from qkprism.figures.panels import error_bars, legend_above, name_panel, on, panels
from qkprism.figures.theme import INK, MUTED, finish, number, plain, shortened
from qkprism.figures.words import count, facts, few, known, paragraphs

if TYPE_CHECKING:
    from qkprism.results.attribution import Attributions

_LEFT, _RIGHT = 72, 24  # pixels
_WORDS = MappingProxyType(
    {
        "gap": "gap",
        "gap_share": "share of the gap",
        "variance": "share of variance, all tokens",
        "variance_marked": "share of variance, marked keys",
    }
)


def attributions_figure(attributions: Attributions) -> go.Figure:
    """The gap between positive and negative keys as a stack of terms, and each term with its error; a row a head."""
    heads, n_terms = attributions.heads, len(attributions.terms)
    if not heads:
        raise QKPrismError("There is no head to draw. Was the choice of heads empty?")
    height = max(130, len(heads) * max(24, 8 + 7 * n_terms))
    fig, height = panels(1, 2, height, across=32, edges=_LEFT + _RIGHT)
    _draw_stack(fig, attributions)
    _draw_terms(fig, attributions)
    for panel, name in enumerate(("Stacked: they sum to the gap", "Each term with its standard error"), 1):
        name_panel(fig, panel, name)
    rows = {"range": [len(heads) - 0.4, -0.6], "tickvals": list(range(len(heads))), "matches": "y"}
    fig.update_yaxes(**rows, ticktext=[plain(head) for head in heads])
    fig.layout.yaxis2.update(showticklabels=False)
    fig.update_xaxes(title_text="mean logit gap, positive less negative keys", zeroline=True, zerolinecolor=MUTED)
    fig.update_layout(barmode="relative", bargap=0.3)
    legend_above(fig, 24, height, traceorder="normal")
    methods = ", ".join(dict.fromkeys(attributions.method.values()))
    return finish(
        fig,
        title="What each feature adds to the gap between positive and negative keys",
        subtitle=facts(
            attributions.provenance,
            f"{methods} split" if methods else "",
            count(len(heads), "head"),
            count(attributions.n, "example"),
        ),
        caption=_gap_caption(attributions),
        plot_height=height,
        left=_LEFT,
        right=_RIGHT,
        above=58,
    )


def _draw_stack(fig: go.Figure, attributions: Attributions) -> None:
    gaps, rows = attributions.values["gap"], list(range(len(attributions.heads)))
    for j, term in enumerate(attributions.terms):
        fig.add_bar(
            x=[known(value) for value in gaps[:, j].tolist()],
            y=rows,
            orientation="h",
            name=plain(shortened(term)),
            legendgroup=f"term {j}",
            marker={"color": term_color(term, attributions.features, attributions.provenance), "line": {"width": 0}},
            hovertext=[_gap_text(attributions, i, j) for i in rows],
            hoverinfo="text",
            **on(1),
        )
    whole = gaps.sum(1).tolist()
    fig.add_scatter(
        x=[known(value) for value in whole],
        y=rows,
        mode="markers",
        name="whole gap",
        marker={"symbol": "diamond", "size": 8, "color": INK, "line": {"color": "white", "width": 1}},
        hovertext=[
            f"<b>{plain(head)}</b><br>whole gap {number(value)}"
            for head, value in zip(attributions.heads, whole, strict=True)
        ],
        hoverinfo="text",
        **on(1),
    )


def _draw_terms(fig: go.Figure, attributions: Attributions) -> None:
    gaps, errors = attributions.values["gap"], attributions.errors["gap"]
    n_heads, n_terms = gaps.shape
    for j, term in enumerate(attributions.terms):
        color = term_color(term, attributions.features, attributions.provenance)
        offset = 0.7 * ((j + 0.5) / n_terms - 0.5)
        fig.add_scatter(
            x=[known(value) for value in gaps[:, j].tolist()],
            y=[i + offset for i in range(n_heads)],
            error_x=error_bars([known(value) for value in errors[:, j].tolist()], color, thickness=1.5),
            mode="markers",
            name=plain(shortened(term)),
            legendgroup=f"term {j}",
            showlegend=False,
            marker={"size": 6, "color": color, "line": {"color": INK, "width": 0.5}},
            hovertext=[_gap_text(attributions, i, j) for i in range(n_heads)],
            hoverinfo="text",
            **on(2),
        )


def _gap_text(attributions: Attributions, i: int, j: int) -> str:
    head = attributions.heads[i]
    lines = [f"<b>{plain(shortened(attributions.terms[j]))} in {plain(head)}</b>"]
    for name, values in attributions.values.items():
        value, error = float(values[i, j]), float(attributions.errors[name][i, j])
        lines.append(f"{_WORDS.get(name, plain(name))} {number(value, error)}")
    return "<br>".join(lines)


def _gap_caption(attributions: Attributions) -> str:
    large = [head for head in attributions.heads if attributions.condition.get(head, 1.0) >= CONDITION]
    overlap = (
        f"In {', '.join(map(str, large[:8]))}{' and others' if len(large) > 8 else ''} the features overlap (condition "
        f"number {CONDITION:g} or more): their parts can be large and cancel."
        if large
        else ""
    )
    return paragraphs(
        "How much higher a head’s logits are at positive than at negative keys, and which terms make the difference; "
        "grey is what no feature explains. The share of the gap (point at a mark) means little where the whole gap is "
        "near 0.",
        overlap,
        few(attributions.notes),
    )
