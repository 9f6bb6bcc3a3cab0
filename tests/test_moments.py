"""Laws of the moments: they equal a brute-force computation, whatever the order and the chunks, and they add."""

import numpy as np
import pytest
import torch

import oracle
from one_head import marks_of
from qkprism import QKPrismError, Vectors
from qkprism.core.covariance import (
    contrastive_covariance,
    flipped_covariances,
    query_square,
    shuffled_covariances,
)
from qkprism.core.metrics import cell_covariance, difference_square, key_covariance, total_covariance
from qkprism.core.moments import N_FOLDS, assign_folds, make_plan
from qkprism.options import READINGS

D = 6


def vectors(n=90, positives=2, negatives=5, seed=0, twins=False):
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=g)

    positives, negatives = (1, 1) if twins else (positives, negatives)
    query = draw(n, D) + 1
    return Vectors(
        query=query,
        positive=draw(n, positives, D) + query[:, None] * 0.5 + 2,
        negative=draw(n, negatives, D) + 1,
        twin_query=draw(n, D) if twins else None,
        weight=torch.rand(n, generator=g) + 0.2,
        group=[i // 2 for i in range(n)],
        positive_label=torch.randint(0, 4, (n, positives), generator=g),
        negative_label=torch.randint(0, 4, (n, negatives), generator=g),
    )


def sliced(v, index):
    index = list(index)
    rows = {name: None if (x := getattr(v, name)) is None else x[index] for name in v.__dict__ if name != "group"}
    return Vectors(**rows, group=[v.group[i] for i in index])


def oracle_pairs(v, reading):
    keys = [torch.cat([p, n]).numpy() for p, n in zip(v.positive, v.negative, strict=True)]
    twins = reading != "plain"
    sides = [[1] * v.positive.shape[1] + [2 if twins else -1] * v.negative.shape[1]] * len(keys)
    other = None if v.twin_query is None else v.twin_query.numpy()
    return keys, oracle.pairs(v.query.numpy(), keys, sides, twin_query=other, reading=reading)


def assert_close(ours, theirs, tolerance=1e-5):
    theirs = torch.as_tensor(np.asarray(theirs))
    assert (ours.double() - theirs).norm() <= tolerance * theirs.norm()


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("centred", [True, False])
def test_moments__equal_brute_force(reading, centred):
    v = vectors(twins=reading != "plain")
    moments = v.moments(reading)
    _, found = oracle_pairs(v, reading)
    expected = oracle.covariance(found, v.weight.numpy(), centred=centred)
    assert_close(contrastive_covariance(moments, None, centred=centred)[0], expected, 1e-12)


@pytest.mark.parametrize("reading", READINGS)
def test_moments__folds_equal_brute_force(reading):
    v = vectors(twins=reading != "plain")
    moments, (_, found) = v.moments(reading), oracle_pairs(v, reading)
    folds = np.array(assign_folds(v.group))
    for chosen in ([0], [1, 3, 5, 7]):
        mine = np.isin(folds, chosen)
        pairs = [pair for pair, take in zip(found, mine, strict=True) if take]
        expected = oracle.covariance(pairs, v.weight.numpy()[mine], centred=True)
        assert_close(contrastive_covariance(moments, torch.tensor(chosen), centred=True)[0], expected)


def test_moments__other_sums_equal_brute_force():
    v = vectors()
    moments, (keys, found) = v.moments(), oracle_pairs(v, "plain")
    w, q = v.weight.double().numpy(), v.query.double().numpy()
    d = np.stack([pair[0][1] for pair in found])
    labels = torch.cat([v.positive_label, v.negative_label], 1).numpy()
    assert_close(query_square(moments)[0], (q * w[:, None]).T @ q / w.sum(), 1e-12)
    assert_close(difference_square(moments)[0], (d * w[:, None]).T @ d / w.sum(), 1e-12)
    assert_close(key_covariance([moments])[0], oracle.key_covariance(keys, w), 1e-12)
    assert_close(cell_covariance([moments])[0], oracle.cell_scatter(keys, labels, w) / w.sum(), 1e-10)
    assert_close(total_covariance([moments])[0], oracle.total_covariance(keys, w), 1e-12)
    assert moments.n_examples == 90
    assert moments.n_effective == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=1e-6)


def test_moments__key_covariance_pools_contrasts_by_weight():
    a, b = vectors(seed=1), vectors(n=30, positives=1, negatives=1, seed=2)
    keys = oracle_pairs(a, "plain")[0] + oracle_pairs(b, "plain")[0]
    weight = torch.cat([a.weight, b.weight]).double().numpy()
    assert_close(key_covariance([a.moments(), b.moments()])[0], oracle.key_covariance(keys, weight), 1e-12)
    assert_close(total_covariance([a.moments(), b.moments()])[0], oracle.total_covariance(keys, weight), 1e-12)


