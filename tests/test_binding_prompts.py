"""Binding prompts: each contrast varies one factor, each counterfactual exchanges one, and every key is one token."""

from __future__ import annotations

import pickle
from collections import Counter
from functools import cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qkprism.contrasts import Contrast, Example, Span, Text
from qkprism.contrasts.drawing import balanced, balanced_pairs
from qkprism.contrasts.fitting import fitting
from qkprism.contrasts.templates import read_template
from qkprism.contrasts.words import words
from qkprism.errors import QKPrismError
from qkprism.models.encoding import encode
from qkprism.studies.binding_prompts import BindingPrompts, binding_prompts
from tokenizers_for_tests import CHAT, byte_level, default_tokenizer, metaspace, word_piece

SCHEMAS = ("boxes", "cities", "drinks")
PHRASINGS = ("cloze", "question", "sentence", "chat")
FACTORS = ("order", "lexical", "label")
WORDS = tuple(dict.fromkeys(chain(*(own for name in SCHEMAS for own in read_template(name).lists.values()))))
KNOWING = {
    "byte level": lambda: byte_level(words=WORDS, chat=CHAT),
    "metaspace": lambda: metaspace(words=WORDS),
    "word piece": lambda: word_piece(words=WORDS),
}
SIZES = {"n_train": 28, "n_search": 12, "n_test": 12}
FEW = dict.fromkeys(SIZES, 4)

every_schema = pytest.mark.parametrize("schema", SCHEMAS)
every_phrasing = pytest.mark.parametrize("phrasing", PHRASINGS)
twins = pytest.mark.parametrize("name", ["order", "lexical", "reflexive"])


@pytest.fixture(scope="module")
def task() -> BindingPrompts:
    return made("boxes", "cloze")


@cache
def made(schema: str, phrasing: str) -> BindingPrompts:
    return binding_prompts(schema, 4, phrasing=phrasing, **SIZES)


def clauses(text: Text) -> list[tuple[str, str]]:
    """Entity and label of each clause, in the order of the text."""
    keys = sorted((*text.positive, *text.negative), key=lambda key: key.start)
    assert [key.labels["order"] for key in keys] == list(range(len(keys)))
    return [(entity_of(key), text.text[key.start : key.end]) for key in keys]


def entity_of(key: Span) -> str:
    return next(str(key.labels[name]) for name in ("thing", "person") if name in key.labels)


def factors(text: Text, *, target: bool = False) -> dict[str, Any]:
    """What distinguishes the positive key, or the target."""
    (key,) = (span for span in text.negative if span.target) if target else text.positive
    return {"order": key.labels["order"], "lexical": entity_of(key), "label": text.text[key.start : key.end]}


def question(text: Text) -> str:
    """What comes after the clauses."""
    return text.text[max(key.end for key in (*text.positive, *text.negative)) :]


def differing(first: dict[str, Any], second: dict[str, Any]) -> set[str]:
    return {name for name in first if first[name] != second[name]}


def parts(task: BindingPrompts) -> list[Contrast]:
    return [*drawn(task).values(), task.task.search, task.task.test]


def drawn(task: BindingPrompts) -> dict[str, Contrast]:
    return {**task.contrasts, **task.extra}


def texts(contrast: Contrast) -> list[Text]:
    return [text for example in contrast for text in example.texts]


def spread(values: Any) -> int:
    """How much more often the most common value comes than the rarest."""
    counts = Counter(values).values()
    return max(counts) - min(counts)


# Balance


def test_balanced_pairs__every_value_comes_equally_often_on_either_side() -> None:
    for count in (7, 30, 33):
        pairs = balanced_pairs("abcdefg", count, Random(0))
        assert len(pairs) == count
        assert all(first != second for first, second in pairs)
        for side in zip(*pairs, strict=True):
            assert spread(side) <= 1
    assert len(set(balanced_pairs("abcdefg", 300, Random(0)))) == 7 * 6


def test_balanced__is_in_random_order() -> None:
    assert spread(balanced(range(5), 52, Random(1))) == 1
    assert balanced(range(9), 9, Random(1)) != balanced(range(9), 9, Random(2))


