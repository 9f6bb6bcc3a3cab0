"""What a binding study found: in a few plain sentences, and beside what the paper says.

Every verdict is computed: "agrees" and "differs" by the bounds below, "new" where the paper says nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from qkprism.controls import BY_NAME, EVIDENCE
from qkprism.findings import Claim, Finding, findings
from qkprism.results.validation import MATTERS, over_heads
from qkprism.studies.binding_figures import TRUTH, used
from qkprism.studies.binding_study import BOTH, CONTRASTS
from qkprism.subspaces.modulation import interactions_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd

    from qkprism.heads import Head
    from qkprism.results.effects import Effects
    from qkprism.results.validation import Validation
    from qkprism.studies.binding_study import BindingStudy

RANKS = {"order": (2, 3), "lexical": (9, 10)}  # the paper's "usually"
MOST = 0.5  # of what whole keys move: "most of the attention"
LITTLE = 0.25  # of what features move: "little effect"
USUALLY = 0.9  # of the cases
CLUES = {"order": "by the place of its clause", "lexical": "by the thing that is asked for", "neither": "by neither"}


def told(study: BindingStudy) -> list[Finding]:
    """What was asked, and three to six sentences, each with the table that it is made from."""
    about = study.about
    return [
        Finding(f"A prompt such as \u201c{about.example}\u201d asks for {about.answer}."),
        Finding(_heads_found(study), "summary"),
        *(Finding(_moved(study, name), "outcome") for name in CONTRASTS),
        *findings(interactions_in_words(study.features), "interactions"),
        Finding(_parts_found(study), TRUTH),
        Finding(used(study.validation), TRUTH),
    ]


def _heads_found(study: BindingStudy) -> str:
    found: dict[str, list[str]] = {}
    for row in study.summary().to_dict("records"):
        found.setdefault(row["works_by"], []).append(f"{row['head']} ({row['accuracy']:.0%} right)")
    said = [f"{', '.join(heads)} {CLUES.get(clue, f'by {clue}')}" for clue, heads in found.items()]
    return f"Of {study.about.n_pairs} labels a guess is right in {1 / study.about.n_pairs:.0%}. " + _listed(
        "Heads that find the right one: ", said
    )


def _listed(start: str, parts: list[str]) -> str:
    return start + "; ".join(parts) + "."


def _moved(study: BindingStudy, name: str) -> str:
    """What an exchange of one clue does to the answer of the model, beside the strongest control."""
    outcome = study.outcome
    (head,), method = outcome.heads, outcome.methods[-1]  # the conditional exchange, if there is one
    key = (head, name, method, True)
    rows = [row for row in outcome.beats() if (row["head"], row["feature"], row["method"], row["evidence"]) == key]
    gain, error = outcome.gain(head=head, feature=name, method=method)
    start = f"Exchanging {name} between two keys in all of these moves the answer by {gain:+.2f} ± {error:.2f} logits"
    if not rows or math.isnan(error):
        return f"{start}."
    strongest = min(rows, key=lambda row: row["advantage"])
    verb = "clearly more than" if strongest["beaten"] else "not clearly more than"
    control = BY_NAME[strongest["control"]].title
    return f"{start}, {verb} the strongest control ({control}: {gain - strongest['advantage']:+.2f})."


def _parts_found(study: BindingStudy) -> str:
    """How right the parts of the logits are, against prompts in which the clue really changed places."""
    said = []
    for whose, method in (("ours", "contrast"), ("paper", "raw sequential")):
        errors = []
        for name in CONTRASTS:
            kind = (whose, name, method)
            checks = [c for c in study.validation.checks if (c.features, c.factor, c.method) == kind and c.matters]
            errors += [f"{over_heads(checks)['relative_part_error']:.0%} ({name})"] if checks else []
        said += [f"{' and '.join(errors)} with {'our features' if whose == 'ours' else 'the paper as it is written'}"]
    if not any("%" in one for one in said):
        return "No clue matters clearly in these heads, so prompts that really changed test nothing."
    return _listed("Against prompts that really changed, the parts of the logits are off by ", said)


def comparison(study: BindingStudy) -> list[Claim]:
    """A row a finding of the paper, and one for each check that it lacks."""
    return [
        _heads(study),
        *(_rank(study, name) for name in CONTRASTS),
        *_entities(study),
        _swaps(study),
        _random(study),
        _controls(study),
        _true_swaps(study.validation),
        _true_parts(study.validation),
    ]


def verdict(share: float, enough: float = USUALLY, some: float = 0.5) -> str:
    """
    >>> verdict(0.95), verdict(0.6), verdict(0.1)
    ('agrees', 'in part', 'differs')
    """
    return "agrees" if share >= enough else "in part" if share >= some else "differs"


def _heads(study: BindingStudy) -> Claim:
    among, everywhere = len(study.scores.above(accuracy=0.3)), len(study.scores.above(accuracy_all=0.3))
    here = f"{among} among the labels (chance {study.scores.chance:.0%}), {everywhere} among all tokens"
    return Claim("heads that attend most to the right label in 30% of the prompts", "9", "", here, table="heads")


def _rank(study: BindingStudy, name: str) -> Claim:
    """The paper's ranks are those of its authors' programs, which read twins otherwise than its text."""
    frame, (low, high) = study.summary(), RANKS[name]
    found = frame[f"{name}_code"]
    near = float(((found >= low - 1) & (found <= high + 1)).mean())
    exact = float(((found >= low) & (found <= high)).mean())
    how = "agrees" if exact >= 0.5 and near >= USUALLY else verdict(near, enough=2)
    text = "" if found.equals(frame[f"{name}_energy"]) else f" ({_span(frame[f'{name}_energy'])} as its text reads)"
    here = (
        f"{_span(found)} by the paper's contrast and rule as its authors computed them{text}; "
        f"{_span(frame[f'{name}_rank'])} by ours, and with "
        f"{study.features[name, study.heads[0]].n} examples {_span(frame[f'{name}_heldout'])} directions hold out"
    )
    return Claim(f"rank of {name}", f"usually {low} or {high}", how, here, table="summary")


def _entities(study: BindingStudy) -> list[Claim]:
    """Whether ranks depend on the number of entities to draw from: the last step changes them by a tenth at most."""
    if not study.entities.rows:
        return []
    frame = study.entities.to_frame()
    means = {
        name: rows.groupby("entities")["energy"].mean().tolist() for name, rows in frame.groupby("feature", sort=False)
    }
    flat = [abs(series[-1] - series[-2]) <= 0.1 * series[-1] for series in means.values() if len(series) > 1]
    here = "; ".join(f"{name!s} {', '.join(f'{mean:.1f}' for mean in series)}" for name, series in means.items())
    counts = ", ".join(str(n) for n in sorted(set(frame["entities"])))
    how = verdict(sum(flat) / len(flat)) if flat else "new"
    said = f"energy rank with {counts} entities: {here}"
    return [Claim("ranks plateau with enough entities", "yes", how, said, table="entities")]


def _swaps(study: BindingStudy) -> Claim:
    """The paper's swaps: both move most of what whole keys do, and more than either alone."""
    effects = study.effects_paper
    ours, theirs = (
        {name: _mean(effects_of, study.heads, name) for name in (*CONTRASTS, BOTH)}
        for effects_of in (study.effects, effects)
    )
    whole = _mean(effects, study.heads, BOTH, "full")
    most = whole > 0 and theirs[BOTH] >= MOST * whole and theirs[BOTH] > max(theirs[name] for name in CONTRASTS)
    clear = _clear(effects, study.heads)
    how = "differs" if not most or not clear else "agrees" if clear == len(study.heads) else "in part"
    here = "; ".join(
        f"{whose} {', '.join(f'{name} {value:.2f}' for name, value in gains.items())}"
        for whose, gains in (("the paper's features:", theirs), ("ours:", ours))
    )
    what = "swapping one feature shifts some attention, both most of it"
    return Claim(what, "yes", how, f"{here}; whole keys {whole:.2f}", table="effects, the paper")


