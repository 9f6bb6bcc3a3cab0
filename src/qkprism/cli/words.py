"""The end of a command in a few sentences for a person: which heads, how sure, against what."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qkprism.results.features import Features
    from qkprism.results.scores import HeadScores

NAMED = 5  # heads in a sentence


def heads_in_words(scores: HeadScores) -> list[str]:
    """Which heads find the positive keys, how sure that is, and what would be luck."""
    rows = scores.to_frame().to_dict("records")
    best, level = rows[0], scores.count_found()
    found = [row for row in rows if row["q"] <= level.level]
    told = [
        f"In {scores.n} examples {best['head']} comes first: the marked key it attends to most is a positive one in "
        f"{best['accuracy']:.0%} (standard error {best['accuracy_error']:.0%}) of them, q = {best['q']:.1g}.",
        f"A head that picks a marked key at random is right in {scores.chance:.0%}.",
        f"By accuracy, {level}.",
    ]
    if not found:
        told.append("No head can be told from chance, so do not read anything into this order.")
    elif others := [row["head"] for row in found if row["head"] != best["head"]]:
        rest = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        told.append(f"Told from chance too: {', '.join(others[:NAMED])}{rest}.")
    return [*told, "This says where heads look, not what they go by: that is `qkprism decompose`."]


def features_in_words(features: Features) -> list[str]:
    """In which heads a contrast has a feature, by how many directions, and how sure that is."""
    q, counts = features.q_values(), features.count_found()
    told = []
    for name in features.contrasts[:3]:
        best = next(one for one in features.by_evidence() if one.contrast == name)
        told.append(
            f"{name}: the strongest evidence is in {best.head}, q = {q[name, best.head]:.1g}: {best.evidence}. "
            f"By the held-out test of direction 1, {counts[name]}."
        )
    if len(features.contrasts) > 3:
        told.append(f"{len(features.contrasts) - 3} more contrasts are in the table.")
    told.append("Held out means that directions found in one half of the examples are tested on the other.")
    return [*told, "A feature is what query and key share, not yet a cause: `qkprism intervene` proves that."]
