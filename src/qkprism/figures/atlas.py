"""The heads of a model as a map, coloured by any score of its atlas; and how much of their attention parts rebuild."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from qkprism.errors import QKPrismError
from qkprism.figures.grid import LEFT, RIGHT, Grid, color_bar, draw_map, name_color_bar, scale
from qkprism.figures.theme import SEQUENTIAL, WIDTH, finish, shortened
from qkprism.figures.words import count
from qkprism.heads import Head

if TYPE_CHECKING:
    import pandas as pd


def atlas_figure(frame: pd.DataFrame, score: str, model: str, *, width: int = WIDTH) -> go.Figure:
    """Layers against heads, coloured by one column of an atlas."""
    columns = [str(name) for name in frame if name != "head"]
    if score not in columns:
        raise QKPrismError(f"{score!r} is not a score of this atlas. Use one of: {', '.join(columns)}.")
    values = {Head.parse(head): float(value) for head, value in zip(frame["head"], frame[score], strict=True)}
    grid = Grid.of(values, width)
    texts = {head: f"{head}: {score} {value:.3f}" for head, value in values.items()}
    known = [value for value in values.values() if math.isfinite(value)]
    shares = max(known) <= 1
    fig = go.Figure()
    draw_map(
        fig,
        1,
        grid,
        values,
        texts,
        letters=lambda value: f"{100 * value:.0f}" if shares else f"{value:.1f}",
        absent="not known",
    )
    fig.update_layout(
        coloraxis={"colorscale": scale(SEQUENTIAL), "cmin": min(0.0, *known), "cmax": max(known)}
        | {"colorbar": color_bar(grid)}
    )
    name_color_bar(fig, grid, "share" if shares else "value")
    return finish(
        fig,
        title=f"{score[0].upper()}{score[1:]}",
        subtitle=f"{shortened(model)} · {count(len(values), 'head')}",
        caption=CAPTIONS.get(score.partition(":")[0], ""),
        width=width,
        plot_height=grid.height,
        left=LEFT,
        right=RIGHT,
        above=24,
    )


CAPTIONS = {
    "variation": "Total variation between the true rows of held-out text and rows rebuilt from the parts named alone: "
    "0 is exact, 1 shares nothing. A head at rest on the first token has little of it with nothing explained.",
    "variation without first": "Total variation of rows without their first token, where many heads rest.",
    "suffice": "The share of held-out rows that the parts named rebuild to within 0.1 of total variation.",
    "decides": "The share of held-out rows in which this part gives the most attended token most of its lead.",
    "signature": "What queries and keys hold, by held-out R2 from class means. Induction-like: keys hold the token "
    "before them better than their own. A score beside the attention that was measured, not a verdict.",
    "attention": "The mean share of attention that goes to such tokens, on plain text; numbers are percent.",
}


BESIDE = ("+ named", "+ permuted labels")


def coverage_figure(frame: pd.DataFrame, *, width: int = WIDTH) -> go.Figure:
    """How far rebuilt rows are from the true ones as parts are added: the median head and the middle half."""
    fig = go.Figure()
    looks = (("variation", "all tokens", "#0072B2"), ("variation without first", "without the first token", "#D55E00"))
    for name, title, color in looks:
        stages = [str(column) for column in frame if str(column).startswith(f"{name}:")]
        for beside in (False, True):  # named features stand beside the directions of the match
            these = [column for column in stages if (column.partition(": ")[2] in BESIDE) is beside]
            _add_stages(fig, frame[these], title, color, "markers" if beside else "lines+markers")
    fig.update_yaxes(title_text="total variation", rangemode="tozero")
    fig.update_layout(legend={"x": 1, "xanchor": "right", "y": 1, "yanchor": "top"})
    return finish(
        fig,
        title="What rebuilds attention: parts added one after another",
        subtitle=f"{count(len(frame), 'head')}, held-out text",
        caption="Points are the median head, whiskers the middle half of heads. Each stage has all parts before it. "
        "Named features, and as much of permuted labels, stand where directions of the match would. 0 is the true row.",
        width=width,
        plot_height=320,
    )


def _add_stages(fig: go.Figure, table: pd.DataFrame, title: str, color: str, mode: str) -> None:
    """The median head at every stage, and the middle half."""
    low, middle, high = (table.quantile(share).to_numpy() for share in (0.25, 0.5, 0.75))
    fig.add_scatter(
        x=[str(column).partition(": ")[2] for column in table],
        y=middle.tolist(),
        mode=mode,
        name=title,
        showlegend=mode != "markers",
        line={"color": color, "width": 2},
        marker={"size": 8},
        error_y={
            "array": (high - middle).tolist(),
            "arrayminus": (middle - low).tolist(),
            "color": color,
            "thickness": 1,
        },
        hovertemplate=f"{title}, %{{x}}: median %{{y:.3f}}<extra></extra>",
    )
