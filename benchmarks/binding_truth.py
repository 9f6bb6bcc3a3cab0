"""Which order contrast and which rank come closest to prompts that really changed (docs/studies.md)?

python benchmarks/binding_truth.py --pairs 9 --tests 640
"""

from __future__ import annotations

import argparse

import qkprism as qk
from qkprism.studies.binding import choose_heads
from qkprism.studies.binding_prompts import binding_prompts

FREE, FIXED = {"order": "order", "lexical": "lexical"}, {"order": "order_fixed", "lexical": "lexical"}
RECIPES = {
    "paper": qk.Recipe(preset="paper", contrasts=FIXED),
    "fixed entity, balanced rank": qk.Recipe(contrasts=FIXED),
    "fixed entity, own rank": qk.Recipe(contrasts=FIXED, rank="own"),
    "no fixed entity, balanced rank": qk.Recipe(contrasts=FREE),
    "no fixed entity, own rank": qk.Recipe(contrasts=FREE, rank="own"),
}
COLUMNS = ["features", "factor", "method", "heads", "n_heads", "nearer", "tv_median", "tv", "relative_part_error"]
COLUMNS += ["absolute_part_error", "error_by_chance", "part_rms", "slope_own"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--schema", default="boxes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=int, default=300)
    parser.add_argument("--tests", type=int, default=640)
    given = parser.parse_args()
    model = qk.load("smollm2")
    sizes = {"n_train": given.train, "n_test": given.tests}
    prompts = binding_prompts(given.schema, given.pairs, given.seed, tokenizer=model.tokenizer, **sizes)
    heads, _ = choose_heads(qk.find_heads(model, prompts.task.search))
    found = qk.decompose(model, {**prompts.contrasts, **prompts.extra}, recipe=RECIPES, heads=heads, seed=given.seed)
    pairs = {name: prompts.counterfactuals(name) for name in ("order", "lexical")}
    table = qk.validate(model, pairs, found, methods=["contrast", "raw"]).summary()
    print(f"{len(heads)} heads: {', '.join(map(str, heads))}")
    print(
        table[COLUMNS]
        .sort_values(["heads", "factor", "features"], ascending=False)
        .to_string(index=False, float_format="{:.3f}".format)
    )


if __name__ == "__main__":
    main()
