"""What the documents say: every parameter of a public function is explained, and the examples run."""

import ast
import doctest
import importlib
import inspect
import re
from itertools import permutations
from pathlib import Path

import pytest
import torch

import qkprism as qk
from api_page import PAGE, page
from qkprism import Example
from test_pipeline import WORDS, contrast
from tiny import one_thread, tiny  # noqa: F401
from tokenizers_for_tests import byte_level

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "qkprism"
FUNCTIONS = [name for name in qk.__all__ if inspect.isfunction(getattr(qk, name))]
WITH_EXAMPLES = sorted(path for path in SOURCE.rglob("*.py") if ">>> " in path.read_text())
MOST_NOUNS = 25


def exchanged(first, second):
    """A text, and the text in which its two things have changed places."""
    texts = (f"the {a} in [+A], the {b} in [-*B]. The {first} in [?box]" for a, b in ((first, second), (second, first)))
    return tuple(map(Example.parse, texts))


@pytest.fixture(scope="module")
def names():
    """What the examples of the verbs take for granted."""
    tokenizer = byte_level()
    hf = tiny("llama", vocab_size=len(tokenizer))
    model = qk.load((hf, tokenizer))
    order, lexical = (contrast(60, seed=seed, name=name) for seed, name in ((1, "order"), (2, "lexical")))
    features = qk.decompose(model, {"order": order, "lexical": lexical}, recipe=qk.Recipe(rank=2), progress=False)
    pairs = [exchanged(*words) for words in permutations(WORDS[:4], 2)]
    return {
        "qk": qk, "torch": torch, "hf_model": hf, "tokenizer": tokenizer, "model": model, "contrast": order,
        "order": order, "lexical": lexical, "features": features, "test": contrast(8, seed=3), "pairs": pairs,
    }  # fmt: skip


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.stem)
def test_examples__run(path, names):
    module = importlib.import_module(f"qkprism.{'.'.join(path.relative_to(SOURCE).with_suffix('').parts)}")
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for found in doctest.DocTestFinder(exclude_empty=True).find(module, extraglobs=names):
        runner.run(found)
    assert runner.failures == 0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions__explain_every_parameter_and_have_an_example(name):
    function = getattr(qk, name)
    said = function.__doc__
    for parameter in inspect.signature(function).parameters:
        assert re.search(rf"^ +(\w+, )*{parameter}(, \w+)*  +\S", said, re.MULTILINE), (
            f"{name} says nothing of {parameter}"
        )
    assert ">>> " in said


def test_api_page__is_what_the_docstrings_say():
    assert PAGE.read_text() == page(), "docs/api.md is stale: run python tests/api_page.py"


def test_glossary__is_short_and_its_words_are_used():
    nouns = re.findall(r"^\| \*\*(.+?)\*\* \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert 10 < len(nouns) <= MOST_NOUNS
    prose = " ".join(path.read_text().lower() for path in (ROOT / "docs").glob("*.md") if path.stem != "glossary")
    assert [noun for noun in nouns if noun not in prose] == []


def test_class_names__mean_one_thing():
    homes = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(path.name)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_variables__are_called_what_they_are():
    """Not how they relate to the speaker. `asked` is a word of templates, `own` a test of directions."""
    bound = {
        (path.stem, node.id if isinstance(node, ast.Name) else node.arg)
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    }
    vague = {"own", "given", "known", "asked", "ways"}
    assert {(file, name) for file, name in bound if name in vague} == {("drawing", "asked"), ("feature", "own")}
