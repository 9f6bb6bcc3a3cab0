"""How well subspaces tell the categories of held-out keys apart, beside controls of the same rank: bars."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from qkprism.controls import BY_NAME, RIVALS
from qkprism.figures.panels import error_bars, line, name_panel, on, panels
from qkprism.figures.theme import GRID, MUTED, axis, feature_color, finish, number, plain
from qkprism.figures.words import count, facts, known

if TYPE_CHECKING:
    from qkprism.results.effects import Effects

_TITLES = {"accuracy": "accuracy of the nearest centroid", "silhouette": "silhouette"}
_PANEL, _BETWEEN, _LEFT = 170, 100, 64  # pixels


@dataclass(frozen=True)
class Bar:
    """One subspace: its place, name, colour, score and error."""

    name: str
    color: str
    value: float
    error: float
    text: str


def separation_figure(found: Effects, heads: Sequence[str]) -> go.Figure:
    """Accuracy on the left, silhouettes on the right, a row a head."""
    fig, height = panels(len(heads), len(found.targets), _PANEL, down=_BETWEEN, edges=_LEFT + 24)
    for panel, (head, target) in enumerate(product(heads, found.targets), 1):
        _draw(fig, panel, _bars(found, head, target))
        name_panel(fig, panel, f"{head}: {_TITLES.get(target, target)}")
        if target == "accuracy":
            line(fig, panel, dash="dot", width=2, y=1 / found.provenance["labels"])
    return finish(
        fig,
        title=f"Which {found.provenance['label']} is it? Held-out items in subspaces of keys",
        subtitle=facts(
            found.provenance,
            f"{found.provenance['labels']} labels",
            count(len(heads), "head"),
            _lists(found),
        ),
        caption="Colour: the feature's subspace; grey: subspaces of the same number of dimensions. Accuracy: how often "
        "the nearest centroid, of other items, has the item's category; the dotted line is guessing. Silhouette: 1 is "
        "far apart, 0 mixed. Lines on bars: one standard deviation over draws, or the standard error over "
        f"{'lists' if found.provenance.get('items') is None else 'different items'} where there is one draw. "
        "Key PCA knows no labels: where it does as well, the category is simply where keys differ "
        "most.",
        plot_height=height,
        left=_LEFT,
        above=34,
        below=100,
    )


def _lists(found: Effects) -> str:
    """What the scores are of."""
    provenance = found.provenance
    if provenance.get("items") is None:
        return f"{int(found.n[0])} lists of held-out items"
    return f"{provenance['items']} different held-out items in {provenance['examples']} lists"


def _bars(found: Effects, head: str, target: str) -> list[Bar]:
    rows = {
        (row["feature"], row["control"]): row
        for row in found.to_frame().to_dict("records")
        if (row["head"], row["target"]) == (head, target)
    }
    bars = []
    for feature in found.features:
        rank, color = rows[feature, "feature"]["rank"], feature_color(feature, found.features)
        bars.append(_bar(rows[feature, "feature"], f"<b>{plain(feature)}</b> ({rank})", color))
        bars += [_bar(rows[feature, rival.name], rival.title, rival.shade) for rival in RIVALS]
    whole = BY_NAME["full"]
    return [*bars, _bar(rows["", whole.name], whole.title, whole.shade)]


def _bar(row: Mapping[Hashable, Any], title: str, color: str) -> Bar:
    error = row["score_error"] if row["spread"] != row["spread"] else row["spread"]
    return Bar(title, color, row["score"], error, f"{title}: {number(row['score'], error)}")


def _draw(fig: go.Figure, panel: int, bars: Sequence[Bar]) -> None:
    places = list(range(len(bars)))
    fig.add_bar(
        x=places,
        y=[known(bar.value) for bar in bars],
        marker={"color": [bar.color for bar in bars]},
        error_y=error_bars([known(bar.error) for bar in bars], MUTED, width=3),
        hovertext=[bar.text for bar in bars],
        hoverinfo="text",
        showlegend=False,
        **on(panel),
    )
    fig.layout[axis("xaxis", panel)].update(
        tickvals=places, ticktext=[bar.name for bar in bars], tickangle=-40, tickfont={"size": 11}, gridcolor=GRID
    )
