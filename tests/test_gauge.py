"""A change of basis that leaves every logit as it was must not change what we say of the head (GAUGE.md)."""

import pytest
import torch

from one_head import decompose_vector_sets
from planted import basis_change, changed, two_factors
from qkprism import Vectors
from qkprism.core.covariance import contrastive_covariance, query_square
from qkprism.core.metrics import balanced_factor, key_covariance
from qkprism.core.projectors import projector
from qkprism.core.rank import energy_rank


def moved(p, other, a):
    """||A P_A A^-1 - P|| / ||P||."""
    return float((a @ other @ torch.linalg.inv(a) - p).norm() / p.norm())


def labelled(vectors, seed):
    g = torch.Generator().manual_seed(seed)
    n = len(vectors.query)
    labels = [torch.randint(0, 12, (n,), generator=g) for _ in range(2)]
    return Vectors(
        vectors.query, vectors.positive, vectors.negative, positive_label=labels[0], negative_label=labels[1]
    )


@pytest.fixture(scope="module", params=[(16, 1e-2, False), (16, 1e-3, True), (64, 1e-3, False)], ids=str)
def both(request):
    d, noise, with_labels = request.param
    sets = two_factors(1500, d=d, noise=noise)[0]
    if with_labels:
        sets = {name: labelled(v, seed) for seed, (name, v) in enumerate(sets.items())}
    a = basis_change(d)
    assert torch.linalg.cond(a) == pytest.approx(30, rel=1e-6)
    for v in sets.values():
        other = changed(v, a)
        assert torch.allclose((v.query * v.positive).sum(-1), (other.query * other.positive).sum(-1), atol=1e-9)
    return sets, {name: changed(v, a) for name, v in sets.items()}, a


def test_contrast_metric__projectors_move_with_the_basis(both):
    before, after = (decompose_vector_sets(sets, rank="heldout") for sets in both[:2])
    ranks = {"z1": 3, "z2": 5}
    for name in ranks:
        assert moved(projector(before[name, "L0H0"]), projector(after[name, "L0H0"]), both[2]) <= 1e-6
        joint = [f.with_rank(ranks).joint("L0H0")[name] for f in (before, after)]
        assert moved(*joint, both[2]) <= 1e-6


def test_contrast_metric__ranks_and_evidence_stay(both):
    before, after = (decompose_vector_sets(sets) for sets in both[:2])
    for name in ("z1", "z2"):
        ours, theirs = before[name, "L0H0"], after[name, "L0H0"]
        assert (ours.rank, ours.rank_heldout, ours.rank_balanced) == (
            theirs.rank,
            theirs.rank_heldout,
            theirs.rank_balanced,
        )
        strong = ours.rank_heldout
        assert strong == {"z1": 3, "z2": 5}[name]
        assert torch.allclose(ours.strengths[:strong], theirs.strengths[:strong], rtol=1e-6)
        assert torch.allclose(ours.spectrum.t[:strong], theirs.spectrum.t[:strong], rtol=1e-3)
        assert torch.allclose(ours.spectrum.balanced[:strong], theirs.spectrum.balanced[:strong], rtol=1e-6)
        assert torch.allclose(ours.spectrum.ceiling, theirs.spectrum.ceiling, rtol=1e-6)
        assert torch.allclose(ours.spectrum.own[:strong], theirs.spectrum.own[:strong], rtol=1e-6)
        assert ours.rank_own == theirs.rank_own == strong
        assert ours.logit_gap.total == pytest.approx(theirs.logit_gap.total, rel=1e-9)
        assert ours.salience_energy == pytest.approx(theirs.salience_energy, rel=1e-4)


def test_balanced_metric__makes_both_covariances_equal_and_moves_with_the_basis(both):
    projectors, ranks = [], []
    for sets in both[:2]:
        moments = sets["z1"].moments()
        queries, within = query_square(moments)[0], key_covariance([moments])[0]
        balanced = balanced_factor(queries, within)
        metric = balanced.root @ balanced.root.mT
        assert (metric @ queries @ metric - within).norm() <= 1e-9 * within.norm()
        assert torch.allclose(balanced.root @ balanced.inverse, torch.eye(len(metric)).double(), atol=1e-9)
        _, strengths, right = torch.linalg.svd(balanced.whiten(contrastive_covariance(moments, None, centred=True)[0]))
        ranks.append(int(energy_rank(strengths)))
        directions = right[: ranks[-1]].mT
        projectors.append(balanced.root @ directions @ directions.mT @ balanced.inverse)
    assert ranks[0] == ranks[1]
    assert moved(*projectors, both[2]) <= 1e-6


def test_raw_metric__depends_on_the_basis(both):
    before, after = (decompose_vector_sets(sets, metric="raw", rank=3) for sets in both[:2])
    for name in ("z1", "z2"):
        assert moved(projector(before[name, "L0H0"]), projector(after[name, "L0H0"]), both[2]) > 0.1


def test_rank_energy__depends_on_the_basis_where_the_balanced_rank_does_not():
    sets = two_factors(1500)[0]
    changes = [basis_change(16, seed=seed) for seed in range(8)]
    found = [decompose_vector_sets({name: changed(v, a) for name, v in sets.items()}) for a in changes]
    ranks = [[(f.rank_energy, f.rank_balanced) for f in features.values()] for features in found]
    assert len({tuple(raw for raw, _ in row) for row in ranks}) > 1
    assert len({tuple(balanced for _, balanced in row) for row in ranks}) == 1
