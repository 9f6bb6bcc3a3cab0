"""Every command and call of README and docs can be read as it stands; `make test-docs` runs those of the README."""

import ast
import inspect
import re

import pytest
from typer.main import get_command

import qkprism as qk
from blocks import PAGES, blocks, commands
from qkprism.cli.app import app, commands_of

COMMANDS = dict(commands_of(get_command(app)))
DEFAULTS = {"runs": "runs list"}


def named(words):
    """The command that words begin with, and the words after its name."""
    for n in (2, 1):
        name = DEFAULTS.get(" ".join(words[1 : 1 + n]), " ".join(words[1 : 1 + n]))
        if name in COMMANDS:
            return name, words[1 + n :]
    raise AssertionError(f"{' '.join(words)} is no command")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages__commands_are_read_without_a_mistake(page, monkeypatch):
    for words in commands(page):
        name, rest = named(words)
        called = []
        monkeypatch.setattr(COMMANDS[name], "callback", lambda seen=called, **given: seen.append(given))
        with COMMANDS[name].make_context(name, rest) as context:
            COMMANDS[name].invoke(context)
        assert called, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages__python_calls_what_there_is(page):
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "qk":
                assert hasattr(qk, node.attr), node.attr
            if isinstance(node, ast.Call) and re.fullmatch(r"qk(\.\w+)+", ast.unparse(node.func)):
                accepts(node)


def accepts(call):
    """The signature of what is called has these keywords and takes so many positions."""
    target = qk
    for name in ast.unparse(call.func).split(".")[1:]:
        target = getattr(target, name)
    keywords = {word.arg: None for word in call.keywords if word.arg}
    inspect.signature(target).bind_partial(*call.args, **keywords)


def test_pages__show_enough_to_be_worth_reading():
    assert sum(len(list(commands(page))) for page in PAGES) > 30
    assert sum(len(blocks(page, "python")) for page in PAGES) > 12
