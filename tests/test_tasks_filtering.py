"""Filtering prompts: lists of items, a category asked for, held-out items to test on."""

from __future__ import annotations

import pickle
from collections import Counter
from itertools import chain, combinations
from typing import Any

import pytest

from qkprism.contrasts import Contrast, Text
from qkprism.errors import QKPrismError
from qkprism.models.encoding import encode
from qkprism.tasks import CATEGORIES, LISTINGS, Category, FilteringTask, filtering
from tokenizers_for_tests import CHAT, byte_level, default_tokenizer, metaspace

WORDS = tuple(chain(*(category.items for category in CATEGORIES.values())))
KNOWING = {"byte level": lambda: byte_level(words=WORDS, chat=CHAT), "metaspace": lambda: metaspace(words=WORDS)}
SIZES = {"n_train": 2, "n_search": 13, "n_test": 13}
FEW = dict.fromkeys(SIZES, 1)

every_phrasing = pytest.mark.parametrize("phrasing", LISTINGS)


@pytest.fixture(scope="module")
def task() -> FilteringTask:
    return filtering(**SIZES)


def test_filtering__can_be_pickled(task: FilteringTask) -> None:
    assert pickle.loads(pickle.dumps(task)) == task


def test_category__refuses_what_no_text_can_be_made_of() -> None:
    with pytest.raises(QKPrismError, match="the category 'shapes' has '' among its words"):
        Category("shapes", ("cube", ""))


def parts(task: FilteringTask) -> list[Contrast]:
    return [*task.extra.values(), *task.contrasts.values(), task.search, task.test]


def items(text: Text) -> dict[str, str]:
    """The category of each item."""
    keys = (*text.positive, *text.negative)
    return {text.text[key.start : key.end]: str(key.labels["category"]) for key in keys}


def used(*contrasts: Contrast) -> set[str]:
    return {item for contrast in contrasts for example in contrast for item in items(example.text)}


def test_categories__share_no_word() -> None:
    assert len(CATEGORIES) == 13
    for one, other in combinations(CATEGORIES.values(), 2):
        assert not set(one.items) & set(other.items)
        assert (one.name in other.near) == (other.name in one.near)
    for category in CATEGORIES.values():
        assert len(set(category.items)) == len(category.items) >= 10


def test_filtering__is_as_documented(task: FilteringTask) -> None:
    assert (list(task.contrasts), list(task.extra)) == (["pooled"], [*CATEGORIES])
    assert [len(part) for part in parts(task)] == [2] * 13 + [2 * 13, 13, 13]
    assert all(part.key_labels == ("category",) for part in parts(task))


@every_phrasing
def test_filtering__marks_the_category_asked_for(phrasing: str) -> None:
    for part in parts(filtering(phrasing=phrasing, **SIZES)):
        for example in part:
            text, asked = example.text, str(example.labels["category"])
            assert f"the {asked}" in text.text.lower().replace("us states", "US states")
            assert {key.labels["category"] for key in text.positive} == {asked}
            assert asked not in {key.labels["category"] for key in text.negative}
            assert all(item in CATEGORIES[category].items for item, category in items(text).items())
            assert sorted(Counter(items(text).values()).values()) == [5] * 5


def test_filtering__asks_for_no_category_that_shares_members_with_another(task: FilteringTask) -> None:
    for part in parts(task):
        for example in part:
            near = CATEGORIES[str(example.labels["category"])].near
            assert not set(near) & set(items(example.text).values())


def test_filtering__a_contrast_asks_for_its_category_and_the_others_for_all(task: FilteringTask) -> None:
    for name in CATEGORIES:
        assert {example.labels["category"] for example in task.extra[name]} == {name}
    for part in (task.contrasts["pooled"], task.contrasts["pooled"][:13], task.search, task.test):
        counts = Counter(example.labels["category"] for example in part)
        assert set(counts) == set(CATEGORIES)
        assert max(counts.values()) == min(counts.values())