# What every part has


def test_binding__is_as_documented(task: BindingPrompts) -> None:
    assert list(task.contrasts) == ["order", "lexical"]
    assert list(task.extra) == ["reflexive", "order_fixed"]
    assert {name: contrast.name for name, contrast in drawn(task).items()} == {n: n for n in drawn(task)}
    assert [len(part) for part in parts(task)] == [28] * 4 + [12] * 2
    assert all(part.key_labels == ("order", "thing") for part in parts(task) if part.name != "reflexive")
    assert task.extra["reflexive"].key_labels == ("order", "thing", "box")  # else its signal would be noise
    assert (task.entity, task.label) == ("thing", "box")


@every_schema
@every_phrasing
def test_binding__asks_for_the_entity_of_the_positive_key(schema: str, phrasing: str) -> None:
    task = made(schema, phrasing)
    for text in chain.from_iterable(map(texts, parts(task))):
        entities, labels = zip(*clauses(text), strict=True)
        assert len(set(entities)) == len(set(labels)) == 4
        asked = [entity for entity in entities if entity in question(text).split()]
        assert asked == [factors(text)["lexical"]]
        assert "  " not in text.text
        assert text.text[0].isupper()
        assert text.text.lower().endswith(("box", "from", "drinks", "answer:", "?"))


def test_binding__factors_of_the_positive_key_are_balanced(task: BindingPrompts) -> None:
    for part in parts(task):
        for which in zip(*(example.texts for example in part), strict=True):
            for factor in FACTORS:
                assert spread(factors(text)[factor] for text in which) <= 1, (part.name, factor)


def test_binding__held_out_entities_are_in_no_contrast(task: BindingPrompts) -> None:
    def used(*contrasts: Contrast) -> set[str]:
        return {entity for part in contrasts for text in texts(part) for entity, _ in clauses(text)}

    own, held_out = task.task.words, task.task.held_out
    assert not set(own["things"]) & set(held_out["things"])
    assert used(*drawn(task).values(), task.task.search) <= set(own["things"])
    assert used(task.task.test) <= set(held_out["things"])
    assert set(own["things"]) | set(held_out["things"]) == set(words("objects"))
    assert own["boxes"] == held_out["boxes"] == words("letters")  # labels are shared


def test_binding__a_seed_is_a_task_and_the_size_of_one_part_changes_no_other() -> None:
    first, again, other = (binding_prompts("boxes", 3, seed, **SIZES) for seed in (5, 5, 6))
    larger = binding_prompts("boxes", 3, 5, **SIZES | {"n_train": 30})
    for name, contrast in drawn(first).items():
        assert contrast.digest == drawn(again)[name].digest != drawn(other)[name].digest
    assert first.task.test.digest == again.task.test.digest == larger.task.test.digest != other.task.test.digest
    assert first.task.search.digest == larger.task.search.digest
    assert first.task.held_out["things"] != other.task.held_out["things"]


def test_binding__n_entities_fixes_the_set() -> None:
    task = binding_prompts("boxes", 5, n_entities=6, **SIZES)
    assert len(task.task.words["things"]) == 6
    assert len({entity for text in texts(task.contrasts["lexical"]) for entity, _ in clauses(text)}) == 6
    assert task.task.held_out == binding_prompts("boxes", 5, **FEW).task.held_out


# What each contrast varies


def test_order_fixed__same_entities_and_same_question(task: BindingPrompts) -> None:
    order = task.extra["order_fixed"]
    assert len({frozenset(entity for entity, _ in clauses(text)) for text in texts(order)}) == 1
    assert len({question(text) for text in texts(order)}) == 1
    assert len({tuple(entity for entity, _ in clauses(text)) for text in texts(order)}) > 10


@twins
def test_twins__differ_in_one_factor_of_the_positive_key(task: BindingPrompts, name: str) -> None:
    factor = {"order": "order", "lexical": "lexical", "reflexive": "label"}[name]
    for example in drawn(task)[name]:
        first, second = example.texts
        assert differing(factors(first), factors(second)) == {factor}


