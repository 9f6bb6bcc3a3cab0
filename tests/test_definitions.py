"""The numbers of a feature against numpy written from the definitions (GAUGE.md): constants, weights, means and all."""

import numpy as np
import pytest
import torch

from one_head import decompose_vector_sets, decompose_vectors, marks_of
from qkprism import Vectors
from qkprism.core.covariance import flipped_covariances, shuffled_covariances
from qkprism.core.moments import N_FLIPS, N_SHUFFLES, make_plan

N, D = 300, 6


def draw(seed):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(N, D))
    query = z @ rng.normal(size=(D, D)) + 2
    positive = z[:, None] + rng.normal(size=(N, 2, D)) @ np.diag([1, 2, 3, 1, 0.5, 0.1]) + 1
    negative = rng.normal(size=(N, 3, D))
    labels = rng.integers(0, 5, (N, 2)), rng.integers(0, 5, (N, 3))
    return query, positive, negative, rng.uniform(0.3, 3, N), *labels


DRAWN = {"a": draw(1), "b": draw(2)}


def vectors(name, **options):
    query, positive, negative, weight, *labels = map(torch.tensor, DRAWN[name])
    return Vectors(
        query, positive, negative, weight=weight, positive_label=labels[0], negative_label=labels[1], **options
    )


def root(matrix):
    values, directions = np.linalg.eigh(matrix)
    return directions @ np.diag(values**0.5) @ directions.T


class Truth:
    """M, dC and Sigma_q of both contrasts."""

    def __init__(self):
        self.difference, self.covariance, self.queries = {}, {}, {}
        squares, within, total, cells = {}, 0, 0, 0
        for name, (query, positive, negative, w, *labels) in DRAWN.items():
            d = self.difference[name] = positive.mean(1) - negative.mean(1)
            squares[name] = (d * w[:, None]).T @ d / w.sum()
            self.queries[name] = (query * w[:, None]).T @ query / w.sum()
            self.covariance[name] = ((query - (w @ query) / w.sum()) * w[:, None]).T @ d / w.sum()
            keys, cell = np.concatenate([positive, negative], 1), np.concatenate(labels, 1)
            spread = keys - keys.mean(1, keepdims=True)
            within, total = within + np.einsum("n,nki,nkj->ij", w, spread, spread) / 5, total + w.sum()
            mass = np.repeat(w[:, None] / 5, 5, 1)
            for c in range(5):
                own, share = keys[cell == c], mass[cell == c][:, None]
                off = own - (share * own).sum(0) / share.sum()
                cells = cells + (off * share).T @ off
        self.within = within / total

        def size(base, matrix):
            return np.trace(np.linalg.solve(base, matrix)) / D

        pooled = sum(s / size(self.within, s) for s in squares.values()) / 2
        loaded = pooled + 1e-4 * size(self.within, pooled) * self.within
        self.metric = loaded + 0.5 * cells / size(loaded, cells)
        self.root = root(self.metric)
        self.inverse = np.linalg.inv(self.root)

    def whitened(self, matrix):
        return self.root @ matrix @ self.inverse


@pytest.fixture(scope="module")
def truth():
    return Truth()


@pytest.fixture(scope="module")
def features():
    return decompose_vector_sets({name: vectors(name) for name in DRAWN}, scaling=0.3)


@pytest.mark.parametrize("name", DRAWN)
def test_feature__metric_and_strengths(features, truth, name):
    feature = features[name, "L0H0"]
    assert np.allclose(feature.metric, truth.metric, rtol=1e-9)
    assert np.allclose(feature.strengths, np.linalg.svd(truth.whitened(truth.covariance[name]))[1], rtol=1e-9)
    assert np.allclose(feature.spectrum.raw, np.linalg.svd(truth.covariance[name])[1], rtol=1e-9)


