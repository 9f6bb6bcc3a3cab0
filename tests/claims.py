"""docs/claims.md, written from docs/claims.toml: every figure with its command; and the quick ones made again.

python tests/claims.py           # writes the page
python tests/claims.py --run     # runs the quick commands and compares; `make claims`
"""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
import tomllib
from typing import Any

from blocks import ROOT

CLAIMS, PAGE = ROOT / "docs" / "claims.toml", ROOT / "docs" / "claims.md"
INTRODUCTION = """# Claims

Every figure that README and docs claim, with the command that makes it. `make claims` runs the quick ones again and
compares. A commit marked * is the one in which the figure was written down: its run is not dated, and is of that tree
or an earlier one. Benchmarks have figures of their own in `benchmarks/README.md`.

This page is written by `python tests/claims.py` from `docs/claims.toml`. A test fails when it is stale.
"""


def claims() -> list[dict[str, Any]]:
    """All of them, as they stand in the file."""
    return tomllib.loads(CLAIMS.read_text())["claim"]


def page() -> str:
    """The whole page."""
    head = ["| figure | on | command | last made | commit | quick |", "|---|---|---|---|---|---|"]
    return "\n".join([INTRODUCTION, *head, *map(_row, claims()), ""])


def _row(claim: dict[str, Any]) -> str:
    command = claim["command"] if claim["command"].startswith(("none", "the ")) else f"`{claim['command']}`"
    note = f". Of an earlier tree: {claim['earlier']}" if "earlier" in claim else ""
    commit = claim["commit"] + ("*" if claim.get("written") else "")
    quick = "yes" if "quick" in claim else ""
    cells = [claim["figure"] + note, ", ".join(claim["pages"]), command, claim["date"], commit, quick]
    return f"| {' | '.join(cells)} |"


@functools.cache
def printed(command: str) -> str:
    """What a command prints, run once however many figures are in it."""
    words = shlex.split(command)
    words = words[1:] if words[0] == "python" else ["-m", *words]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else sys.exit(f"{command}\n{done.stdout}\n{done.stderr}")


def differences() -> list[str]:
    """One line for each quick figure that is not what the page says."""
    wrong = []
    for claim in claims():
        for check in claim.get("quick", ()):
            found = value(check, printed(check["run"]))
            near = found is not None and abs(found - check["expect"]) <= check.get("within", 0)
            print("same  " if near else "DIFFERS", check["run"], found, "expected", check["expect"], flush=True)
            wrong += [] if near else [f"{claim['figure']}: {found}, not {check['expect']}"]
    return wrong


def value(check: dict[str, Any], text: str) -> float | None:
    """How often a pattern is there, or the number in its group; 0 if none is expected and none is there."""
    if "count" in check:
        return float(len(re.findall(check["count"], text)))
    found = re.search(check["find"], text)
    return float(found[1]) if found else 0.0 if check["expect"] == 0 else None


if __name__ == "__main__":
    if sys.argv[1:] == ["--run"]:
        sys.exit("\n".join(differences()) or 0)
    PAGE.write_text(page())
