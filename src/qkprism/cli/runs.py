"""Commands on run folders: runs, and runs show, verify, compare, delete, push, pull."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qkprism.cli.app import App, JsonOption, PlainGroup, app
from qkprism.cli.printing import print_json, print_rows

RunFolder = Annotated[Path, typer.Argument(help="A run folder.", show_default=False)]


class Runs(PlainGroup):
    """`qkprism runs FOLDER` is `qkprism runs list FOLDER`."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["list", *args]
        return super().parse_args(ctx, args)


runs = App(
    name="runs", help="List runs, check them, compare them, delete them, share them.", cls=Runs, rich_markup_mode=None
)
app.add_typer(runs)


@runs.command("list", epilog="Examples:  qkprism runs   qkprism runs runs/binding --json")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Where runs were saved.")] = Path("runs"), as_json: JsonOption = False
) -> None:
    """List the runs below a folder: what, model, when, size, finished or how far."""
    from qkprism.runs.catalogue import runs_below

    rows = [entry.row(folder) for entry in runs_below(folder)]
    if as_json:
        print_json({"folder": str(folder.resolve()), "runs": rows})
    elif rows:
        columns = ("run", "what", "state", "written", "size", "model")
        print_rows(rows, columns, f"{len(rows)} runs below {folder}, the newest first (times are UTC)")
    else:
        typer.echo(f"There are no runs below {folder}. `qkprism decompose induction --top 4 --save runs/a` makes one.")


@runs.command("show", epilog="Example:  qkprism runs show runs/induction")
def show_run(run: RunFolder, as_json: JsonOption = False) -> None:
    """Show what a run says of itself: its kind, choices, model and versions."""
    from qkprism.runs.catalogue import choices_of, entry_of
    from qkprism.runs.folder import read_manifest

    body = read_manifest(run)
    if as_json:
        print_json(body)
        return
    rows = [{"what": name, "value": value} for name, value in choices_of(body).items()]
    entry = entry_of(run)
    print_rows(rows, ("what", "value"), f"{run}: {entry.what}, {entry.state}", fold=("value",))


@runs.command("verify", epilog="Example:  qkprism runs verify runs/induction")
def verify(run: RunFolder, as_json: JsonOption = False) -> None:
    """Read every file of a run again and compare it with what was written; exit code 1 if one differs."""
    from qkprism.runs.catalogue import damages

    checked, wrong = damages(run)
    if as_json:
        print_json({"run": str(run), "files": checked, "wrong": wrong})
    else:
        for sentence in wrong:
            typer.echo(sentence)
        typer.echo(f"{checked} files checked, {len(wrong) or 'none'} wrong.")
    if wrong:
        raise SystemExit(1)


@runs.command("compare", epilog="Example:  qkprism runs compare runs/first runs/second")
def compare_runs(first: RunFolder, second: RunFolder, as_json: JsonOption = False) -> None:
    """Show the choices and results in which two runs differ; exit code 1 if there are any."""
    from qkprism.runs.catalogue import differences

    rows = differences(first, second)
    if as_json:
        print_json({"first": str(first), "second": str(second), "differences": rows})
    elif rows:
        title = f"{first} and {second} differ in {len(rows)} things"
        print_rows(rows, ("what", "first", "second"), title, fold=("what", "first", "second"))
    else:
        typer.echo("They are the same: choices, provenance and results.")
    if rows:
        raise SystemExit(1)


@runs.command("delete", epilog="Example:  qkprism runs delete runs/old --yes")
def delete_run(
    run: RunFolder, yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False
) -> None:
    """Delete a run: only files that qkprism wrote, and the folder if nothing else is in it."""
    from qkprism.runs.catalogue import delete, entry_of, told_size

    if not yes and not typer.confirm(f"Delete {run} ({told_size(entry_of(run).size)})?"):
        typer.echo("Nothing was deleted.")
        return
    left = delete(run)
    typer.echo(f"Deleted: {run}" + (f"; not ours and still there: {', '.join(left)}" if left else ""))


@runs.command(
    "push", epilog="Examples:  qkprism runs push runs/boxes /shared/boxes   qkprism runs push runs/boxes hf://me/boxes"
)
def push_run(
    run: RunFolder,
    to: Annotated[str, typer.Argument(help="A new folder, or hf://owner/name on the Hugging Face Hub.")],
) -> None:
    """Copy a run or a study to a folder or to the Hub: JSON and safetensors alone, checked, with a card."""
    from qkprism.runs.sharing import push

    typer.echo(f"Pushed: {push(run, to)}")


@runs.command("pull", epilog="Example:  qkprism runs pull /shared/boxes runs/theirs")
def pull_run(
    source: Annotated[str, typer.Argument(help="A folder that was pushed to, or hf://owner/name.")],
    folder: Annotated[Path, typer.Argument(help="A new folder.", show_default=False)],
) -> None:
    """Copy a run or a study from a folder or from the Hub, and check every file of it."""
    from qkprism.runs.sharing import pull

    typer.echo(f"Pulled: {pull(source, folder)}")
