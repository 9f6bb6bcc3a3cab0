"""How well subspaces tell the categories of held-out keys apart, beside controls of the same rank: bars."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.controls import BY_NAME, RIVALS
from qkprism.figures.theme import GRID, INK, MUTED, WIDTH, axis, feature_color, finish, number, plain
from qkprism.figures.words import count, facts, known, name_panel

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


def separation_figure(found: Effects, heads: Sequence[str], *, width: int = WIDTH) -> go.Figure:
    """Accuracy on the left, silhouettes on the right, a row a head."""
    height = len(heads) * _PANEL + (len(heads) - 1) * _BETWEEN
    fig = make_subplots(
        rows=len(heads),
        cols=len(found.targets),
        horizontal_spacing=72 / (width - _LEFT - 24),
        vertical_spacing=_BETWEEN / height if len(heads) > 1 else 0,
    )
    panels = [(head, target) for head in heads for target in found.targets]
    for panel, (head, target) in enumerate(panels, 1):
        _draw(fig, panel, _bars(found, head, target))
        name_panel(fig, panel, f"{head}: {_TITLES.get(target, target)}")
        if target == "accuracy":
            chance = 1 / found.provenance["labels"]
            where = {"xref": f"{axis('x', panel)} domain", "yref": axis("y", panel)}
            fig.add_shape(type="line", x0=0, x1=1, y0=chance, y1=chance, line={"color": INK, "dash": "dot"}, **where)
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
        width=width,
        plot_height=height,
        left=_LEFT,
        above=34,
        below=100,
    )


def _lists(found: Effects) -> str:
    """What the scores are of."""
    known = found.provenance
    if known.get("items") is None:
        return f"{int(found.n[0])} lists of held-out items"
    return f"{known['items']} different held-out items in {known['examples']} lists"


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
        error_y={
            "type": "data",
            "array": [known(bar.error) for bar in bars],
            "color": MUTED,
            "thickness": 1.2,
            "width": 3,
        },
        hovertext=[bar.text for bar in bars],
        hoverinfo="text",
        showlegend=False,
        xaxis=axis("x", panel),
        yaxis=axis("y", panel),
    )
    fig.layout[axis("xaxis", panel)].update(
        tickvals=places, ticktext=[bar.name for bar in bars], tickangle=-40, tickfont={"size": 11}, gridcolor=GRID
    )
