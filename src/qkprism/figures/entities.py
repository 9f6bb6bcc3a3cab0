"""`entities_figure`: does the rank depend on how many entities a contrast draws from? (appendix of the paper)"""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.figures.panels import legend_above, name_panel, on
from qkprism.figures.theme import FEATURE_COLORS, axis, finish, plain
from qkprism.figures.words import count, known

if TYPE_CHECKING:
    from qkprism.studies.entities import EntityRanks

RULES = {
    "energy": "99% of the energy, raw",
    "balanced": "99% of the energy, balanced",
    "heldout": "held-out test",
}


def entities_figure(ranks: EntityRanks) -> go.Figure:
    """A row of panels a contrast, a panel a rule, a line a head."""
    frame = ranks.to_frame()
    contrasts, heads = [*dict.fromkeys(frame["feature"])], [*dict.fromkeys(frame["head"])]
    height = 260 * len(contrasts)
    fig = make_subplots(rows=len(contrasts), cols=len(RULES), horizontal_spacing=0.07, vertical_spacing=0.2)
    for row, contrast in enumerate(contrasts):
        for column, (rule, words) in enumerate(RULES.items()):
            panel = len(RULES) * row + column + 1
            for i, head in enumerate(heads):
                rows = frame[(frame["feature"] == contrast) & (frame["head"] == head)]
                fig.add_scatter(
                    x=rows["entities"].tolist(),
                    y=[known(value) for value in rows[rule]],
                    mode="lines+markers",
                    name=plain(head),
                    legendgroup=head,
                    showlegend=panel == 1,
                    line={"color": FEATURE_COLORS[i % len(FEATURE_COLORS)], "width": 1.5},
                    **on(panel),
                )
            name_panel(fig, panel, f"{contrast}: {words}")
            fig.update_xaxes(title="entities to draw from", selector={"anchor": axis("y", panel)})
            fig.update_yaxes(rangemode="tozero", selector={"anchor": axis("x", panel)})
    legend_above(fig, 30, height)
    return finish(
        fig,
        title="Ranks against the number of entities",
        subtitle=f"{count(len(heads), 'head')}, {int(frame['n'].max())} examples a contrast",
        caption="A flat line: the rank is the head's, not that of the words that were used. A contrast of few entities "
        "cannot have more directions than they differ in.",
        plot_height=height,
        above=64,
        below=60,
    )
