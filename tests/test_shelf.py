"""The shelf: every contrast draws, is balanced or says what it is not, and really exchanges what it says it does."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

import qkprism as qk
from qkprism.contrasts.checks import check
from qkprism.contrasts.shelves import findings, shelf_rows
from qkprism.contrasts.templates import ORDER, read_template, shelf_names
from qkprism.contrasts.words import word_lists, words
from qkprism.models.encoding import encode
from qkprism.verbs.counterfactuals import keys_of
from tokenizers_for_tests import default_tokenizer

NAMES = [
    *("bracket", "boxes", "category", "cities", "code", "coreference", "coreference_number", "digit", "drinks"),
    *(
        "duplicate",
        "filter",
        "greater",
        "indirect_object",
        "induction",
        "json",
        "language",
        "opposite",
        "previous_token",
    ),
    *("sentence_boundary", "sink", "subject_verb"),
]
POSITIONS = {"previous_token", "sentence_boundary", "sink"}


def test_shelf__has_these_contrasts_and_a_row_for_each():
    assert list(shelf_names()) == sorted(NAMES)
    rows = {row["contrast"]: row for row in shelf_rows()}
    assert sorted(rows) == sorted(NAMES)
    row = rows["induction"]
    assert row["question"] == "What followed the same word before?"
    assert row["exchange"] == ["before", "after", "order"]
    assert row["digest"] == read_template("induction").digest


def test_findings__count_only_for_the_template_they_were_made_with(monkeypatch, tmp_path):
    from qkprism.contrasts import shelves

    (tmp_path / "found.json").write_text(
        json.dumps(
            {
                "provenance": {"model": "m"},
                "found": {
                    "induction": {"digest": read_template("induction").digest, "heads": ["L1H2"]},
                    "boxes": {"digest": "another", "heads": ["L3H4"]},
                },
            }
        )
    )
    monkeypatch.setattr(shelves, "SHELF", tmp_path)
    assert findings()["provenance"] == {"model": "m"}
    rows = {row["contrast"]: row["found"] for row in shelf_rows()}
    assert rows["induction"]["heads"] == ["L1H2"]
    assert rows["boxes"] == {}


@pytest.mark.parametrize("name", NAMES)
def test_shelf__each_is_short_and_says_what_it_asks(name):
    template = read_template(name)
    assert len(template.source.strip().splitlines()) <= 25
    assert template.question.endswith("?")
    assert template.description
    assert template.literature
    assert template.name == name
    assert (template.frame, template.center) == (("relative", "none") if name in POSITIONS else ("post", "query"))


@pytest.mark.parametrize("name", NAMES)
def test_shelf__each_is_balanced_or_says_what_tells(name):
    found = check(name, n=160)
    assert not found.mistakes
    assert not [note for note in found.notes if "alone tells" in note]
    telling = {row.predictor for row in found.balance if row.tells}
    assert telling == set(found.declared) - {"first"}


@pytest.mark.parametrize("name", NAMES)
def test_shelf__each_is_tested_on_words_that_it_was_not_made_of(name):
    task = qk.task(name, n_train=30, n_search=10, n_test=30)
    assert task.words
    for list_name, own in task.words.items():
        assert not set(own) & set(task.held_out[list_name])
    for example in task.test:
        assert example.text.positive
        assert example.text.negative
    texts = {e.text.text for part in (task.contrast, task.search) for e in part}
    assert not texts & {example.text.text for example in task.test}


@pytest.mark.parametrize("name", NAMES)
def test_shelf__keys_are_one_token_and_exchanges_move_no_other(name):
    tokenizer = default_tokenizer()
    task = qk.task(name, tokenizer=tokenizer, n_train=20, n_search=5, n_test=20)
    whole = task.template.whole_words
    for contrast in (task.contrast, task.test, *task.contrasts.values()):
        for example, encoded in zip(contrast, encode(tokenizer, contrast), strict=True):
            assert not any(key.position == 0 for key in encoded.text.keys) or "first" in task.template.declared
            assert encoded.text.keys
            assert not whole or len(encoded.text.keys) == len(example.text.positive) + len(example.text.negative)
    for factor in task.factors:
        pairs = task.counterfactuals(factor)
        bases, changed = (encode(tokenizer, [pair[side] for pair in pairs]) for side in (0, 1))
        for base, other in zip(bases, changed, strict=True):
            assert base.text.ids != other.text.ids
            assert base.text.ids[base.text.query] == other.text.ids[other.text.query]
            if not whole:
                continue
            assert base.length == other.length
            assert base.text.query == other.text.query
            ours, theirs = ([k.position for k in keys_of(e.text, "")] for e in (base, other))
            assert ours == (theirs if factor != ORDER else [theirs[1], theirs[0], *theirs[2:]])
            assert base.text.ids != other.text.ids


def test_words__are_words_and_come_once():
    for name in word_lists():
        found = words(name)
        assert len(set(found)) == len(found) > 5, name


def test_shelf__ships_with_the_package():
    folder = files("qkprism.contrasts") / "shelf"
    patterns = (files("qkprism").joinpath("../../pyproject.toml")).read_text()
    assert '"contrasts/shelf/*.toml"' in patterns
    assert '"contrasts/shelf/words/*.txt"' in patterns
    assert (folder / "induction.toml").is_file()
