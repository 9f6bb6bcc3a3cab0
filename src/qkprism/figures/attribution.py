"""`attribution_figure`: what each feature adds to the logits of one query (paper, section 5.3).

Stacked bars a token, which end at the logit, above the attention that it gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from unicodedata import east_asian_width

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.errors import QKPrismError
from qkprism.figures.panels import legend_above, on
from qkprism.figures.theme import INK, MUTED, WIDTH, feature_color, finish, number, plain, shortened
from qkprism.figures.words import count, few, known, paragraphs

if TYPE_CHECKING:
    from qkprism.results.attribution import Attribution

# terms that are no feature, in tones that no feature has
OTHER_TERMS = MappingProxyType({"residual": "#C4C4C4", "soft cap": "#A8957F", "position bias": "#7E93A0"})
MARKS = MappingProxyType({"positive": "circle", "negative": "circle-open", "query": "square"})
_BANDS = MappingProxyType({"positive": "#DDE3E8", "negative": "#F2F2F2"})
_INVISIBLE = MappingProxyType({" ": "␣", "\n": "↵", "\t": "⇥"})
_LEFT, _RIGHT, _TOKEN = 72, 24, 16  # pixels
_WIDEST, _BROADEST = 8000, 44  # pixels of the figure, and of a token
_BARS, _ROW, _STRIP, _BETWEEN = 340, 16, 84, 10  # pixels of the panels
_FLAT = 1.8  # a token that makes the axis longer by this factor is cut
_FAINT = (-8, -3)  # decades of attention at which its axis may begin
CONDITION = 10.0  # from here on parts are large and cancel
SOME = 4.0  # an angle of 28 degrees


@dataclass(frozen=True)
class BarsView:
    """Bars of every term, the logits, and which part of the axis is shown."""

    terms: list[list[float]]
    logits: list[float]

    def reach(self, token: int) -> tuple[float, float]:
        """How far down and up the bars of a token go."""
        heights = [term[token] for term in self.terms if math.isfinite(term[token])]
        return sum(v for v in heights if v < 0), sum(v for v in heights if v > 0)

    def span(self) -> tuple[float, float]:
        """The axis, without the few tokens (often the first, a sink) that would flatten all others."""
        reach = sorted((self.reach(i) for i in range(len(self.logits))), key=lambda ends: max(-ends[0], ends[1]))
        shown = max(4, len(reach) - 1 - len(reach) // 50)
        low, high = _hull(reach[:shown])
        for ends in reach[shown:]:
            lowest, highest = _hull([(low, high), ends])
            if low < high and highest - lowest > _FLAT * (high - low):
                break
            low, high = lowest, highest
        return low, high

    def cut(self) -> list[int]:
        """The tokens whose bars end outside the axis."""
        low, high = self.span()
        ends = [self.reach(token) for token in range(len(self.logits))]
        return [token for token, (down, up) in enumerate(ends) if down < low or up > high]

    def range(self) -> list[float]:
        """The axis with some room, more where cut tokens are named."""
        low, high = self.span()
        size = (high - low) or 1.0
        down = any(self.reach(token)[0] < low for token in self.cut())
        up = any(self.reach(token)[1] > high for token in self.cut())
        return [low - size * (0.12 if down else 0.04), high + size * (0.12 if up else 0.04)]


def attribution_figure(attribution: Attribution) -> go.Figure:
    """The logit of every token that a query sees as a stack of terms, above the attention; wider for many tokens."""
    n = len(attribution.tokens)
    if not n:
        raise QKPrismError("There is no token to draw: the query sees none.")
    width = max(WIDTH, min(_WIDEST, _LEFT + _RIGHT + _TOKEN * n))
    pixels = min(_BROADEST, (width - _LEFT - _RIGHT) / n)
    labels = [shortened(shown_token(token), 20) for token in attribution.tokens]
    fig = _rows()
    view = BarsView(attribution.values.tolist(), attribution.logits.tolist())
    texts = [_token_text(attribution, i) for i in range(n)]
    _draw_bars(fig, attribution, view, texts)
    _draw_cuts(fig, view, labels)
    _draw_marks(fig, attribution)
    _draw_attention(fig, attribution, texts)
    _name_tokens(fig, attribution, labels, pixels, width)
    height = _BARS + _ROW + _STRIP + 2 * _BETWEEN
    fig.update_layout(barmode="relative", bargap=0.15, hovermode="x")
    legend_above(fig, 4, height, traceorder="normal")
    return finish(
        fig,
        title=_title(attribution),
        subtitle=_subtitle(attribution),
        caption=_caption(attribution, view),
        width=width,
        plot_height=height,
        left=_LEFT,
        right=_RIGHT,
        above=30,
        below=24 + max(map(_length, labels)),
    )


def _name_tokens(fig: go.Figure, attribution: Attribution, labels: Sequence[str], pixels: float, width: int) -> None:
    """Tokens as labels under the last panel, the marked ones and the query in bold; some if there are very many."""
    n, step = len(labels), math.ceil(12 / pixels)
    bold = {i for i, at in enumerate(attribution.positions) if at in attribution.marks or at == attribution.query}
    ticks = [f"<b>{plain(label)}</b>" if i in bold else plain(label) for i, label in enumerate(labels)]
    fig.update_xaxes(
        domain=[0, min(1.0, pixels * n / (width - _LEFT - _RIGHT))],
        range=[-0.6, n - 0.4],
        matches="x",
        showticklabels=False,
        ticks="",
        showgrid=False,
    )
    fig.layout.xaxis3.update(
        showticklabels=True,
        tickvals=list(range(0, n, step)),
        ticktext=ticks[::step],
        tickangle=-90,
        tickfont={"size": 11},
    )


def shown_token(token: str) -> str:
    """A token with its spaces and line breaks to be seen.

    >>> shown_token(" jam"), shown_token("\\n\\n"), shown_token("")
    ('␣jam', '↵↵', '(empty)')
    """
    letters = [_INVISIBLE.get(c, c if c.isprintable() else f"\\x{ord(c):02x}") for c in token]
    return "".join(letters) or "(empty)"


def term_color(term: str, features: Sequence[str], provenance: Mapping[str, Any]) -> str:
    """The colour of a feature among all of its run, even if only some were attributed, or in another order."""
    if term not in features:
        return OTHER_TERMS.get(term, MUTED)
    run = provenance.get("features")
    every = list((run.get("contrasts") or ()) if isinstance(run, Mapping) else ())
    return feature_color(term, every if set(features) <= set(every) else features)


def _rows() -> go.Figure:
    heights = (_BARS, _ROW, _STRIP)
    whole = sum(heights) + 2 * _BETWEEN
    return make_subplots(rows=3, cols=1, row_heights=list(heights), vertical_spacing=_BETWEEN / whole)


def _hull(ends: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min([0.0, *(low for low, _ in ends)]), max([0.0, *(high for _, high in ends)])


def _draw_bars(fig: go.Figure, attribution: Attribution, view: BarsView, texts: Sequence[str]) -> None:
    places = list(range(len(view.logits)))
    for term, values in zip(attribution.terms, view.terms, strict=True):
        fig.add_bar(
            x=places,
            y=[known(value) for value in values],
            name=plain(shortened(term)),
            marker={"color": term_color(term, attribution.features, attribution.provenance), "line": {"width": 0}},
            hoverinfo="skip",
            **on(1),
        )
    fig.add_scatter(
        x=places,
        y=[known(value) for value in view.logits],
        name="logit",
        mode="markers",
        marker={"symbol": "diamond", "size": 6, "color": INK, "line": {"color": "white", "width": 0.8}},
        hovertext=texts,
        hoverinfo="text",
        **on(1),
    )
    fig.layout.yaxis.update(title_text="logit", range=view.range(), zeroline=True, zerolinecolor=MUTED)


def _draw_cuts(fig: go.Figure, view: BarsView, labels: Sequence[str]) -> None:
    """Say at the edge of the axis which tokens go on, and how far."""
    low, high = view.range()
    margin = 0.025 * (high - low)
    cut = view.cut()
    reach = [view.reach(token) for token in cut]
    up = [high < ends[1] for ends in reach]
    fig.add_scatter(
        x=cut,
        y=[high - margin if above else low + margin for above in up],
        mode="markers+text",
        name="cut",
        marker={"symbol": ["triangle-up" if above else "triangle-down" for above in up], "size": 9, "color": INK},
        text=[
            f"{plain(labels[i])} is cut: bars from {number(down)} to {number(top)}, sum {number(view.logits[i])}"
            for i, (down, top) in zip(cut, reach, strict=True)
        ],
        textposition=["middle right" if 2 * token < len(labels) else "middle left" for token in cut],
        textfont={"size": 11, "color": INK},
        hoverinfo="skip",
        showlegend=False,
        **on(1),
    )


def _draw_marks(fig: go.Figure, attribution: Attribution) -> None:
    """A row of marks under the bars, and pale bands behind the marked keys."""
    place = {at: i for i, at in enumerate(attribution.positions)}
    marks = [(at, mark) for at, mark in attribution.marks.items() if at in place]
    for at, mark in marks:
        fig.add_shape(
            type="rect",
            name=plain(mark),
            xref="x",
            yref="paper",
            x0=place[at] - 0.5,
            x1=place[at] + 0.5,
            y0=0,
            y1=1,
            layer="below",
            line={"width": 0},
            fillcolor=_BANDS.get(mark, _BANDS["negative"]),
        )
    if attribution.query in place:
        marks.append((attribution.query, "query"))
    for mark in dict.fromkeys([*MARKS, *(mark for _, mark in marks)]):
        at_mark = [place[at] for at, sign in marks if sign == mark]
        if not at_mark:
            continue
        fig.add_scatter(
            x=at_mark,
            y=[0] * len(at_mark),
            mode="markers",
            name=plain(shortened(mark if mark == "query" else f"{mark} key")),
            marker={
                "symbol": MARKS.get(mark, "square-open"),
                "size": 8,
                "color": INK,
                "line": {"color": INK, "width": 1.5},
            },
            hoverinfo="skip",
            **on(2),
        )
    fig.layout.xaxis2.update(showline=False)
    fig.layout.yaxis2.update(range=[-1, 1], showticklabels=False, ticks="", showgrid=False, showline=False)


def _draw_attention(fig: go.Figure, attribution: Attribution, texts: Sequence[str]) -> None:
    attention = attribution.attention.tolist()
    fig.add_bar(
        x=list(range(len(attention))),
        y=[value if value > 0 else None for value in attention],  # NaN is not above 0 either
        name="attention",
        marker={"color": MUTED, "line": {"width": 0}},
        hovertext=texts,
        hoverinfo="text",
        showlegend=False,
        **on(3),
    )
    lowest = _faintest(attribution)
    decades = range(0, lowest - 1, -math.ceil(-lowest / 4))
    fig.layout.yaxis3.update(
        title_text="attention",
        type="log",
        range=[lowest, 0.1],
        tickvals=[10.0**decade for decade in decades],
        ticktext=[f"{10.0**d:g}" if d > -3 else f"10<sup>{d}</sup>" for d in decades],
        tickfont={"size": 11},
    )


def _faintest(attribution: Attribution) -> int:
    """The decade at which the axis of attention begins: nine of ten tokens have more, within limits."""
    seen = sorted(value for value in attribution.attention.tolist() if value > 0)
    low = math.floor(math.log10(seen[len(seen) // 10])) if seen else _FAINT[1]
    return max(_FAINT[0], min(_FAINT[1], low))


def _length(label: str) -> int:
    """Pixels of a tick label, of which Chinese letters take twice as many."""
    return round(5.8 * sum(2 if east_asian_width(letter) in "WF" else 1 for letter in label))


def _title(attribution: Attribution) -> str:
    model = attribution.provenance.get("model")
    where = f"{attribution.head} of {shortened(model)}" if model else attribution.head
    name = ""
    if attribution.query in attribution.positions:
        token = attribution.tokens[attribution.positions.index(attribution.query)]
        name = f" “{shortened(shown_token(token), 20)}”"
    return f"Logits of {where} from the query at token {attribution.query}{name}"


def _subtitle(attribution: Attribution) -> str:
    order = f" ({', then '.join(map(shortened, attribution.features))})" if attribution.method == "sequential" else ""
    shares = ", ".join(f"{shortened(name)} {_percent(v)}" for name, v in attribution.variance_shares().items())
    return " · ".join(
        [
            f"{attribution.method} split{order}",
            count(len(attribution.tokens), "token"),
            f"of the logits’ variance over tokens: {shares}",
        ]
    )


def _caption(attribution: Attribution, view: BarsView) -> str:
    names = ", ".join(str(attribution.positions[token]) for token in view.cut())
    cut = f"Cut, so that the others can be read: token {names}, marked by a triangle." if names else ""
    return paragraphs(
        "A bar is what a feature adds to the logit of a token; the bars of a token, up and down, sum to the diamond. "
        "A key that stands out in the colour of a feature owes its logit to this feature, as this split has it; grey "
        "is what no feature explains. Attention depends on differences between tokens only: a part that all tokens "
        "share does nothing.",
        f"Below: marked keys and the query, then attention on a log scale. {cut}",
        _overlap(attribution.method, attribution.angles, attribution.condition),
        few(attribution.notes),
    )


def _overlap(method: str, angles: Mapping[str, Sequence[float]], condition: float) -> str:
    side = "query" if method in ("sequential", "shapley") else "key"
    named = [f"{shortened(pair)} {min(degrees):.0f}°" for pair, degrees in angles.items() if len(degrees)]
    if not named:
        return ""
    size = number(condition) if math.isfinite(condition) else "infinite"
    overlap = "they overlap: parts can be large and cancel"
    apart = overlap if condition >= CONDITION else "some overlap" if condition >= SOME else "they can be told apart"
    return f"Smallest angle between {side} subspaces: {', '.join(named)}; condition number {size} ({apart})."


def _token_text(attribution: Attribution, i: int) -> str:
    at = attribution.positions[i]
    roles = [f"{attribution.marks[at]} key"] if at in attribution.marks else []
    roles += ["query"] if at == attribution.query else []
    role = f" ({plain(', '.join(roles))})" if roles else ""
    logit, attention = float(attribution.logits[i]), float(attribution.attention[i])
    terms = [
        f"{plain(shortened(term))} {number(value)}"
        for term, value in zip(attribution.terms, attribution.values[:, i].tolist(), strict=True)
    ]
    token = plain(shortened(shown_token(attribution.tokens[i])))
    return "<br>".join(
        [f"<b>token {at} “{token}”</b>{role}", f"logit {number(logit)}, attention {_percent(attention)}", *terms]
    )


def _percent(share: float) -> str:
    if not math.isfinite(share):
        return "not defined"
    return (
        f"{share:.0%}"
        if abs(share) >= 0.0995 or share == 0
        else f"{share:.2g}"
        if abs(share) < 1e-3
        else f"{share:.1%}"
    )
