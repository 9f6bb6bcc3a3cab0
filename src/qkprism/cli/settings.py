"""How much a command says: set once from its options."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from qkprism import progress
from qkprism.errors import QKPrismError
from qkprism.runs.locks import locked


@dataclass
class Settings:
    """`wide`: all columns of tables. `held`: the folders that only this process writes until the command ends."""

    wide: bool = False
    held: ExitStack = field(default_factory=ExitStack)

    def hold(self, folder: Path | None) -> None:
        """Hold a folder until the command ends, so that no other process writes it."""
        if folder is not None:
            self.held.enter_context(locked(folder))

    def choose(self, quiet: bool = False, verbose: bool = False, wide: bool = False) -> None:
        """Take the options of a command: results alone, or also what other libraries say, and all columns."""
        if quiet and verbose:
            raise QKPrismError("Give --quiet or --verbose, not both.")
        self.wide = wide
        progress.speak(quiet=quiet, verbose=verbose)
        if quiet:
            warnings.simplefilter("ignore")

    def hush(self) -> None:
        """Say nothing at all, as one of several processes of which another speaks."""
        self.choose(quiet=True)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (until the process ends)


SETTINGS = Settings()
