"""The command line: thin, every command is one or two calls of the library."""

from __future__ import annotations

import io
import os
import sys
import warnings
from pathlib import Path

import typer

from qkprism.cli import (  # noqa: F401  (they add their commands to the app, in this order)
    atlas,
    contrasts,
    demo,
    doctor,
    features,
    reports,
    runs,
    studies,
    toy,
)
from qkprism.cli.app import app
from qkprism.errors import QKPrismError
from qkprism.progress import SPEECH, is_coloured
from qkprism.ranks import RankError, RankLost, RankStopped, ranks

_WITH_CODE = warnings.formatwarning


def in_words(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning of ours without the line of code that it comes from: who types commands does not know it."""
    ours = Path(__file__).parents[1] in Path(filename).parents
    return f"Note: {message}\n" if ours else _WITH_CODE(message, category, filename, lineno, line)


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for stream in (sys.stdout, sys.stderr):  # names of files may be no text, and a terminal may know few letters
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    warnings.formatwarning = in_words
    warnings.filterwarnings("once", module="qkprism", append=True)  # heads and features have the same to say of texts
    try:
        app()
    except (
        RankError
    ) as error:  # all processes have it, and the first tells it; or the second, for the first may be gone
        if isinstance(error, RankStopped) or ranks().number < (2 if isinstance(error, RankLost) else 1):
            typer.secho(f"qkprism: {error}", err=True, fg=typer.colors.RED if is_coloured() else None)
        raise SystemExit(2) from None
    except QKPrismError as error:
        if SPEECH.verbose:
            import traceback

            traceback.print_exc()
        typer.secho(f"qkprism: {error}", err=True, fg=typer.colors.RED if is_coloured() else None)
        raise SystemExit(2) from None
    except KeyboardInterrupt:  # before a command began
        raise SystemExit(130) from None
