"""Filtering prompts: lists of items, a category asked for, held-out items to test on."""

from __future__ import annotations

from collections import Counter
from itertools import chain, combinations
from typing import Any

import pytest

from qkprism.contrasts import Contrast, Text
from qkprism.contrasts.words import words
from qkprism.errors import QKPrismError
from qkprism.models.encoding import encode
from qkprism.studies.categories import CATEGORIES, FilterPrompts, asked, filter_prompts
from tokenizers_for_tests import CHAT, byte_level, default_tokenizer, metaspace

PHRASINGS = ("cloze", "question", "chat")
WORDS = tuple(chain(*map(words, CATEGORIES)))
KNOWING = {"byte level": lambda: byte_level(words=WORDS, chat=CHAT), "metaspace": lambda: metaspace(words=WORDS)}
SIZES = {"n_train": 2, "n_search": 13, "n_test": 13}
FEW = dict.fromkeys(SIZES, 1)
NEAR = {
    *(("fruits", "foods"), ("animals", "birds"), ("drinks", "liquids"), ("drinks", "foods"), ("birds", "foods")),
    ("liquids", "foods"),
}

every_phrasing = pytest.mark.parametrize("phrasing", PHRASINGS)


@pytest.fixture(scope="module")
def task() -> FilterPrompts:
    return filter_prompts(**SIZES)


def near(category: str) -> set[str]:
    """The categories that share members with this one."""
    return {other for pair in NEAR if category in pair for other in pair if other != category}


def parts(task: FilterPrompts) -> list[Contrast]:
    return [*task.single.values(), *task.contrasts.values(), task.search, task.test]


def items(text: Text) -> dict[str, str]:
    """The category of each item."""
    keys = (*text.positive, *text.negative)
    return {text.text[key.start : key.end]: str(key.labels["category"]) for key in keys}


def used(*contrasts: Contrast) -> set[str]:
    return {item for contrast in contrasts for example in contrast for item in items(example.text)}


def test_categories__share_no_word() -> None:
    assert len(CATEGORIES) == len(set(CATEGORIES)) == 13
    for one, other in combinations(CATEGORIES, 2):
        assert not set(words(one)) & set(words(other))


def test_filtering__is_as_documented(task: FilterPrompts) -> None:
    assert (list(task.contrasts), list(task.single)) == (["pooled"], [*CATEGORIES])
    assert [len(part) for part in parts(task)] == [2] * 13 + [2 * 13, 13, 13]
    assert all(part.key_labels == ("category",) for part in parts(task))


@every_phrasing
def test_filtering__marks_the_category_asked_for(phrasing: str) -> None:
    for part in parts(filter_prompts(phrasing=phrasing, **SIZES)):
        for example in part:
            text, category = example.text, str(asked(example))
            assert f"the {category.replace('_', ' ')}" in text.text.lower()
            assert {key.labels["category"] for key in text.positive} == {category}
            assert category not in {key.labels["category"] for key in text.negative}
            assert all(item in words(category) for item, category in items(text).items())
            assert sorted(Counter(items(text).values()).values()) == [5] * 5


def test_filtering__asks_for_no_category_that_shares_members_with_another(task: FilterPrompts) -> None:
    company = {(str(asked(e)), other) for part in parts(task) for e in part for other in items(e.text).values()}
    assert not {(one, other) for one, other in company if other in near(one)}
    many = filter_prompts(n_train=60, n_search=1, n_test=1).contrasts["pooled"]
    company = {(str(asked(e)), other) for e in many for other in items(e.text).values()}
    assert {other for one, other in company if one == "foods"} == {*CATEGORIES} - near("foods")


def test_filtering__items_stand_anywhere(task: FilterPrompts) -> None:
    places = Counter(
        place
        for example in task.contrasts["pooled"]
        for place, key in enumerate(sorted((*example.text.positive, *example.text.negative), key=lambda k: k.start))
        if key in example.text.positive
    )
    assert set(places) == set(range(25))


def test_filtering__a_contrast_asks_for_its_category_and_the_others_for_all(task: FilterPrompts) -> None:
    for name in CATEGORIES:
        assert {asked(example) for example in task.single[name]} == {name}
    for part in (task.contrasts["pooled"], task.contrasts["pooled"][:13], task.search, task.test):
        counts = Counter(map(asked, part))
        assert set(counts) == set(CATEGORIES)
        assert max(counts.values()) == min(counts.values())


def test_filtering__held_out_items_are_in_no_contrast(task: FilterPrompts) -> None:
    train, held = used(*task.contrasts.values(), *task.single.values(), task.search), used(task.test)
    assert not train & held
    for name in CATEGORIES:
        own, other = (set(words(name)) & part for part in (train, held))
        assert own
        assert other


def test_test__the_target_is_in_another_category(task: FilterPrompts) -> None:
    for example in task.test:
        (target,) = (key for key in example.text.negative if key.target)
        assert target.labels["category"] != asked(example)


def test_filtering__a_seed_is_a_task_and_the_size_of_one_part_changes_no_other(task: FilterPrompts) -> None:
    again, other, larger = (
        filter_prompts(**SIZES),
        filter_prompts(seed=1, **SIZES),
        filter_prompts(**SIZES | {"n_train": 3}),
    )
    assert task.test.digest == again.test.digest == larger.test.digest != other.test.digest
    assert larger.single["birds"][:2].digest == task.single["birds"].digest
    assert not used(task.test) <= used(other.test)


def test_filtering__takes_other_categories() -> None:
    task = filter_prompts(["fruits", "animals", "vehicles", "drinks", "countries"], **SIZES)
    assert [*task.single, *task.contrasts] == ["fruits", "animals", "vehicles", "drinks", "countries", "pooled"]
    assert set(items(task.test[0].text).values()) == {*task.single}


def check_tokens(task: FilterPrompts, tokenizer: Any) -> None:
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
        check_tokens(filter_prompts(phrasing=phrasing, tokenizer=tokenizer, **FEW), tokenizer)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"categories": ["fruits", "animals", "vehicles", "cities", "gems"]}, "'gems' is no list of words"),
        ({"phrasing": "rap"}, "filter has no phrasing 'rap'; use cloze, question, chat."),
        ({"categories": ["fruits"]}, "a sample of 4 is more than the 0 there are"),
        ({"n_search": 0}, "n_search=0 is not possible"),
    ],
)
def test_filtering__refuses(options: Any, reason: str) -> None:
    with pytest.raises(QKPrismError) as caught:
        filter_prompts(**options)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_filtering__names_words_that_do_not_fit() -> None:
    with pytest.raises(QKPrismError) as caught:
        filter_prompts(tokenizer=byte_level(words=("apple", "lemon")))
    assert "are one token each for this tokenizer, and 2 are needed" in str(caught.value)


@pytest.mark.model
@every_phrasing
def test_filtering__needs_no_tokenizer_for_the_default_model(phrasing: str) -> None:
    tokenizer = default_tokenizer()
    task = filter_prompts(phrasing=phrasing, tokenizer=tokenizer, **FEW)
    assert task == filter_prompts(phrasing=phrasing, **FEW)
    check_tokens(task, tokenizer)
