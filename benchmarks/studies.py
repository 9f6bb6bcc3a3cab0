"""How long whole studies take and how much memory they need, part by part: the command as its user starts it (Linux).

python benchmarks/studies.py binding --sizes quick paper
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from memory import memory

SAMPLES_A_SECOND = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="+", choices=["binding", "filter"])
    parser.add_argument("--sizes", nargs="+", choices=["quick", "paper"], default=["quick"])
    given = parser.parse_args()
    for study in given.studies:
        for size in given.sizes:
            with tempfile.TemporaryDirectory() as place:
                watch([sys.executable, "-m", "qkprism", study, "--size", size], Path(place) / "study")


def watch(command: list[str], folder: Path) -> None:
    """Run a study in a new folder. A part's peak is the highest of the samples taken while it was the next to come.

    Own memory is what the process has for itself. The whole also has pages of files, the model's weights and libraries,
    which the system lends and takes back: it differs by some 70 MB between runs of one command.
    """
    print(*command[2:], flush=True)
    began = since = time.monotonic()
    options = {"TOKENIZERS_PARALLELISM": "false", **os.environ}
    process = subprocess.Popen([*command, "--save", str(folder)], stdout=subprocess.DEVNULL, env=options)
    seen, peak, most, whole = set[str](), 0, 0, 0
    ended = False
    while not ended:
        ended = process.poll() is not None  # the folder is looked at once more
        own, highest = memory(process.pid)
        peak, most, whole = max(peak, own), max(most, own), max(whole, highest)
        if come := {path.stem for path in (*folder.glob("*.job"), *folder.glob("report.html"))} - seen:
            print(f"  {', '.join(sorted(come))}: {time.monotonic() - since:.0f} s, own memory {peak} MB", flush=True)
            seen, peak, since = seen | come, 0, time.monotonic()
        time.sleep(1 / SAMPLES_A_SECOND)
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode}")
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    print(f"  in all: {minutes} min {seconds} s, own memory {most} MB, with pages of files {whole} MB", flush=True)


if __name__ == "__main__":
    main()