@pytest.mark.parametrize("reading", READINGS)
def test_moments__merge_is_associative_and_commutative(reading):
    v = vectors(twins=reading != "plain")
    parts = [sliced(v, range(a, b)).moments(reading) for a, b in ((0, 20), (20, 50), (50, 90))]
    a, b, c = parts
    for merged in ((a + b) + c, a + (b + c), c + (b + a)):
        assert merged.n_examples == 90
        assert_close(merged.product[0], v.moments(reading).product[0], 1e-12)
        assert_close(merged.key_within[0], v.moments(reading).key_within[0], 1e-12)
    for name, value in (a + b).tensors().items():
        assert torch.allclose(value, (b + a).tensors()[name]), name


def test_moments__order_of_examples_changes_nothing():
    v = vectors()
    order = np.random.default_rng(0).permutation(90)
    ours, theirs = v.moments(), sliced(v, order).moments()
    assert_close(
        contrastive_covariance(theirs, None, centred=True)[0], contrastive_covariance(ours, None, centred=True)[0]
    )


def test_moments__random_copies_depend_on_seed_and_example_only():
    def plan(index, seed):
        side = torch.tensor([[1, -1, -1, -1]] * len(index))
        return make_plan(marks_of(side, index), "plain", seed)

    whole, part = plan(range(20), 0), plan([7, 3], 0)
    assert torch.equal(whole.sign[:, [7, 3]], part.sign)
    assert torch.equal(whole.coefficient[:, [7, 3]], part.coefficient)
    assert not torch.equal(whole.sign, plan(range(20), 1).sign)


def test_moments__shuffles_deal_the_same_number_of_sides():
    side = torch.tensor([[1, 1, -1, -1, -1, 0]] * 50)
    plan = make_plan(marks_of(side, range(50)), "plain", 0)
    shuffled = plan.coefficient[1:]
    assert torch.all((shuffled > 0).sum(-1) == 2)
    assert torch.all((shuffled < 0).sum(-1) == 3)
    assert torch.all(shuffled[..., 5] == 0)
    assert torch.allclose(shuffled.sum(-1), torch.zeros(()).double(), atol=1e-12)
    assert len({tuple(row.tolist()) for row in shuffled[0]}) > 5


def test_moments__nulls_lose_the_signal():
    g = torch.Generator().manual_seed(0)
    query = torch.randn(4000, D, generator=g)
    v = Vectors(query, query + torch.randn(4000, D, generator=g), torch.randn(4000, 3, D, generator=g))
    moments = v.moments()
    signal = torch.linalg.svdvals(contrastive_covariance(moments, None, centred=True)[0])[0]
    for null in (flipped_covariances(moments, centred=True), shuffled_covariances(moments, centred=True)):
        assert torch.linalg.svdvals(null)[:, 0, 0].max() < 0.15 * signal


def test_moments__sum_over_keys_instead_of_means_collapses_onto_the_mean_key():
    """The trap: with 5 positive and 20 negative keys, sums over keys divided by prompts find only the mean key."""
    g = torch.Generator().manual_seed(0)
    n, d, rank = 2000, 16, 3
    basis = torch.linalg.qr(torch.randn(d, rank, generator=g))[0]
    mean = torch.randn(d, generator=g)
    mean = 6 * mean / mean.norm()
    z = torch.randn(n, rank, generator=g)
    query = z @ basis.T + mean + 0.1 * torch.randn(n, d, generator=g)
    positive = (z @ basis.T)[:, None] + mean + 0.1 * torch.randn(n, 5, d, generator=g)
    other = torch.randn(n, 20, rank, generator=g)
    negative = other @ basis.T + mean + 0.1 * torch.randn(n, 20, d, generator=g)
    ours = contrastive_covariance(Vectors(query, positive, negative).moments(), None, centred=False)[0]
    wrong = (query.T @ positive.sum(1) - query.T @ negative.sum(1)).double() / n

    def overlap(matrix):
        v = torch.linalg.svd(matrix)[2][:rank].mT
        return float((basis.double().mT @ v).square().sum() / rank)

    def along_mean(matrix):
        return float((torch.linalg.svd(matrix)[2][0] @ (mean / mean.norm()).double()).abs())

    assert overlap(ours) > 0.95
    assert along_mean(ours) < 0.9
    assert along_mean(wrong) > 0.98


def test_moments__many_keys_weigh_as_much_as_few():
    g = torch.Generator().manual_seed(0)
    query, positive, negative = (torch.randn(40, D, generator=g) for _ in range(3))
    few = Vectors(query, positive, negative).moments()
    many = Vectors(query, positive[:, None].expand(-1, 7, -1), negative[:, None].expand(-1, 3, -1)).moments()
    assert torch.allclose(few.product, many.product)


def test_moments__refuse_to_add_what_does_not_fit():
    with pytest.raises(QKPrismError, match="cannot be added"):
        vectors().moments() + vectors(twins=True).moments("matched")


def test_folds__never_split_a_group_and_are_even():
    groups = [f"g{i // 3}" for i in range(240)]
    folds = assign_folds(groups)
    assert all(len({f for f, g in zip(folds, groups, strict=True) if g == name}) == 1 for name in set(groups))
    counts = np.bincount(folds, minlength=N_FOLDS)
    assert counts.max() - counts.min() <= 3
    assert folds == assign_folds(groups)
    assert folds != assign_folds(groups, seed=1)
