"""`spectrum_figure`: how many directions a feature has, and what speaks for them (paper, section 3; rank.py).

Three panels over the same directions: strengths beside their two nulls, the held-out t of each direction, and the
share of logit variance that the first directions explain beside the most that as many could.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from qkprism.figures.panels import line, name_panel, notice, on, panels, write
from qkprism.figures.theme import INK, ROLES, axis, finish, number, shortened
from qkprism.figures.words import BELIEVE, paragraphs

if TYPE_CHECKING:
    from qkprism.core.feature import Feature, Spectrum

SHOWN = 20
_PANEL = 300
_LEFT = 76  # pixels
_TITLES = ("Strength alongside its nulls", "Held-out test", "Logit variance explained")
_UNDER = 120  # pixels of axis and legend below a panel


def spectrum_figure(feature: Feature) -> go.Figure:
    """Strengths beside their nulls, held-out t, and logit variance explained."""
    fig, height = panels(1, 3, _PANEL, edges=_LEFT + 24)
    shown = shown_directions(feature)
    _draw_strengths(fig, feature, shown)
    _draw_heldout(fig, feature, shown)
    _draw_explained(fig, feature.spectrum, shown)
    _mark_ranks(fig, feature)
    for i, title in enumerate(_TITLES, 1):
        name_panel(fig, i, title, shift=34)
        name = "direction, strongest first" if i < 3 else "number of leading directions"
        fig.layout[f"xaxis{i}"].update(title_text=name, range=[0.2, shown + 0.5])
    fig.update_xaxes(matches="x")
    fig.update_layout({axis("legend", i): _legend_below(fig, i, height) for i in (1, 2, 3)})
    return finish(
        fig,
        title=_title(feature),
        subtitle=_subtitle(feature),
        caption=_caption(feature, shown),
        plot_height=height,
        left=_LEFT,
        above=62,
        below=_UNDER,
    )


def shown_directions(feature: Feature) -> int:
    """How many directions the figure opens with; the others are reached by zooming out."""
    return min(feature.d_head, max(SHOWN, 2 * feature.rank, 2 * (feature.rank_heldout or 0)))


def _draw_strengths(fig: go.Figure, feature: Feature, shown: int) -> None:
    spectrum = feature.spectrum
    numbers = _numbers(feature.d_head)
    for kind, name in (("shuffled", "shuffled labels"), ("null", "random signs")):
        color = ROLES["shuffled_null" if kind == "shuffled" else "sign_flip_null"]
        for part, fill in (("high", None), ("mean", "tonexty")):
            fig.add_scatter(
                x=numbers,
                y=getattr(spectrum, f"{kind}_{part}").tolist(),
                name=f"{name}, mean to highest" if part == "mean" else f"{name}, highest",
                mode="lines",
                line={"color": color, "width": 1.5 if part == "mean" else 0, "dash": "dash"},
                fill=fill,
                fillcolor=_faded(color),
                legend="legend",
                legendgroup=kind,
                showlegend=part == "mean",
                hoverinfo="skip",
                **on(1),
            )
    fig.add_scatter(
        x=numbers,
        y=spectrum.strength.tolist(),
        name="strength",
        mode="lines+markers",
        line={"color": ROLES["strength"], "width": 1.5},
        marker={"size": 6 if shown <= 40 else 4},
        legend="legend",
        hovertext=[_strength_text(spectrum, i) for i in range(feature.d_head)],
        hoverinfo="text",
        **on(1),
    )
    scale = _strength_scale(spectrum, shown)
    metric = feature.choices.metric
    fig.layout.yaxis.update(title_text=f"strength (unscaled logits, {metric} metric)", tickformat="~g", **scale)
    if not float(spectrum.strength[0]) > 10 ** scale["range"][0]:  # one query for all examples, as in a first layer
        notice(fig, 1, "strength is numerically zero")


def _strength_scale(spectrum: Spectrum, shown: int) -> dict[str, Any]:
    """The logarithmic axis of strengths, for the directions that are shown."""
    names = ("strength", "null_mean", "null_high", "shuffled_mean", "shuffled_high")
    values = [v for name in names for v in getattr(spectrum, name)[:shown].tolist() if math.isfinite(v) and v > 0]
    top = max(values, default=1.0)
    # numerical zeros of data without full rank would stretch the axis over many decades
    low, high = math.log10(max(min(values, default=0.1 * top), 1e-4 * top)) - 0.1, math.log10(top) + 0.1
    # plotly's own labels are too many over two decades and too few over one
    steps = (1, 2, 5) if high - low < 3.5 else (1,)
    decades = range(math.floor(low) - 9, math.ceil(high) + 1)
    ticks = [step * 10.0**decade for decade in decades for step in (steps if decade >= math.floor(low) else (1,))]
    return {"type": "log", "range": [low, high], "tickmode": "array", "tickvals": ticks}


def _draw_heldout(fig: go.Figure, feature: Feature, shown: int) -> None:
    t, run, threshold = feature.spectrum.t.tolist(), feature.rank_heldout or 0, feature.choices.threshold
    numbers = _numbers(feature.d_head)
    fig.layout.yaxis2.update(title_text="held-out t (standard errors above 0)")
    if feature.rank_heldout is None or not any(map(math.isfinite, t)):
        fig.layout.yaxis2.update(range=[0, 2 * threshold])
        notice(fig, 2, "not tested")
        # an empty panel still needs its axes
        fig.add_scatter(x=numbers, y=[None] * len(t), showlegend=False, hoverinfo="skip", xaxis="x2", yaxis="y2")
        return
    texts = [_heldout_text(feature, i) for i in range(feature.d_head)]
    parts = (
        ("not counted", slice(run, None), "white"),
        (f"leading run above {threshold:g}", slice(0, run), ROLES["strength"]),
    )
    for name, part, color in parts:
        fig.add_scatter(
            x=numbers[part],
            y=t[part],
            name=name,
            mode="markers",
            marker={
                "size": 8 if shown <= 40 else 6,
                "color": color,
                "line": {"color": ROLES["strength"], "width": 1.5},
            },
            legend="legend2",
            hovertext=texts[part],
            hoverinfo="text",
            **on(2),
        )
    line(fig, 2, "threshold", y=threshold, width=1.5)
    seen = [v for v in t[:shown] if math.isfinite(v)] + [threshold, 0.0]
    margin = 0.06 * (max(seen) - min(seen))
    fig.layout.yaxis2.update(range=[min(seen) - margin, max(seen) + margin])


def _draw_explained(fig: go.Figure, spectrum: Spectrum, shown: int) -> None:
    explained, ceiling = spectrum.explained.tolist(), spectrum.ceiling.tolist()
    numbers = _numbers(len(explained))
    for name, values, color, dash in (
        ("most that any directions can", ceiling, ROLES["ceiling"], "dash"),
        ("these directions", explained, ROLES["explained"], "solid"),
    ):
        fig.add_scatter(
            x=numbers,
            y=values,
            name=name,
            mode="lines" if dash == "dash" else "lines+markers",
            line={"color": color, "width": 1.5, "dash": dash},
            marker={"size": 6 if shown <= 40 else 4},
            legend="legend3",
            hovertext=[
                f"first {r}: {_percent(share)} explained, ceiling {_percent(most)}"
                for r, share, most in zip(numbers, explained, ceiling, strict=True)
            ],
            hoverinfo="text",
            **on(3),
        )
    # oblique directions can do worse than none
    low = min([0.0, *(1.1 * value for value in explained[:shown] if math.isfinite(value))])
    fig.layout.yaxis3.update(title_text="share of the variance of logits", range=[low, 1.03], tickformat=".0%")
    if not any(map(math.isfinite, explained)):
        notice(fig, 3, "not available")


def _mark_ranks(fig: go.Figure, feature: Feature) -> None:
    """Lines behind the last direction of each rank, named above the first panel."""
    rule, heldout = _rule(feature), feature.rank_heldout
    if heldout == feature.rank and rule != "held out":
        rule += ", and held out"
    marks = [(feature.rank, f"rank {feature.rank} ({rule})", "solid")]
    if heldout is not None and heldout != feature.rank:
        marks.append((heldout, f"held out {heldout}", "dot"))
    shown = shown_directions(feature)
    for row, (rank, label, dash) in enumerate(marks):
        for i in (1, 2, 3):
            line(fig, i, label, x=rank + 0.5, dash=dash, width=1)
        look = {"yanchor": "bottom", "yshift": 14 * (len(marks) - 1 - row), "font": {"size": 11, "color": INK}}
        look["xanchor"] = "left" if rank < 0.25 * shown else "right" if rank > 0.75 * shown else "center"
        write(fig, 1, label, "rank", rank + 0.5, 1, domain="y", **look)


def _legend_below(fig: go.Figure, panel: int, height: int) -> dict[str, Any]:
    """A legend under the axis of a panel, where it hides no data."""
    across, up = fig.layout[f"xaxis{panel}"].domain, fig.layout[f"yaxis{panel}"].domain
    place = {"x": across[0], "xanchor": "left", "y": up[0] - 48 / height, "yanchor": "top"}
    return place | {"font": {"size": 11}, "tracegroupgap": 0, "traceorder": "reversed", "itemwidth": 30}


def _rule(feature: Feature) -> str:
    rule = feature.choices.rank
    if isinstance(rule, int):
        return "as set"
    if rule == "own" and feature.rank_own == feature.rank:
        return "mostly its own"
    if rule in ("balanced", "own"):
        return "energy" if feature.rank_balanced is None else "balanced"
    return "held out" if rule == "heldout" else rule


def _title(feature: Feature) -> str:
    model = feature.provenance.get("model")
    place = f"{feature.head} of {shortened(model)}" if model else str(feature.head)
    return f"{shortened(feature.contrast)} in {place}: rank {feature.rank}"


def _subtitle(feature: Feature) -> str:
    same = abs(feature.n_effective - feature.n) < 0.5
    gap = feature.logit_gap
    parts = [
        feature.evidence,
        f"n = {feature.n}" if same else f"n = {feature.n} ({feature.n_effective:.0f} effective)",
        f"logit gap {number(gap.total, gap.error)}" if gap else "no logit gap within a prompt",
    ]
    if math.isfinite(feature.salience_energy):
        t = "" if math.isnan(feature.salience_t) else f" (t = {feature.salience_t:.1f})"
        parts.append(f"salience {_percent(feature.salience_energy)} of energy{t}")
    return " · ".join(parts)


def _caption(feature: Feature, shown: int) -> str:
    middle = (
        f"Middle: each direction on examples that did not choose it; filled ones count, up to the first below "
        f"the line at {feature.choices.threshold:g}."
    )
    if feature.rank_heldout is None:
        middle = f"Middle: {feature.evidence}."
    seen = f"Shown: {shown} of {feature.d_head} directions; double-click for all." if shown < feature.d_head else ""
    return paragraphs(
        "Left: directions above both bands are stronger than in any of a few null draws (grey: random signs on the "
        "examples; orange: positive and negative reshuffled among the marked keys). The test is in the next panel.",
        middle,
        "Right: how much of the head's logits these directions carry; far below the dashed line, the head also "
        "uses others.",
        BELIEVE if feature.rank_heldout == 0 else "",
        " ".join([seen, *feature.notes]),
    )


def _strength_text(spectrum: Spectrum, i: int) -> str:
    return (
        f"direction {i + 1}<br>strength {number(float(spectrum.strength[i]))}"
        f"<br>random signs: mean {number(float(spectrum.null_mean[i]))}, highest {number(float(spectrum.null_high[i]))}"
        f"<br>shuffled labels: mean {number(float(spectrum.shuffled_mean[i]))}, "
        f"highest {number(float(spectrum.shuffled_high[i]))}"
    )


def _heldout_text(feature: Feature, i: int) -> str:
    spectrum = feature.spectrum
    return (
        f"direction {i + 1}<br>held-out t {number(float(spectrum.t[i]))}"
        f"<br>agreement of two halves up to here: queries {number(float(spectrum.query_agreement[i]))}, "
        f"keys {number(float(spectrum.key_agreement[i]))} (chance {number((i + 1) / feature.d_head)})"
    )


def _numbers(d_head: int) -> list[int]:
    return list(range(1, d_head + 1))


def _percent(share: float) -> str:
    return "none" if math.isnan(share) else f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def _faded(color: str) -> str:
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.25)"