@pytest.mark.parametrize("name", DRAWN)
def test_feature__gap_and_salience(features, truth, name):
    query, _, _, w, *_ = DRAWN[name]
    feature, d = features[name, "L0H0"], truth.difference[name]
    gap = (query * d).sum(1)
    assert feature.logit_gap.total == pytest.approx(0.3 * (w @ gap) / w.sum(), rel=1e-9)
    mean = np.outer((w @ query) / w.sum(), (w @ d) / w.sum())
    assert feature.logit_gap.salience == pytest.approx(0.3 * np.trace(mean), rel=1e-9)
    energies = [(truth.whitened(part) ** 2).sum() for part in (mean, truth.covariance[name])]
    assert feature.salience_energy == pytest.approx(energies[0] / sum(energies), rel=1e-9)


@pytest.mark.parametrize("name", DRAWN)
def test_feature__balanced_spectrum_and_variance(features, truth, name):
    feature, queries = features[name, "L0H0"], truth.queries[name]
    of_queries = root(queries)
    inverse = np.linalg.inv(of_queries)
    balanced = root(inverse @ root(of_queries @ truth.within @ of_queries) @ inverse)
    expected = np.linalg.svd(balanced @ truth.covariance[name] @ np.linalg.inv(balanced))[1]
    assert np.allclose(feature.spectrum.balanced, expected, rtol=1e-8)
    right = np.linalg.svd(truth.whitened(truth.covariance[name]))[2][:2]
    rest = np.eye(D) - truth.root @ right.T @ right @ truth.inverse
    share = 1 - np.trace(queries @ rest @ truth.within @ rest.T) / np.trace(queries @ truth.within)
    assert feature.spectrum.explained[1] == pytest.approx(share, rel=1e-8)
    values = np.sort(np.linalg.eigvals(queries @ truth.within).real)[::-1]
    assert np.allclose(feature.spectrum.ceiling, values.cumsum() / values.sum(), rtol=1e-8)


def test_joint_projector(features, truth):
    directions = [np.linalg.svd(truth.whitened(truth.covariance[name]))[2][:2].T for name in DRAWN]
    inverse = np.linalg.pinv(np.concatenate(directions, 1))
    expected = truth.root @ directions[0] @ inverse[:2] @ truth.inverse
    assert np.allclose(features.with_rank(2).joint("L0H0")["a"], expected, atol=1e-9)


def plan_of(v):
    side = torch.tensor([[1, 1, -1, -1, -1]] * N)
    return make_plan(marks_of(side, range(N), weight=v.weight), "plain", 0)


def test_nulls__are_centred_and_weighted(truth):
    """sum e w (q - q_mean)(d - d_mean)^T / sum w, and the same with sides dealt anew, from the plan's own draws."""
    query, positive, negative, w, *_ = DRAWN["a"]
    v = vectors("a")
    moments, plan = v.moments(), plan_of(v)
    q = query - (w @ query) / w.sum()
    d = truth.difference["a"] - (w @ truth.difference["a"]) / w.sum()
    flips, shuffles = flipped_covariances(moments, centred=True), shuffled_covariances(moments, centred=True)
    keys = np.concatenate([positive, negative], 1)
    for i in range(N_FLIPS):
        expected = (q * (w * plan.sign[i].numpy())[:, None]).T @ d / w.sum()
        assert np.allclose(flips[i, 0], expected, atol=1e-5)
    for i in range(N_SHUFFLES):
        dealt = np.einsum("nk,nkd->nd", plan.coefficient[1 + i].numpy(), keys)
        assert np.allclose(shuffles[i, 0], (q * w[:, None]).T @ dealt / w.sum(), atol=1e-5)


def test_nulls__copies_of_an_example_do_not_make_a_signal():
    rng = torch.Generator().manual_seed(0)
    query, positive, negative = (torch.randn(40, 8, generator=rng).repeat_interleave(10, 0) for _ in range(3))
    group = [i // 10 for i in range(400)]
    feature = decompose_vectors(query, positive, negative, group=group)
    assert feature.strengths[0] < 1.5 * feature.spectrum.null_high[0]
    assert feature.strengths[0] < 1.5 * feature.spectrum.shuffled_high[0]
