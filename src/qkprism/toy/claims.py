"""What the paper says of its toy heads beside what a study found; verdicts are computed from numbers, by rules told.

First accuracies, ranks, clusters and interactions, then interventions and attributions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from qkprism.findings import Claim, Finding
from qkprism.toy.results import average

if TYPE_CHECKING:
    from qkprism.toy.interventions import Swap
    from qkprism.toy.results import HeadScore, Study

NINETY_NINE = 0.985  # 99%, to half a point
AT_CEILING = 0.02
AROUND, NEAR = 0.03, 0.10  # of the 85%
MOST_RANKS = 0.9
SAMPLED, ROUGHLY = 0.10, 0.30
TOGETHER, PARTLY_TOGETHER = 0.85, 0.70
DIAGONAL, MOSTLY_DIAGONAL, OFF_DIAGONAL = 0.9, 0.7, 0.1
SYMMETRIC, NOT_SYMMETRIC, CLEARLY = 0.95, 0.80, 0.05
ALL, MOST = 0.02, 0.10  # of the attention that is to be moved
MUCH_LESS, LESS = 0.5, 0.9
ALONE, MAINLY = 0.05, 0.50  # of what no edit is off
EXACT_PARTS, ROUGH_PARTS = 0.05, 0.30
NOT_IN_THE_PAPER = "(Not in the paper.) "


def claims(study: Study) -> list[Claim]:
    """The table `paper / this run`; statements that the run has no heads for are left out."""
    makers: tuple[Callable[[Study], Claim | None], ...] = (
        _discrete_accuracy,
        _continuous_accuracy,
        _small_continuous_accuracy,
        _ranks,
        _untrained,
        _closed_form,
        _clusters,
        _both,
        _random,
        _controls,
        _single,
        _matched,
        _parts,
        _gauge,
        _splits,
        _symmetry,
    )
    return [claim for make in makers if (claim := make(study)) is not None]


def told(study: Study) -> list[Finding]:
    """What was trained, and how many of the paper's statements hold in it."""
    counts = Counter(claim.verdict for claim in claims(study))
    held = ", ".join(f"{counts[verdict]} {words}" for verdict, words in VERDICTS.items() if counts[verdict])
    return [
        Finding(
            f"{len(study.heads)} attention heads, trained to find the token that a selector names by two latents, z1 "
            "and z2, and to tell its payload. Here the truth is known, so every claim can be checked.",
            "summary",
        ),
        Finding(f"Of the paper's statements {held}; {counts['new']} more say what it does not speak of."),
        Finding(
            "The rank of a contrastive covariance tells what queries and keys hold, not what the head uses: heads that "
            "were never trained have it too.",
            "ranks",
        ),
    ]


VERDICTS = {"agrees": "hold", "in part": "hold in part", "differs": "do not hold"}


def judged(paper: str, run: str, rule: str, *, agrees: bool, partly: bool, table: str = "") -> Claim:
    """A statement of the paper with its verdict; what is not known (nan) is neither."""
    return Claim(paper, "", "agrees" if agrees else "in part" if partly else "differs", run, rule, table)


def new(statement: str, run: str) -> Claim:
    """Something that the paper does not speak of."""
    return Claim(NOT_IN_THE_PAPER + statement, "", "new", run)


def below(row: Any) -> bool:
    """Has the head more dimensions than its latents?"""
    return bool(sum(row.cell.task.ranks) < row.cell.d_head)


def _discrete_accuracy(study: Study) -> Claim | None:
    discrete = [score for score in study.scores() if score.cell.task.variant == "discrete"]
    why = "Tokens can share their latents, so 99% is impossible at small ranks"
    return _ninety_nine("Heads reach 99% accuracy in the discrete task.", discrete, why)


def _continuous_accuracy(study: Study) -> Claim | None:
    continuous = [s for s in study.scores() if s.cell.task.variant == "continuous" and s.cell.d_head == 16]
    why = "A dot product favours long keys, which costs most at small ranks"
    return _ninety_nine("Heads reach 99% accuracy in the continuous task at d_head 16.", continuous, why)


def _ninety_nine(paper: str, scores: Sequence[HeadScore], why: str) -> Claim | None:
    if not scores:
        return None
    low, high = min(s.accuracy for s in scores), max(s.accuracy for s in scores)
    worst = max(s.dot_product_ceiling - s.accuracy for s in scores)
    return judged(
        paper,
        f"{low:.3f} to {high:.3f}, {average(s.accuracy for s in scores):.3f} on average. {why} (the ceiling of the "
        f"smallest is {min(s.dot_product_ceiling for s in scores):.3f}); no head is more than {max(worst, 0):.3f} "
        "below its ceiling.",
        f"every head has {NINETY_NINE}; in part: every head is within {AT_CEILING} of its ceiling",
        agrees=low >= NINETY_NINE,
        partly=worst <= AT_CEILING,
        table="accuracy",
    )


