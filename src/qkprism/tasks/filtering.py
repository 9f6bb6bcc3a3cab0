"""Filtering: a list of items of several categories, and one category asked for (paper, section 5.1).

    Items: cat, apple, dog, truck, orange, tea, car, duck. The fruits are:

The query is the last token. Positive keys are the items of the category asked for, negative keys all other items. A
contrast of one category asks always the same question, so its query hardly varies: with q centred nothing is left to
match, and without, the mean part alone gives rank 1. The pooled contrast asks for every category, and is what a task
hands out; those of single categories are its parts, for comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from qkprism.contrasts import Contrast, Example, Span, Text, Written
from qkprism.contrasts.fitting import Tokenizer, check_sizes, fitting, require
from qkprism.contrasts.rounds import balanced
from qkprism.encoding import Encoding
from qkprism.errors import QKPrismError
from qkprism.options import checked_seed, show
from qkprism.tasks.categories import CATEGORIES, Category
from qkprism.tasks.naming import named

if TYPE_CHECKING:
    from qkprism.encoding import Chat

POOLED = "pooled"


@dataclass(frozen=True, slots=True)
class Listing:
    """The words around a list: `opening` before the items, `closing` after them."""

    name: str
    opening: str
    closing: str
    answer: str | None = None  # how the answer of a chat model begins; None without a chat template


LISTINGS = {
    listing.name: listing
    for listing in (
        Listing("cloze", "Items: ", ". The {category} are:"),
        Listing("question", "Items: ", ". Find the {category}."),
        Listing("chat", "Items: ", ". Find the {category}.", answer=""),
    )
}


@dataclass(frozen=True)
class FilteringTask:
    """Lists to find the features of categories with, and lists of held-out items to test them on.

    contrasts   all categories together, as "pooled": decompose it as it is
    extra       one contrast of each category by its name: the parts of "pooled", to be decomposed beside it in the raw
                metric only (the paper's subspace is the span of their directions)
    search      examples to find heads with, of the items in `items`
    test        examples of the items in `held_out`, each with a target in another category
    chat        what the verbs take as `chat`: None for plain text
    """

    categories: tuple[Category, ...]
    listing: Listing
    items: Mapping[str, tuple[str, ...]]
    held_out: Mapping[str, tuple[str, ...]]
    contrasts: Mapping[str, Contrast]
    extra: Mapping[str, Contrast]
    search: Contrast
    test: Contrast

    @property
    def chat(self) -> Chat | None:
        """The options of the chat template, if the phrasing wants one."""
        return None if self.listing.answer is None else {"answer_prefix": self.listing.answer}

    @property
    def encoding(self) -> Encoding:
        """How these prompts become tokens: what the verbs take as `encoding`."""
        return Encoding(chat=self.chat)


def filtering(
    categories: Sequence[str | Category] = tuple(CATEGORIES),
    seed: int = 0,
    phrasing: str = "cloze",
    tokenizer: Tokenizer | None = None,
    *,
    n_categories: int = 5,
    n_items: int = 5,
    n_train: int = 64,
    n_search: int = 256,
    n_test: int = 128,
) -> FilteringTask:
    """Lists of `n_items` items in each of `n_categories` categories; the seed draws the lists and splits the words.

    >>> task = filtering(["fruits", "animals"], n_categories=2, n_train=10)
    >>> list(task.contrasts.values()), list(task.extra.values())
    ([Contrast('pooled', 20 examples)], [Contrast('fruits', 10 examples), Contrast('animals', 10 examples)])

    `n_train` is the size of the contrast of each category. Categories that share members with the one asked for are
    not in its list. With a tokenizer, words that are not one token are left out.
    """
    check_sizes(n_categories=n_categories, n_items=n_items, n_train=n_train, n_search=n_search, n_test=n_test)
    seed = checked_seed(seed)
    if isinstance(categories, str) or not isinstance(categories, Sequence):
        raise QKPrismError(f"categories={show(categories)} is not a list of categories such as ['fruits', 'animals'].")
    chosen = tuple(named(category, CATEGORIES, "category", own="a Category of your own") for category in categories)
    listing = named(phrasing, LISTINGS, "phrasing")
    _check_company(chosen, n_categories)
    halves = {c.name: _halves(c, n_items, listing, tokenizer, seed) for c in chosen}
    train = _Lists(chosen, {name: first for name, (first, _) in halves.items()}, listing, n_categories, n_items)
    held = _Lists(chosen, {name: second for name, (_, second) in halves.items()}, listing, n_categories, n_items)
    drawn = {c.name: train.draw(c.name, [c] * n_train, _rng(seed, c.name)) for c in chosen}
    # One of each in turn, so that a slice of the pooled contrast is balanced too.
    turns = [one for turn in zip(*drawn.values(), strict=True) for one in turn]
    return FilteringTask(
        categories=chosen,
        listing=listing,
        items=train.items,
        held_out=held.items,
        contrasts={POOLED: train.contrast(POOLED, turns, "all categories")},
        extra={name: train.contrast(name, lists) for name, lists in drawn.items()},
        search=train.mixed("search", n_search, _rng(seed, "search")),
        test=held.mixed("test", n_test, _rng(seed, "test")),
    )


def _rng(seed: int, name: str) -> Random:
    """Each part has its own numbers, so that its size changes no other."""
    return Random(f"filtering {seed} {name}")


@dataclass(frozen=True, slots=True)
class _DrawnList:
    """One list: its items in their order and the category of each, which category is asked for, and the target."""

    source: str
    asked: str
    items: tuple[str, ...]
    categories: tuple[str, ...]
    target: str


@dataclass(frozen=True)
class _Lists:
    """What lists are drawn from."""

    categories: tuple[Category, ...]
    items: Mapping[str, tuple[str, ...]]
    listing: Listing
    n_categories: int
    n_items: int

    def mixed(self, name: str, count: int, rng: Random) -> Contrast:
        """Every category is asked for equally often."""
        return self.contrast(name, self.draw(name, balanced(self.categories, count, rng), rng))

    def contrast(self, name: str, drawn: Iterable[_DrawnList], what: str = "") -> Contrast:
        """Lists in words, written when they are asked for."""
        return Contrast(name, Written(tuple(drawn), self.write), f"filtering, {what or f'{name}, {self.listing.name}'}")

    def draw(self, name: str, asked: Iterable[Category], rng: Random) -> list[_DrawnList]:
        """A list for each category asked for."""
        return [self._draw(f"{name}:{number}", category, rng) for number, category in enumerate(asked, start=1)]

    def _draw(self, source: str, asked: Category, rng: Random) -> _DrawnList:
        others = rng.sample(_company(asked, self.categories), self.n_categories - 1)
        drawn = [(item, c.name) for c in (asked, *others) for item in rng.sample(self.items[c.name], self.n_items)]
        target = rng.choice(drawn[self.n_items :])[0]
        rng.shuffle(drawn)
        items, categories = zip(*drawn, strict=True)
        return _DrawnList(source, asked.name, items, categories, target)

    def write(self, drawn: _DrawnList) -> Example:
        """The list in words, its items marked as keys."""
        text, keys = self.listing.opening, list[Span]()
        for item, category in zip(drawn.items, drawn.categories, strict=True):
            text += ", " if keys else ""
            named = {"category": category}
            keys.append(Span(len(text), len(text) + len(item), named, target=item == drawn.target))
            text += item
        text += self.listing.closing.format(category=drawn.asked)
        positive = [key for key in keys if key.labels["category"] == drawn.asked]
        whole = Text(text, None, tuple(positive), tuple(key for key in keys if key not in positive))
        return Example(whole, labels={"category": drawn.asked}, source=drawn.source)


def _company(asked: Category, categories: Sequence[Category]) -> list[Category]:
    """The categories that share no member with this one."""
    return [c for c in categories if c.name != asked.name and c.name not in asked.near and asked.name not in c.near]


def _check_company(categories: Sequence[Category], n_categories: int) -> None:
    if n_categories < 2:
        raise QKPrismError(f"n_categories={n_categories} leaves no negative key; give at least 2.")
    if len({c.name for c in categories} | {POOLED}) < len(categories) + 1:
        raise QKPrismError(f"categories need names of their own, other than {POOLED!r}.")
    for category in categories:
        if len(company := _company(category, categories)) < n_categories - 1:
            raise QKPrismError(
                f"a list with {category.name} has {len(company) + 1} categories at most, of those that share no member "
                f"with it, and n_categories={n_categories}; give more categories or a smaller number."
            )


def _halves(
    category: Category, n_items: int, listing: Listing, tokenizer: Tokenizer | None, seed: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Items of the contrasts, and as many held out for the test."""
    fit = fitting(category.items, tokenizer, before=listing.opening.rstrip(), after=(",", listing.closing[:1]))
    what = f"items of the category {category.name!r} ({n_items} for the contrasts, {n_items} held out)"
    require(fit, category.items, 2 * n_items, what=what, advice="use fewer items or leave the category out")
    mixed = _rng(seed, f"items of {category.name}").sample(fit, len(fit))
    half = (len(mixed) + 1) // 2
    return tuple(mixed[:half]), tuple(mixed[half:])
