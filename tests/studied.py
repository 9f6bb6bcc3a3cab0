"""Models and sizes for tests of whole studies."""

from contextlib import contextmanager

import pytest

import qkprism as qk
from tiny import tiny
from tokenizers_for_tests import byte_level


def load(name, words, **settings):
    """A tiny model with a tokenizer that keeps these words whole."""
    tokenizer = byte_level(words=words)
    return qk.load((tiny(name, vocab_size=len(tokenizer), max_position_embeddings=512, **settings), tokenizer))


@contextmanager
def sized(module, size):
    """The size `quick` of a study is another for a while."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(module.SIZES, "quick", size)
        yield


def small_atlas(monkeypatch, folder):
    """Example prompts are explained by a small atlas, in a cache of its own."""
    monkeypatch.setenv("QKPRISM_CACHE", str(folder / "cache"))
    monkeypatch.setattr("qkprism.atlas.explain.QUICK_WINDOWS", 4)
    monkeypatch.setattr("qkprism.atlas.explain.QUICK_LENGTH", 16)
