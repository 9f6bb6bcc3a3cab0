"""Figures as files: pages that work offline, and images where kaleido finds a browser."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from qkprism.errors import QKPrismError
from qkprism.figures.theme import CONFIG

Script = Literal["inline", "cdn", "directory"]


def save_figure(fig: go.Figure, path: str | os.PathLike[str], *, plotlyjs: Script = "inline") -> Path:
    """Write a figure as .html, .png or .svg, whichever the name ends with.

    A page holds plotly itself, loads it from the network (`plotlyjs="cdn"`), or from a file that is written beside it
    (`"directory"`), so that many figures in one folder are small and work offline.
    """
    target = Path(path)
    kind = target.suffix.lower().lstrip(".")
    if kind not in ("html", "png", "svg"):
        raise QKPrismError(f"A figure cannot be saved as {target.name!r}. End the name in .html, .png or .svg.")
    if plotlyjs not in get_args(Script):
        raise QKPrismError(
            f"plotlyjs={plotlyjs!r} is not possible. Use 'inline' (works offline), 'cdn' (a small file) or 'directory'."
        )
    body = _page(fig, plotlyjs).encode() if kind == "html" else _image(fig, kind)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(body)
    script = target.parent / "plotly.min.js"
    if kind == "html" and plotlyjs == "directory" and not script.exists():
        script.write_text(get_plotlyjs(), encoding="utf-8")
    return target


def _page(fig: go.Figure, plotlyjs: str) -> str:
    return str(
        fig.to_html(
            include_plotlyjs=True if plotlyjs == "inline" else plotlyjs,
            config=dict(CONFIG),
            div_id="figure",  # not a random one: the same figure gives the same file
        )
    )


def _image(fig: go.Figure, kind: str) -> bytes:
    if find_spec("kaleido") is None:
        raise QKPrismError(f"A .{kind} needs kaleido: pip install 'kaleido>=1'. An .html needs nothing.")
    still = go.Figure(fig)
    still.layout.updatemenus = ()  # buttons do nothing on paper
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The kopts argument is ignored")  # plotly's, where images share a browser
            return bytes(still.to_image(format=kind, scale=2))
    except Exception as error:  # kaleido has a class of its own for each way in which a browser fails
        raise _no_browser(kind, error) from error


def _no_browser(kind: str, error: Exception) -> QKPrismError:
    reason = str(error).strip().partition("\n")[0][:120] or type(error).__name__
    return QKPrismError(
        f"A .{kind} needs kaleido>=1 and a Chrome or Chromium that it can start (plotly_get_chrome installs one); "
        f"an .html needs nothing. The failure was: {reason}"
    )


def save_figures(figures: Mapping[str, go.Figure], folder: str | os.PathLike[str]) -> str:
    """Write every figure as .html and, where a browser is found, as .png; returns a line that says what was written."""
    place = Path(folder)
    for name, figure in figures.items():
        save_figure(figure, place / f"{name}.html", plotlyjs="directory")
    try:
        with _one_browser():
            for name, figure in figures.items():
                save_figure(figure, place / f"{name}.png")
    except QKPrismError as error:
        return f"{len(figures)} figures as .html in {place}; no .png: {error}"
    return f"{len(figures)} figures as .html and .png in {place}"


@contextmanager
def _one_browser() -> Iterator[None]:
    """Images within it share a browser, which takes seconds to start."""
    if find_spec("kaleido") is None:
        yield  # the first image says so
        return
    import kaleido  # type: ignore[import-not-found, unused-ignore]

    try:
        kaleido.start_sync_server(silence_warnings=True)
    except Exception as error:
        raise _no_browser("png", error) from error
    try:
        yield
    finally:
        kaleido.stop_sync_server(silence_warnings=True)
