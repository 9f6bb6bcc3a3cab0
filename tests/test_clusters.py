"""Nearest centroids and silhouettes, against the plainest way to compute them."""

import pytest
import torch

from qkprism import QKPrismError
from qkprism.subspaces.separation import nearest_centroid, silhouettes


def points(n=40, d=3, labels=4, seed=0, apart=0.0):
    rng = torch.Generator().manual_seed(seed)
    label = torch.arange(n) % labels
    places = torch.randn(labels, d, generator=rng, dtype=torch.float64) * apart
    return torch.randn(n, d, generator=rng, dtype=torch.float64) + places[label], label


def plain_silhouette(x, label, i):
    far = {
        int(k): [float((x[i] - x[j]).norm()) for j in range(len(x)) if j != i and label[j] == k] for k in label.unique()
    }
    own = far.pop(int(label[i]))
    if not own:
        return 0.0
    a, b = sum(own) / len(own), min(sum(d) / len(d) for d in far.values())
    return (b - a) / max(a, b)


def test_silhouettes__are_those_of_the_plain_loop(monkeypatch):
    monkeypatch.setattr("qkprism.subspaces.separation._ROWS", 7)
    x, label = points()
    label = torch.cat([label, torch.tensor([9])])  # a label of one point
    x = torch.cat([x, torch.ones(1, 3).double()])
    expected = torch.tensor([plain_silhouette(x, label, i) for i in range(len(x))]).double()
    assert torch.allclose(silhouettes(x, label), expected)


def test_silhouettes__one_far_apart_nothing_where_labels_mean_nothing():
    assert silhouettes(*points(apart=1e4)).min() > 0.99
    x, label = points(n=2000)
    assert abs(float(silhouettes(x, label).mean())) < 0.05
    assert silhouettes(torch.zeros(4, 0).double(), torch.tensor([0, 0, 1, 1])).tolist() == [0.0] * 4
    with pytest.raises(QKPrismError, match="two labels or more"):
        silhouettes(x, torch.zeros_like(label))


def test_both__do_not_change_when_points_are_moved_turned_and_scaled():
    x, label = points(apart=1.0)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    y = 7.0 * x @ turn + 3.0
    assert torch.allclose(silhouettes(x, label), silhouettes(y, label))
    assert torch.equal(nearest_centroid(x[:20], label[:20], x[20:]), nearest_centroid(y[:20], label[:20], y[20:]))


def test_nearest_centroid__is_that_of_the_plain_loop():
    train, label = points(apart=1.0)
    label = label * 3 + 2  # labels need not be places
    test, _ = points(seed=1, apart=1.0)
    means = {int(k): train[label == k].mean(0) for k in label.unique()}
    expected = [min(means, key=lambda k: float((x - means[k]).norm())) for x in test]
    assert nearest_centroid(train, label, test).tolist() == expected


def test_nearest_centroid__knows_points_far_apart_and_guesses_without_dimensions():
    train, label = points(apart=1e3)
    assert torch.equal(nearest_centroid(train, label, train + 0.1), label)
    nothing = nearest_centroid(train[:, :0], label, train[:, :0])
    assert len(nothing.unique()) == 1
