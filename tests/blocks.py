"""What README and docs show: blocks by language, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED = ("commands", "api", "models")
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").glob("*.md") if page.stem not in GENERATED)]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = ("sh", "bash", "console", "")


def blocks(page: Path, *languages: str) -> list[str]:
    """The blocks of a page in one of these languages, in their order."""
    return [body for language, body in BLOCK.findall(page.read_text()) if language in languages]


def commands(page: Path) -> Iterator[list[str]]:
    """Every qkprism command in the shell blocks of a page, as words; remarks and what comes after > are left out."""
    for line in "\n".join(blocks(page, *SHELL)).splitlines():
        found = re.search(r"(?:^|do |\$ )(qkprism .*?)(?:; done)?$", line)
        if found:
            words = shlex.split(found[1], comments=True)
            yield words[: words.index(">")] if ">" in words else words
