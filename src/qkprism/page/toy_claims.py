"""What the paper says of its toy heads beside what a study found: numbers of the run, and whether they agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from qkprism.toy.results import Study

Verdict = Literal["yes", "partly", "no", "new"]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and what this run says to it."""

    paper: str
    run: str
    verdict: Verdict


def claims(study: Study) -> list[Claim]:
    """The table `paper / this run`; statements that the run has no heads for are left out."""
    makers: tuple[Callable[[Study], Claim | None], ...] = (
        _discrete_accuracy,
        _continuous_accuracy,
        _ranks,
        _untrained,
        _closed_form,
        _alignment,
        _both,
        _random,
        _single,
        _matched,
        _parts,
        _gauge,
        _splits,
    )
    return [claim for make in makers if (claim := make(study)) is not None]


def average(values: Iterable[float]) -> float:
    """The mean of what is known; nan if nothing is."""
    known = [value for value in values if value == value]
    return mean(known) if known else float("nan")


def below(row: Any) -> bool:
    """Has the head more dimensions than its latents?"""
    return bool(sum(row.cell.task.ranks) < row.cell.d_head)


def _discrete_accuracy(study: Study) -> Claim | None:
    own = [score for score in study.scores() if score.cell.task.variant == "discrete"]
    if not own:
        return None
    worst = max(score.ceiling - score.accuracy for score in own)
    low, high = min(score.accuracy for score in own), max(score.accuracy for score in own)
    ceiling = min(score.ceiling for score in own)
    return Claim(
        "Heads reach 99% accuracy in the discrete task.",
        f"{low:.3f} to {high:.3f}. Tokens can share their latents, so 99% is impossible at small ranks (the ceiling is "
        f"{ceiling:.3f} at the smallest); every head is within {worst:.3f} of its ceiling.",
        "partly",
    )


def _continuous_accuracy(study: Study) -> Claim | None:
    own = [score for score in study.scores() if score.cell.task.variant == "continuous"]
    if not own:
        return None
    told = ", ".join(
        f"{average(s.accuracy for s in own if s.cell.d_head == d):.3f} on average at d_head {d}"
        for d in sorted({score.cell.d_head for score in own})
    )
    worst = max(score.dot_product_ceiling - score.accuracy for score in own)
    return Claim(
        "99% accuracy in the continuous task at d_head 16, around 85% at d_head 8.",
        f"{told}. No noise is to blame: a dot product favours long keys, and every head is within "
        f"{max(worst, 0):.3f} of "
        "what sharp attention by a dot product can reach.",
        "yes",
    )


def _ranks(study: Study) -> Claim | None:
    room = [row for row in study.recovered if below(row)]
    if not room:
        return None
    exact = sum(row.exact for row in room)
    rest = [row for row in study.recovered if row.cell.superposed]
    more = f" In superposed heads: {sum(row.exact for row in rest)} of {len(rest)}." if rest else ""
    return Claim(
        "The method recovers the ranks of both latents if r1 + r2 < d_head.",
        f"Exact for {exact} of {len(room)} latents by the paper's rule (99% of the energy).{more}",
        "yes" if exact == len(room) else "partly",
    )


def _untrained(study: Study) -> Claim | None:
    room = [row for row in study.controls if below(row)]
    if not room:
        return None
    exact = sum(row.energy == row.true for row in room)
    heldout = sum(row.heldout == row.true for row in room)
    return Claim(
        "Recovered ranks show how the head encodes the latents.",
        f"Untrained heads have them, too: exact for {exact} of {len(room)} latents by energy and {heldout} by the "
        "held-out "
        "test. A linear map keeps what it is given; the rank tells what queries and keys hold, not what the head uses.",
        "no",
    )


def _closed_form(study: Study) -> Claim | None:
    errors = [row.error for row in study.recovered if row.error == row.error]
    if not errors:
        return None
    return Claim(
        "In expectation ΔC is W_Q B_1 (…) A_1ᵀ W_Kᵀ: the part of one latent alone.",
        f"The sampled ΔC is within {average(errors):.3f} of its closed form on average ({max(errors):.3f} at most, "
        "of its "
        "norm). For signs that must differ the factor is 2^r / (2^r − 1), not 1.",
        "yes",
    )


def _alignment(study: Study) -> Claim | None:
    after, before = (average(row.aligned for row in rows if below(row)) for rows in (study.recovered, study.controls))
    if after != after:
        return None
    return Claim(
        "Keys and queries of one latent value fall onto the same clusters.",
        f"Mean cosine of their coordinates {after:.2f}. Singular vectors come in pairs, so part of this is the method: "
        f"untrained heads have {before:.2f}.",
        "yes",
    )


def _both(study: Study) -> Claim | None:
    rows = [r for r in study.trained.swaps if below(r) and r.target == "given" and r.feature == "z1+z2"]
    before = {row.cell: row.on_original for row in rows if row.control == "none"}
    gaps = [abs(r.on_target - before[r.cell]) for r in rows if r.control == "feature" and r.method == "raw"]
    if not gaps:
        return None
    return Claim(
        "Swapping both features moves all the attention from the original to the target token.",
        f"The target has after the swap what the original had before, to {max(gaps):.4f} at most.",
        "yes" if max(gaps) < 0.01 else "partly",
    )


