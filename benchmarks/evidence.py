"""What passes for evidence? Three tables on controls and metrics.

    python benchmarks/evidence.py noise      how often features of noise beat each control (planted data, a minute)
    python benchmarks/evidence.py metric     errors above permuted labels, raw beside contrast metric (default model)
    python benchmarks/evidence.py truth      both metrics against prompts that really changed (default model)

Features of noise are those of sides dealt at random: whatever a control lets them beat is no test.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import qkprism as qk
from one_head import decompose_vector_sets
from plain_vectors import intervene_vectors
from planted import Lock, basis_change
from qkprism.subspaces.comparison import PROJECTING
from qkprism.subspaces.intervention import Attending

CONTROLS = ("permuted", "pca", "keys", "gaussian")
SEEDS = 20
SHARP = 3.5  # of the softmax, for a top attention of about 0.97


def noise() -> None:
    """Four kinds of heads, twenty seeds, two features each, one row a kind and method."""
    kinds = {
        "two factors": {},
        "much noise": {"noise": 0.3},
        "a third factor": {"nuisance": 3},
        "a third factor, other basis": {"nuisance": 3, "change": True},
    }
    print(f"{'share of 40 features that beat':42}", *(f"{control:>9}" for control in CONTROLS))
    for kind, options in kinds.items():
        beaten: Counter[tuple[str, str]] = Counter()
        for seed in range(SEEDS):
            change = basis_change(16, seed=seed) if options.get("change") else None
            lock = Lock(seed=seed, **{**options, "change": change})
            features = decompose_vector_sets(dealt_anew(lock.contrasts(400), seed), rank=4, scaling=SHARP)
            for row in intervene_vectors(scenes(lock, 400), features, methods=PROJECTING).beats():
                if "+" not in row["feature"]:
                    beaten[row["method"], row["control"]] += row["beaten"]
        for method in PROJECTING:
            shares = (f"{beaten[method, control] / (2 * SEEDS):9.0%}" for control in CONTROLS)
            print(f"{kind + ', ' + method:42}", *shares, flush=True)


def dealt_anew(sets, seed):
    """The same keys with sides at random: nothing is left to find."""
    g = torch.Generator().manual_seed(seed)
    found = {}
    for name, v in sets.items():
        side = torch.rand(len(v.query), 1, generator=g) < 0.5
        positive, negative = torch.where(side, v.positive, v.negative), torch.where(side, v.negative, v.positive)
        found[name] = type(v)(v.query, positive, negative)
    return found


def scenes(lock, n):
    z = lock.draw(n, 8)
    pair = torch.zeros(n, dtype=torch.long), torch.ones(n, dtype=torch.long)
    return Attending(lock.queries([x[:, 0] for x in z]), lock.keys(z), *pair)


def metric() -> None:
    model = qk.load("smollm2")
    print(f"{'errors above permuted labels':32}", *(f"{name:>9}" for name in ("raw", "contrast")))
    for name, heads in (("coreference", ["L9H4", "L15H6", "L15H7"]), ("induction", ["L17H3", "L17H4"])):
        task = qk.task(name, tokenizer=model.tokenizer, n_train=200, n_test=100)
        rows = {head: [] for head in heads}
        recipes = {metric: qk.Recipe(metric=metric) for metric in ("raw", "contrast")}
        for features in qk.decompose(model, task.contrasts, heads=heads, recipe=recipes, progress=False).values():
            effects = qk.intervene(model, task.test, features, progress=False)
            for row in effects.beats():
                if (row["control"], row["method"]) == ("permuted", features.choices.metric):
                    rows[str(row["head"])].append(row["advantage"] / row["error"])
        for head, found in rows.items():
            print(f"{name + ', ' + head:32}", *(f"{value:9.1f}" for value in found), flush=True)


def truth() -> None:
    """Features of one contrast from 150 and from 300 examples: the logit error that a swap leaves, and the part's."""
    model, heads = qk.load("smollm2"), ["L9H2", "L9H4", "L15H6", "L15H7"]
    print(f"{'examples, head':20}", *(f"{name:>24}" for name in ("swap: raw, contrast", "part: raw, contrast")))
    for n in (150, 300):
        task = qk.task("coreference", tokenizer=model.tokenizer, n_train=n, n_test=100)
        recipes = {metric: qk.Recipe(metric=metric) for metric in ("raw", "contrast")}
        sets = qk.decompose(model, task.contrasts, heads=heads, recipe=recipes, progress=False)
        pairs = {"coreference": task.counterfactuals(task.factors[0])}
        found = {
            (str(check.head), check.method): check
            for check in qk.validate(model, pairs, sets, progress=False).checks
            if check.features == check.method
        }
        for head in heads:
            checks = [found[head, metric] for metric in ("raw", "contrast")]
            swaps = ", ".join(f"{check.logit:.2f}" for check in checks)
            parts = ", ".join(f"{abs(check.part_error / check.true_part):.0%}" for check in checks)
            print(f"{f'{n}, {head}':20} {swaps:>24} {parts:>24}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("table", choices=["noise", "metric", "truth"])
    globals()[parser.parse_args().table]()
