"""The heads of a model as a map, coloured by any score of its atlas; and how much of their attention parts rebuild."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import plotly.graph_objects as go

from qkprism.errors import QKPrismError
from qkprism.figures.grid import Grid, color_axis, draw_map, finish_map
from qkprism.figures.theme import SEQUENTIAL, shortened
from qkprism.figures.words import count
from qkprism.heads import Head

if TYPE_CHECKING:
    import pandas as pd


def atlas_figure(frame: pd.DataFrame, score: str, model: str) -> go.Figure:
    """Layers against heads, coloured by one column of an atlas."""
    columns = [str(name) for name in frame if name != "head"]
    if score not in columns:
        raise QKPrismError(f"{score!r} is not a score of this atlas. Use one of: {', '.join(columns)}.")
    values = {Head.parse(head): float(value) for head, value in zip(frame["head"], frame[score], strict=True)}
    grid = Grid.of(values)
    texts = {head: f"{head}: {score} {value:.3f}" for head, value in values.items()}
    finite = [value for value in values.values() if math.isfinite(value)]
    shares = max(finite) <= 1
    fig = go.Figure()

    def letters(value: float) -> str:
        return f"{100 * value:.0f}" if shares else f"{value:.1f}"

    draw_map(fig, 1, grid, values, texts, letters=letters, absent="not known")
    color_axis(fig, grid, SEQUENTIAL, (min(0.0, *finite), max(finite)), "share" if shares else "value")
    return finish_map(
        fig,
        grid.height,
        title=f"{score[0].upper()}{score[1:]}",
        subtitle=f"{shortened(model)} · {count(len(values), 'head')}",
        caption=CAPTIONS.get(score.partition(":")[0], ""),
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
