"""The command that opens the explorer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkprism.cli.app import app
from qkprism.cli.inputs import Loading
from qkprism.errors import QKPrismError


@app.command(epilog="Examples:  qkprism explore   qkprism explore runs/shelf --model smollm2")
def explore(
    loading: Loading,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Run folders: features and the shelf name parts; studies and the toy are shown.", show_default=False
        ),
    ] = None,
    atlas: Annotated[Path | None, typer.Option(help="A run folder of `qkprism atlas`; else the one kept.")] = None,
    port: Annotated[int, typer.Option(help="Of this computer; a free one if not given.", min=0, max=65535)] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Look and click: any prompt, the heads that attend from any token, and why."""
    for place in [*(runs or ()), *([atlas] if atlas else ())]:
        if not place.is_dir():
            raise QKPrismError(f"{place} is not a run folder.")
    from qkprism.explorer.desk import Desk
    from qkprism.explorer.opening import open_runs
    from qkprism.explorer.serving import serve

    serve(Desk(loading.load, atlas, open_runs(runs or ()), loads_as=loading.name), port=port, browser=browser)
