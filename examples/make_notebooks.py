"""Notebooks are written as scripts whose cells begin with `# %%`; this turns them into .ipynb, or runs them.

python examples/make_notebooks.py                      # examples/notebooks/*.py become .ipynb beside them
python examples/make_notebooks.py --run vision encoder # runs the cells of some, or of all, each in a process of its own
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent / "notebooks"
CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)


def cells(script: str) -> list[tuple[str, str]]:
    """Kind and source of every cell: markdown without its `#`, code as it is."""
    _, *parts = CELL.split(script)
    found = []
    for mark, body in zip(parts[::2], parts[1::2], strict=True):
        if "markdown" in mark:
            found.append(("markdown", "\n".join(re.sub(r"^# ?", "", line) for line in body.strip().splitlines())))
        else:
            found.append(("code", body.strip()))
    return found


def notebook(script: str) -> str:
    """The file that Jupyter opens; without outputs, which running makes."""
    rows = []
    for number, (kind, source) in enumerate(cells(script)):
        lines = source.splitlines(keepends=True)
        code = {"execution_count": None, "outputs": []} if kind == "code" else {}
        rows.append({"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": lines, **code})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    body = {"cells": rows, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def run(name: str) -> None:
    """The code cells of a notebook, as the file has them, in a process of its own."""
    body = json.loads((FOLDER / f"{name}.ipynb").read_text())
    code = "\n".join("".join(cell["source"]) for cell in body["cells"] if cell["cell_type"] == "code")
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True)
    print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    scripts = sorted(FOLDER.glob("*.py"))
    if "--run" in sys.argv:
        for name in sys.argv[2:] or [script.stem for script in scripts]:
            run(name)
    else:
        for script in scripts:
            script.with_suffix(".ipynb").write_text(notebook(script.read_text()))
