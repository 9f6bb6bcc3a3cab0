"""Commands on run folders: runs, and runs show, verify, compare, delete, push, pull."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qkprism.cli.app import App, JsonOption, PlainGroup, app
from qkprism.cli.printing import print_json, print_rows
from qkprism.cli.settings import SETTINGS
from qkprism.notes import counted

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
    folder: Annotated[Path, typer.Argument(help="The folder that runs were saved in.")] = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """List the runs below a folder: what, model, when, size, finished or how far."""
    from qkprism.runs.catalogue import runs_below

    rows = [entry.row(folder) for entry in runs_below(folder)]
    if as_json:
        print_json({"folder": str(folder.resolve()), "runs": rows})
    elif rows:
        columns = ("run", "what", "state", "written", "size", "model")
        print_rows(rows, columns, f"{counted(len(rows), 'run')} in {folder}, the newest first (times are UTC)")
    else:
        typer.echo(f"No runs in {folder} yet. `qkprism decompose induction --top 4 --save runs/a` saves one.")


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
    """Show the results and choices in which two runs differ, results first; exit code 1 if there are any."""
    from qkprism.results.differing import results_that_differ
    from qkprism.runs.catalogue import differences, is_digest
    from qkprism.runs.folder import MANIFEST

    found = results_that_differ(first, second) if all((one / MANIFEST).is_file() for one in (first, second)) else []
    rows = [*found, *differences(first, second)]
    told = [row for row in rows if not is_digest(row["what"])] if not SETTINGS.wide else rows
    if as_json:
        print_json({"first": str(first), "second": str(second), "differences": rows})
    elif rows:
        title = f"{first} and {second} differ in {counted(len(told), 'thing')}; results first"
        if told:
            print_rows(told, ("what", "first", "second"), title, fold=("what", "first", "second"))
        if left := len(rows) - len(told):
            typer.echo(f"{counted(left, 'digest or packed result', 'digests and packed results')} differ too: --wide.")
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
