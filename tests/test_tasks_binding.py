"""Binding prompts: each contrast varies one factor, each counterfactual exchanges one, and every key is one token."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import chain
from random import Random
from typing import Any

import pytest
from jaxtyping import TypeCheckError

from qkprism.contrasts import Contrast, Example, Text
from qkprism.contrasts.fitting import fitting
from qkprism.contrasts.rounds import balanced, balanced_pairs
from qkprism.errors import QKPrismError
from qkprism.models.encoding import encode
from qkprism.tasks import PHRASINGS, SCHEMAS, BindingTask, Schema, binding
from qkprism.tasks.scenes import FACTORS, exchange
from tokenizers_for_tests import CHAT, byte_level, default_tokenizer, metaspace, word_piece

WORDS = tuple(dict.fromkeys(chain(*(schema.entities + schema.labels for schema in SCHEMAS.values()))))
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
def task() -> BindingTask:
    return made("boxes", "cloze")


@cache
def made(schema: str, phrasing: str) -> BindingTask:
    return binding(n_pairs=4, schema=schema, phrasing=phrasing, **SIZES)


def clauses(text: Text) -> list[tuple[str, str]]:
    """Entity and label of each clause, in the order of the text."""
    keys = sorted((*text.positive, *text.negative), key=lambda key: key.start)
    assert [key.labels["order"] for key in keys] == list(range(len(keys)))
    return [(str(key.labels["entity"]), text.text[key.start : key.end]) for key in keys]


def factors(text: Text, *, target: bool = False) -> dict[str, Any]:
    """What distinguishes the positive key, or the target."""
    (key,) = (span for span in text.negative if span.target) if target else text.positive
    return {"order": key.labels["order"], "lexical": key.labels["entity"], "label": text.text[key.start : key.end]}


def question(text: Text) -> str:
    """What comes after the clauses."""
    return text.text[max(key.end for key in (*text.positive, *text.negative)) :]


def differing(first: dict[str, Any], second: dict[str, Any]) -> set[str]:
    return {name for name in first if first[name] != second[name]}


def parts(task: BindingTask) -> list[Contrast]:
    return [*drawn(task).values(), task.search, task.test]


def drawn(task: BindingTask) -> dict[str, Contrast]:
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


def test_binding__is_as_documented(task: BindingTask) -> None:
    assert list(task.contrasts) == ["order", "lexical"]
    assert list(task.extra) == ["reflexive", "order_fixed"]
    assert {name: contrast.name for name, contrast in drawn(task).items()} == {n: n for n in drawn(task)}
    assert [len(part) for part in parts(task)] == [28] * 4 + [12] * 2
    assert all(part.key_labels == ("order", "entity") for part in parts(task) if part.name != "reflexive")
    assert task.extra["reflexive"].key_labels == ("order", "entity", "label")


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


def test_binding__factors_of_the_positive_key_are_balanced(task: BindingTask) -> None:
    for part in parts(task):
        for which in zip(*(example.texts for example in part), strict=True):
            for factor in FACTORS:
                assert spread(factors(text)[factor] for text in which) <= 1, (part.name, factor)


def test_binding__held_out_entities_are_in_no_contrast(task: BindingTask) -> None:
    def used(*contrasts: Contrast) -> set[str]:
        return {entity for part in contrasts for text in texts(part) for entity, _ in clauses(text)}

    assert not set(task.entities) & set(task.held_out)
    assert used(*drawn(task).values(), task.search) <= set(task.entities)
    assert used(task.test) <= set(task.held_out)
    assert set(task.entities) | set(task.held_out) == set(SCHEMAS["boxes"].entities)


def test_binding__a_seed_is_a_task() -> None:
    assert binding(3, 5, **SIZES) == binding(3, 5, **SIZES)
    assert binding(3, 5, **SIZES).test != binding(3, 6, **SIZES).test
    assert binding(3, 5, **SIZES).held_out != binding(3, 6, **SIZES).held_out


def test_binding__the_size_of_one_part_changes_no_other() -> None:
    small, large = binding(3, **SIZES), binding(3, **SIZES | {"n_train": 30})
    assert small.test == large.test
    assert small.search == large.search


def test_binding__n_entities_fixes_the_set() -> None:
    task = binding(5, n_entities=6, **SIZES)
    assert len(task.entities) == 6
    assert len({entity for text in texts(task.contrasts["lexical"]) for entity, _ in clauses(text)}) == 6
    assert len(task.held_out) >= 5


# What each contrast varies


def test_order_fixed__same_entities_and_same_question(task: BindingTask) -> None:
    order = task.extra["order_fixed"]
    assert len({frozenset(entity for entity, _ in clauses(text)) for text in texts(order)}) == 1
    assert len({question(text) for text in texts(order)}) == 1
    assert len({tuple(entity for entity, _ in clauses(text)) for text in texts(order)}) > 10


@twins
def test_twins__differ_in_one_factor_of_the_positive_key(task: BindingTask, name: str) -> None:
    factor = {"order": "order", "lexical": "lexical", "reflexive": "label"}[name]
    for example in drawn(task)[name]:
        first, second = example.texts
        assert differing(factors(first), factors(second)) == {factor}


@twins
def test_twins__have_equal_surroundings(task: BindingTask, name: str) -> None:
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


def test_lexical__differs_in_the_question_only_by_the_entity(task: BindingTask) -> None:
    for example in task.contrasts["lexical"]:
        first, second = (question(text).replace(factors(text)["lexical"], "?") for text in example.texts)
        assert first == second


# Tests and counterfactuals


def test_test__every_example_has_a_target(task: BindingTask) -> None:
    targets = [factors(example.text, target=True) for example in task.test]
    originals = [factors(example.text) for example in task.test]
    for original, target in zip(originals, targets, strict=True):
        assert differing(original, target) == set(FACTORS)
    assert spread(target["order"] for target in targets) <= 1


@every_schema
@every_phrasing
@pytest.mark.parametrize("factor", FACTORS)
def test_counterfactuals__exchange_one_factor(schema: str, phrasing: str, factor: Any) -> None:
    task = made(schema, phrasing)
    pairs = task.counterfactuals(factor)
    assert [first for first, _ in pairs] == list(task.test)
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


@pytest.mark.parametrize("factor", FACTORS)
def test_exchange__twice_is_the_identity(task: BindingTask, factor: Any) -> None:
    for scene in task.scenes:
        assert exchange(exchange(scene, factor), factor) == scene


# Tokens


def check_tokens(task: BindingTask, tokenizer: Any) -> None:
    """Every example encodes, and texts have one length, one set of key positions and one query."""
    examples = [example for part in parts(task) for example in part]
    examples += [second for factor in FACTORS for _, second in task.counterfactuals(factor)]
    encoded = [text for example in encode(tokenizer, examples, task.encoding) for text in example.texts]
    assert len({(len(text.ids), text.query, tuple(sorted(k.position for k in text.keys))) for text in encoded}) == 1
    for text in encoded:
        assert len({text.ids[key.position] for key in text.keys}) == len(text.keys)


@every_schema
@every_phrasing
@pytest.mark.parametrize("make", KNOWING.values(), ids=KNOWING.keys())
def test_binding__every_word_is_one_token(schema: str, phrasing: str, make: Any) -> None:
    tokenizer = make()
    if phrasing != "chat" or tokenizer.chat_template:
        check_tokens(binding(4, schema=schema, phrasing=phrasing, tokenizer=tokenizer, **FEW), tokenizer)


@every_schema
@pytest.mark.parametrize("phrasing", [name for name, phrasing in PHRASINGS.items() if not phrasing.chat])
@pytest.mark.parametrize("make", KNOWING.values(), ids=KNOWING.keys())
def test_binding__the_answer_is_the_token_of_the_key(schema: str, phrasing: str, make: Any) -> None:
    tokenizer = make()
    example = made(schema, phrasing).test[0]
    (encoded,) = encode(tokenizer, [example])
    answered = tokenizer.encode(f"{example.text.text} {factors(example.text)['label']}", add_special_tokens=False)
    assert answered[-1] == encoded.text.ids[encoded.text.positive[0]]


def test_binding__leaves_out_words_that_do_not_fit() -> None:
    split = set(SCHEMAS["boxes"].entities[3::5])
    tokenizer = byte_level(words=tuple(word for word in WORDS if word not in split))
    task = binding(4, tokenizer=tokenizer, **SIZES)
    assert not split & {*task.entities, *task.held_out}
    check_tokens(task, tokenizer)


def test_fitting__refuses_unknown_and_equal_tokens() -> None:
    tokenizer = word_piece(words=("hat",))
    assert fitting(["hat", "Hat", "µ", "xylophone"], tokenizer, before="the") == ("hat",)
    assert fitting(["hat", "hat", "xylophone"], None, before="the") == ("hat", "xylophone")


def test_binding__takes_a_schema_of_your_own() -> None:
    numbers = tuple(f"{number}" for number in range(10, 40))
    clause, cloze = "key {entity} opens {label} now", "Key {entity} opens"
    own = Schema("keys", numbers, tuple("abcdefgh"), clause, cloze, question="Key {entity}?", answer="Answer:")
    text = binding(2, schema=own, n_train=2, n_test=2, n_search=2).test[0].text
    (first, one), (second, other) = clauses(text)
    said = f"Key {first} opens {one} now, key {second} opens {other} now. Key"
    assert text.text.startswith(said)


def test_binding__can_be_pickled() -> None:
    task = binding(2, n_train=2, n_test=2, n_search=2)
    assert pickle.loads(pickle.dumps(task)) == task


# What is refused


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"clause": "{entity} is in {box}"}, "the clause of the schema 'boxes' is '{entity} is in {box}'; its places"),
        ({"clause": "{label} has {entity}"}, "its places are {entity} and then {label}."),
        ({"clause": "{entity} in {label!r}"}, "its places are {entity} and then {label}."),
        ({"clause": "{entity} in {label} or {label}"}, "its places are {entity} and then {label}."),
        ({"clause": "{entity in {label}"}, "the clause of the schema 'boxes' is '{entity in {label}': "),
        ({"cloze": "It is in"}, "the cloze of the schema 'boxes' is 'It is in'; its places are {entity}."),
        ({"question": "Where is {entity} in {label}?"}, "its places are {entity}."),
        ({"entities": ("hat", " ")}, "the schema 'boxes' has ' ' among its words"),
        ({"labels": ("a", "\ud800")}, "surrogate"),
    ],
)
def test_schema__refuses_what_no_text_can_be_made_of(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(QKPrismError, match=re.escape(reason)):
        replace(SCHEMAS["boxes"], **change)


def test_schema__a_question_may_name_the_entity_twice() -> None:
    replace(SCHEMAS["boxes"], question="Where is the {entity}, the {entity} we saw?")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"schema": "bags"}, "unknown schema 'bags'; use boxes, cities, drinks, or a Schema of your own."),
        ({"phrasing": "rap"}, "unknown phrasing 'rap'; use cloze, question, sentence, chat."),
        ({"n_pairs": 1}, "n_pairs=1 leaves nothing to choose from"),
        ({"n_pairs": 24}, "25 labels of the schema 'boxes' (n_pairs=24 and one for the twins) are needed and there "),
        ({"n_entities": 9}, "n_entities=9 is too few for n_pairs=9; give at least 10."),
        ({"n_entities": 500}, "509 entities of the schema 'boxes' (500 for the contrasts, 9 held out) are needed"),
        ({"n_test": 0}, "n_test=0 is not possible"),
    ],
)
def test_binding__refuses(options: Any, reason: str) -> None:
    with pytest.raises(QKPrismError) as caught:
        binding(**options)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_binding__names_words_that_do_not_fit() -> None:
    letters = tuple("BCDEFGHJKLMNOPQRSTUVWXYZ")
    with pytest.raises(QKPrismError) as caught:
        binding(3, tokenizer=byte_level(words=(*letters, "hat", "jam", "pen")))
    message = str(caught.value)
    assert message.startswith("7 entities of the schema 'boxes' (4 for the contrasts, 3 held out) are needed and there")
    assert "of which 3 are one token each for this tokenizer (cup, key, map, ring" in message
    assert " more are not); use fewer of them, or another schema." in message


def test_counterfactuals__refuse_an_unknown_factor(task: BindingTask) -> None:
    unknown: Any = "reflexive"
    with pytest.raises((QKPrismError, TypeCheckError), match=r"'?order'?, '?lexical'?, '?label"):
        task.counterfactuals(unknown)


@pytest.mark.model
@every_schema
@every_phrasing
def test_binding__needs_no_tokenizer_for_the_default_model(schema: str, phrasing: str) -> None:
    tokenizer = default_tokenizer()
    task = binding(schema=schema, phrasing=phrasing, tokenizer=tokenizer, **FEW)
    assert task == binding(schema=schema, phrasing=phrasing, **FEW)
    check_tokens(task, tokenizer)
