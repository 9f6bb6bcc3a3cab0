"""Figures as files: pages that work offline, and images where kaleido finds a browser."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from qkprism.errors import QKPrismError
from qkprism.figures.theme import CONFIG
from qkprism.progress import bar
from qkprism.runs.files import check_figure_name, write_bytes, write_text

LIST = "figures.json"  # the names of the figures in a folder
Script = Literal["inline", "cdn", "directory"]


def save_figure(fig: go.Figure, path: str | os.PathLike[str], *, plotlyjs: Script = "inline") -> Path:
    """Write a figure as .html, .png or .svg, whichever the name ends with.

    A page holds plotly itself, loads it from the network (`plotlyjs="cdn"`), or from a file that is written beside it
    (`"directory"`), so that many figures in one folder are small and work offline.
    """
    target = check_figure_name(path)
    kind = target.suffix.lower().lstrip(".")
    if plotlyjs not in get_args(Script):
        raise QKPrismError(
            f"plotlyjs={plotlyjs!r} is not possible. Use 'inline' (works offline), 'cdn' (a small file) or 'directory'."
        )
    body = _page(fig, plotlyjs).encode() if kind == "html" else _image(fig, kind)
    script = target.parent / "plotly.min.js"
    if kind == "html" and plotlyjs == "directory" and not script.exists():
        write_text(script, get_plotlyjs())
    return write_bytes(target, body)


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
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The kopts argument is ignored")  # plotly's, where images share a browser
            return bytes(fig.to_image(format=kind, scale=2))
    except Exception as error:  # kaleido has a class of its own for each way in which a browser fails
        raise _no_browser(kind, error) from error


def _no_browser(kind: str, error: Exception) -> QKPrismError:
    reason = str(error).strip().partition("\n")[0][:120] or type(error).__name__
    return QKPrismError(
        f"A .{kind} needs kaleido>=1 and a Chrome or Chromium that it can start (plotly_get_chrome installs one); "
        f"an .html needs nothing. The failure was: {reason}"
    )


def save_figures(figures: Mapping[str, go.Figure], folder: str | os.PathLike[str]) -> str:
    """Write every figure as .html and, where a browser is found, as .png; returns a line that says what was written.

    Figures that an earlier call wrote into the folder and this one does not are removed.
    """
    place = Path(folder)
    earlier = _listed(place)
    _list(place, {*earlier, *figures})
    for name, figure in figures.items():
        save_figure(figure, place / f"{name}.html", plotlyjs="directory")
    kept, said = {"html"}, f"{len(figures)} figures as .html in {place}"
    try:
        with _one_browser(), bar(len(figures), "images", shown=True) as tick:
            for name, figure in figures.items():
                save_figure(figure, place / f"{name}.png")
                tick(1)
        kept, said = {"html", "png"}, f"{len(figures)} figures as .html and .png in {place}"
    except QKPrismError as error:
        said += f"; no .png: {error}"
    for name in earlier:
        for kind in {"html", "png"} - (kept if name in figures else set()):
            with suppress(OSError):
                (place / f"{name}.{kind}").unlink(missing_ok=True)
    _list(place, figures)
    return said


def _listed(folder: Path) -> set[str]:
    """The figures that an earlier call wrote."""
    try:
        names = json.loads((folder / LIST).read_text(encoding="utf-8"))["qkprism figures"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {name for name in names if isinstance(name, str) and name == Path(name).name}


def _list(folder: Path, names: Iterable[str]) -> None:
    write_text(folder / LIST, json.dumps({"qkprism figures": sorted(names)}, indent=1) + "\n")


@contextmanager
def _one_browser() -> Iterator[None]:
    """Images within it share a browser, which takes seconds to start."""
    if find_spec("kaleido") is None:
        yield  # the first image says so
        return
    import kaleido  # type: ignore[import-not-found, import-untyped, unused-ignore]

    try:
        kaleido.start_sync_server(silence_warnings=True)
    except Exception as error:
        raise _no_browser("png", error) from error
    try:
        yield
    finally:
        kaleido.stop_sync_server(silence_warnings=True)
