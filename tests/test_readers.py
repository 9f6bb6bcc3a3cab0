"""Verbs that share a pass read what they would read alone, and every text is run once."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import qkprism as qk
from qkprism.capture import batching, readers
from qkprism.capture.readers import read_together
from qkprism.contrasts import Span
from qkprism.heads import Head
from qkprism.verbs.attribute import attributions_reader
from qkprism.verbs.intervene import effects_readers
from qkprism.verbs.project import projections_reader
from qkprism.verbs.validate import validation_reader
from test_intervene import HEADS, contrasts, examples, load
from test_pipeline import forward_passes
from test_validate import pairs
from tiny import one_thread  # noqa: F401


@pytest.fixture(scope="module", params=["llama", "gpt2", "gemma2", "gpt_oss", "llama_dynamic"])
def model(request):
    return load(request.param)


@pytest.fixture(scope="module")
def features(model):
    return qk.decompose(model, contrasts(), heads=HEADS, recipe=qk.Recipe(rank=2), progress=False)


def readers_of(model, features, given):
    bases = [base for base, _ in given["boxes"]]
    return {
        **effects_readers(model, bases, {"effects": features}, qk.Comparison(draws=2)),
        "validation": validation_reader(model, given, features),
        "attributions": attributions_reader(model, bases[2:9], features, method="shapley"),
        "projections": projections_reader(model, [*bases[:5], *examples(4, seed=9)], features, heads=["L1H0"]),
    }


def assert_same(found, model, features, given, monkeypatch):
    """The same as alone, where no text shares anything."""
    monkeypatch.setattr(readers, "MOST_TEXTS", 1)
    monkeypatch.setattr(batching, "LEAST_SAVED", 0.99)
    bases = [base for base, _ in given["boxes"]]
    alone = {
        "effects": qk.intervene(model, bases, features, compare=qk.Comparison(draws=2), progress=False),
        "validation": qk.validate(model, given, features, progress=False),
        "attributions": qk.attribute(model, bases[2:9], features, method="shapley", progress=False),
    }
    for name, expected in alone.items():
        ours, theirs = found[name].to_frame(), expected.to_frame()
        numbers = theirs.select_dtypes("number").columns
        assert ours.drop(columns=numbers).equals(theirs.drop(columns=numbers))
        np.testing.assert_allclose(ours[numbers], theirs[numbers], rtol=2e-3, atol=2e-4, err_msg=name)
    shown = qk.project(model, [*bases[:5], *examples(4, seed=9)], features, heads=["L1H0"], progress=False)
    # the order of the examples is that of the pass
    ours, theirs = (p.query[Head(1, 0)][:, 0].sort().values for p in (found["projections"], shown))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert len(found["projections"].example) == len(shown.example)


def test_read_together__every_verb_reads_what_it_reads_alone(model, features, monkeypatch):
    given = pairs(12, seed=3)
    every = readers_of(model, features, given)
    read_together(model, [*every.values()], batch_size=7, progress=False)
    assert_same({name: reader.result() for name, reader in every.items()}, model, features, given, monkeypatch)


def test_read_together__runs_every_text_once(model, features, monkeypatch):
    given = pairs(12, seed=3)
    every = readers_of(model, features, given)
    texts = {example.text.text for own in given.values() for pair in own for example in pair}
    texts |= {example.text.text for example in examples(4, seed=9)}
    monkeypatch.setattr(batching, "LEAST_SAVED", 0.99)  # a row a text
    count = forward_passes(model, monkeypatch)
    read_together(model, [*every.values()], progress=False)
    assert count[0] == len(texts)


def test_read_together__a_batch_that_does_not_fit_is_run_again_and_counts_once(model, features, monkeypatch):
    given = pairs(12, seed=3)
    every = readers_of(model, features, given)
    visit, failed = type(every["projections"]).visit, []

    def once(self, call, batch):
        visit(self, call, batch)
        if not failed:
            failed.append(len(batch.examples))
            raise torch.OutOfMemoryError

    monkeypatch.setattr(type(every["projections"]), "visit", once)
    read_together(model, [*every.values()], batch_size=24, progress=False)
    assert failed
    assert_same({name: reader.result() for name, reader in every.items()}, model, features, given, monkeypatch)


def test_read_together__frames_are_not_mixed():
    model = load("llama")
    features = qk.decompose(model, contrasts(), heads=HEADS, recipe=qk.Recipe(rank=2), progress=False)
    relative = qk.decompose(
        model, contrasts(), heads=HEADS, recipe=qk.Recipe(rank=2), encoding=qk.Encoding(rope="relative"), progress=False
    )
    both = [projections_reader(model, examples(3), own) for own in (features, relative)]
    with pytest.raises(ValueError, match="one frame"):
        read_together(model, both, progress=False)


def test_read_together__a_text_with_many_queries_keeps_to_the_batch_size(model, features, monkeypatch):
    base = examples(1, seed=5)[0]
    ends = [place for place, letter in enumerate(base.text.text) if letter == " "][-3:]
    many = [replace(base, text=replace(base.text, query=Span(end + 1, end + 2))) for end in ends] * 4
    rows = []
    run = type(model).run
    monkeypatch.setattr(type(model), "run", lambda self, ids, *a, **o: rows.append(len(ids)) or run(self, ids, *a, **o))
    found = qk.project(model, many, features, batch_size=2, progress=False)
    assert len(found.query[Head(1, 0)]) == 12
    assert max(rows) <= 2
