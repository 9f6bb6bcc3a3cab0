"""What do interventions cost? All heads, features, combinations and controls beside one bare forward pass, in one run.

    python benchmarks/intervene.py            # figures as printed in benchmarks/README.md
    python benchmarks/intervene.py --quick    # fewer prompts and rounds

The bare pass has only the layers before the one in which `intervene` stops, so it does a little less. Pieces of 64
prompts take turns; a ratio is the median over rounds. The way of the paper's scripts, one edited pass a condition, is
reckoned from the number of conditions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import qkprism as qk
from capture import bare, batches_of
from prompts import BATCH, contrast
from qkprism.capture.batching import Batches
from qkprism.capture.source import sites_of
from qkprism.models.encoding import EncodedExample, encode
from qkprism.subspaces.comparison import Comparison
from qkprism.verbs.intervene import EffectsReader
from qkprism.verbs.plan import EditPlan, conditions_of

HEADS = ["L10H1", "L12H4", "L14H2", "L15H2", "L16H7", "L17H3", "L18H6", "L19H0", "L20H5"]
PIECE = 64


def timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    n, rounds = (64, 3) if given.quick else (given.prompts, given.rounds)
    print(json.dumps(compare(n, rounds), indent=1))


def compare(n: int, rounds: int) -> dict[str, Any]:
    """Interleaved timings of the bare pass and of `intervene`, and of what comes before and after the pass."""
    model = qk.load("smollm2")
    features = qk.decompose(
        model, [contrast(128), contrast(128, "first", 1)], heads=HEADS, recipe=qk.Recipe(rank=8), progress=False
    )
    test = contrast(n, seed=2)
    encoded = encode(model.tokenizer, test)
    sites = sites_of(model, features.heads)
    start = time.perf_counter()
    conditions = conditions_of(features, sites, Comparison())
    building = time.perf_counter() - start
    plan = EditPlan.of(model, test, features, Comparison())
    layers, last = model.hf.model.layers, max(sites)

    def bare_pass(piece: list[EncodedExample]) -> None:
        model.hf.model.layers = layers[:last]
        bare(model, batches_of(piece))
        model.hf.model.layers = layers

    def intervening(piece: list[EncodedExample]) -> None:
        reader = EffectsReader(plan)
        for batch in Batches(model, sorted(sites), batch_size=BATCH).run(piece, reader.visit):
            reader.keep(batch)
        reader.result()

    ways = {"bare": bare_pass, "intervene": intervening}
    for way in ways.values():
        way(encoded[: 2 * BATCH])
    seconds: dict[str, list[float]] = {name: [0.0] * rounds for name in ways}
    for round_ in range(rounds):
        for turn, at in enumerate(range(0, n, PIECE)):
            for name in list(ways) if (round_ + turn) % 2 else list(ways)[::-1]:
                seconds[name][round_] += timed(lambda name=name, at=at: ways[name](encoded[at : at + PIECE]))
    ratios = [a / b for a, b in zip(seconds["intervene"], seconds["bare"], strict=True)]
    whole = statistics.median(seconds["bare"])
    number = len(next(iter(conditions.values())).names)
    return {
        "torch": torch.__version__,
        "prompts": n,
        "heads": len(HEADS),
        "conditions": number,
        "ratio_to_bare": statistics.median(ratios),
        "ratios": ratios,
        "building_conditions_of_bare": building / whole,
        "ratio_with_building": statistics.median(ratios) + building / whole,
        "edited_passes_it_replaces": number * len(HEADS),
    }


if __name__ == "__main__":
    main()
