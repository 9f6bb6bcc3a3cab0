"""A line a head against the values of something: ranks by numbers of entities, amplitudes by the values of a label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from qkprism.errors import QKPrismError
from qkprism.figures.panels import error_bars, legend_above, line, name_panel, on, panels
from qkprism.figures.theme import FEATURE_COLORS, finish, number, plain, shortened
from qkprism.figures.words import count, few, known

if TYPE_CHECKING:
    from qkprism.results.interaction import Interactions
    from qkprism.studies.binding_study import EntityRanks

_PANEL, _BETWEEN = 260, 96  # pixels
RULES = {
    "energy": "99% of the energy, raw",
    "balanced": "99% of the energy, balanced",
    "heldout": "held-out test",
}


def interaction_figure(interactions: Interactions) -> go.Figure:
    """Amplitudes with their errors against values, a panel a feature; dashed is 1, where factors add up."""
    if not interactions.found:
        raise QKPrismError("There is no amplitude to draw: no feature beside the label that modulates.")
    features = list(dict.fromkeys(one.feature for one in interactions.found))
    heads = list(dict.fromkeys(str(one.head) for one in interactions.found))
    label = plain(interactions.found[0].label)
    fig, height = panels(1, len(features), _PANEL)
    for panel, feature in enumerate(features, 1):
        for one in (each for each in interactions.found if each.feature == feature):
            values = [plain(str(value)) for value in one.values]
            texts = [
                f"<b>{plain(feature)} in {one.head}</b><br>{label} {value}: {number(amplitude, error)}"
                for value, amplitude, error in zip(values, one.amplitude, one.error, strict=True)
            ]
            _draw(
                fig, panel, heads, str(one.head), values, one.amplitude,
                errors=one.error, dash="solid" if one.differs else "dot", hovertext=texts, hoverinfo="text",
            )  # fmt: skip
        line(fig, panel, y=1)
        name_panel(fig, panel, f"{shortened(feature, 22)}: amplitude")
        fig.layout[f"xaxis{panel}"].update(title_text=label, type="category")
        fig.layout[f"yaxis{panel}"].update(title_text="amplitude / its mean over values")
    caption = (
        "How strong a feature is in keys at each value of the label, over its mean. At 1 everywhere factors add up, "
        "and a projector can exchange one; elsewhere the exchange has to go by the value. Dotted: heads in which the "
        "amplitudes cannot be told from 1. Bars: standard errors, from two halves of the examples."
    )
    legend_above(fig, 30, height)
    return finish(
        fig,
        title="Do factors add up?",
        subtitle=f"amplitudes by {shortened(interactions.found[0].label)}",
        caption=f"{caption} {few(interactions.notes)}".strip(),
        plot_height=height,
        above=64,  # heads in the legend, and the names of panels
        below=72,
    )


def entities_figure(ranks: EntityRanks) -> go.Figure:
    """Does the rank depend on how many entities a contrast draws from? A row of panels a contrast, a panel a rule."""
    frame = ranks.to_frame()
    contrasts, heads = [*dict.fromkeys(frame["feature"])], [*dict.fromkeys(frame["head"])]
    fig, height = panels(len(contrasts), len(RULES), _PANEL, down=_BETWEEN)
    places = [(contrast, rule) for contrast in contrasts for rule in RULES]
    for panel, (contrast, rule) in enumerate(places, 1):
        for head in heads:
            rows = frame[(frame["feature"] == contrast) & (frame["head"] == head)]
            _draw(fig, panel, heads, head, rows["entities"].tolist(), rows[rule].tolist())
        name_panel(fig, panel, f"{contrast}: {RULES[rule]}")
        fig.layout[f"xaxis{panel}"].update(title_text="entities to draw from")
        fig.layout[f"yaxis{panel}"].update(rangemode="tozero", title_text="rank")
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


def _draw(
    fig: go.Figure,
    panel: int,
    heads: Sequence[str],
    head: str,
    x: Sequence[Any],
    y: Sequence[float],
    *,
    errors: Sequence[float] | None = None,
    dash: str = "solid",
    **hover: Any,
) -> None:
    """The line of one of the heads."""
    color = FEATURE_COLORS[heads.index(head) % len(FEATURE_COLORS)]
    fig.add_scatter(
        x=x,
        y=[known(value) for value in y],
        error_y=None if errors is None else error_bars(list(errors), color, width=0),
        mode="lines+markers",
        name=plain(head),
        legendgroup=head,
        showlegend=panel == 1,
        line={"color": color, "width": 1.5, "dash": dash},
        **hover,
        **on(panel),
    )
