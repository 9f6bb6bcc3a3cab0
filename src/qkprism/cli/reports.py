"""Commands that show runs: report, explore, export; and what other commands do when they save a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkprism.cli.app import app
from qkprism.cli.inputs import Loading, check_folders, check_there
from qkprism.cli.settings import SETTINGS
from qkprism.ranks import of_first, wait

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qkprism.contrasts import Contrast, Text
    from qkprism.models.model import Model
    from qkprism.results.scores import HeadScores

PAGE = "report.html"


@app.command(
    epilog="Examples:  qkprism report runs/induction -o page.html   "
    "qkprism report runs/binding runs/shelf -o both.html   qkprism report runs/mine --model smollm2"
)
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders: results, studies, the toy, the shelf, an atlas.")],
    loading: Annotated[
        Loading,
        Annotated[
            str | None,
            typer.Option("--model", "-m", help="Ask this model again what the page shows of prompts, and keep it."),
        ],
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page; report.html in the first run if not given.")
    ] = None,
) -> None:
    """Write runs as one page with its data inside: the explorer, to be mailed and opened without a server."""
    check_folders(runs)
    if loading.model is not None:
        from qkprism.explorer.keep import keep

        loaded = loading.load()
        for place in runs:
            keep(loaded, place)
    typer.echo(f"Page: {write_page(*runs, to=output or runs[0] / PAGE)}")


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
    check_folders([*(runs or ()), *([atlas] if atlas else ())])
    from qkprism.explorer.app import serve
    from qkprism.explorer.desk import Desk
    from qkprism.explorer.opening import open_runs

    serve(Desk(loading.load, atlas, open_runs(runs or ()), loads_as=loading.name), port=port, browser=browser)


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
    check_there([run, *(texts or ())])
    from qkprism.atlas.headvis import export_headvis
    from qkprism.results.features import Features

    SETTINGS.hold(headvis)
    found = Features.load(run)
    place = export_headvis(loading.load(), headvis, found, texts=texts or None, windows=windows, length=length)
    typer.echo(f"HeadVis data: {place.resolve()} ({len(found.heads)} heads)")


def write_page(*runs: Path, to: Path | None = None) -> Path:
    """Write the page of runs, in the first of them unless elsewhere."""
    from qkprism.explorer.report import report as page_of

    return Path(of_first(lambda: str(page_of(*runs).save(to or runs[0] / PAGE).resolve())))


def keep_and_write(
    model: Model,
    folder: Path,
    *,
    texts: Contrast | None = None,
    scores: HeadScores | None = None,
    prompts: Sequence[Text] = (),
) -> Path:
    """Put texts and scores beside a run, keep what the page shows of prompts, then write it in the run's folder."""
    from qkprism.explorer.keep import keep
    from qkprism.runs.catalogue import SCORES, TEXTS, written_beside

    beside, place = written_beside(folder), folder / TEXTS
    if texts is not None and (TEXTS in beside or not place.exists() or _holds(place, texts)):  # no file of one's own
        texts.write(place)
        beside.append(TEXTS)
    if scores is not None:
        scores.save((folder / SCORES).parent)
        beside.append(SCORES)
    wait()  # the first process writes, all of them read
    keep(model, folder, prompts=prompts, beside=beside)
    return write_page(folder)


def _holds(place: Path, texts: Contrast) -> bool:
    """Whether a file is what would be written: by a process that was killed before it noted that."""
    from qkprism.contrasts.contrast import json_lines

    return place.read_bytes() == "".join(f"{line}\n" for line in json_lines(texts)).encode()