def _random(study: Study) -> Claim | None:
    rows = [r for r in study.trained.swaps if below(r) and r.target == "given" and r.feature == "z1+z2"]
    shares = {
        (control, method): average(
            r.on_target for r in rows if r.control == control and (r.method == method or control == "none")
        )
        for control in ("none", "feature", "gaussian", "permuted", "pca")
        for method in ("raw", "contrast")
    }
    if not rows:
        return None
    return Claim(
        "Random subspaces of the same dimension move much less.",
        f"On the target after swapping r1 + r2 dimensions: {shares['feature', 'raw']:.2f} with the features, "
        f"{shares['gaussian', 'raw']:.2f} with Gaussian subspaces; but {shares['pca', 'raw']:.2f} with the leading "
        "principal "
        f"directions of the keys and {shares['permuted', 'raw']:.2f} with features of permuted labels, because "
        "nearly all "
        "that these keys hold is z1 and z2. Attention moved is weak evidence; which attention moves is strong.",
        "partly",
    )


def _single(study: Study) -> Claim | None:
    rows = [r for r in study.trained.swaps if below(r) and r.target == "given" and r.feature == "z1"]
    if not rows:
        return None
    raw, ours = (
        average(r.off_truth for r in rows if r.control == "feature" and r.method == m) for m in ("raw", "contrast")
    )
    none = average(r.off_truth for r in rows if r.control == "none")
    return Claim(
        "Swapping z1's subspace changes z1.",
        f"Total variation to a head whose tokens really exchanged z1 (no edit: {none:.3f}): the paper's orthogonal "
        "projector "
        f"{raw:.3f}, the oblique one in the contrast metric {ours:.3f}. The subspaces of z1 and z2 are not "
        "orthogonal, so the "
        "paper's swap of z1 moves some of z2.",
        "partly",
    )


def _matched(study: Study) -> Claim | None:
    rows = [r for r in study.trained.swaps if below(r) and r.target == "z1"]
    if not rows:
        return None
    none, full = (average(r.on_target for r in rows if r.control == c) for c in ("none", "full"))
    told = {
        (m, f): average(r.on_target for r in rows if (r.control, r.method, r.feature) == ("feature", m, f))
        for m in ("raw", "contrast")
        for f in ("z1", "z2")
    }
    return Claim(
        "(Not in the paper.) A target that differs in z1 only should move with z1's subspace and stay with z2's.",
        f"On such a target {none:.3f} before, {full:.3f} with whole keys exchanged. Swapping z1: "
        f"{told['raw', 'z1']:.3f} "
        f"(the paper's), {told['contrast', 'z1']:.3f} (contrast metric). Swapping z2: {told['raw', 'z2']:.3f} and "
        f"{told['contrast', 'z2']:.3f}.",
        "new",
    )


def _parts(study: Study) -> Claim | None:
    rows = [row for row in study.trained.parts if below(row)]
    if not rows:
        return None
    paper, ours = (
        average(row.share for row in rows if (row.metric, row.split) == kind)
        for kind in (("paper", "sequential"), ("contrast", "oblique"))
    )
    return Claim(
        "Logits can be attributed to features by projecting queries, one feature after the other (section 5).",
        f"Error of the parts against the true ones, relative to their size: {paper:.1%} for the paper's split, "
        f"{ours:.1%} for "
        "the oblique one in the contrast metric.",
        "partly",
    )


def _gauge(study: Study) -> Claim | None:
    def swaps(rows: Iterable[Any], method: str) -> float:
        kind = ("given", "feature", "z1", method)
        return average(r.off_truth for r in rows if below(r) and (r.target, r.control, r.feature, r.method) == kind)

    if not any(below(row) for row in study.rebased.swaps):
        return None
    before, after = study.trained, study.rebased
    missed = [sum(row.energy != row.true for row in one.recovered if below(row)) for one in (before, after)]
    found = [sum(row.balanced != row.true for row in one.recovered if below(row)) for one in (before, after)]
    return Claim(
        "Singular values, projectors and attributions are computed in the coordinates of the head's weights.",
        "After a change of basis of condition 30 that leaves all logits as they were, the error of the paper's swap "
        "of z1 goes "
        f"from {swaps(before.swaps, 'raw'):.3f} to {swaps(after.swaps, 'raw'):.3f} and its rank misses from "
        f"{missed[0]} to "
        f"{missed[1]} latents. In the contrast metric the error is {swaps(before.swaps, 'contrast'):.4f} and "
        f"{swaps(after.swaps, 'contrast'):.4f}; the balanced rank misses {found[0]} and {found[1]}.",
        "no",
    )


def _splits(study: Study) -> Claim | None:
    scores = study.scores()
    room = average(s.diagonal for s in scores if not s.cell.superposed)
    full = average(s.across for s in scores if s.cell.superposed)
    if room != room or full != full:
        return None
    roomy = average(s.across for s in scores if not s.cell.superposed)
    return Claim(
        "With room G is diagonal (feature splits); without it latents interact (superposition).",
        f"With room {room:.0%} of the squared entries of G are on its diagonal and {roomy:.1%} between the latents; in "
        f"superposed heads {full:.1%} are between them.",
        "yes",
    )