@twins
def test_twins__have_equal_surroundings(task: BindingPrompts, name: str) -> None:
    for example in drawn(task)[name]:
        first, second = map(clauses, example.texts)
        differ = [place for place, (one, other) in enumerate(zip(first, second, strict=True)) if one != other]
        if name == "order":
            assert sorted(first) == sorted(second)
            assert len(differ) == 2
        else:
            assert differ == [example.text.positive[0].labels["order"]]
        asked = [question(text) for text in example.texts]
        assert (asked[0] == asked[1]) == (name != "lexical")


@every_schema
def test_twins__are_of_the_same_texts_in_all_contrasts(schema: str) -> None:
    contrasts = [drawn(made(schema, "cloze"))[name] for name in ("order", "lexical", "reflexive")]
    for examples in zip(*contrasts, strict=True):
        assert len({example.text.text for example in examples}) == 1
        assert len({example.twin.text for example in examples if example.twin}) == 3


def test_lexical__differs_in_the_question_only_by_the_entity(task: BindingPrompts) -> None:
    for example in task.contrasts["lexical"]:
        first, second = (question(text).replace(factors(text)["lexical"], "?") for text in example.texts)
        assert first == second


# Tests and counterfactuals


def test_test__every_example_has_a_target(task: BindingPrompts) -> None:
    targets = [factors(example.text, target=True) for example in task.task.test]
    originals = [factors(example.text) for example in task.task.test]
    for original, target in zip(originals, targets, strict=True):
        assert differing(original, target) == set(FACTORS)
    assert spread(target["order"] for target in targets) <= 1


@every_schema
@every_phrasing
@pytest.mark.parametrize("factor", FACTORS)
def test_counterfactuals__exchange_one_factor(schema: str, phrasing: str, factor: Any) -> None:
    task = made(schema, phrasing)
    pairs = task.counterfactuals(factor)
    assert [first for first, _ in pairs] == list(task.task.test)
    for one, other in pairs:
        for mine, theirs in ((False, True), (True, False)):
            before, after = factors(one.text, target=mine), factors(other.text, target=mine)
            assert differing(before, after) == {factor}
            assert after[factor] == factors(one.text, target=theirs)[factor]
        assert question(one.text) == question(other.text)
        assert bystanders(one) == bystanders(other)


def bystanders(example: Example) -> list[Any]:
    """Order, entity and label of the keys that are neither positive nor target."""
    text = example.text
    return [(key.labels, text.text[key.start : key.end]) for key in text.negative if not key.target]


# Tokens


def check_tokens(task: BindingPrompts, tokenizer: Any) -> None:
    """Every example encodes, and texts have one length, one set of key positions and one query."""
    examples = [example for part in parts(task) for example in part]
    examples += [second for factor in FACTORS for _, second in task.counterfactuals(factor)]
    encoded = [text for example in encode(tokenizer, examples, task.task.encoding) for text in example.texts]
    assert len({(len(text.ids), text.query, tuple(sorted(k.position for k in text.keys))) for text in encoded}) == 1
    for text in encoded:
        assert len({text.ids[key.position] for key in text.keys}) == len(text.keys)


@every_schema
@every_phrasing
@pytest.mark.parametrize("make", KNOWING.values(), ids=KNOWING.keys())
def test_binding__every_word_is_one_token(schema: str, phrasing: str, make: Any) -> None:
    tokenizer = make()
    if phrasing != "chat" or tokenizer.chat_template:
        check_tokens(binding_prompts(schema, 4, phrasing=phrasing, tokenizer=tokenizer, **FEW), tokenizer)


@every_schema
@pytest.mark.parametrize("phrasing", [name for name in PHRASINGS if name != "chat"])
@pytest.mark.parametrize("make", KNOWING.values(), ids=KNOWING.keys())
def test_binding__the_answer_is_the_token_of_the_key(schema: str, phrasing: str, make: Any) -> None:
    tokenizer = make()
    example = made(schema, phrasing).task.test[0]
    (encoded,) = encode(tokenizer, [example])
    answered = tokenizer.encode(f"{example.text.text} {factors(example.text)['label']}", add_special_tokens=False)
    assert answered[-1] == encoded.text.ids[encoded.text.positive[0]]


