"""What an edit is compared with: its methods, the features that are moved together, and the draws of its controls.

A method says what moves a feature. Of a projector it says how the subspace becomes one:

    contrast      joint oblique projectors in the contrast metric: moves one feature and leaves the others
    raw oblique   the same in the raw metric
    raw           the orthogonal projector on each feature's own key directions: the paper's
    conditional   no projector: keys are exchanged within the values of a label that modulates (`core/conditional.py`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, get_args

from qkprism.errors import QKPrismError
from qkprism.options import by_name, checked_seed, names_in, show, whole_number
from qkprism.results.features import Features
from qkprism.subspaces.modulation import why_not_conditional

Method = Literal["contrast", "raw oblique", "raw", "conditional"]
METHODS: tuple[Method, ...] = get_args(Method)
CONDITIONAL: Method = "conditional"
PROJECTING = METHODS[:3]
Groups = Mapping[str, Sequence[str]]  # features that are moved together, by the name of the group
DRAWS = 10
ALL_COMBINATIONS = 4  # features; with more than that only each alone and all together


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Which edits `intervene` compares, with how many controls, and between which two keys of each example.

    >>> qk.Comparison(methods=["contrast", "raw"], draws=4).draws
    4

    methods   by which features are edited: some of "conditional" (of a swap), "contrast", "raw oblique" and "raw"; by
              default all they have but "raw oblique"
    draws     of every random control; default 10. Fewer are quicker, more give steadier comparisons
    groups    features that are moved together, `{"both": ["order", "lexical"]}`; by default each alone, all together,
              and up to four in every combination
    labels    which key label a contrast is about, where the names differ; targets that differ in that label alone are
              then reported too
    item      key label that tells what a key is. Where examples edit the same few things again and again, errors then
              allow for it: they are those of a mean over other things too. By default examples count as independent
    seed      of random targets and controls; default 0
    """

    methods: Sequence[str] | None = None
    draws: int = DRAWS
    groups: Groups | None = None
    labels: Mapping[str, str] | None = None
    item: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        checked_seed(self.seed)
        whole_number(self.draws, "draws", 1)
        if self.methods is not None:
            object.__setattr__(self, "methods", named_methods(names_in(self.methods, "methods")))
        if self.groups is not None:
            groups = {name: tuple(names_in(group, "groups")) for name, group in by_name(self.groups, "groups").items()}
            object.__setattr__(self, "groups", groups)
        names_in(by_name(self.labels or {}, "labels").values(), "labels")
        if self.item is not None and not isinstance(self.item, str):
            raise QKPrismError(f"item={show(self.item)} is not the name of a label.")


def checked_comparison(compare: Any) -> Comparison:
    """A comparison, and nothing that looks like one."""
    if not isinstance(compare, Comparison):
        raise QKPrismError(f"compare={show(compare)} is not a Comparison. Write it as qk.Comparison(draws=4).")
    return compare


def methods_of(features: Features, wanted: Sequence[str] | None = None, *, swaps: bool = False) -> tuple[Method, ...]:
    """The methods asked for; by default the contrast metric where it is known, and the paper's.

    Where keys are exchanged (`swaps`), the conditional exchange is among them, if the features have what it needs.
    """
    if wanted is None:
        usual = (name for name in METHODS if name != "raw oblique")
        return tuple(name for name in usual if why_not(features, name, swaps=swaps) is None)
    chosen = named_methods(wanted)
    for name in chosen:
        if (reason := why_not(features, name, swaps=swaps)) is not None:
            raise QKPrismError(reason[0].upper() + reason[1:])
    return chosen


def named_methods(wanted: Sequence[str]) -> tuple[Method, ...]:
    """Methods by their names, each of which there is."""
    wanted = [wanted] if isinstance(wanted, str) else wanted
    if not wanted:
        raise QKPrismError(f"No method of editing was given. Use one of {', '.join(METHODS)}.")
    if unknown := [name for name in wanted if name not in METHODS]:
        raise QKPrismError(f"{unknown[0]!r} is not a method of editing. Use one of {', '.join(METHODS)}.")
    return tuple(name for name in METHODS if name in wanted)


def why_not(features: Features, method: Method, *, swaps: bool) -> str | None:
    """Why features cannot be edited by a method, in a sentence; None if they can."""
    if method == "contrast" and features.choices.metric != "contrast":
        return "these features are in the raw metric: features.with_metric('contrast') has the other."
    if method != CONDITIONAL:
        return None
    if not swaps:
        return (
            "the conditional method exchanges two keys and is no projector. Use edit='swap', or another method: "
            f"{', '.join(PROJECTING)}."
        )
    return why_not_conditional(features)


def left_out(features: Features, wanted: Sequence[str] | None) -> list[str]:
    """Why the conditional exchange is not among the usual methods of a swap; nothing where nobody would look for it."""
    if wanted is not None or features.choices.metric != "contrast":
        return []
    reason = why_not_conditional(features)
    return [] if reason is None else [reason[0].upper() + reason[1:]]


def combined(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Each feature alone, and features together: all combinations of a few, all of many."""
    sizes = range(1, len(names) + 1) if len(names) <= ALL_COMBINATIONS else sorted({1, len(names)})
    return [group for size in sizes for group in combinations(names, size)]


def groups_of(features: Features, wanted: Groups | None) -> Groups:
    """The features that are moved together, by name; each exists and no name is taken twice."""
    if wanted is None:
        names = ["+".join(group) for group in combined(features.contrasts)]
        if twice := {name for name in names if names.count(name) > 1}:
            raise QKPrismError(f"The contrast {sorted(twice)[0]!r} has the name of others together. Rename it.")
        return dict(zip(names, combined(features.contrasts), strict=True))
    for title, group in wanted.items():
        if not group or set(group) - set(features.contrasts) or len(set(group)) < len(group):
            there = ", ".join(features.contrasts)
            raise QKPrismError(f"groups[{title!r}] = {[*group]} does not name features, each once. There are: {there}.")
    if not wanted:
        raise QKPrismError("groups is empty, so nothing would be edited. Leave it out for all combinations.")
    return wanted
