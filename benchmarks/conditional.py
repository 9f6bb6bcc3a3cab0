"""How near do conditional exchanges and projector swaps come to prompts that really changed (GAUGE.md, docs/proof.md)?

python benchmarks/conditional.py results.jsonl                     # every setting, the most telling first
python benchmarks/conditional.py results.jsonl --only boxes,9,3    # one of them
python benchmarks/conditional.py results.jsonl --report            # a table of what is in the file

A setting that is in the file is not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import pandas as pd

import qkprism as qk
from qkprism.contrasts.words import words
from qkprism.studies.binding import choose_heads
from qkprism.tasks import Schema
from qkprism.tasks.schemas import PEOPLE

OWNERS = Schema(
    "owners",
    words("objects"),
    PEOPLE,
    clause="the {entity} belongs to {label}",
    cloze="The {entity} belongs to",
    question="To whom does the {entity} belong?",
    answer="Answer:",
)
SCHEMAS = {"boxes": "boxes", "cities": "cities", "drinks": "drinks", "owners": OWNERS}
SETTINGS = [(schema, pairs, seed) for seed in (3, 4, 5) for pairs in (9, 5) for schema in SCHEMAS]
METHODS = ["conditional", "contrast", "raw"]
SIZES = {"n_train": 300, "n_test": 128}


def run(model: qk.Model, schema: str, pairs: int, seed: int) -> list[dict[str, object]]:
    """All checks of one setting, as rows."""
    task = qk.tasks.binding(pairs, seed, SCHEMAS[schema], tokenizer=model.tokenizer, **SIZES)
    heads, _ = choose_heads(qk.find_heads(model, task.search, progress=False))
    features = qk.decompose(model, task.contrasts, heads=heads, seed=seed, progress=False)
    truth = {name: task.counterfactuals(name) for name in ("order", "lexical")}
    found = qk.validate(model, truth, features, methods=METHODS, progress=False)
    return [
        {"schema": schema, "pairs": pairs, "seed": seed, "matters": check.matters, **check._asdict()}
        for check in found.checks
    ]


def report(file: Path) -> None:
    """A table of all settings, over the heads in which a factor matters; then how often the first method is best."""
    frame = pd.DataFrame([json.loads(line) for line in file.read_text().splitlines()])
    frame = frame[frame.matters]
    groups = frame.groupby(["pairs", "schema", "factor", "method"], sort=False)
    rows = {key: _over(checks) for key, checks in groups}
    table = pd.DataFrame(rows).T.rename_axis(["pairs", "schema", "factor", "method"]).reset_index()
    print(table.to_string(index=False, float_format="{:.3f}".format))
    case = ["schema", "pairs", "seed", "factor", "head"]
    wide = frame.pivot_table(index=case, columns="method", values="logit_off")
    better = wide["conditional"] < wide["contrast"]
    print(f"\nlogit error below the projector swap's in {better.sum()} of {len(better)} ({better.mean():.2f})")
    print(better.groupby(["pairs", "schema", "factor"]).mean().to_string(float_format="{:.2f}".format))


def _over(checks: pd.DataFrame) -> dict[str, float]:
    """Ratios of means over heads and seeds, as `Validation.summary` has them."""
    mean = checks.mean(numeric_only=True)
    true = checks.true_part.abs().mean()
    return {
        "cases": len(checks),
        "logit": mean.logit_off / mean.logit_off_unedited,
        "tv_pair": mean.pair_distance / mean.pair_distance_unedited,
        "tv": mean.distance / mean.distance_unedited,
        "floor": (checks.floor * checks.distance_unedited).mean() / mean.distance_unedited,
        "moved_own": mean.moved_own,
        "moved_other": checks.moved_other.abs().mean(),
        "part_error": checks.part_error.abs().mean() / true,
        "part_rms": mean.part_rms,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", help="schema,pairs,seed")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if options.report:
        report(options.file)
        return
    only = options.only.split(",") if options.only else None
    wanted = SETTINGS if only is None else [(only[0], int(only[1]), int(only[2]))]
    lines = options.file.read_text().splitlines() if options.file.exists() else []
    done = {tuple(json.loads(line)[name] for name in ("schema", "pairs", "seed")) for line in lines}
    model = qk.load("smollm2")
    for setting in (one for one in wanted if one not in done):
        start = time.monotonic()
        rows = run(model, *setting)
        with options.file.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        print(*setting, f"{time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
