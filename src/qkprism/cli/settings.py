"""How much a command says: set once from its options."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from qkprism import progress
from qkprism.errors import QKPrismError


@dataclass
class Settings:
    """`quiet`: results alone. `verbose`: also what other libraries say. `wide`: all columns of tables."""

    quiet: bool = False
    verbose: bool = False
    wide: bool = False

    def choose(self, quiet: bool = False, verbose: bool = False, wide: bool = False) -> None:
        """Take the options of a command."""
        if quiet and verbose:
            raise QKPrismError("Give --quiet or --verbose, not both.")
        self.quiet, self.verbose, self.wide = quiet, verbose, wide
        progress.speak(quiet=quiet, verbose=verbose)
        if quiet:
            warnings.simplefilter("ignore")


SETTINGS = Settings()