def _clear(effects: Effects, heads: Sequence[Head]) -> int:
    """In how many heads the swap of both moves more than two errors."""
    gains = [effects.gain(head=head, feature=BOTH) for head in heads]
    return sum(gain > 2 * error for gain, error in gains)


def _random(study: BindingStudy) -> Claim:
    """By what random subspaces move, not by whether features beat them: noise beats them too."""
    features, random = (_mean(study.effects_paper, study.heads, BOTH, control) for control in ("feature", "gaussian"))
    how = "agrees" if random <= LITTLE * features else "in part" if random <= MOST * features else "differs"
    here = (
        f"shift of attention by Gaussian subspaces {random:.2f}, by the paper's features {features:.2f}; to beat them "
        "is no evidence: noise does too"
    )
    return Claim("random subspaces have little effect", "yes (Gaussian)", how, here, table="effects, the paper")


def _controls(study: BindingStudy) -> Claim:
    rows = (("the paper's swaps", study.effects_paper, -1), ("ours", study.effects, 0))
    here = "; ".join(
        f"{whose} beat "
        + ", ".join(f"{one.title} in {_beaten(found, one.name, found.methods[at]):.0%}" for one in EVIDENCE)
        for whose, found, at in rows
    )
    return Claim("and harder controls", "not tested", "new", here, table="effects")


