"""The app that commands are added to, and the options that several of them have.

Every command takes `-q` and `-v`, and `--wide` if it prints a table. Help is plain text: drawing boxes took longer than
all the rest.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from qkprism.cli.inputs import Loading
from qkprism.cli.settings import SETTINGS
from qkprism.options import DTYPES, TOKENS, either
from qkprism.ranks import failing_together, join, wait

LOADING = "loading"  # the parameter of a command that takes a model
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
EXIT_CODES = {
    0: "It worked.",
    1: "It worked, and what was asked for did not hold: a contrast has mistakes, a run is damaged, two runs differ.",
    2: "The command cannot be done as it was given; one line says why.",
    130: "It was stopped by Ctrl-C; what could be saved was saved.",
}

QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Results and errors only: no progress, no notes.", show_default=False)
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="What other libraries say too, and where errors come from.")
]
WideOption = Annotated[bool, typer.Option("--wide", help="All that is known: every column of a table, every detail.")]


class Command(TyperCommand):
    """A command whose examples stand each on a line of its own, to be pasted."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  (the context is not needed)
        formatter.write_paragraph()
        formatter.write("Examples:\n")
        for example in examples_of(self):
            formatter.write(f"  {example}\n")


class PlainGroup(TyperGroup):
    """All commands, each with its whole sentence, and what their exit codes mean."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help or "") for name, command in self.commands.items()])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        formatter.write_paragraph()
        formatter.write("Exit codes: 0 done, 1 something does not hold, 2 a mistake of the command, 130 Ctrl-C.\n")
        formatter.write("`qkprism COMMAND -h` has examples to paste.\n")


class App(typer.Typer):
    """A typer app whose commands have the options that all commands have."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        def add(function: Callable[..., None]) -> Callable[..., None]:
            add_to_app = super(App, self).command(name, **({"cls": Command} | options))
            add_to_app(_with_common_options(function))
            return function

        return add


def examples_of(command: Any) -> list[str]:
    """The examples of a command: its epilog is `Examples:  qkprism ...   qkprism ...`."""
    return re.split(r" {2,}", (command.epilog or "").strip())[1:]


def commands_of(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command below a group by its whole name, such as `runs show`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def _with_common_options(function: Callable[..., None]) -> Callable[..., None]:
    """A command with `-q` and `-v`, with `--wide` if it prints JSON or a table, and with a model's if it takes one."""
    common: dict[str, Any] = {"quiet": QuietOption, "verbose": VerboseOption}
    signature, hints = inspect.signature(function), get_type_hints(function, include_extras=True)
    if "as_json" in hints:
        common = {"wide": WideOption, **common}
    places = _model_options(hints.pop(LOADING, None))
    model = [one for one in places if one.name == "model"]

    @functools.wraps(function)
    def command(**options: Any) -> None:
        from qkprism.memory import hold_free

        hold_free()
        here = join()
        SETTINGS.choose(**{name: options.pop(name) for name in common})
        if not here.is_first:
            SETTINGS.hush()
        try:
            with SETTINGS.held, failing_together():
                if places:
                    options[LOADING] = Loading(**{one.name: options.pop(one.name) for one in places})
                function(**options)
            wait()
        except KeyboardInterrupt as stopped:  # here, for some versions of typer have a way of their own
            if here.is_first:
                told = f"\nqkprism: stopped. {str(stopped) or _how_to_go_on(options.get('save'))}"
                typer.echo(told.rstrip(), err=True)
            raise SystemExit(130) from None

    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        parameters += model if name == LOADING else [parameter.replace(annotation=hints[name], kind=_KEYWORD)]
    parameters += [one for one in places if one not in model]
    parameters += [inspect.Parameter(name, _KEYWORD, default=False, annotation=hint) for name, hint in common.items()]
    described: Any = command  # typer reads these
    described.__signature__ = inspect.Signature(parameters)
    described.__annotations__ = {one.name: one.annotation for one in parameters}
    del described.__wrapped__
    return command


def _model_options(hint: Any) -> list[inspect.Parameter]:
    """The options of which a command's `loading` is made: `--model` may be described there, and then has no default."""
    if hint is None:
        return []
    model = (ModelOption, "smollm2") if hint is Loading else (hint.__metadata__[0], None)
    options = {"model": model, "dtype": (DtypeOption, None), "device": (DeviceOption, None)}
    options["device_map"] = (DeviceMapOption, None)
    return [inspect.Parameter(name, _KEYWORD, default=d, annotation=option) for name, (option, d) in options.items()]


def _how_to_go_on(save: object) -> str:
    """What becomes of a command that was stopped."""
    if save is None:
        return "Nothing was saved."
    return f"What was finished is kept in or beside {save}; the same command goes on from there."


app = App(
    name="qkprism",
    help="Why did this attention head attend to that token?",
    no_args_is_help=True,
    cls=PlainGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"qkprism {version('qkprism')}")
        raise typer.Exit


@app.callback()
def qkprism(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Why did this attention head attend to that token?"""
    assert not version  # it has been shown


ModelOption = Annotated[str, typer.Option("--model", "-m", help="Hub name, folder, .gguf file, or smollm2.")]
DtypeOption = Annotated[str | None, typer.Option(help=f"{either(DTYPES)}; the device's best if not given.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps; the best there is if not given.")]
DeviceMapOption = Annotated[str | None, typer.Option(help="auto: over all devices; tp: heads over processes.")]
LimitOption = Annotated[int | None, typer.Option("--limit", "-n", help="Use the first N examples only.", min=1)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ContrastArgument = Annotated[
    str,
    typer.Argument(
        help="A contrast: a file (.jsonl, .csv, .parquet), - for JSON lines from standard input, a template (.toml), "
        "or a name of the shelf.",
        show_default=False,
    ),
]
ContrastsArgument = Annotated[
    list[str],
    typer.Argument(help="One or more contrasts: files, -, templates or names of the shelf.", show_default=False),
]
RunArgument = Annotated[Path, typer.Argument(help="A run folder of features.", show_default=False)]
HeadsOption = Annotated[
    str | None, typer.Option("--heads", "--head", help="Heads such as L18H6,L21H7; all by default.")
]
TokenOption = Annotated[str, typer.Option(help=f"Which token of a span: {either(TOKENS)}.")]
ChatOption = Annotated[bool, typer.Option("--chat", help="Put texts into the model's chat template.")]
SaveOption = Annotated[Path | None, typer.Option(help="Write a run folder with a report.html; if killed, it goes on.")]
BatchOption = Annotated[int | None, typer.Option(help="Texts a batch; by itself if not given.", min=1)]
