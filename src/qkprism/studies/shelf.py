"""`run_shelf`: every contrast of the shelf in every head of a model, with proofs in the best heads of each.

Each text is run once. What has been computed stays in the folder: a run that was killed goes on with the contrast it
was at. The head and the feature that a contrast's row tells of are chosen on texts of the contrast's own words; the
figures are of texts with held-out words.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.contrasts.shelves import check_on_shelf
from qkprism.contrasts.tasks import Task, task
from qkprism.contrasts.templates import shelf_names
from qkprism.core.evidence import q_values
from qkprism.core.feature import Feature
from qkprism.heads import Head, all_heads
from qkprism.models.model import Model
from qkprism.options import checked_seed, whole_number
from qkprism.progress import part
from qkprism.ranks import wait
from qkprism.results.effects import Effects
from qkprism.results.features import Features
from qkprism.results.scores import HeadScores
from qkprism.results.stored import Result
from qkprism.results.validation import TruthCheck, Validation
from qkprism.runs.store import Parts
from qkprism.studies.jobs import job_of
from qkprism.studies.shelf_pass import Proof, Sums, factors_of, first_pass, second_pass
from qkprism.studies.shelf_result import ERRORS, KIND, RIGHT, TABLE, Shelf, ShelfRow, part_folder
from qkprism.subspaces.spaces import Spaces

BEST = 5  # heads of a contrast that are proved
LEAST = 32  # examples, for 8 folds of some


@dataclass(frozen=True)
class Evidence(Result, kind="evidence"):
    """Of every feature of a contrast the p of the held-out test in every head."""

    p: Mapping[str, Float64[Tensor, " head"]] = field(default_factory=dict)


def run_shelf(
    model: Model,
    folder: str | os.PathLike[str],
    *,
    contrasts: Sequence[str] | None = None,
    n: int = 300,
    seed: int = 0,
    progress: bool = True,
) -> Shelf:
    """Find which heads of a model do what the contrasts of the shelf ask, and prove it on held-out words.

    >>> run_shelf(model, "runs/shelf").to_frame()   # doctest: +SKIP

    model       what `load` gave
    folder      where all of it is kept; a run that was killed goes on there
    contrasts   names of the shelf (all); fewer take less time
    n           examples of each contrast; half as many have held-out words, a fifth choose the head, and in a fifth
                of the held-out ones a variable is really exchanged
    seed        of the prompts, the held-out words, folds and controls
    progress    whether a bar is shown
    """
    names = tuple(map(check_on_shelf, shelf_names() if contrasts is None else contrasts))
    whole_number(n, "n", LEAST)
    seed = checked_seed(seed)
    job = job_of(model, {"n": n, "best": BEST}, {}, seed=seed)
    parts = Parts.open(folder, KIND, job, {"model": model.name, "contrasts": names, "n": n, "seed": seed})
    rows, accuracy, q = [], [], []
    for number, name in enumerate(names, start=1):
        with part(number, len(names), name):
            row, scores = _run_one(model, parts, _draw(model, name, n, seed), progress)
        rows.append(row)
        accuracy.append(scores.values["accuracy"])
        q.append(scores.q)
    about = {key: job[key] for key in ("model", "model_digest", "dtype", "versions")} | {"n": n, "seed": seed}
    heads = all_heads(model.heads_per_layer)
    table = Shelf(tuple(rows), heads, torch.stack(accuracy), torch.stack(q), about)
    table.save(parts.folder / TABLE)
    wait()
    return Shelf.load(parts.folder)


def _draw(model: Model, name: str, n: int, seed: int) -> Task:
    return task(name, seed, model.tokenizer, n_train=n, n_search=max(n // 5, 1), n_test=max(n // 2, 1))


def _run_one(model: Model, parts: Parts, drawn: Task, progress: bool) -> tuple[ShelfRow, HeadScores]:
    """The row of one contrast, and how every head does on held-out words."""
    of_template = Parts(parts.folder, parts.kind, {**parts.job, "template": drawn.template.digest})
    seed = drawn.seed

    def first() -> dict[str, Any]:
        sums: Sums = first_pass(model, drawn, seed=seed, kept=kept, progress=progress)
        best = sums.scores.sort("accuracy").top(BEST)
        features = sums.features(best, tuple(drawn.contrasts))
        made = {"scores": sums.scores, "evidence": Evidence(sums.p_values())}
        return {**made, "features": features, "spaces": sums.spaces()}

    loads: dict[str, Callable[..., Any]] = {"scores": HeadScores.load, "evidence": Evidence.load}
    loads |= {"features": Features.load, "spaces": Spaces.load}
    folders = {name: part_folder(drawn.name, name) for name in loads}
    with of_template.keeping(f"{drawn.name}-first") as kept:
        found = of_template.get_all(folders, first, loads)

    def second() -> dict[str, Any]:
        pairs = len(drawn.search)
        options: dict[str, Any] = {"n_pairs": pairs, "seed": seed, "kept": kept, "progress": progress}
        proof: Proof = second_pass(model, drawn, found["features"], **options)
        return vars(proof) | {"validation": proof.validation or Validation(())}

    loads = {"chosen_by": Effects.load, "effects": Effects.load, "scores": HeadScores.load}
    loads["validation"] = Validation.load
    with of_template.keeping(f"{drawn.name}-test") as kept:
        proof = Proof(**of_template.get_all({name: f"{drawn.name}-test-{name}" for name in loads}, second, loads))
    return _row(drawn, found["scores"], found["evidence"], found["features"], proof), proof.scores


def _row(drawn: Task, scores: HeadScores, evidence: Evidence, features: Features, proof: Proof) -> ShelfRow:
    feature = _choose(scores, features, proof.chosen_by)
    head, name = feature.head, feature.contrast
    at, q_feature = proof.scores.heads.index(head), q_values(evidence.p[name])
    effect, effect_error = proof.effects.gain(head=head, feature=name)
    rivals = {row["control"]: row for row in _rivals(proof.effects, head, name) if row["evidence"]}
    nearest = min(rivals.values(), key=lambda row: row["advantage"])
    check = _check(proof.validation, feature, features.choices.metric)
    return ShelfRow(
        contrast=drawn.name,
        question=drawn.template.question,
        digest=drawn.template.digest,
        heads=scores.sort("accuracy").top(BEST),
        head=head,
        feature=name,
        accuracy=float(proof.scores.values["accuracy"][at]),
        accuracy_error=float(proof.scores.errors["accuracy"][at]),
        chance=proof.scores.chance,
        q=float(proof.scores.q[at]),
        rank=feature.rank,
        rank_heldout=feature.rank_heldout,
        q_feature=float(q_feature[proof.scores.heads.index(head)]),
        effect=effect,
        effect_error=effect_error,
        permuted=rivals["permuted"]["advantage"],
        permuted_error=rivals["permuted"]["error"],
        control=nearest["control"],
        control_effect=effect - nearest["advantage"],
        factor=factors_of(drawn).get(name) if check else None,
        true_part=check.true_part if check else math.nan,
        part=check.part if check else math.nan,
        part_error=check.part_error if check else math.nan,
        n=proof.scores.n,
    )


def _check(validation: Validation | None, feature: Feature, method: str) -> TruthCheck | None:
    """The feature's own part against the truth, where something can be exchanged; not that of the whole key."""
    wanted = (feature.contrast, feature.head, method)
    checks = validation.checks if validation else ()
    return next((check for check in checks if (check.factor, check.head, check.method) == wanted), None)


def _choose(scores: HeadScores, features: Features, effects: Effects) -> Feature:
    """Of heads that are right on the contrast's own words, the feature that moves most beyond permuted labels there.

    Those that are clearly above permuted labels come first.
    """
    accuracy = dict(zip(scores.heads, scores.values["accuracy"].tolist(), strict=True))
    right = [head for head in features.heads if accuracy[head] >= RIGHT]
    able = right or [max(features.heads, key=lambda head: accuracy[head])]

    def beyond(feature: Feature) -> tuple[bool, float]:
        (row,) = [r for r in _rivals(effects, feature.head, feature.contrast) if r["control"] == "permuted"]
        return row["advantage"] > ERRORS * row["error"], row["advantage"]

    return max((feature for feature in features.values() if feature.head in able), key=beyond)


def _rivals(effects: Effects, head: Head, feature: str) -> list[dict[str, Any]]:
    return [
        row for row in effects.beats() if (row["head"], row["feature"], row["target"]) == (str(head), feature, "given")
    ]
