"""Which metric withstands a factor that no contrast names? The error of a planted projector, over a grid.

    python benchmarks/loading.py            about a minute

Keys are K z + noise with factors of ranks 3 and 5, a contrast each, and one of rank 4 that no contrast names. It is
held fixed in a pair, or varies. Compared: the contrast metric as it is (raised), before it is raised, with a multiple
of the covariance of all keys added instead, and the raw oblique projector. The error is that of z1's projector on what
keys are made of, ||P [F1 F2 F3] - [F1 0 0]|| / ||F1||, mean over seeds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from one_head import decompose_vector_sets
from planted import Unlisted
from qkprism.core import metrics

ADDED = (0.1, 0.3, 1.0)
RANKS = {"z1": 3, "z2": 5}


def projector(features):
    return features.with_rank(RANKS).joint("L0H0")["z1"]


def errors(planted: Unlisted) -> dict[str, float]:
    """The error of every metric on one data set."""
    features = decompose_vector_sets(planted.sets, rank="energy")
    found = {"raised": planted.error(projector(features))}
    raise_it = metrics._raised
    for name, weight in {"not raised": 0.0, **{f"+ {weight} T": weight for weight in ADDED}}.items():
        metrics._raised = lambda metric, total, least, w=weight: metric + 2 * w * least * total  # two contrasts
        found[name] = planted.error(projector(features.with_metric("contrast")))
    metrics._raised = raise_it
    return found | {"raw oblique": planted.error(projector(features.with_metric("raw")))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=4)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    names = ["raised", "not raised", *(f"+ {weight} T" for weight in ADDED), "raw oblique"]
    print(f"{'factor':8}{'labels':8}{'noise':>6}{'n':>6}", *(f"{name:>12}" for name in names))
    for labels in (False, True):
        for fixed in (True, False):
            for noise in (0.01, 0.1, 0.3):
                for n in (300, 3000):
                    drawn = [Unlisted(n, fixed=fixed, noise=noise, labels=labels, seed=seed) for seed in range(seeds)]
                    rows = [errors(planted) for planted in drawn]
                    means = [sum(row[name] for row in rows) / seeds for name in names]
                    what = f"{'fixed' if fixed else 'varies':8}{'yes' if labels else 'no':8}{noise:>6}{n:>6}"
                    print(what, *(f"{mean:12.3f}" for mean in means), flush=True)


if __name__ == "__main__":
    main()
