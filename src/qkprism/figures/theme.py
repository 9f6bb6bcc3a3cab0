"""One look for every figure: colours with one meaning each, a template, and captions.

Texts that come from users (names of contrasts, of models, of prompts) go through `plain`, because plotly renders some
HTML tags and, in notebooks, mathematics between dollar signs.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from html import escape
from types import MappingProxyType

import plotly.graph_objects as go

from qkprism.errors import QKPrismError

# Okabe and Ito: told apart under every common colour blindness, and by lightness in print
ROLES = MappingProxyType(
    {
        "strength": "#0072B2",
        "sign_flip_null": "#7F7F7F",
        "shuffled_null": "#E69F00",
        "ceiling": "#1A1A1A",
        "explained": "#009E73",
        "positive": "#56B4E9",
        "negative": "#D55E00",
        "query": "#CC79A7",
    }
)
FEATURE_COLORS = (
    "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9", "#332288", "#882255", "#999933", "#117733",
)  # fmt: skip
SEQUENTIAL = (  # ColorBrewer YlGnBu: light is little, on paper too
    "#FFFFD9", "#EDF8B1", "#C7E9B4", "#7FCDBB", "#41B6C4", "#1D91C0", "#225EA8", "#253494", "#081D58",
)  # fmt: skip
DIVERGING = (  # ColorBrewer RdBu: red is below zero, blue above
    "#67001F", "#B2182B", "#D6604D", "#F4A582", "#FDDBC7", "#F7F7F7", "#D1E5F0", "#92C5DE", "#4393C3", "#2166AC",
    "#053061",
)  # fmt: skip
INK, MUTED, GRID, MISSING = "#1A1A1A", "#595959", "#E5E5E5", "#D9D9D9"

WIDTH = 1000  # pixels; captions are broken to it, so figures do not stretch
EDGE = 16
_AXIS = {
    "gridcolor": GRID,
    "gridwidth": 1,
    "linecolor": MUTED,
    "showline": True,
    "ticks": "outside",
    "tickcolor": MUTED,
    "zeroline": False,
    "title": {"standoff": 8, "font": {"size": 13}},
}
TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": "Helvetica Neue, Helvetica, Arial, sans-serif", "size": 13, "color": INK},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "colorway": FEATURE_COLORS,
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "hoverlabel": {"align": "left", "bgcolor": "white", "bordercolor": MUTED, "font": {"size": 12, "color": INK}},
        "hovermode": "closest",
        "legend": {"font": {"size": 12}, "bgcolor": "rgba(255,255,255,0)"},
        # also in notebooks, where CONFIG is not in force: no button that uploads the data
        "modebar": {"remove": ["sendChartToCloud", "select2d", "lasso2d", "zoomIn2d", "zoomOut2d"]},
    }
)
CONFIG = MappingProxyType({"displaylogo": False, "showSendToCloud": False})


def feature_color(name: str, names: Sequence[str]) -> str:
    """The colour of a feature among all features of a run; the palette repeats after ten.

    >>> feature_color("entity", ["order", "entity"])
    '#D55E00'
    """
    order = list(dict.fromkeys(names))
    if name not in order:
        raise QKPrismError(f"There is no feature {name!r} to colour. There are: {', '.join(order)}.")
    return FEATURE_COLORS[order.index(name) % len(FEATURE_COLORS)]


def plain(text: object) -> str:
    """A text that plotly shows as it is: no tags, no mathematics, no line breaks."""
    # plotly does not know &quot;, so quotes stay as they are
    return escape(" ".join(str(text).split()), quote=False).replace("$", "&#36;")


def shortened(text: object, limit: int = 48) -> str:
    """The beginning of a long text."""
    whole = " ".join(str(text).split())
    return whole if len(whole) <= limit else whole[: limit - 1].rstrip() + "…"


def wrapped(text: str, width: int, size: int) -> list[str]:
    """A text in lines of about this many pixels, each ready for plotly; a line break starts a new one."""
    text = text.replace(" ± ", "\u00a0±\u00a0").replace(" · ", "\u00a0· ")  # not broken there
    letters = max(20, int(width / (0.55 * size)))  # letters are half as wide as high on average, in DejaVu a tenth more
    return [plain(line) for paragraph in text.splitlines() for line in textwrap.wrap(paragraph, letters)]


def number(value: float | None, error: float | None = None) -> str:
    """A number for people, with its standard error where there is one.

    >>> number(0.8437, 0.0371), number(float("nan"))
    ('0.844 ± 0.037', 'none')
    """
    if value is None or math.isnan(value):
        return "none"
    if error is None or not 0 < error < math.inf:
        return f"{value:.3g}"
    decimals = max(0, 1 - math.floor(math.log10(error)))  # two digits of the error
    return f"{value:.{decimals}f} ± {error:.{decimals}f}" if decimals < 7 else f"{value:.3g} ± {error:.1g}"


def axis(letter: str, panel: int) -> str:
    """How traces and shapes name the axis of a panel: plotly has no x1."""
    return letter if panel == 1 else f"{letter}{panel}"


def finish(
    fig: go.Figure,
    *,
    title: str,
    subtitle: str,
    caption: str,
    plot_height: int,
    width: int = WIDTH,
    left: int = 64,
    right: int = 24,
    above: int = 8,
    below: int = 56,
) -> go.Figure:
    """Put title, subtitle and caption (plain texts) around panels of this height, with room for axes and legends."""
    inside = WIDTH - 2 * EDGE  # a wider figure is scrolled, and its texts should be read first
    heading, under = wrapped(title, inside - 150, 20), wrapped(subtitle, inside, 13)  # the toolbar is beside the title
    lines = wrapped(caption, inside, 12)
    # plotly breaks no lines and leaves no room by itself
    top = EDGE + 8 + 24 * (len(heading) + len(under)) + above
    bottom = below + 17 * len(lines) + EDGE
    small = f"<span style='font-size:13px;color:{MUTED}'>"
    text = "<br>".join(f"<b>{line}</b>" for line in heading) + "".join(f"<br>{small}{line}</span>" for line in under)
    fig.add_annotation(
        text="<br>".join(lines),
        name="caption",
        x=0,
        y=0,
        xref="paper",
        yref="paper",
        xanchor="left",
        yanchor="top",
        xshift=EDGE - left,
        yshift=-below,
        align="left",
        showarrow=False,
        font={"size": 12, "color": MUTED},
    )
    return fig.update_layout(
        template=TEMPLATE,
        width=width,
        height=top + plot_height + bottom,
        margin={"l": left, "r": right, "t": top, "b": bottom, "autoexpand": False},
        title={
            "text": text,
            "font": {"size": 18},
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"l": EDGE, "t": EDGE + 10},
        },
    )
