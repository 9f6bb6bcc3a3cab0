"""Evidence over many heads: p is right on null data, q is Benjamini and Hochberg's, chance finds nothing."""

from dataclasses import replace
from math import comb

import pytest
import torch

import qkprism as qk
from one_head import decompose_vector_sets
from planted import planted
from qkprism.core.evidence import accuracy_p, chance_of, count_found, leading_p, q_values
from qkprism.core.rank import _pooled_t
from qkprism.heads import Head
from qkprism.options import HEAD_MEASURES


def uniform(seed, n=270):
    return torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_q_values__equal_a_case_by_hand():
    p = torch.tensor([0.005, 0.9, 0.011, 0.02, 0.04]).double()
    assert torch.allclose(q_values(p), torch.tensor([0.025, 0.9, 0.0275, 0.1 / 3, 0.05]).double())


def test_q_values__keep_the_order_of_p_and_are_never_smaller():
    for seed in range(20):
        p = uniform(seed) ** 3
        q = q_values(p)
        assert bool((q >= p).all())
        assert bool((q[p.argsort()].diff() >= 0).all())
        order = torch.randperm(len(p), generator=torch.Generator().manual_seed(seed))
        assert torch.equal(q_values(p[order]), q[order])


def test_q_values__leave_out_what_was_not_tested():
    p = torch.tensor([0.01, float("nan"), 0.5], dtype=torch.float64)
    q = q_values(p)
    assert q[[0, 2]].tolist() == [0.02, 0.5]
    assert bool(q[1].isnan())
    assert count_found(p).tested == 2
    assert not len(q_values(p[:0]))


def test_count_found__uniform_p_give_next_to_none():
    counts = [count_found(uniform(seed)).found for seed in range(200)]
    assert sum(found > 0 for found in counts) <= 20  # 5% of the families, up to chance
    assert sum(counts) < 40


def test_count_found__says_how_many_chance_would_show():
    p = torch.cat([torch.full((10,), 1e-4).double(), uniform(1, 90) * 0.9 + 0.1])
    found = count_found(p)
    assert (found.found, found.tested) == (10, 100)
    assert found.by_chance == pytest.approx(0.01)
    assert found.by_chance <= found.level * found.found
    assert str(found) == "10 of 100 heads (q <= 0.05; chance alone would show about 0.01)"
    assert count_found(torch.ones(100).double()).by_chance == pytest.approx(0.05)


@pytest.mark.parametrize(("n", "chance"), [(8, 0.5), (20, 0.2), (300, 1 / 3)])
def test_accuracy_p__is_the_tail_of_a_binomial(n, chance):
    right = torch.arange(n + 1)
    tails = [sum(comb(n, j) * chance**j * (1 - chance) ** (n - j) for j in range(k, n + 1)) for k in right.tolist()]
    assert torch.allclose(accuracy_p(right.double() / n, n, chance), torch.tensor(tails).double(), atol=1e-12)


def test_accuracy_p__is_not_known_without_chance_or_examples():
    accuracy = torch.tensor([0.5]).double()
    assert bool(accuracy_p(accuracy, 10, 1.0).isnan().all())
    assert bool(accuracy_p(accuracy, 0.5, 0.5).isnan().all())


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_leading_p__is_uniform_or_larger_on_noise_of_any_shape(power):
    generator, d = torch.Generator().manual_seed(3), 12
    spread = torch.arange(1.0, d + 1, dtype=torch.float64) ** -power
    noise = torch.randn(8, 4000, d, d, generator=generator, dtype=torch.float64) * (spread[:, None] * spread).sqrt()
    values = []
    for ours, others in (([0, 2, 4, 6], [1, 3, 5, 7]), ([1, 3, 5, 7], [0, 2, 4, 6])):
        left, _, right = torch.linalg.svd(noise[ours].mean(0))
        values.append(torch.einsum("ha,fhab,hb->fh", left[..., 0], noise[others], right[:, 0]))
    t = _pooled_t(torch.stack(values))
    for level in (0.05, 0.01):
        error = (level * (1 - level) / len(t)) ** 0.5
        assert float((leading_p(t) < level).double().mean()) < level + 3 * error
    if power:  # and Student's tail by itself is not: that is why it is doubled
        assert float((chance_of(t) < 0.05).double().mean()) > 0.05 + 3 * error


def features_of(names, n_heads, null_from):
    """Features of several contrasts in several heads, the later of them of null data."""
    found = {}
    for j, name in enumerate(names):
        for i in range(n_heads):
            made = decompose_vector_sets(
                {name: planted(120, d=8, seed=9 * i + j, null=i >= null_from)[0]}, metric="raw"
            )
            feature = replace(next(iter(made.values())), contrast=name, head=Head(0, i))
            found[name, feature.head] = feature
    return replace(made, features=found)


def test_features__q_is_over_the_heads_of_each_contrast():
    features = features_of(("a", "b"), 6, null_from=2)
    frame = features.to_frame()
    for name, own in frame.groupby("feature"):
        p = torch.tensor(own.p.to_numpy())
        assert torch.equal(torch.tensor(own.q.to_numpy()), q_values(p))
        assert features.count_found()[name] == count_found(p)
        assert set(own["head"][own.q <= 0.05]) == {"L0H0", "L0H1"}
    q = features.q_values()
    best = [q[feature.contrast, feature.head] for feature in features.by_evidence()]
    assert best == sorted(best)


def scores_of(accuracy, n=100, **more):
    heads = tuple(Head(0, i) for i in range(len(accuracy)))
    values = {name: torch.tensor(accuracy).double() for name in HEAD_MEASURES}
    return qk.HeadScores(heads, values, values, n, 0.5, **more)


def test_head_scores__q_stays_when_heads_are_left_out(tmp_path):
    scores = scores_of([0.5, 0.9, 0.55, 0.6])
    assert scores.to_frame().set_index("head").q["L0H1"] == scores.sort("accuracy").q[0]
    some = scores.above(accuracy=0.6)
    assert torch.equal(some.q, scores.q[[1, 3]])
    loaded = qk.HeadScores.load(scores.save(tmp_path / "scores"))
    assert torch.equal(loaded.q, scores.q)
    assert replace(scores).q is scores.q


def test_head_scores__copies_of_a_text_are_no_evidence():
    alone, copied = scores_of([0.7], n=100), scores_of([0.7], n=100, n_independent=10.0)
    assert float(copied.p[0]) > 0.1 > 0.001 > float(alone.p[0])
