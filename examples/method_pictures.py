"""Draws what goes wrong without centring, without a metric and without controls: planted heads whose truth is known.

python examples/method_pictures.py docs/_static        # a minute; images need kaleido and a browser
"""

import sys
from pathlib import Path

import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from torch import Tensor

import qkprism as qk
from qkprism.figures.theme import FEATURE_COLORS, GRID, INK, MUTED

BLUE, ORANGE, GREEN = FEATURE_COLORS[:3]
EXAMPLES = 400
HEAD = "L0H0"


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def features(sets: dict[str, tuple[Tensor, Tensor, Tensor]], **choices) -> qk.Features:
    """What `decompose` finds in planted vectors: query, positive and negative key of each contrast."""
    source = qk.VectorSource({name: {HEAD: qk.Vectors(*vectors)} for name, vectors in sets.items()})
    return qk.decompose(source, recipe=qk.Recipe(**choices), progress=False)


def panels(*titles: str) -> go.Figure:
    figure = make_subplots(1, len(titles), subplot_titles=titles, horizontal_spacing=0.09)
    figure.update_layout(
        template="plotly_white", width=720, height=440, margin={"l": 60, "r": 16, "t": 36, "b": 110},
        font={"family": "Helvetica, Arial, sans-serif", "size": 17, "color": INK},
        legend={"orientation": "h", "y": -0.17, "yanchor": "top"},
    )  # fmt: skip
    figure.update_annotations(font={"size": 17, "color": INK})
    figure.update_xaxes(title_font_size=16, gridcolor=GRID, zeroline=False, linecolor=MUTED, showline=True)
    figure.update_yaxes(title_font_size=16, gridcolor=GRID, zeroline=False, linecolor=MUTED, showline=True)
    return figure


def arrow(figure: go.Figure, panel: int, start: Tensor, end: Tensor, color: str, width: float = 3) -> None:
    (x, y), (ax, ay) = end.tolist(), start.tolist()
    axes = {"xref": f"x{panel}", "yref": f"y{panel}", "axref": f"x{panel}", "ayref": f"y{panel}"}
    head = {"arrowhead": 2, "arrowwidth": width, "arrowcolor": color}
    figure.add_annotation(x=x, y=y, ax=ax, ay=ay, text="", **axes, **head)


def dots(figure: go.Figure, panel: int, at: Tensor, color: str, name: str = "", symbol: str = "circle") -> None:
    x, y = at.T.tolist()
    told = {"name": name, "legendgroup": name, "showlegend": bool(name) and panel == 1}
    figure.add_scatter(
        x=x, y=y, mode="markers", marker={"color": color, "symbol": symbol, "size": 6}, **told, row=1, col=panel
    )


def centring() -> go.Figure:
    """Keys hold a value (up or down). The head looks for the query's value, and likes positive keys anyway (right)."""
    value, other = normal(1, EXAMPLES).sign(), normal(2, EXAMPLES).sign()
    query = torch.stack([torch.full_like(value, 6.0), value], 1) + 0.2 * normal(3, EXAMPLES, 2)
    positive = torch.stack([torch.full_like(value, 1.0), value], 1) + 0.25 * normal(4, EXAMPLES, 2)
    negative = torch.stack([torch.full_like(value, -1.0), other], 1) + 0.25 * normal(5, EXAMPLES, 2)
    figure = panels("mean query kept: salience", "mean query taken off: match")
    for panel, center in enumerate(("none", "query"), 1):
        for keys, side, color in ((positive, "positive keys", BLUE), (negative, "negative keys", ORANGE)):
            dots(figure, panel, keys[:120], color, side)
        found = features({"value": (query, positive, negative)}, center=center, metric="raw", rank=1)
        direction = 1.7 * found["value", HEAD].key_basis[:, 0]
        arrow(figure, panel, -direction, direction, INK)
    figure.update_xaxes(title="liked whatever is asked for", range=[-2.2, 2.2])
    figure.update_yaxes(range=[-2.2, 2.2], tickvals=[-1, 1])
    figure.update_yaxes(title="value", col=1)
    return figure


