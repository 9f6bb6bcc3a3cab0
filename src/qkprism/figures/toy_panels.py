"""What figures of the toy study share: names and colours of the methods, and panels of variant and d_head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go

from qkprism.figures.panels import on, panels
from qkprism.figures.theme import GRID, MUTED, axis, finish

if TYPE_CHECKING:
    from qkprism.toy.cells import Cell
    from qkprism.toy.recovery import Rule

METHOD_NAMES = MappingProxyType(
    {"contrast": "contrast metric (qkprism)", "raw oblique": "raw, oblique", "raw": "raw, orthogonal (the paper's)"}
)
METHOD_COLORS = MappingProxyType({"contrast": "#0072B2", "raw oblique": "#009E73", "raw": "#D55E00"})
METHOD_SYMBOLS = MappingProxyType({"contrast": "circle", "raw oblique": "diamond", "raw": "x"})
RULES: Mapping[Rule, str] = MappingProxyType(
    {"energy": "energy, raw (the paper's)", "balanced": "energy, balanced metric", "heldout": "held-out test"}
)
RULE_COLORS = MappingProxyType(
    {"energy": METHOD_COLORS["raw"], "balanced": METHOD_COLORS["contrast"], "heldout": MUTED}
)
_PANEL, _BETWEEN = 230, 88  # pixels


PanelKind = tuple[int, str, str]  # d_head, variant, and the setting of the task where it is not the default


def kind_of(cell: Cell) -> PanelKind:
    """What heads of one panel have in common."""
    return cell.d_head, cell.task.variant, cell.task.setting


def by_kind(rows: Iterable[Any]) -> dict[PanelKind, list[Any]]:
    """The rows of every kind of head, in order."""
    found: dict[PanelKind, list[Any]] = {}
    for row in rows:
        found.setdefault(kind_of(row.cell), []).append(row)
    return {kind: found[kind] for kind in sorted(found)}


def kind_title(kind: PanelKind) -> str:
    """The title of the panel of a kind of heads."""
    d_head, variant, setting = kind
    return f"<b>{variant}, d_head {d_head}{f', {setting}' if setting else ''}</b>"


def cell_title(cell: Cell) -> str:
    """The title of the panel of one head."""
    task = cell.task
    setting = f", {task.setting}" if task.setting else ""
    return f"<b>{task.variant}, r1={task.r1} r2={task.r2}, d_head {cell.d_head}{setting}</b>"


def slack(row: Any) -> int:
    """r1 + r2 - d_head: above 0 a head has fewer dimensions than its latents."""
    return int(sum(row.cell.task.ranks)) - int(row.cell.d_head)


def slack_panels(
    rows: Sequence[Any],
    series: Mapping[str, Callable[[Any], bool]],
    value: Callable[[Any], float],
    looks: Mapping[str, Mapping[str, Any]],
    *,
    y: str,
) -> tuple[go.Figure, int]:
    """Means over heads of equal r1 + r2 - d_head, a panel a variant and d_head; and the height of the panels."""
    kinds = by_kind(rows)
    lines, titles = -(-len(kinds) // 2), [kind_title(kind) for kind in kinds]
    fig, height = panels(lines, min(2, len(kinds)), _PANEL, down=_BETWEEN, edges=0, subplot_titles=titles)
    for panel, of_panel in enumerate(kinds.values(), 1):
        for name, belongs in series.items():
            _line(fig, panel, name, [row for row in of_panel if belongs(row)], value, looks[name])
        _superposed(fig, panel, [slack(row) for row in of_panel])
        fig.layout[axis("xaxis", panel)].update(title_text="r1 + r2 − d_head", dtick=2)
        fig.layout[axis("yaxis", panel)].update(title_text=y if panel % 2 else "", rangemode="tozero")
    return fig, height


def _line(
    fig: go.Figure, panel: int, name: str, rows: Iterable[Any], value: Callable[[Any], float], look: Mapping[str, Any]
) -> None:
    groups: dict[int, list[float]] = {}
    for row in rows:
        if (one := value(row)) == one:
            groups.setdefault(slack(row), []).append(one)
    places = sorted(groups)
    fig.add_scatter(
        x=places,
        y=[mean(groups[place]) for place in places],
        mode="lines+markers",
        name=name,
        legendgroup=name,
        showlegend=panel == 1,
        hovertemplate=f"{name}<br>r1 + r2 − d_head = %{{x}}: %{{y:.3f}}<extra></extra>",
        **on(panel),
        **look,
    )


def _superposed(fig: go.Figure, panel: int, places: Sequence[int]) -> None:
    """Shade where latents have more dimensions than the head."""
    if max(places) > 0:
        place = {"xref": axis("x", panel), "yref": f"{axis('y', panel)} domain"}
        fig.add_shape(
            type="rect", x0=0.5, x1=max(places) + 0.5, y0=0, y1=1, line_width=0, fillcolor=GRID, layer="below", **place
        )


def finish_panels(
    fig: go.Figure,
    height: int,
    *,
    title: str,
    subtitle: str,
    caption: str,
    right: int = 24,
    above: int = 30,
    below: int = 104,
) -> go.Figure:
    """Titles around panels, the legend under them."""
    fig.update_layout(
        legend={"orientation": "h", "x": 0, "y": -58 / height, "yanchor": "top", "font": {"color": MUTED}}
    )
    return finish(
        fig,
        title=title,
        subtitle=subtitle,
        caption=caption,
        plot_height=height,
        right=right,
        above=above,
        below=below,
    )


def method_look(method: str) -> dict[str, Any]:
    """Line and mark of a method."""
    color = METHOD_COLORS[method]
    return {
        "line": {"color": color, "width": 2},
        "marker": {"color": color, "symbol": METHOD_SYMBOLS[method], "size": 8},
    }
