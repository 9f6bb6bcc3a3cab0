"""Does the memory of a study's verbs grow with the number of prompts? Peaks of processes of their own.

python benchmarks/study_memory.py --prompts 128 400
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import qkprism as qk

HEADS = ["L18H6", "L18H7", "L20H3", "L21H6", "L21H7", "L21H8", "L23H0", "L23H1", "L23H2"]
FACTORS = ("order", "lexical")
VERBS = ("nothing", "intervene", "outcome", "validate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, nargs="+", default=[128, 400])
    parser.add_argument("--child", nargs=3, metavar=("VERB", "PROMPTS", "FEATURES"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        run(given.child[0], int(given.child[1]), given.child[2])
        return
    with tempfile.TemporaryDirectory() as folder:
        model = qk.load("smollm2")
        drawn = qk.tasks.binding(tokenizer=model.tokenizer).contrasts
        contrasts = {"order": drawn["order_free"], "lexical": drawn["lexical"]}
        qk.decompose(model, contrasts, heads=HEADS, rank="own").save(folder)
        for verb in VERBS:
            for prompts in given.prompts:
                subprocess.run([sys.executable, __file__, "--child", verb, str(prompts), folder], check=True)


def run(verb: str, prompts: int, folder: str) -> None:
    model, features = qk.load("smollm2"), qk.Features.load(folder)
    task = qk.tasks.binding(tokenizer=model.tokenizer, n_train=1, n_search=1, n_test=prompts)
    if verb == "intervene":
        qk.intervene(model, task.test, features, progress=False)
    if verb == "outcome":
        qk.intervene(model, task.test, features, outcome="logits", methods=["contrast"], draws=1, progress=False)
    if verb == "validate":
        qk.validate(model, {name: task.counterfactuals(name) for name in FACTORS}, features, progress=False)
    print(f"{verb}, {prompts} prompts: {peak()} MB", flush=True)


def peak() -> int:
    """Of this program alone, in MB; `ru_maxrss` begins with the parent's (Linux)."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) // 1024


if __name__ == "__main__":
    main()
