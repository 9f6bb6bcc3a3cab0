"""What all pages share: one self-contained HTML file, with plotly inside and no network."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from plotly.offline import get_plotlyjs

from qkprism.figures.theme import CONFIG

if TYPE_CHECKING:
    import plotly.graph_objects as go

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 1240px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: 14px; } th, td { padding: .25rem .7rem; text-align: right; }
th { border-bottom: 2px solid #222; } td { border-bottom: 1px solid #ddd; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; } .scroll { overflow-x: auto; } .note { color: #555; }
td { white-space: nowrap; } table.words td { white-space: normal; }
table.words td, table.words th { text-align: left; vertical-align: top; }
table.wide { font-size: 13px; } table.wide th, table.wide td { padding: .25rem .35rem; }
"""
MANY = 12  # columns


def page(title: str, parts: Iterable[str], style: str = "") -> str:
    """A page of parts (HTML already) under a title (HTML already)."""
    script = f"<script>{get_plotlyjs()}</script>"
    head = f"<meta charset=utf-8><title>qkprism: {title}</title><style>{_STYLE}{style}</style>{script}"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def figure(fig: go.Figure) -> str:
    """A figure that scrolls sideways where it is wider than the page; the same figure gives the same HTML."""
    name = f"figure-{hashlib.sha256(fig.to_json().encode()).hexdigest()[:16]}"
    body = fig.to_html(full_html=False, include_plotlyjs=False, config=CONFIG, div_id=name)
    return f"<div class=scroll>{body}</div>"


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], *, words: bool = False) -> str:
    """Rows of values under titles; `words` sets texts flush left."""
    head = "".join(f"<th>{escape(title)}</th>" for title in columns.values())
    body = "".join("<tr>" + "".join(f"<td>{cell(row[name])}</td>" for name in columns) + "</tr>" for row in rows)
    kind = " class=words" if words else " class=wide" if len(columns) > MANY else ""
    return f"<div class=scroll><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def with_errors(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose numbers carry their errors, where it has a column of that name with `_error`."""
    known = {name: row[f"{name}_error"] for name in row if f"{name}_error" in row}
    return {**row, **{name: f"{row[name]:.2f} ± {error:.2f}" for name, error in known.items()}}


def cell(value: object) -> str:
    """A value for a table; nothing known is a dash."""
    if value is None or value != value:
        return "–"
    return escape(f"{value:.3g}" if isinstance(value, float) else str(value))


def notes(texts: Iterable[str]) -> list[str]:
    """Small print."""
    return [f"<p class=note>{escape(text)}</p>" for text in texts]
