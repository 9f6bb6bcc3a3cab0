"""What the paper says of interventions and attributions in its toy heads beside what a study found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from qkprism.findings import Claim
from qkprism.toy.results import average
from qkprism.toy.verdicts import below, judged, new

if TYPE_CHECKING:
    from qkprism.toy.interventions import Swap
    from qkprism.toy.results import Study

ALL, MOST = 0.02, 0.10  # of the attention that is to be moved
MUCH_LESS, LESS = 0.5, 0.9
ALONE, MAINLY = 0.05, 0.50  # of what no edit is off
EXACT_PARTS, ROUGH_PARTS = 0.05, 0.30


def _swaps(study: Study, *, target: str = "given", feature: str = "z1+z2") -> list[Swap]:
    return [r for r in study.trained.swaps if below(r) and r.target == target and r.feature == feature]


def _on_target(rows: Iterable[Swap], control: str, method: str = "") -> float:
    return average(r.on_target for r in rows if (r.control, r.method) == (control, method))


def _both(study: Study) -> Claim | None:
    rows = _swaps(study)
    before = {row.cell: row for row in rows if row.control == "none"}
    after = {row.cell: row for row in rows if (row.control, row.method) == ("feature", "raw")}
    if not after:
        return None
    gaps = [abs(row.on_target - before[cell].on_original) for cell, row in after.items()]
    there = [before[cell].on_original - before[cell].on_target for cell in after]
    missed = max(gap / max(size, 1e-9) for gap, size in zip(gaps, there, strict=True))
    return judged(
        "Swapping both features moves all the attention from the original to the target token.",
        f"The target has after the swap what the original had before, to {max(gaps):.4f} at most.",
        f"no head misses {ALL:.0%} of the attention that is to be moved; in part: {MOST:.0%}",
        agrees=missed <= ALL,
        partly=missed <= MOST,
    )


def _random(study: Study) -> Claim | None:
    rows = _swaps(study)
    none, features, gaussian = (
        _on_target(rows, *kind) for kind in (("none",), ("feature", "raw"), ("gaussian", "raw"))
    )
    if gaussian != gaussian:
        return None
    share = (gaussian - none) / (features - none)
    return judged(
        "Random subspaces of the same dimension move much less.",
        f"On the target after swapping r1 + r2 dimensions: {features:.2f} with the features, {gaussian:.2f} with "
        f"Gaussian subspaces: {share:.0%} of the shift.",
        f"at most {MUCH_LESS:.0%} of the shift; in part: {LESS:.0%}",
        agrees=share <= MUCH_LESS,
        partly=share <= LESS,
    )


def _controls(study: Study) -> Claim | None:
    rows = _swaps(study)
    features, pca, permuted = (_on_target(rows, control, "raw") for control in ("feature", "pca", "permuted"))
    if pca != pca:
        return None
    return new(
        "Subspaces that know the keys, but not the features.",
        f"On the target after swapping r1 + r2 dimensions: {pca:.2f} with the leading principal directions of the keys "
        f"and {permuted:.2f} with features of permuted labels ({features:.2f} with the features), because nearly all "
        "that these keys hold is z1 and z2. Attention moved is weak evidence; which attention moves is strong.",
    )


def _single(study: Study) -> Claim | None:
    rows = _swaps(study, feature="z1")
    if not rows:
        return None
    raw, ours = (
        average(r.off_truth for r in rows if r.control == "feature" and r.method == m) for m in ("raw", "contrast")
    )
    none = average(r.off_truth for r in rows if r.control == "none")
    return judged(
        "Swapping z1's subspace changes z1.",
        f"Total variation to a head whose tokens really exchanged z1 (no edit: {none:.3f}): the paper's orthogonal "
        f"projector {raw:.3f}, the oblique one in the contrast metric {ours:.3f}. The subspaces of z1 and z2 are not "
        "orthogonal, so the paper's swap of z1 moves some of z2.",
        f"the paper's swap is off by at most {ALONE:.0%} of what no edit is; in part: {MAINLY:.0%}",
        agrees=raw <= ALONE * none,
        partly=raw <= MAINLY * none,
    )


def _matched(study: Study) -> Claim | None:
    rows = {feature: _swaps(study, target="z1", feature=feature) for feature in ("z1", "z2")}
    if not rows["z1"]:
        return None
    none, full = (_on_target(rows["z1"], control) for control in ("none", "full"))
    told = {(m, f): _on_target(rows[f], "feature", m) for m in ("raw", "contrast") for f in rows}
    return new(
        "A target that differs in z1 only should move with z1's subspace and stay with z2's.",
        f"On such a target {none:.3f} before, {full:.3f} with whole keys exchanged. Swapping z1: "
        f"{told['raw', 'z1']:.3f} (the paper's), {told['contrast', 'z1']:.3f} (contrast metric). Swapping z2: "
        f"{told['raw', 'z2']:.3f} and {told['contrast', 'z2']:.3f}.",
    )


def _parts(study: Study) -> Claim | None:
    rows = [row for row in study.trained.parts if below(row)]
    paper, ours, raw = (
        average(row.share for row in rows if (row.metric, row.split) == kind)
        for kind in (("paper", "sequential"), ("contrast", "oblique"), ("raw", "oblique"))
    )
    if paper != paper:
        return None
    return judged(
        "Logits can be attributed to features by projecting queries, one feature after the other (section 5).",
        f"Error of the parts against the true ones, relative to their size: {paper:.1%} for the paper's split, "
        f"{ours:.1%} for the oblique one in the contrast metric, {raw:.1%} for the oblique one in the raw metric.",
        f"the paper's split is off by at most {EXACT_PARTS:.0%}; in part: {ROUGH_PARTS:.0%}",
        agrees=paper <= EXACT_PARTS,
        partly=paper <= ROUGH_PARTS,
    )


def _gauge(study: Study) -> Claim | None:
    def error(rows: Iterable[Swap], method: str) -> float:
        kind = ("given", "feature", "z1", method)
        return average(r.off_truth for r in rows if below(r) and (r.target, r.control, r.feature, r.method) == kind)

    if not any(below(row) for row in study.rebased.swaps):
        return None
    before, after = study.trained, study.rebased
    missed, found = (
        [sum(getattr(row, rule) != row.true for row in one.recovered if below(row)) for one in (before, after)]
        for rule in ("energy", "balanced")
    )
    return new(
        "What a change of basis does that leaves all logits as they were (condition 30).",
        f"The error of the paper's swap of z1 goes from {error(before.swaps, 'raw'):.3f} to "
        f"{error(after.swaps, 'raw'):.3f} and its rank misses from {missed[0]} to {missed[1]} latents. In the contrast "
        f"metric the error is {error(before.swaps, 'contrast'):.4f} and {error(after.swaps, 'contrast'):.4f}; the "
        f"balanced rank misses {found[0]} and {found[1]}.",
    )


EDIT_CLAIMS = (_both, _random, _controls, _single, _matched, _parts, _gauge)
