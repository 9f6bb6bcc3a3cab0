"""Panels side by side and in rows, laid out in pixels; and what several figures draw in them."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from qkprism.figures.theme import INK, MUTED, WIDTH, axis, plain


def panels(
    rows: int, columns: int, height: int, *, down: int = 0, across: int = 72, edges: int = 88, **options: Any
) -> tuple[go.Figure, int]:
    """Panels of a height with pixels between them and beside all of them; and the height of all."""
    whole = rows * height + (rows - 1) * down
    fig = make_subplots(
        rows=rows,
        cols=columns,
        horizontal_spacing=across / (WIDTH - edges) if columns > 1 else 0,
        vertical_spacing=down / whole if rows > 1 else 0,
        **options,
    )
    return fig, whole


def on(panel: int) -> dict[str, str]:
    """The axes of a panel, for a trace."""
    return {"xaxis": axis("x", panel), "yaxis": axis("y", panel)}


def write(
    fig: go.Figure, panel: int, text: str, name: str, x: float, y: float, *, domain: str = "xy", **look: Any
) -> None:
    """Words in a panel, at a share of it along the axes of `domain`, and at a value along the others."""
    refs = {f"{one}ref": axis(one, panel) + (" domain" if one in domain else "") for one in "xy"}
    fig.add_annotation(text=text, name=name, x=x, y=y, showarrow=False, **refs, **look)


def notice(fig: go.Figure, panel: int, text: str) -> None:
    """Words in the middle of a panel that has nothing to show."""
    write(fig, panel, text, "notice", 0.5, 0.5, font={"size": 13, "color": MUTED})


def line(fig: go.Figure, panel: int, name: str = "", *, dash: str = "dash", width: float = 1.2, **at: float) -> None:
    """A line across a panel at a value (`y=`), or up at one (`x=`)."""
    (along, value), other = next(iter(at.items())), "x" if "y" in at else "y"
    refs = {f"{along}ref": axis(along, panel), f"{other}ref": f"{axis(other, panel)} domain"}
    ends = {f"{along}0": value, f"{along}1": value, f"{other}0": 0, f"{other}1": 1}
    fig.add_shape(type="line", name=name, line={"color": INK, "width": width, "dash": dash}, **refs, **ends)


def error_bars(sizes: Any, color: Any, *, thickness: float = 1.2, width: float = 2) -> dict[str, Any]:
    """Bars of these sizes on either side."""
    return {"type": "data", "array": sizes, "color": color, "thickness": thickness, "width": width}


def legend_above(fig: go.Figure, pixels: int, height: int, **look: Any) -> None:
    """The legend in a row so many pixels above panels of a height."""
    place = {"orientation": "h", "x": 0, "y": 1 + pixels / height, "yanchor": "bottom"}
    fig.update_layout(legend=place | look)


def legend_entry(fig: go.Figure, title: str, group: str = "", **look: Any) -> None:
    """An entry of the legend (a plain text) for a `marker` or a `line`, without a mark in any panel."""
    mode = "markers" if "marker" in look else "lines"
    fig.add_scatter(x=[None], y=[None], mode=mode, name=title, legendgroup=group, hoverinfo="skip", **look)


def name_panel(fig: go.Figure, panel: int, text: str, *, shift: int = 4, color: str | None = None) -> None:
    """A bold name (a plain text) above a panel, after a square of a colour where one is given."""
    square = "" if color is None else f"<span style='color:{color}'>■</span> "
    text = f"{square}<b>{plain(text)}</b>"
    write(fig, panel, text, "panel", 0, 1, xanchor="left", yanchor="bottom", yshift=shift)
