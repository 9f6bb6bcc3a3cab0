"""The toy laboratory."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from qkprism.cli.app import JsonOption, app
from qkprism.cli.printing import print_json, print_sentences, print_table
from qkprism.cli.reports import write_page
from qkprism.cli.settings import SETTINGS
from qkprism.errors import QKPrismError
from qkprism.progress import say
from qkprism.ranks import by_itself, is_first


class Protocols(StrEnum):
    """How toy heads are trained."""

    fast = "fast"
    paper = "paper"


class Presets(StrEnum):
    """The scales of the toy task."""

    calibrated = "calibrated"
    paper = "paper"


class NegativeKeys(StrEnum):
    """How the negatives of a toy contrast are drawn."""

    differs = "differs"
    redrawn = "redrawn"


@app.command(epilog="Examples:  qkprism toy --save runs/toy   qkprism toy --quick --save runs/quick")
def toy(
    save: Annotated[Path, typer.Option(help="The run folder; finished parts in it are not computed again.")] = Path(
        "runs/toy"
    ),
    protocol: Annotated[
        Protocols, typer.Option(help="fast: the 212 heads in minutes; paper: the paper's own training, hours.")
    ] = Protocols.fast,
    quick: Annotated[bool, typer.Option("--quick", help="Ten small heads, trained briefly: a first look.")] = False,
    seeds: Annotated[int, typer.Option(help="How many heads of each kind.", min=1, max=1000)] = 1,
    preset: Annotated[
        Presets, typer.Option(help="calibrated: scales that reach the paper's accuracies; paper: the text at its word.")
    ] = Presets.calibrated,
    negatives: Annotated[
        NegativeKeys,
        typer.Option(help="Whether negative keys of a contrast differ from the query, or are drawn independently."),
    ] = NegativeKeys.differs,
    as_json: JsonOption = False,
) -> None:
    """Train the paper's toy heads, find what is known to be in them, and write a page that compares both."""
    import qkprism as qk
    from qkprism.figures.saving import save_figures
    from qkprism.figures.toy import toy_drawings
    from qkprism.toy.claims import told

    if quick and protocol is Protocols.paper:
        raise QKPrismError("Give --quick or --protocol paper, not both.")
    options: dict[str, Any] = {"protocol": "quick" if quick else protocol.value}
    if quick:
        options["cells"] = [cell for seed in range(seeds) for cell in qk.toy.few_cells(seed, preset.value)]
    else:
        options["cells"] = qk.toy.paper_grid(seeds=range(seeds), preset=preset.value)
    options["sampling"] = qk.toy.Sampling(negatives=negatives.value)
    SETTINGS.hold(save)
    if not is_first():  # its heads are small: one process trains them, on all cores
        return
    with by_itself():
        found = qk.toy.study(save, **options, progress=_say_training, say=say)
        say("figures")
        written = save_figures({name: draw() for name, draw in toy_drawings(found).items()}, save / "figures")
        report = write_page(save)
    summary = found.summary()
    if as_json:
        print_json({"summary": summary.to_dict("records"), "folder": str(save), "report": str(report)})
        return
    title = f"{len(found.heads)} heads. Room: r1 + r2 against d_head. Swap error: of the swap of z1 against the truth."
    print_sentences([finding.sentence for finding in told(found)])
    print_table(summary, list(summary.columns), title)
    typer.echo(f"{written}\nReport: {report}")


def _say_training(step: int, left: int) -> None:
    say(f"step {step:,}: {left} heads in training")
