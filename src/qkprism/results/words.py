"""What a result says in a few sentences for a person: which heads, how sure, against what."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from qkprism.controls import BY_NAME
from qkprism.core.projectors import STRETCHED
from qkprism.notes import counted
from qkprism.results.effects import GIVEN, HARDLY, small_share, told_gain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from qkprism.heads import Head
    from qkprism.results.effects import Effects
    from qkprism.results.features import Features
    from qkprism.results.scores import HeadScores

NAMED = 5  # heads in a sentence
EDITS = 4  # that are told
TINY = 1e-20  # of a p or q value: nobody is as sure as a smaller one says


def told_p(value: float) -> str:
    """A p or q value after its letter; NaN where nothing could be tested.

    >>> told_p(0.034), told_p(1e-231)
    ('= 0.03', '< 1e-20')
    """
    if math.isnan(value):
        return "unknown"
    return f"= {value:.1g}" if value >= TINY else f"< {TINY:.0e}"


def told_share(value: float) -> str:
    """A share in percent, with a decimal where it would seem to be all or nothing.

    >>> told_share(0.87), told_share(0.996), told_share(1.0), told_share(0.004)
    ('87%', '99.6%', '100%', '0.4%')
    """
    return f"{value:.1%}" if 0 < value < 0.01 or 0.99 < value < 1 else f"{value:.0%}"


def heads_in_words(scores: HeadScores) -> list[str]:
    """Which heads find the positive keys, how sure that is, and what would be luck."""
    rows = scores.to_frame().to_dict("records")
    best, level = rows[0], scores.count_found()
    found = [row for row in rows if row["q"] <= level.level]
    sure = best["accuracy_error"]
    error = "" if math.isnan(sure) else f"standard error {told_share(sure)}, "
    told = [
        f"{best['head']} is right most often: in {told_share(best['accuracy'])} of {counted(scores.n, 'example')} ("
        f"{error}q {told_p(best['q'])}) it attends most to a positive one of the marked keys. "
        f"A head that picks one at random is right in {scores.chance:.0%}.",
        f"Told from chance by accuracy: {level}.",
    ]
    if not found:
        told.append("No head can be told from chance, so do not read anything into this order.")
    elif others := [row["head"] for row in found if row["head"] != best["head"]]:
        rest = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        told.append(f"Next come {', '.join(others[:NAMED])}{rest}.")
    told += hardly_attending(scores, scores.heads[:1])
    return [*told, "This says where heads look, not what they rely on: that is `qkprism decompose`."]


def hardly_attending(scores: HeadScores, heads: Iterable[Head]) -> list[str]:
    """A sentence on those of some heads that hardly attend to positive keys, however often they prefer them."""
    share = dict(zip(scores.heads, scores.values["attention_positive"].tolist(), strict=True))
    few = [f"{head} ({small_share(share[head])})" for head in heads if share[head] < HARDLY]
    if not few:
        return []
    more = f" and {len(few) - NAMED} more heads" if len(few) > NAMED else ""
    verb = "gives" if len(few) == 1 else "give"
    return [
        f"{', '.join(few[:NAMED])}{more} {verb} positive keys less than {HARDLY:.0%} of the attention: accuracy is "
        "only about the marked keys, so what is found there hardly matters to the head."
    ]


def features_in_words(features: Features, varying: Sequence[str] = ()) -> list[str]:
    """In which heads a contrast has a feature, by how many directions, how sure that is, and where it is stronger."""
    q, counts = features.q_values(), features.count_found()
    told = []
    for name in features.contrasts[:3]:
        best = next(one for one in features.by_evidence() if one.contrast == name)
        if math.isnan(q[name, best.head]):
            told.append(f"{name} could not be tested: give more examples.")
            continue
        told.append(
            f"{name} is surest in {best.head}: {best.evidence} (q {told_p(q[name, best.head])}). "
            f"Its first direction holds in {counts[name]}."
        )
    if len(features.contrasts) > 3:
        told.append(f"{len(features.contrasts) - 3} more contrasts are in the table.")
    frame = features.to_frame()
    stretched = frame[frame["stretch"] > STRETCHED]
    if len(stretched) and len(features.contrasts) > 1:
        heads = list(dict.fromkeys(stretched["head"]))
        more = f" and {len(heads) - NAMED} more" if len(heads) > NAMED else ""
        told.append(
            f"In {', '.join(heads[:NAMED])}{more} joint projectors are badly conditioned (they can make a key "
            f"{stretched['stretch'].max():.0f} times as long): compare parts of logits within one row there."
        )
    told += varying
    told.append("Held out means that directions found in one half of the examples are tested on the other.")
    return [*told, "A feature is what query and key share, not yet a cause: `qkprism intervene` proves that."]


def effects_in_words(effects: Effects) -> list[str]:
    """Of each edit the head in which it moves most, and in how many heads it beats each control that is evidence."""
    rows = [row for row in effects.beats() if (row["target"], row["method"]) == (GIVEN, effects.methods[0])]
    told = [f"{effects.title}, in {len(effects.heads)} heads and {counted(int(effects.n[0]), 'example')}."]
    for name in effects.features[:EDITS]:
        best = max(effects.heads, key=lambda head: effects.gain(head=head, feature=name)[0])
        gain, error = effects.gain(head=best, feature=name)
        won = {
            BY_NAME[control].title: sum(row["beaten"] for row in rows if (row["feature"], row["control"]) == key)
            for control in dict.fromkeys(row["control"] for row in rows if row["evidence"])
            for key in [(name, control)]
        }
        beaten = ", ".join(f"{title} in {count}" for title, count in won.items())
        moved = f"{name} moves most in {best}, where it {told_gain(effects.compared, f'{gain:+.2f} ± {error:.2f}')}"
        told.append(moved + (f", and beats {beaten} of {len(effects.heads)} heads." if beaten else "."))
    return [*told, "To move more than a random subspace is no evidence: noise does too."]