def test_filtering__held_out_items_are_in_no_contrast(task: FilteringTask) -> None:
    train, held = used(*task.contrasts.values(), *task.extra.values(), task.search), used(task.test)
    assert not train & held
    for name, category in CATEGORIES.items():
        assert set(task.items[name]) | set(task.held_out[name]) == set(category.items)
    assert train <= set(chain(*task.items.values()))
    assert held <= set(chain(*task.held_out.values()))


def test_test__the_target_is_in_another_category(task: FilteringTask) -> None:
    for example in task.test:
        (target,) = (key for key in example.text.negative if key.target)
        assert target.labels["category"] != example.labels["category"]


def test_filtering__a_seed_is_a_task() -> None:
    assert filtering(seed=5, **SIZES) == filtering(seed=5, **SIZES)
    assert filtering(seed=5, **SIZES).test != filtering(seed=6, **SIZES).test
    assert filtering(seed=5, **SIZES).held_out != filtering(seed=6, **SIZES).held_out


def test_filtering__the_size_of_one_part_changes_no_other() -> None:
    small, large = filtering(**SIZES), filtering(**SIZES | {"n_train": 3})
    assert small.test == large.test
    assert large.extra["birds"][:2] == small.extra["birds"]


def test_filtering__takes_other_categories_and_sizes() -> None:
    shapes = Category("shapes", ("square", "circle", "cube", "cone"))
    task = filtering(["fruits", shapes], n_categories=2, n_items=2, **SIZES)
    assert [*task.extra, *task.contrasts] == ["fruits", "shapes", "pooled"]
    assert sorted(Counter(items(task.test[0].text).values()).items()) == [("fruits", 2), ("shapes", 2)]


def check_tokens(task: FilteringTask, tokenizer: Any) -> None:
    """Every example encodes, and every item is one token: every second one, between commas."""
    for part in parts(task):
        for example in encode(tokenizer, part, task.encoding):
            positions = sorted(key.position for key in example.text.keys)
            assert positions == list(range(positions[0], positions[0] + 2 * len(positions), 2))
            assert len({example.text.ids[at] for at in positions}) == len(positions)


@every_phrasing
@pytest.mark.parametrize("make", KNOWING.values(), ids=KNOWING.keys())
def test_filtering__every_item_is_one_token(phrasing: str, make: Any) -> None:
    tokenizer = make()
    if phrasing != "chat" or tokenizer.chat_template:
        check_tokens(filtering(phrasing=phrasing, tokenizer=tokenizer, **FEW), tokenizer)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"categories": ["fruits", "gems"]}, "unknown category 'gems'; use fruits, animals,"),
        ({"phrasing": "rap"}, "unknown phrasing 'rap'; use cloze, question, chat."),
        ({"n_categories": 1}, "n_categories=1 leaves no negative key"),
        ({"n_categories": 10}, "a list with foods has 9 categories at most, of those that share no member with it, "),
        ({"categories": ["fruits"]}, "a list with fruits has 1 categories at most"),
        ({"categories": ["fruits", "fruits", "cities"]}, "categories need names of their own, other than 'pooled'."),
        ({"n_items": 9}, "18 items of the category 'drinks' (9 for the contrasts, 9 held out) are needed and there "),
        ({"n_items": 0}, "n_items=0"),
        ({"n_search": 0}, "n_search=0 is not possible"),
    ],
)
def test_filtering__refuses(options: Any, reason: str) -> None:
    with pytest.raises(QKPrismError) as caught:
        filtering(**options)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_filtering__names_words_that_do_not_fit() -> None:
    with pytest.raises(QKPrismError) as caught:
        filtering(tokenizer=byte_level(words=("apple", "lemon")))
    assert "of which 2 are one token each for this tokenizer (banana, orange, grape" in str(caught.value)


@pytest.mark.model
@every_phrasing
def test_filtering__needs_no_tokenizer_for_the_default_model(phrasing: str) -> None:
    tokenizer = default_tokenizer()
    task = filtering(phrasing=phrasing, tokenizer=tokenizer, **FEW)
    assert task == filtering(phrasing=phrasing, **FEW)
    check_tokens(task, tokenizer)
