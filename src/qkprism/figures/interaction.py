"""`interaction_figure`: how strong features are at each value of the label that modulates, a panel a feature."""

from __future__ import annotations

from typing import TYPE_CHECKING

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.errors import QKPrismError
from qkprism.figures.panels import error_bars, legend_above, name_panel, on
from qkprism.figures.theme import FEATURE_COLORS, INK, finish, number, plain, shortened
from qkprism.figures.words import few

if TYPE_CHECKING:
    from qkprism.results.interaction import Interactions

_PANEL = 260  # pixels


def interaction_figure(interactions: Interactions) -> go.Figure:
    """Amplitudes with their errors against values, a line a head; dashed is 1, where factors add up."""
    if not interactions.found:
        raise QKPrismError("There is no amplitude to draw: no feature beside the label that modulates.")
    features = list(dict.fromkeys(one.feature for one in interactions.found))
    heads = list(dict.fromkeys(one.head for one in interactions.found))
    fig = make_subplots(rows=1, cols=len(features))
    for panel, feature in enumerate(features, 1):
        for one in (each for each in interactions.found if each.feature == feature):
            color = FEATURE_COLORS[heads.index(one.head) % len(FEATURE_COLORS)]
            fig.add_scatter(
                x=[plain(str(value)) for value in one.values],
                y=list(one.amplitude),
                error_y=error_bars(list(one.error), color, width=0),
                mode="lines+markers",
                line={"color": color, "dash": "solid" if one.differs else "dot"},
                name=str(one.head),
                legendgroup=str(one.head),
                showlegend=panel == 1,
                hovertext=[
                    f"<b>{plain(feature)} in {one.head}</b><br>{plain(one.label)} {plain(str(value))}: "
                    f"{number(amplitude, error)}"
                    for value, amplitude, error in zip(one.values, one.amplitude, one.error, strict=True)
                ],
                hoverinfo="text",
                **on(panel),
            )
        fig.add_hline(y=1, line={"color": INK, "width": 1.2, "dash": "dash"}, row=1, col=panel)
        name_panel(fig, panel, f"{shortened(feature, 22)}: amplitude")
        fig.layout[f"xaxis{panel}"].update(title_text=plain(interactions.found[0].label), type="category")
        fig.layout[f"yaxis{panel}"].update(title_text="amplitude / its mean over values")
    legend_above(fig, 30, _PANEL)
    caption = (
        "How strong a feature is in keys at each value of the label, beside its mean. At 1 everywhere factors add up, "
        "and a projector can exchange one; elsewhere the exchange has to go by the value. Dotted: heads in which the "
        "amplitudes cannot be told from 1. Bars: standard errors, from two halves of the examples."
    )
    return finish(
        fig,
        title="Do factors add up?",
        subtitle=f"amplitudes by {shortened(interactions.found[0].label)}",
        caption=f"{caption} {few(interactions.notes)}".strip(),
        plot_height=_PANEL,
        above=64,  # heads in the legend, and the names of panels
        below=72,
    )
