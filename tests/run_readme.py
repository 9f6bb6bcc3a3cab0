"""Run what the README shows, in its order and in a folder of its own: files written, commands typed, Python typed.

python tests/run_readme.py        # a few minutes with the default model; `make test-docs`
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from blocks import BLOCK, ROOT, SHELL


def run(page: Path, folder: str) -> None:
    """Every block: toml is saved under the name that the text gives, sh is typed, python goes into one session."""
    text, session = page.read_text(), []
    for block in BLOCK.finditer(text):
        language, body = block.groups()
        if language == "toml":
            name = re.findall(r"`(\w+\.toml)`", text[: block.start()])[-1]
            (Path(folder) / name).write_text(body)
        elif language in SHELL and "make " not in body:
            for line in body.splitlines():
                typed(["bash", "-c", line.replace("qkprism", f"{sys.executable} -m qkprism", 1)], line, folder)
        elif language == "python":
            session.append(body)
    typed([sys.executable, "-c", "\n".join(session)], "the README's Python", folder)


def typed(words: list[str], shown: str, folder: str) -> None:
    """Run it; say how long it took, and stop with what it said if it fails."""
    began = time.monotonic()
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    print(f"{time.monotonic() - began:6.0f} s  {shown}", flush=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\n{done.stderr}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        run(ROOT / "README.md", place)
