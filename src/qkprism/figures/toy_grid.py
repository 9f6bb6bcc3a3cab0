"""The grid of toy heads: accuracy beside what is possible, and ranks found beside the true ones (paper, section 4).

`rank_triangles` is the paper's picture with two triangles a head: below the diagonal the rank found for z1, above it
that for z2, coloured by how far it is from the true one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from qkprism.errors import QKPrismError
from qkprism.figures.grid import scale
from qkprism.figures.panels import on, panels
from qkprism.figures.theme import DIVERGING, INK, SEQUENTIAL
from qkprism.figures.toy_panels import RULES, by_kind, finish_panels, kind_title

if TYPE_CHECKING:
    from qkprism.toy.recovery import Recovery, Rule
    from qkprism.toy.results import HeadScore

CLASSES = ("exact", "1 too few", "2 too few", "3 or more too few", "too many")
COLORS = (DIVERGING[8], DIVERGING[4], DIVERGING[3], DIVERGING[1], "#E69F00")
_PANEL = 380
_BETWEEN = 84  # pixels between rows of panels, with the name of the axis


def rank_triangles(
    recovered: Sequence[Recovery],
    *,
    rule: Rule = "energy",
    seed: int = 0,
    heads: str = "trained heads",
) -> go.Figure:
    """Ranks found by a rule in the heads of one seed."""
    shown = [row for row in recovered if row.cell.seed == seed]
    if not shown:
        seeds = ", ".join(str(one) for one in sorted({row.cell.seed for row in recovered})) or "none"
        raise QKPrismError(f"There are no heads of seed {seed}. Seeds there are: {seeds}.")
    fig, height, rows_of = _panels(shown)
    for number, rows in enumerate(rows_of, 1):
        for kind, color in zip(CLASSES, COLORS, strict=True):
            _draw_triangles(fig, number, [row for row in rows if _class(row, rule) == kind], kind, color)
        _write_ranks(fig, number, rows, rule)
    room = [row for row in shown if sum(row.cell.task.ranks) < row.cell.d_head]
    exact, exact_room = (sum(_class(row, rule) == "exact" for row in rows) for rows in (shown, room))
    return finish_panels(
        fig,
        height,
        above=34,
        title=f"Ranks recovered in {heads}",
        subtitle=f"Rule: {RULES[rule]}. Seed {seed}. Exact for {exact} of {len(shown)} latents, and for "
        f"{exact_room} of {len(room)} where r1 + r2 < d_head.",
        caption="Each square is a head. Its lower triangle is the rank found for z1, the upper that for z2; colours "
        "tell how far it is from the true rank on the axes. Energy rules count the directions that hold 99% of the "
        "energy. Beyond the line the head has fewer dimensions than the latents have together: superposition.",
    )


def accuracy_grid(scores: Sequence[HeadScore]) -> go.Figure:
    """Accuracy of every cell, and by colour how far it is below the ceiling of its task; seeds are averaged."""
    fig, height, rows_of = _panels(scores)
    for number, rows in enumerate(rows_of, 1):
        _draw_accuracy(fig, number, rows)
    fig.update_layout(
        coloraxis={
            "colorscale": scale(SEQUENTIAL),
            "cmin": 0,
            "cmax": max(0.05, *(score.ceiling - score.accuracy for score in scores)),
            "colorbar": {"title": {"text": "below ceiling", "side": "right"}, "thickness": 12, "outlinewidth": 0},
        }
    )
    seeds = len({score.cell.seed for score in scores})
    return finish_panels(
        fig,
        height,
        above=34,
        title="Accuracy of trained heads alongside what is possible",
        subtitle=f"Numbers are accuracies on fresh samples, mean of {seeds} seed{'s' if seeds > 1 else ''}; colours "
        "tell how far they are below the Bayes ceiling of the task.",
        caption="In the discrete task tokens can share their latents, so no head can reach 1 at small ranks: the "
        "ceiling counts that. In the continuous task the ceiling is 1, but a dot product favours long keys, which "
        "costs most in few dimensions: with sharp attention at best " + _dot_products(scores) + ".",
        right=96,
    )


def _dot_products(scores: Sequence[HeadScore]) -> str:
    """The dot-product ceilings of the continuous task, by dimensions."""
    found = {
        min(sum(s.cell.task.ranks), s.cell.d_head): s.dot_product_ceiling
        for s in scores
        if s.cell.task.variant == "continuous"
    }
    return ", ".join(f"{found[n]:.2f} in {n}" for n in sorted(found) if n % 2 == 0) or "what Bayes allows"


def _draw_accuracy(fig: go.Figure, number: int, rows: Sequence[HeadScore]) -> None:
    ranks = sorted({r for row in rows for r in row.cell.task.ranks})
    cells = [[[s for s in rows if s.cell.task.ranks == (r1, r2)] for r1 in ranks] for r2 in ranks]
    fig.add_heatmap(
        x=ranks,
        y=ranks,
        z=[[mean(s.ceiling - s.accuracy for s in cell) if cell else None for cell in line] for line in cells],
        text=[[f"{mean(s.accuracy for s in cell):.2f}" if cell else "" for cell in line] for line in cells],
        texttemplate="%{text}",
        textfont={"size": 10},
        hovertemplate="r1=%{x} r2=%{y}<br>accuracy %{text}<br>below the ceiling %{z:.3f}<extra></extra>",
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
        **on(number),
    )


def _class(row: Recovery, rule: Rule) -> str:
    difference = int(getattr(row, rule)) - row.true
    return "too many" if difference > 0 else CLASSES[min(-difference, 3)]


def _panels(rows: Sequence[Any]) -> tuple[go.Figure, int, list[list[Any]]]:
    """A panel a d_head and variant, two in a line, the height of all, and the rows of each."""
    kinds = by_kind(rows)
    lines, titles = -(-len(kinds) // 2), [kind_title(kind) for kind in kinds]
    fig, height = panels(lines, min(2, len(kinds)), _PANEL, down=_BETWEEN, edges=0, subplot_titles=titles)
    for number, of_kind in enumerate(kinds.values(), 1):
        ranks = [r for row in of_kind for r in row.cell.task.ranks]
        low, high = min(ranks), max(ranks)
        for letter, name in (("x", "true r1"), ("y", "true r2")):
            shown = {"title_text": name, "dtick": 1, "range": [low - 0.5, high + 0.5], "showgrid": False}
            fig.layout[f"{letter}axis{number}"].update(**shown)
        _draw_limit(fig, number, of_kind[0].cell.d_head, low, high)
    return fig, height, [*kinds.values()]


def _draw_limit(fig: go.Figure, number: int, d_head: int, low: int, high: int) -> None:
    """The staircase behind the last heads with room for both latents."""
    x, y = [], []
    for r1 in range(low, high + 1):
        top = min(max(d_head - r1, low - 1), high) + 0.5
        x += [r1 - 0.5, r1 + 0.5]
        y += [top, top]
    place = on(number)
    fig.add_scatter(
        x=x,
        y=y,
        mode="lines",
        line={"color": INK, "width": 2.5},
        name="r1 + r2 = d_head",
        legendgroup="limit",
        showlegend=number == 1,
        hoverinfo="skip",
        zorder=2,
        **place,
    )


def _draw_triangles(fig: go.Figure, number: int, rows: Sequence[Recovery], kind: str, color: str) -> None:
    x: list[float | None] = []
    y: list[float | None] = []
    for row in rows:
        r1, r2 = row.cell.task.ranks
        corner = 0.48 if row.latent == "z2" else -0.48  # the corner that the other triangle does not have
        x += [r1 - 0.48, r1 + 0.48, r1 - corner, r1 - 0.48, None]
        y += [r2 - 0.48, r2 + 0.48, r2 + corner, r2 - 0.48, None]
    fig.add_scatter(
        x=x or [None],
        y=y or [None],
        mode="lines",
        line={"color": "white", "width": 1},
        fill="toself",
        fillcolor=color,
        name=kind,
        legendgroup=kind,
        showlegend=number == 1,
        hoverinfo="skip",
        **on(number),
    )


def _write_ranks(fig: go.Figure, number: int, rows: Sequence[Recovery], rule: Rule) -> None:
    sides = [-0.2 if row.latent == "z2" else 0.2 for row in rows]
    dark = {"exact", "3 or more too few"}
    fig.add_scatter(
        x=[row.cell.task.r1 + side for row, side in zip(rows, sides, strict=True)],
        y=[row.cell.task.r2 - side for row, side in zip(rows, sides, strict=True)],
        text=[str(getattr(row, rule)) for row in rows],
        mode="text",
        textfont={"size": 10, "color": ["white" if _class(row, rule) in dark else INK for row in rows]},
        hovertext=[f"{row.latent}: found {getattr(row, rule)}, true {row.true}" for row in rows],
        hoverinfo="text",
        showlegend=False,
        zorder=3,
        **on(number),
    )
