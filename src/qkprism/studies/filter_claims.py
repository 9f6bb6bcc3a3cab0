"""What a categories study found, in sentences, and where that differs from the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from qkprism.controls import EVIDENCE
from qkprism.findings import Claim, Finding
from qkprism.results.effects import SIGMAS
from qkprism.studies.categories import NEARLY
from qkprism.studies.filter import FLOOR
from qkprism.subspaces.separation import ACCURACY

if TYPE_CHECKING:
    from qkprism.heads import Head
    from qkprism.results.effects import Effects
    from qkprism.studies.categories import Scope
    from qkprism.studies.filter import FilterStudy

AGREES, DIFFERS, UNCLEAR = "agrees", "differs", "not clear"
LITTLE, ALL = 0.25, 0.9  # shares of what the whole key does


class Gain(NamedTuple):
    """How much attention a swap moves to the target, with its standard error."""

    value: float
    error: float

    @property
    def clear(self) -> bool:
        """Above 0 by more than two errors; never without an error."""
        return self.value > SIGMAS * self.error


def told(study: FilterStudy) -> list[Finding]:
    """What was asked, which heads look at the items asked for, and what the rank of one category says."""
    about = study.about
    return [
        Finding(f"A list such as \u201c{about.example}\u201d asks for {', '.join(about.answer)}."),
        Finding(
            f"Of the attention that they give to items, {_ratios(study)} give this share to those asked for; equal "
            f"attention gives {study.scores.chance:.2f}{_passed_over(study)}.",
            "summary",
        ),
        Finding(f"Accuracies are of {' '.join(held_out(scope) for scope in study.scopes.values())}", "summary"),
        Finding(rank_of_one_query(*mean_query_shares(study))),
    ]


SUMMARY = (
    "Ratio: of the attention on items, the share that goes to those asked for. Pooled: the feature of all categories "
    "together, centred (ours), cut at one dimension less than there are categories. Span: of the leading directions of "
    "single categories, not centred (the paper's). Accuracy: of the nearest centroid, on items that neither features "
    "nor centroids were made from; errors are over items, which lists use again. Shift: how much of the attention on "
    "two items moves to the one that was not asked for when their keys exchange the subspace."
)


def _passed_over(study: FilterStudy) -> str:
    """The heads of higher ratios that hardly look at items."""
    frame = study.scores.to_frame()
    frame["items"] = frame["attention_positive"] + frame["attention_negative"]
    least = min(study.ratio(head) for head in study.heads)
    over = frame[(frame["ratio"] > least) & (frame["items"] < FLOOR)].to_dict("records")
    named = ", ".join(f"{row['head']} ({row['ratio']:.2f}, items {row['items']:.1%})" for row in over)
    return f" (passed over: {named})" if named else ""


def held_out(scope: Scope) -> str:
    """How many different items the accuracies and silhouettes are of."""
    counts = scope.separation.provenance
    return (
        f"{len(scope.categories)} categories: {counts['items']} different held-out items, {counts['keys']} keys in "
        f"{counts['examples']} lists."
    )


def mean_query_shares(study: FilterStudy) -> tuple[float, float]:
    """The smallest and the largest share of dC that the mean query makes, in both sets of categories."""
    least, most = zip(*(scope.mean_query_shares(study.heads) for scope in study.scopes.values()), strict=True)
    return min(least), max(most)


def rank_of_one_query(least: float, most: float) -> str:
    """Why the rank of a single category says little of the head, as far as the mean query makes its dC."""
    made = f"{least:.2%}" if f"{least:.2%}" == f"{most:.2%}" else f"{least:.2%} to {most:.2%}"
    rule = (
        "If the query were a constant vector q, as when one category is always asked for, dC = q (mean positive − mean "
        "negative)ᵀ would have rank 1 whatever the head does. "
    )
    pooled = " The pooled contrast asks for every category, so its query varies, and its rank is about the head."
    if least < NEARLY:
        return (
            f"{rule}Here the mean query makes {made} of the energy of dC of single categories: their queries vary, and "
            f"their ranks are not settled by that alone.{pooled}"
        )
    return (
        f"{rule}Here the mean query makes {made} of the energy of dC of single categories, so this is nearly so; "
        f"centred, {1 - least:.2%} of the energy or less is left.{pooled} So the direction of a single category is "
        "nearly the difference of two mean keys, the same in all heads that share their keys: it shows what keys hold, "
        "not what the head asks for."
    )


def moves(spans: Sequence[Gain], wholes: Sequence[Gain]) -> str:
    """Does a swap in the subspace shift attention? Of each head what it moves, and what the whole key moves.

    It agrees if in all heads both are clear and the subspace moves more than a quarter of what the whole key does; it
    differs if in some head the whole key clearly moves attention and the subspace clearly less than that.
    """
    pairs = list(zip(spans, wholes, strict=True))
    if all(part.clear and whole.clear and part.value > LITTLE * whole.value for part, whole in pairs):
        return AGREES
    little = (whole.clear and part.value + SIGMAS * part.error < LITTLE * whole.value for part, whole in pairs)
    return DIFFERS if any(little) else UNCLEAR


def moves_much_less(randoms: Sequence[Gain], spans: Sequence[Gain]) -> str:
    """Does a random subspace move less than a quarter of what the subspace moves, by two errors in all heads?"""
    pairs = list(zip(randoms, spans, strict=True))
    if all(part.clear and random.value + SIGMAS * random.error < LITTLE * part.value for random, part in pairs):
        return AGREES
    much = (part.clear and random.value - SIGMAS * random.error > LITTLE * part.value for random, part in pairs)
    return DIFFERS if any(much) else UNCLEAR


def moves_not_all(spans: Sequence[Gain], wholes: Sequence[Gain]) -> str:
    """Does the whole key shift more than the subspace? It must in all heads by two errors, and by a tenth.

    The errors of the two count as if they were independent, which makes them larger than they are.
    """
    pairs = list(zip(spans, wholes, strict=True))
    if not all(part.clear and whole.clear for part, whole in pairs):
        return UNCLEAR
    if any(part.value >= ALL * whole.value for part, whole in pairs):
        return DIFFERS
    less = (whole.value - part.value > SIGMAS * math.hypot(part.error, whole.error) for part, whole in pairs)
    return AGREES if all(less) else UNCLEAR


def share_of_whole(spans: Sequence[Gain], wholes: Sequence[Gain]) -> str:
    """What the subspace moves as a share of what the whole key does, where that is clearly something."""
    shares = [span.value / whole.value for span, whole in zip(spans, wholes, strict=True) if whole.clear]
    if not shares:
        return "no share: swapping whole keys does not clearly move attention to the target"
    left = len(wholes) - len(shares)
    more = f" (without {left} of {len(wholes)} heads, where whole keys move nothing clear)" if left else ""
    return f"{_span(shares, '.0%')} of what the whole key does{more}"


def comparison(study: FilterStudy) -> list[Claim]:
    """The paper's findings beside this run's, where they agree and where not."""
    five, every, heads = study.scopes["five"], study.scopes["all"], study.heads
    single = [five.uncentred[name, head].rank_energy for name in five.categories for head in heads]
    apart = _all_beaten(five.separation, five.span, ACCURACY, "keys")
    alignments = [five.alignment(five.span, head) for head in heads]
    aligned = all(right - SIGMAS * error > 2 / len(five.categories) for right, error in alignments)  # twice of guessing
    gains = _gains(five, heads, five.span), _gains(five, heads, "", "full")
    random = _gains(five, heads, five.span, "gaussian")
    effects = "effects, five"
    rows = [
        ("filter heads", "the three highest ratios", "", _ratios(study), "summary"),
        ("rank of one category", "1 for each of five", _agrees(set(single) == {1}), _single_ranks(five, heads), ""),
        (
            "rank of all categories pooled",
            "not computed",
            "new",
            f"{_pooled(five, heads)}; {_pooled(every, heads)}",
            "summary",
        ),
        (
            "clusters by category, more than in random subspaces (judged by draws from the keys)",
            "clear (picture)",
            _agrees(apart),
            f"{_accuracy(five, heads)}; {_accuracy(every, heads)}",
            "summary",
        ),
        ("queries align with keys of their category", "yes (picture)", _agrees(aligned), _alignments(five, heads), ""),
        ("swapping five dimensions shifts attention", "yes", moves(*gains), _shifts(five, heads), effects),
        ("it does not shift all of it", "yes", moves_not_all(*gains), share_of_whole(*gains), effects),
        (
            "a random subspace moves much less",
            "yes (Gaussian)",
            moves_much_less(random, gains[0]),
            f"Gaussian subspaces {_span([gain.value for gain in random], '+.2f')}; noise moves more than they do too",
            effects,
        ),
        ("it moves more than harder controls", "not tested", "new", _beaten(five), effects),
        (
            "the same with thirteen categories",
            "not tested",
            "new",
            f"{_shifts(every, heads)}; {_beaten(every)}",
            "effects, all",
        ),
    ]
    return [Claim(what, paper, how, here, table=table) for what, paper, how, here, table in rows]


def _ratios(study: FilterStudy) -> str:
    return ", ".join(f"{head} ({study.ratio(head):.2f})" for head in study.heads)


def _all_beaten(found: Effects, group: str, target: str, control: str) -> bool:
    """Whether a subspace beats a control by two errors in all heads."""
    wanted = (target, group, control)
    return all(r["beaten"] for r in found.beats() if (r["target"], r["feature"], r["control"]) == wanted)


def _gains(scope: Scope, heads: Sequence[Head], group: str, control: str = "feature") -> list[Gain]:
    return [Gain(*scope.gain(head, group, control)) for head in heads]


def _agrees(same: bool) -> str:
    return AGREES if same else DIFFERS


def _span(values: Sequence[Any], form: str = "d") -> str:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return "not known"
    low, high = format(min(numbers), form), format(max(numbers), form)
    return low if low == high else f"{low} to {high}"


def at_most(error: float) -> str:
    """
    >>> at_most(0.0221), at_most(math.nan)
    ('0.03 or less', 'not known')
    """
    return f"{math.ceil(100 * error) / 100:.2f} or less" if math.isfinite(error) else "not known"


def _single_ranks(scope: Scope, heads: Sequence[Head]) -> str:
    ours, theirs = (
        [found[name, head] for name in scope.categories for head in heads]
        for found in (scope.features, scope.uncentred)
    )
    least = scope.mean_query_shares(heads)[0]
    must = "as it must be with nearly one query " if scope.one_query(heads) else ""
    return (
        f"{_span([f.rank_energy for f in theirs])} by the paper's rule, {must}(the mean query makes {least:.2%} of the "
        "energy of dC or more); centred "
        f"{_span([f.rank_energy for f in ours])} by the same rule and {_span([f.rank_heldout for f in ours])} held out"
    )


def _pooled(scope: Scope, heads: Sequence[Head]) -> str:
    pooled = [scope.features["pooled", head] for head in heads]
    return (
        f"{len(scope.categories)} categories: {_span([f.rank_energy for f in pooled])} by energy, "
        f"{_span([f.rank_balanced for f in pooled])} balanced, {_span([f.rank_heldout for f in pooled])} held out "
        f"(at most {len(scope.categories) - 1} between categories)"
    )


def _accuracy(scope: Scope, heads: Sequence[Head]) -> str:
    def span(group: str, control: str = "feature") -> str:
        return _span([scope.score("accuracy", head, group, control) for head in heads], ".2f")

    error = max(scope.score_error(ACCURACY, head, group) for head in heads for group in scope.groups)
    return (
        f"{len(scope.categories)} categories, held-out items: accuracy {span('pooled')} pooled, {span(scope.span)} in "
        f"the span, {span(scope.span, 'pca')} by key PCA of its rank, {span(scope.span, 'gaussian')} in Gaussian "
        f"subspaces, {span('', 'full')} by the whole key (guessing: {1 / len(scope.categories):.2f}; errors over items "
        f"{at_most(error)})"
    )


def _alignments(scope: Scope, heads: Sequence[Head]) -> str:
    found = {group: _span([scope.alignment(group, head)[0] for head in heads], ".2f") for group in scope.groups}
    named = ", ".join(f"{value} ({group})" for group, value in found.items())
    return f"an item asked for has the largest part of its list by the subspace alone in {named} of held-out lists"


def _shifts(scope: Scope, heads: Sequence[Head]) -> str:
    gains = {group: _gains(scope, heads, group) for group in scope.groups}
    whole = _gains(scope, heads, "", "full")
    named = ", ".join(
        f"{_span([gain.value for gain in gains_of_group], '+.2f')} ({group})" for group, gains_of_group in gains.items()
    )
    error = max(gain.error for gains_of_group in (*gains.values(), whole) for gain in gains_of_group)
    return f"shift {named}; whole key {_span([gain.value for gain in whole], '+.2f')} (errors {at_most(error)})"


def _beaten(scope: Scope) -> str:
    rows = scope.effects.beats()
    told = []
    for group in scope.groups:
        won = {
            control.title: [r["beaten"] for r in rows if (r["feature"], r["control"]) == (group, control.name)]
            for control in EVIDENCE
        }
        each = ", ".join(f"{title} in {sum(wins)}" for title, wins in won.items())
        told.append(f"{group} beats {each} of {len(scope.effects.heads)} heads")
    return "; ".join(told)
