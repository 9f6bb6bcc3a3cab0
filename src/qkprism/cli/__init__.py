"""The command line: thin, every command is one or two calls of the library."""

from __future__ import annotations

import os

import typer

from qkprism.cli import (  # noqa: F401  (they add their commands to the app, in this order)
    atlas,
    contrasts,
    demo,
    explorer,
    features,
    studies,
    toy,
)
from qkprism.cli.app import app
from qkprism.errors import QKPrismError
from qkprism.memory import hold_free


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    hold_free()
    try:
        app()
    except QKPrismError as error:
        typer.secho(f"qkprism: {error}", err=True, fg=typer.colors.RED)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