def _small_continuous_accuracy(study: Study) -> Claim | None:
    continuous = [s for s in study.scores() if s.cell.task.variant == "continuous" and s.cell.d_head == 8]
    if not continuous:
        return None
    mean = average(s.accuracy for s in continuous)
    return judged(
        "Accuracy is around 85% in the continuous task at d_head 8.",
        f"{mean:.3f} on average. Sharp attention by a dot product would reach "
        f"{average(s.dot_product_ceiling for s in continuous):.3f} without any noise.",
        f"the mean is within {AROUND} of 0.85; in part: within {NEAR:.2f}",
        agrees=abs(mean - 0.85) <= AROUND,
        partly=abs(mean - 0.85) <= NEAR,
        table="accuracy",
    )


def _ranks(study: Study) -> Claim | None:
    room = [row for row in study.recovered if below(row)]
    if not room:
        return None
    exact = sum(row.exact for row in room)
    rest = [row for row in study.recovered if row.cell.superposed]
    more = f" In superposed heads: {sum(row.exact for row in rest)} of {len(rest)}." if rest else ""
    return judged(
        "The method recovers the ranks of both latents if r1 + r2 < d_head.",
        f"Exact for {exact} of {len(room)} latents by the paper's rule (99% of the energy).{more}",
        f"all are exact; in part: {MOST_RANKS:.0%} are",
        agrees=exact == len(room),
        partly=exact >= MOST_RANKS * len(room),
        table="ranks",
    )


def _untrained(study: Study) -> Claim | None:
    room = [row for row in study.controls if below(row)]
    if not room:
        return None
    exact = sum(row.energy == row.true for row in room)
    heldout = sum(row.heldout == row.true for row in room)
    return new(
        "Ranks of heads before training.",
        f"Exact for {exact} of {len(room)} latents by energy and {heldout} by the held-out test. A linear map keeps "
        "what it is given: the rank tells what queries and keys hold, not what the head uses.",
    )


def _closed_form(study: Study) -> Claim | None:
    errors = [row.error for row in study.recovered if row.error == row.error]
    if not errors:
        return None
    mean = average(errors)
    return judged(
        "In expectation ΔC is W_Q B_1 (…) A_1ᵀ W_Kᵀ: the part of one latent alone.",
        f"The sampled ΔC is within {mean:.3f} of its closed form on average ({max(errors):.3f} at most, of its norm). "
        "For signs that must differ the factor is 2^r / (2^r − 1), not 1.",
        f"the mean is at most {SAMPLED:.2f}; in part: {ROUGHLY:.2f}",
        agrees=mean <= SAMPLED,
        partly=mean <= ROUGHLY,
    )


def _clusters(study: Study) -> Claim | None:
    after, before = (average(row.aligned for row in rows if below(row)) for rows in (study.recovered, study.controls))
    if after != after:
        return None
    return judged(
        "Keys and queries of one latent value fall onto the same clusters.",
        f"Mean cosine of their coordinates {after:.2f}. Singular vectors come in pairs, so part of this is the method: "
        f"untrained heads have {before:.2f}.",
        f"the mean is at least {TOGETHER}; in part: {PARTLY_TOGETHER:.2f}",
        agrees=after >= TOGETHER,
        partly=after >= PARTLY_TOGETHER,
    )


def _splits(study: Study) -> Claim | None:
    scores = study.scores()
    room, full = ([s for s in scores if s.cell.superposed == superposed] for superposed in (False, True))
    if not room or not full:
        return None
    split, mixed = average(s.diagonal for s in room), 1 - average(s.diagonal for s in full)
    across, crowding = ([average(getattr(s, n) for s in some) for some in (room, full)] for n in ("across", "crowding"))
    return judged(
        "With room G is diagonal (feature splits); without it coordinates share dimensions (superposition).",
        f"With room {split:.0%} of the squared entries of G are on its diagonal and {across[0]:.1%} between the "
        f"latents. In superposed heads {mixed:.0%} are off the diagonal, {across[1]:.1%} between the latents, and "
        f"{crowding[1]:.2f} coordinates share a dimension ({crowding[0]:.2f} with room).",
        f"{DIAGONAL:.0%} are on the diagonal with room and {OFF_DIAGONAL:.0%} off it without; in part: "
        f"{MOSTLY_DIAGONAL:.0%}, and more off it without room than with it",
        agrees=split >= DIAGONAL and mixed >= OFF_DIAGONAL,
        partly=split >= MOSTLY_DIAGONAL and mixed > 1 - split,
    )


def _symmetry(study: Study) -> Claim | None:
    full = [score for score in study.scores() if score.cell.superposed]
    discrete, continuous = (
        average(s.symmetry for s in full if s.cell.task.variant == v) for v in ("discrete", "continuous")
    )
    if discrete != discrete or continuous != continuous:
        return None
    return judged(
        "Interactions are symmetric in the continuous task and not in the discrete one.",
        f"⟨G, Gᵀ⟩ / |G|² in superposed heads (1: symmetric): {continuous:.3f} continuous, {discrete:.3f} discrete.",
        f"at least {SYMMETRIC} and at most {NOT_SYMMETRIC:.2f}; in part: {CLEARLY} apart",
        agrees=continuous >= SYMMETRIC and discrete <= NOT_SYMMETRIC,
        partly=continuous - discrete >= CLEARLY,
    )


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
