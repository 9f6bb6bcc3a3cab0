"""The command that writes heads in another tool's format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkprism.cli.app import app
from qkprism.cli.inputs import Loading
from qkprism.cli.settings import SETTINGS
from qkprism.errors import QKPrismError


@app.command(epilog="Example:  qkprism export runs/boxes --headvis data")
def export(
    run: Annotated[Path, typer.Argument(help="A run folder of features, whose heads are written.", show_default=False)],
    headvis: Annotated[Path, typer.Option(help="A new folder: what HeadVis reads as data/.", show_default=False)],
    loading: Loading,
    texts: Annotated[
        list[Path] | None, typer.Option(help="Text files or folders; else the model writes its own.")
    ] = None,
    windows: Annotated[int, typer.Option(help="Pieces of text to read.", min=10)] = 200,
    length: Annotated[int, typer.Option(help="Tokens of a piece.", min=16)] = 128,
) -> None:
    """Write the heads of a run in the data format of HeadVis, to see them there."""
    if missing := [place for place in (run, *(texts or ())) if not place.exists()]:
        raise QKPrismError(f"{missing[0]} does not exist.")
    from qkprism.atlas.headvis import export_headvis
    from qkprism.results.features import Features

    SETTINGS.hold(headvis)
    found = Features.load(run)
    place = export_headvis(loading.load(), headvis, found, texts=texts or None, windows=windows, length=length)
    typer.echo(f"HeadVis data: {place.resolve()} ({len(found.heads)} heads)")