def metric() -> go.Figure:
    """Two factors of a key, and the same head in other coordinates: logits stay, and the swap of the paper does not."""
    values = [normal(seed, EXAMPLES).sign() for seed in (1, 2)]
    others = [normal(seed, EXAMPLES).sign() for seed in (3, 4)]
    query = torch.stack(values, 1) + 0.1 * normal(5, EXAMPLES, 2)
    shared = [normal(seed, EXAMPLES).sign() for seed in (6, 7)]
    keys = {
        "color": (torch.stack([values[0], shared[1]], 1), torch.stack([others[0], shared[1]], 1)),
        "shape": (torch.stack([shared[0], values[1]], 1), torch.stack([shared[0], others[1]], 1)),
    }
    noise = 0.08 * normal(8, 4, EXAMPLES, 2)
    start, target = torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
    change = torch.tensor([[1.0, 0.85], [0.0, 0.75]], dtype=torch.float64)
    figure = panels("some coordinates: both land", "others: one overshoots")
    for panel, basis in enumerate((torch.eye(2, dtype=torch.float64), change), 1):
        sets = {
            name: (
                query @ torch.linalg.inv(basis),
                *((side + noise[2 * i + j]) @ basis.T for j, side in enumerate(sides)),
            )
            for i, (name, sides) in enumerate(keys.items())
        }
        for one, color in {-1.0: ORANGE, 1.0: BLUE}.items():
            for other, symbol in {-1.0: "circle", 1.0: "square"}.items():
                corner = torch.tensor([one, other], dtype=torch.float64) + 0.08 * normal(9, 40, 2)
                dots(figure, panel, corner @ basis.T, color, symbol=symbol)
        rival = features(sets, metric="raw", rank=1)["color", HEAD].key_basis[:, :1]
        ours = features(sets, metric="contrast", rank=1).joint(HEAD)["color"]
        for projector, color, width, name in (
            (rival @ rival.T, MUTED, 6, "orthogonal swap of colour"),
            (ours, GREEN, 3, "swap in the contrast metric"),
        ):
            begin, step = start @ basis.T, projector @ basis @ (target - start)
            arrow(figure, panel, begin, begin + step, color, width)
            line = {"color": color, "width": width}
            figure.add_scatter(x=[None], y=[None], mode="lines", line=line, name=name, showlegend=panel == 1)
    figure.update_xaxes(title="first coordinate of the head", showticklabels=False)
    figure.update_yaxes(showticklabels=False)
    figure.update_yaxes(title="second coordinate", col=1)
    return figure


def controls() -> go.Figure:
    """How much attention a swap moves: in the feature, and in subspaces of the same rank that know no label."""
    d, rank, draws = 32, 3, 20
    spread = torch.arange(1, d + 1, dtype=torch.float64) ** -0.75  # keys vary in few directions
    wanted = torch.ones(d, dtype=torch.float64)
    wanted[3 : 3 + rank] = 8.0  # what the head asks for is not where keys vary most
    value, other = normal(2, EXAMPLES, d) * spread, normal(3, EXAMPLES, d) * spread
    query = value * wanted + normal(4, EXAMPLES, d) * spread

    def moved(directions: Tensor) -> float:
        basis = torch.linalg.qr(directions)[0]
        step = (other - value) @ basis @ basis.T
        return float(torch.sigmoid(((other - value - 2 * step) * query).sum(-1)).mean())

    def found(right: Tensor, wrong: Tensor) -> float:
        feature = features({"value": (query, right, wrong)}, metric="raw", rank=rank)["value", HEAD]
        return moved(feature.key_basis[:, :rank])

    def dealt(seed: int) -> tuple[Tensor, Tensor]:
        heads = normal(seed, EXAMPLES, 1) > 0
        return torch.where(heads, value, other), torch.where(heads, other, value)

    keys = torch.cat([value, other])
    rows = {
        "Gaussian": [moved(normal(100 + i, d, rank)) for i in range(draws)],
        "key draws": [moved(keys.T @ normal(200 + i, len(keys), rank)) for i in range(draws)],
        "key PCA": [moved(torch.linalg.eigh(keys.T @ keys).eigenvectors[:, -rank:])],
        "permuted labels": [found(*dealt(300 + i)) for i in range(draws)],
        "the feature": [found(value, other)],
    }
    ends = {
        "no edit": moved(torch.zeros(d, 0, dtype=torch.float64)),
        "whole key": moved(torch.eye(d, dtype=torch.float64)),
    }
    figure = panels("")
    for name, shifts in rows.items():
        color = BLUE if name == "the feature" else MUTED
        size = 14 if len(shifts) == 1 else 8
        figure.add_scatter(
            x=shifts,
            y=[name] * len(shifts),
            name=name,
            mode="markers",
            marker={"color": color, "size": size, "opacity": 0.7},
        )
    for name, at in ends.items():
        figure.add_vline(
            at,
            line={"color": INK, "dash": "dot"},
            annotation={"text": name, "yref": "paper", "y": 1.1, "xanchor": "center"},
        )
    figure.update_xaxes(title="attention on the other key after the swap", range=[0, 1])
    figure.update_layout(showlegend=False, height=320, margin={"l": 140, "r": 16, "t": 36, "b": 60})
    return figure


def main(folder: Path) -> None:
    for draw in (centring, metric, controls):
        figure = draw()
        figure.write_image(folder / f"method-{draw.__name__}.png", scale=2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