def _beaten(effects: Effects, control: str, method: str) -> float:
    """In which share of heads and features a swap clearly beats a control."""
    found = [
        row["beaten"]
        for row in effects.beats()
        if (row["control"], row["method"], row["target"]) == (control, method, "given")
    ]
    return sum(found) / len(found) if found else 0.0


def _true_swaps(validation: Validation) -> Claim:
    """Swaps against prompts that really changed, in the heads in which the clue matters."""

    def said(row: Mapping[str, Any]) -> str:
        return f"leave {row['logit']:.2f} of the error (less than no edit in {row['logit_nearer']:.0f})"

    here = f"logits of the two keys, alongside prompts that really changed: {_truth(validation, 'raw', said, _SWAPS)}"
    return Claim("a swap changes one feature and no other", "not tested", "new", here, table=TRUTH)


def _true_parts(validation: Validation) -> Claim:
    """Parts of logits against prompts that really changed, in the heads in which the clue matters."""

    def said(row: Mapping[str, Any]) -> str:
        return f"off by {row['relative_part_error']:.0%} of the true part ({row['absolute_part_error']:.2f} logits)"

    here = _truth(validation, "raw sequential", said)
    return Claim("logits split into features", "not tested", "new", here, table=TRUTH)


_PARTS = {"contrast": "ours"}
_SWAPS = {"conditional": "our conditional exchanges", "contrast": "our projector swaps"}


def _truth(
    validation: Validation,
    papers: str,
    said: Callable[[Mapping[str, Any]], str],
    ours: Mapping[str, str] = _PARTS,
) -> str:
    """For every clue: in how many heads it matters, and there what is said of ours and of the paper's."""
    rows, told = validation.over(MATTERS), []
    for name in CONTRASTS:
        keys = {title: ("ours", name, method) for method, title in ours.items()}
        keys = {title: key for title, key in keys.items() if key in rows} | {"the paper's": ("paper", name, papers)}
        if len(keys) < 2 or keys["the paper's"] not in rows:
            continue
        first = rows[next(iter(keys.values()))]
        heads = f"{name} matters in {first['n_heads']} of {first['of_heads']} heads"
        every = "; ".join(f"{title} {said(rows[key])}" for title, key in keys.items())
        told.append(f"{heads}: {every}" if first["n_heads"] else heads)
    return ". ".join(told)


def _span(values: pd.Series[float]) -> str:
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low} to {high}"


def _mean(effects: Effects, heads: Sequence[Head], feature: str, control: str = "feature") -> float:
    method = effects.methods[-1 if effects.methods[0] != "contrast" else 0]
    gains = [effects.gain(head=head, feature=feature, method=method, control=control)[0] for head in heads]
    return sum(gains) / len(gains)