def test_binding__leaves_out_words_that_do_not_fit() -> None:
    split = set(words("objects")[3::5])
    tokenizer = byte_level(words=tuple(word for word in WORDS if word not in split))
    task = binding_prompts("boxes", 4, tokenizer=tokenizer, **SIZES)
    assert not split & {*task.task.words["things"], *task.task.held_out["things"]}
    check_tokens(task, tokenizer)


def test_fitting__refuses_unknown_and_equal_tokens() -> None:
    tokenizer = word_piece(words=("hat",))
    assert fitting(["hat", "Hat", "µ", "xylophone"], tokenizer, before="the") == ("hat",)
    assert fitting(["hat", "hat", "xylophone"], None, before="the") == ("hat", "xylophone")


def test_binding__takes_a_template_of_your_own(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(KEYS)
    text = binding_prompts(file, 2, **FEW).task.test[0].text
    keys = sorted((*text.positive, *text.negative), key=lambda key: key.start)
    (first, one), (second, other) = ((key.labels["count"], text.text[key.start : key.end]) for key in keys)
    assert text.text.startswith(f"Key {first} opens {one} now, key {second} opens {other} now. Key")


KEYS = """
question = "What does this key open?"
places = 2
exchange = ["count", "letter", "order"]
twins = ["count", "letter", "order"]
prompt = "Key {{ count[0] }} opens {{ key(0, letter[0], order=0, count=count[0]) }} now, key {{ count[1] }} opens \
{{ key(1, letter[1], order=1, count=count[1]) }} now. Key {{ count[asked] }} opens"
[words]
numbers = ["10", "11", "12", "13", "14", "15", "16", "17", "18"]
letters = ["a", "b", "c", "d", "e", "f"]
[draw]
count = "row(numbers)"
letter = "row(letters)"
"""


def test_binding__can_be_pickled(task: BindingPrompts) -> None:
    contrasts = drawn(task)
    assert pickle.loads(pickle.dumps(contrasts)) == contrasts


# What is refused


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"template": "bags"}, "bags is no template"),
        ({"template": "induction", "n_pairs": 6}, "induction is no template for the binding study: it needs places"),
        ({"template": "category"}, "category is no template for the binding study"),
        ({"phrasing": "rap"}, "boxes has no phrasing 'rap'; use cloze, question, sentence, chat."),
        ({"n_pairs": 1}, "places=1 is not possible"),
        ({"n_pairs": 25}, "a row of 25 is more than the 24 there are; use a longer list"),
        ({"n_pairs": 24}, "twins: 'box' has "),  # none is left for a twin
        ({"n_entities": 9}, "n_entities=9 is too few for n_pairs=9; give at least 10"),
        ({"n_entities": 500}, "500 words of things are wanted, and 61 are left for the contrasts"),
        ({"n_test": 0}, "n_test=0 is not possible"),
    ],
)
def test_binding__refuses(options: Any, reason: str) -> None:
    with pytest.raises(QKPrismError) as caught:
        binding_prompts(**{"template": "boxes", **options})
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_binding__names_words_that_do_not_fit() -> None:
    with pytest.raises(QKPrismError) as caught:
        binding_prompts("boxes", 3, tokenizer=byte_level(words=(*words("letters"), "hat", "jam", "pen")))
    message = str(caught.value)
    assert "a row of 3 is more than the 2 there are; use a longer list" in message
    assert "words of 'things' are not one token each and were left out: cup, key, map" in message


@pytest.mark.model
@every_schema
@every_phrasing
def test_binding__needs_no_tokenizer_for_the_default_model(schema: str, phrasing: str) -> None:
    tokenizer = default_tokenizer()
    task = binding_prompts(schema, phrasing=phrasing, tokenizer=tokenizer, **FEW)
    assert drawn(task) == drawn(binding_prompts(schema, phrasing=phrasing, **FEW))
    check_tokens(task, tokenizer)
