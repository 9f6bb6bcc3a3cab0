"""docs/commands.md, written from the app: every command with its arguments, options and examples.

python tests/commands_page.py        # writes the page
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from qkprism.cli.app import EXIT_CODES, app, commands_of, examples_of

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
INTRODUCTION = """# Commands

`qkprism COMMAND -h` says the same in the terminal. Where a contrast is taken, `-` reads JSON lines from standard input.
`qkprism --install-completion` teaches the shell to complete commands and options.

Results go to standard output; progress and notes go to standard error. With `--json` standard output is one JSON
document. Tables are as wide as the terminal, 80 columns in a pipe; `--wide` shows all columns. `NO_COLOR` is heeded.

Commands that write a folder can be stopped and started again: the same command goes on. In passes through a model
that are kept (`decompose`, `intervene`, `atlas`, the shelf, the studies) Ctrl-C finishes what is begun, saves and says
so; a second Ctrl-C stops at once. Elsewhere it stops at once, and what was finished is kept. Two processes cannot write
one folder.

This page is written by `python tests/commands_page.py`. A test fails when it is stale.
"""
COMMON = ("quiet", "verbose", "wide", "as_json")


def page() -> str:
    """The whole page."""
    commands = dict(commands_of(get_command(app)))
    shared = {p.name: p for command in commands.values() for p in command.params if p.name in COMMON}
    codes = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    lines = [INTRODUCTION, "## Exit codes\n", "| code | meaning |\n|---|---|", *codes, ""]
    lines += ["## Options of every command\n", "`--wide` and `--json` are of those that print a table.\n"]
    lines += ["| option | what it does |\n|---|---|", *(_row(shared[name]) for name in COMMON), ""]
    return "\n".join([*lines, *(line for name, command in commands.items() for line in _command(name, command))])


def _command(name: str, command: Any) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"{command.help}\n"
    yield "\n".join(["```sh", *examples_of(command), "```\n"])
    yield "| argument or option | what it does |\n|---|---|"
    yield from (_row(parameter) for parameter in command.params if parameter.name not in COMMON)
    yield ""


def _row(parameter: Any) -> str:
    names = parameter.opts if parameter.param_type_name == "option" else [parameter.name.upper()]
    default = parameter.default
    shown = default is not None and default is not False and parameter.param_type_name == "option"
    told = f" Default: {getattr(default, 'value', default)}." if shown else ""
    return f"| `{', '.join(sorted(names, key=len, reverse=True))}` | {parameter.help or ''}{told} |"


if __name__ == "__main__":
    PAGE.write_text(page())
