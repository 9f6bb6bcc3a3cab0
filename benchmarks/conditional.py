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
from qkprism.heads import Head
from qkprism.results.validation import CLEAR, TruthCheck, over_heads
from qkprism.studies.binding import choose_heads
from qkprism.studies.binding_prompts import binding_prompts

OWNERS = Path(__file__).with_name("owners.toml")
SCHEMAS = {"boxes": "boxes", "cities": "cities", "drinks": "drinks", "owners": OWNERS}
SETTINGS = [(schema, pairs, seed) for seed in (3, 4, 5) for pairs in (9, 5) for schema in SCHEMAS]
METHODS = ["conditional", "contrast", "raw"]
COLUMNS = {  # of the report: what `over_heads` calls it, and of which method
    "logit error, conditional": ("logit", "conditional"),
    "projector": ("logit", "contrast"),
    "permuted": ("logit", "conditional, permuted"),
    "key draws": ("logit", "conditional, key draws"),
    "attention, whole truth, conditional": ("tv", "conditional"),
    "projector swap": ("tv", "contrast"),
    "two keys alone": ("floor", "conditional"),
    "other factor": ("moved_other", "conditional"),
    "by chance": ("moved_other_by_chance", "conditional"),
    "part, error": ("relative_part_error", "conditional"),
    "oblique": ("relative_part_error", "contrast"),
    "one prompt's part, conditional": ("part_rms", "conditional"),
    "oblique, one prompt": ("part_rms", "contrast"),
    "the paper's": ("part_rms", "raw sequential"),
    "true part": ("true_part", "conditional"),
}
SIZES = {"n_train": 300, "n_test": 128}


def run(model: qk.Model, schema: str, pairs: int, seed: int) -> list[dict[str, object]]:
    """All checks of one setting, as rows."""
    prompts = binding_prompts(SCHEMAS[schema], pairs, seed, tokenizer=model.tokenizer, **SIZES)
    heads, _ = choose_heads(qk.find_heads(model, prompts.task.search, progress=False))
    features = qk.decompose(model, prompts.contrasts, heads=heads, seed=seed, progress=False)
    truth = {name: prompts.counterfactuals(name) for name in ("order", "lexical")}
    found = qk.validate(model, truth, features, methods=METHODS, progress=False)
    return [
        {"schema": schema, "pairs": pairs, "seed": seed, "matters": check.matters, **check._asdict()}
        | {"head": str(check.head)}
        for check in found.checks
    ]


def report(file: Path) -> None:
    """A table in Markdown of the heads in which a factor matters, a row a setting; then what holds in how many."""
    frame = pd.DataFrame([json.loads(line) for line in file.read_text().splitlines()])
    frame = frame[frame.matters]
    print(f"| seed | pairs, prompts | factor | heads | {' | '.join(COLUMNS)} |\n|{'---|' * (4 + len(COLUMNS))}")
    for (seed, pairs, schema, factor), rows in frame.groupby(["seed", "pairs", "schema", "factor"], sort=False):
        of = {method: over_heads(_checks(some)) for method, some in rows.groupby("method")}
        cells = [f"{of[method][name]:.2f}" if method in of else "" for name, method in COLUMNS.values()]
        print(f"| {seed} | {pairs}, {schema} | {factor} | {rows['head'].nunique()} | {' | '.join(cells)} |")
    case = ["schema", "pairs", "seed", "factor", "head"]
    wide = frame.pivot_table(index=case, columns="method", values="logit_off")
    better = wide["conditional"] < wide["contrast"]
    print(f"\nlogit error below the projector swap's in {better.sum()} of {len(better)} heads and factors")
    ours = frame[frame.method == "conditional"]
    far = ours.moved_other.abs() > CLEAR * ours.moved_other_error
    print(f"the other factor moved by more than {CLEAR:g} errors in {far.sum()} of {len(ours)}:")
    print(ours[far][[*case, "moved_other", "moved_other_error"]].to_string(index=False, float_format="{:.2f}".format))
    drawn = ours.moved_other / ours.moved_other_error
    print(f"root mean square of moved_other in errors: {(drawn**2).mean() ** 0.5:.2f}, 1 if it were chance alone")


def _checks(rows: pd.DataFrame) -> list[TruthCheck]:
    return [
        TruthCheck(**row | {"head": Head.parse(row["head"])}) for row in rows[[*TruthCheck._fields]].to_dict("records")
    ]


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
