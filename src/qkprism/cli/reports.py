"""The command that writes a run as one page; and what other commands do when they save a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkprism.cli.app import app
from qkprism.cli.inputs import Loading
from qkprism.errors import QKPrismError
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
    for place in runs:
        if not place.is_dir():
            raise QKPrismError(f"{place} is not a run folder.")
    if loading.model is not None:
        from qkprism.explorer.keep import keep

        loaded = loading.load()
        for place in runs:
            keep(loaded, place)
    typer.echo(f"Page: {write_page(*runs, to=output or runs[0] / PAGE)}")


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
    from qkprism.catalogue import SCORES, TEXTS, written_beside
    from qkprism.explorer.keep import keep

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
