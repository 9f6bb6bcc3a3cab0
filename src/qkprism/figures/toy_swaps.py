"""Swaps in toy heads: attention before and after as in the paper, and how far edits are from the truth (section 4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.controls import BY_NAME
from qkprism.errors import QKPrismError
from qkprism.figures.theme import MUTED, WIDTH, axis
from qkprism.figures.toy_panels import METHOD_NAMES, cell_title, finish_panels, method_look, slack_panels

if TYPE_CHECKING:
    from qkprism.toy.cells import Cell
    from qkprism.toy.interventions import Swap

BARS = (
    ("before", "none", "z1+z2"),
    ("z1", "feature", "z1"),
    ("z2", "feature", "z2"),
    ("z1 + z2", "feature", "z1+z2"),
    ("rand r1", "gaussian", "z1"),
    ("rand r2", "gaussian", "z2"),
    ("rand r1 + r2", "gaussian", "z1+z2"),
)
SIDES = (("on_original", "on the original token", "#56B4E9"), ("on_target", "on the target token", "#D55E00"))
_PANEL, _BETWEEN = 170, 88


def bars_in(rows: Mapping[tuple[Cell, str, str], Swap]) -> list[tuple[str, str, str]]:
    """The bars that were measured: a study may have no random controls."""
    known = {(control, feature) for _, control, feature in rows}
    return [bar for bar in BARS if bar[1:] in known]


def swap_bars(swaps: Sequence[Swap], cells: Sequence[Cell], *, method: str = "raw", width: int = WIDTH) -> go.Figure:
    """Attention on the original and the target token before and after every edit, a panel a head."""
    rows = {
        (row.cell, row.control, row.feature): row
        for row in swaps
        if row.target == "given" and row.method in ("", method)
    }
    if missing := [cell for cell in cells if (cell, "feature", "z1") not in rows]:
        raise QKPrismError(f"There are no swaps of {missing[0]} by the method {method!r}.")
    lines, columns = -(-len(cells) // 2), min(2, len(cells))
    height = lines * _PANEL + (lines - 1) * _BETWEEN
    fig = make_subplots(
        rows=lines,
        cols=columns,
        subplot_titles=[cell_title(cell) for cell in cells],
        horizontal_spacing=56 / width,
        vertical_spacing=_BETWEEN / height if lines > 1 else 0,
    )
    bars = bars_in(rows)
    for panel, cell in enumerate(cells, 1):
        for side, name, color in SIDES:
            values = {title: getattr(rows[cell, control, feature], side) for title, control, feature in bars}
            _bars(fig, panel, values, name, color)
        fig.layout[axis("xaxis", panel)].update(tickfont={"size": 11}, showgrid=False)
        fig.layout[axis("yaxis", panel)].update(title_text="attention" if panel % 2 else "", range=[0, 1])
    fig.update_layout(bargap=0.25, bargroupgap=0.05)
    return finish_panels(
        fig,
        height,
        title="Swapping both features moves all the attention",
        subtitle=f"Method: {METHOD_NAMES[method]}. The target is any other token.",
        caption="As in the paper: keys of the original and the target token exchange their coordinates in the subspace "
        "of z1, of z2, of both, or in random (Gaussian) subspaces of the same dimension. What one latent leaves goes "
        "to tokens that share the rest.",
        width=width,
    )


def _bars(fig: go.Figure, panel: int, values: Mapping[str, float], name: str, color: str) -> None:
    fig.add_bar(
        x=list(values),
        y=list(values.values()),
        name=name,
        legendgroup=name,
        showlegend=panel == 1,
        marker_color=color,
        hovertemplate="%{x}: %{y:.3f} " + name + "<extra></extra>",
        xaxis=axis("x", panel),
        yaxis=axis("y", panel),
    )


def truth_figure(swaps: Sequence[Swap], *, feature: str = "z1", width: int = WIDTH) -> go.Figure:
    """How far the swap of a feature is from a true exchange of its latent, by method, in all heads."""
    shown = [row for row in swaps if row.target == "given" and row.feature == feature]
    fig, height = _by_method(shown, lambda row: row.off_truth, y="total variation", width=width)
    return finish_panels(
        fig,
        height,
        title=f"Does the swap of {feature} do what exchanging {feature} does?",
        subtitle="Total variation of attention between the edited head and one whose tokens really changed places in "
        f"{feature}; 0 is perfect.",
        caption="Points are means over heads with the same room. In the grey part the head has fewer dimensions than "
        "its latents: features share directions, and no linear edit of keys can move one alone.",
        width=width,
    )


def staying_figure(swaps: Sequence[Swap], *, width: int = WIDTH) -> go.Figure:
    """Targets that differ in z1 only, and z2's feature is swapped: attention should stay as it was."""
    shown = [row for row in swaps if row.target == "z1" and row.feature == "z2"]
    fig, height = _by_method(shown, lambda row: row.on_target, y="attention on the target", width=width)
    return finish_panels(
        fig,
        height,
        title="Does a target that differs in z1 only stay when z2 is swapped?",
        subtitle="Attention on the target after z2 is swapped, in which both tokens are equal: it should be that of no "
        "edit.",
        caption="What the paper's swap of z2 moves there is z1: the subspaces are not orthogonal.",
        width=width,
    )


def _by_method(rows: Sequence[Swap], value: Callable[[Swap], float], *, y: str, width: int) -> tuple[go.Figure, int]:
    """The swap of a feature by every method, and no edit."""
    unedited = BY_NAME["none"]
    series = {
        title: (lambda row, method=method: row.method == method and row.control == "feature")
        for method, title in METHOD_NAMES.items()
    } | {unedited.title: lambda row: row.control == unedited.name}
    looks = {title: method_look(method) for method, title in METHOD_NAMES.items()}
    line = {"color": MUTED, "width": 1.5, "dash": unedited.mark}
    looks[unedited.title] = {"line": line, "marker": {"color": MUTED, "size": 4}}
    return slack_panels(rows, series, value, looks, y=y, width=width)


def matched_figure(swaps: Sequence[Swap], *, width: int = WIDTH) -> go.Figure:
    """Targets that differ in z1 only: z1's feature moves the attention."""
    shown = [row for row in swaps if row.target == "z1"]
    limits = {(row.cell, row.control): row.on_target for row in shown if row.control in ("none", "full")}

    def moved(row: Swap) -> float:
        none, full = limits[row.cell, "none"], limits[row.cell, "full"]
        return (row.on_target - none) / (full - none)

    fig, height = _by_method([row for row in shown if row.feature == "z1"], moved, y="share of the shift", width=width)
    return finish_panels(
        fig,
        height,
        title="Does a target that differs in z1 only move when z1 is swapped?",
        subtitle="Attention that the swap of z1 brings to the target, as a share of what exchanging the whole keys "
        "brings: it should be 1.",
        caption="With fewer dimensions than latents (grey) the subspaces of z1 and z2 share directions.",
        width=width,
    )
