"""One set of categories in a study: its lists, the subspaces that are compared, and what was found of them.

A contrast of one category asks always the same question, so its query hardly varies: with q centred nothing is left to
match, and without, the mean part alone gives rank 1. The pooled contrast asks for every category; those of single
categories are its parts, for comparison. All are drawn from the shelf's `filter`.

pooled     ours: the feature of all categories together, centred
span of n  the paper's: the span of the directions of n single categories, not centred
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from qkprism.contrasts import Contrast, Example, Span, Text
from qkprism.contrasts.fitting import Tokenizer
from qkprism.contrasts.tasks import task
from qkprism.contrasts.templates import read_template
from qkprism.core.projectors import span_projector
from qkprism.encoding import Encoding
from qkprism.heads import Head
from qkprism.results.effects import Effects
from qkprism.results.features import Features
from qkprism.results.projections import Projections
from qkprism.subspaces.crossing import Crossing, crossing
from qkprism.subspaces.separation import SCORE

POOLED = "pooled"
LABEL, ITEM = "category", "item"
FIVE = ("fruits", "animals", "vehicles", "drinks", "countries")
CATEGORIES: tuple[str, ...] = tuple(cast("list[str]", read_template("filter").draws["kinds"]))
NEARLY = 0.99  # of the energy of dC: from here on one direction is as good as all of it, by the paper's own rule


@dataclass(frozen=True)
class FilterPrompts:
    """Lists of some categories: `contrasts` has them pooled, `single` apart; items of the test are in neither."""

    categories: tuple[str, ...]
    contrasts: Mapping[str, Contrast]
    single: Mapping[str, Contrast]
    search: Contrast
    test: Contrast
    encoding: Encoding


def filter_prompts(
    categories: Sequence[str] = CATEGORIES,
    seed: int = 0,
    phrasing: str = "cloze",
    tokenizer: Tokenizer | None = None,
    *,
    n_train: int = 64,
    n_search: int = 256,
    n_test: int = 128,
) -> FilterPrompts:
    """Draw the lists: `n_train` for each category, in turn, so that a slice of the pooled contrast is balanced too."""
    sizes = {"n_train": n_train * len(categories), "n_search": n_search, "n_test": n_test}
    drawn = task("filter", seed, tokenizer, phrasing=phrasing, kinds=list(categories), **sizes)
    by_category = {name: tuple(e for e in drawn.contrast if asked(e) == name) for name in categories}
    single = {name: Contrast(name, found, drawn=True) for name, found in by_category.items()}
    pooled = replace(drawn.contrast, name=POOLED)
    return FilterPrompts(tuple(categories), {POOLED: pooled}, single, drawn.search, drawn.test, drawn.encoding)


def asked(example: Example) -> object:
    """The category that a list is asked for."""
    return example.text.positive[0].labels[LABEL]


def groups_of(categories: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The two subspaces that are compared, by the features that span them."""
    return {POOLED: (POOLED,), f"span of {len(categories)}": tuple(categories)}


def compared_features(features: Features) -> Features:
    """The pooled feature, and single categories as the paper has them: not centred, rank by 99% energy.

    The pooled one is cut at one direction less than there are categories: as many as their mean queries, centred, span.
    """
    single = [name for name in features.contrasts if name != POOLED]
    between = min(len(single) - 1, *(feature.d_head for feature in features.values()))
    ranks: dict[str, int | str] = {**dict.fromkeys(single, "energy"), POOLED: between}
    return features.with_center(dict.fromkeys(single, "none")).with_rank(ranks)


def with_items(contrast: Contrast) -> Contrast:
    """The same lists, every key with its item as a label: lists share items, so errors are taken over items."""
    return replace(contrast, examples=tuple(replace(e, text=_with_items(e.text)) for e in contrast.examples))


def _with_items(text: Text) -> Text:
    def named(keys: Sequence[Span]) -> tuple[Span, ...]:
        return tuple(replace(key, labels={**key.labels, ITEM: text.text[key.start : key.end]}) for key in keys)

    return replace(text, positive=named(text.positive), negative=named(text.negative))


@dataclass(frozen=True)
class Scope:
    """What was found for one set of categories: features, what they hold and what they move.

    `features` are all centred; `compared` has the pooled one as ours and single categories as the paper has them.
    """

    name: str
    categories: tuple[str, ...]
    features: Features
    compared: Features
    train: Projections
    test: Projections
    separation: Effects
    effects: Effects

    @property
    def span(self) -> str:
        """The name of the paper's subspace."""
        return next(name for name in groups_of(self.categories) if name != POOLED)

    @cached_property
    def uncentred(self) -> Features:
        """The same contrasts without centring."""
        return self.features.with_center("none")

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Ours and the paper's subspace by name: the features that span it."""
        return groups_of(self.categories)

    def mean_query_shares(self, heads: Sequence[Head]) -> tuple[float, float]:
        """The smallest and the largest share of dC that the mean query makes, over single categories and heads."""
        energies = [self.uncentred[name, head].salience_energy for name in self.categories for head in heads]
        return min(energies), max(energies)

    def one_query(self, heads: Sequence[Head]) -> bool:
        """Whether the mean query makes nearly all of dC of every single category: its rank must then be 1."""
        return self.mean_query_shares(heads)[0] >= NEARLY

    def alignment(self, group: str, head: Head) -> tuple[float, float]:
        """How often an item asked for has the largest part of its list by this subspace alone, with its error."""
        of_group = [self.compared[name, head] for name in self.groups[group]]
        return self.test.alignment_by(span_projector(of_group), head, item=ITEM)

    def crossing(self, group: str, head: Head) -> Crossing:
        """What a swap in this subspace moves, from each category to each other."""
        of_group = [self.compared[name, head] for name in self.groups[group]]
        scaling = self.features.layers[head.layer].scaling
        return crossing(self.test, span_projector(of_group), scaling, head, LABEL)

    def gain(self, head: Head, group: str, control: str = "feature") -> tuple[float, float]:
        """How much of the attention on the two keys a swap moves to the target, with its error paired over lists."""
        return self.effects.gain(head=head, feature=group, control=control)

    def score(self, measure: str, head: Head, group: str = "", control: str = "feature") -> float:
        """Accuracy or silhouette of held-out keys."""
        return self.separation.value(SCORE, head=head, feature=group, control=control, target=measure)[0]

    def score_error(self, measure: str, head: Head, group: str = "") -> float:
        """The standard error of a score over different items."""
        return self.separation.value(SCORE, head=head, feature=group, target=measure)[1]
