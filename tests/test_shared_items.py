"""Errors where examples use the same items again: right for other items too, which errors over examples are not."""

import numpy as np
import pytest
import torch

import qkprism as qk
import studied
from qkprism import QKPrismError
from qkprism.contrasts.words import words
from qkprism.core.means import Means
from tiny import one_thread  # noqa: F401

LISTS, CATEGORIES, ITEMS, RUNS = 128, 5, 6, 300


def drawn(rng, spread):
    """A number a list: what its original and its target bring, and what is its own; true mean 0. And the two items."""
    worth = rng.normal(size=(2, CATEGORIES, ITEMS)) * spread
    asked = np.arange(LISTS) % CATEGORIES
    other = (asked + rng.integers(1, CATEGORIES, LISTS)) % CATEGORIES
    ours, theirs = rng.integers(ITEMS, size=(2, LISTS))
    values = worth[0, asked, ours] + worth[1, other, theirs] + rng.normal(size=LISTS)
    things = [((a, b), (c, d)) for a, b, c, d in zip(asked, ours, other, theirs, strict=True)]
    return torch.from_numpy(values)[:, None], things


def covered(spread, *, shared):
    """How often the true mean is within two errors."""
    inside = []
    for seed in range(RUNS):
        values, things = drawn(np.random.default_rng(seed), spread)
        means = Means.zeros(1)
        means.add(values, torch.ones(LISTS), things if shared else None)
        inside.append(float(means.mean().abs()) < 2 * float(means.error()))
    return sum(inside) / RUNS


def test_errors__cover_the_truth_where_items_are_shared_and_those_over_examples_do_not():
    assert 0.91 < covered(1.0, shared=True) < 0.98
    assert covered(1.0, shared=False) < 0.80


def test_errors__are_hardly_larger_where_items_say_nothing():
    assert 0.93 < covered(0.0, shared=True) < 0.99
    assert 0.92 < covered(0.0, shared=False) < 0.98


def test_errors__are_those_of_all_pairs_that_share_a_thing_whatever_the_order_and_batches():
    values, things = drawn(np.random.default_rng(0), 1.0)
    weight = torch.rand(LISTS, generator=torch.Generator().manual_seed(0)).double() + 0.5
    mean = float((weight[:, None] * values).sum() / weight.sum())
    off = (weight * (values[:, 0] - mean)).tolist()
    total = sum(off[e] * off[f] for e in range(LISTS) for f in range(LISTS) if set(things[e]) & set(things[f]))
    fewest = min(len({own[side] for own in things}) for side in (0, 1))
    expected = (total * fewest / (fewest - 1)) ** 0.5 / float(weight.sum())
    for order in (range(LISTS), reversed(range(LISTS))):
        means = Means.zeros(1)
        for part in np.array_split([*order], 7):
            means.add(values[part], weight[part], [things[i] for i in part])
        assert float(means.error()) == pytest.approx(expected)


def test_errors__without_anything_in_common_are_those_over_examples_and_of_one_thing_not_known():
    values, _ = drawn(np.random.default_rng(0), 1.0)
    alone, apart, one = Means.zeros(1), Means.zeros(1), Means.zeros(1)
    alone.add(values, torch.ones(LISTS))
    apart.add(values, torch.ones(LISTS), [(f"o{i}", f"t{i}") for i in range(LISTS)])
    one.add(values, torch.ones(LISTS), [("jam", f"t{i}") for i in range(LISTS)])
    assert float(apart.error()) == pytest.approx(float(alone.error()))
    assert one.error().isnan()


@pytest.fixture(scope="module")
def bound():
    """A model, its features, and test prompts whose keys say which of three things they are."""
    model = studied.load("llama3", words("objects") + words("letters"))
    task = qk.task("boxes", 0, model.tokenizer, places=3, n_train=60, n_test=24)
    return model, task, qk.decompose(model, task.contrasts, heads=["L1H0"], progress=False)


@pytest.mark.filterwarnings("ignore:Only")
@pytest.mark.parametrize("outcome", ["attention", "logits"])
def test_intervene__item_changes_errors_alone(bound, outcome):
    model, task, features = bound
    plain, shared = (
        qk.intervene(
            model, task.test, features, outcome=outcome, progress=False,
            compare=qk.Comparison(draws=2, methods=["raw"], item=item),
        )
        for item in (None, "thing")
    )  # fmt: skip
    assert torch.equal(plain.values, shared.values)
    assert torch.equal(plain.gains, shared.gains)
    known = plain.gain_errors.isfinite() & shared.gain_errors.isfinite()
    assert (shared.gain_errors[known] >= plain.gain_errors[known] - 1e-12).all()
    assert (shared.gain_errors[known] > plain.gain_errors[known] + 1e-9).any()
    assert shared.provenance["item"] == "thing"


@pytest.mark.filterwarnings("ignore:Only")
def test_intervene__an_item_that_no_key_has_is_one_clear_line(bound):
    model, task, features = bound
    with pytest.raises(QKPrismError, match="No key has a label 'colour'"):
        qk.intervene(model, task.test, features, compare=qk.Comparison(item="colour"), progress=False)
