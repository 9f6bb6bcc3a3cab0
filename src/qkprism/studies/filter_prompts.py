"""What the categories study asks, drawn from the shelf's `filter`.

A contrast of one category asks always the same question, so its query hardly varies: with q centred nothing is left to
match, and without, the mean part alone gives rank 1. The pooled contrast asks for every category; those of single
categories are its parts, for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from qkprism.contrasts import Contrast, Example
from qkprism.contrasts.fitting import Tokenizer
from qkprism.contrasts.tasks import task
from qkprism.contrasts.templates import read_template
from qkprism.encoding import Encoding
from qkprism.studies.categories import LABEL, POOLED

FIVE = ("fruits", "animals", "vehicles", "drinks", "countries")
CATEGORIES: tuple[str, ...] = tuple(cast("list[str]", read_template("filter").draws["kinds"]))


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
    single = {name: Contrast(name, tuple(e for e in drawn.contrast if asked(e) == name)) for name in categories}
    pooled = Contrast(POOLED, drawn.contrast.examples, drawn.contrast.description)
    return FilterPrompts(tuple(categories), {POOLED: pooled}, single, drawn.search, drawn.test, drawn.encoding)


def asked(example: Example) -> object:
    """The category that a list is asked for."""
    return example.text.positive[0].labels[LABEL]
