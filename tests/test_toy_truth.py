"""Trained toy heads: the library finds what is known to be there."""

import pytest
import torch

from qkprism import QKPrismError
from qkprism.toy.ceiling import dot_product_ceiling
from qkprism.toy.cells import Cell, untrained
from qkprism.toy.contrasts import Sampling, contrast_vectors, decompose_heads, stacked
from qkprism.toy.portrait import Depth, portray
from qkprism.toy.samples import draw_samples, exchange
from qkprism.toy.store import load_heads
from qkprism.toy.task import stream
from qkprism.toy.truth import expected_covariance, interaction, logit_parts, overlap
from toy_cells import OTHERS as CELLS

RANKS_ALONE = Depth(swaps=0, draws=0, parts=False)


@pytest.fixture(scope="module")
def heads(toy_folder):
    stored = load_heads(toy_folder / "heads")
    return [stored[cell] for cell in CELLS]


def test_trained_heads__reach_the_ceiling_of_bayes_or_of_the_dot_product(heads):
    for head in heads:
        assert abs(head.accuracy - dot_product_ceiling(head.cell.task, 8)) < 0.015


def test_trained_heads__have_the_true_ranks_and_subspaces(heads):
    for row in portray(heads, Sampling(n=2048), RANKS_ALONE).recovered:
        assert row.exact
        assert (row.energy, row.balanced, row.heldout) == (row.true,) * 3, row
        assert row.key_overlap > 0.99, row
        assert row.query_overlap > 0.98, row
        assert row.aligned > 0.7, row
        assert row.error < 0.1, row


def test_untrained_heads__have_ranks_and_subspaces_too_but_use_them_less(heads):
    """The control: what keys and queries hold is found in any head; that they meet is what training does."""
    controls = [untrained(cell) for cell in CELLS]
    before, after = (portray(some, Sampling(n=1024), RANKS_ALONE).recovered for some in (controls, heads))
    for row in before:
        assert row.key_overlap > 0.99, row
    assert sum(row.aligned for row in before) < sum(row.aligned for row in after) - 0.1 * len(after)
    assert all(interaction(head).diagonal < 0.7 for head in controls)


@pytest.mark.parametrize("negatives", ["differs", "redrawn"])
def test_expected_covariance__is_the_limit_of_the_sampled_one(negatives):
    heads = [untrained(cell) for cell in CELLS]
    features = decompose_heads(heads, Sampling(n=2048, negatives=negatives))
    for i, head in enumerate(heads):
        for latent in ("z1", "z2"):
            truth = expected_covariance(head, latent, negatives)
            assert (features[latent, f"L0H{i}"].covariance - truth).norm() < 0.2 * truth.norm()


def test_stacked__moments_are_those_of_each_head():
    vectors = [contrast_vectors(untrained(cell), "z1", Sampling(n=600)) for cell in CELLS]
    together = stacked(vectors).moments().tensors()
    for i, one in enumerate(vectors):
        for name, alone in one.moments().tensors().items():
            both = together[name]
            if "d_head" in name or both.shape != alone.shape:
                axis = next(a for a, (x, y) in enumerate(zip(both.shape, alone.shape, strict=True)) if x != y)
                both = both.narrow(axis, i, 1)
            assert torch.allclose(both, alone, rtol=1e-4, atol=1e-4), name


def test_decompose_heads__refuses_two_sizes():
    with pytest.raises(QKPrismError, match="one d_head"):
        decompose_heads([untrained(CELLS[0]), untrained(Cell(CELLS[0].task, 16))])


def test_overlap__of_a_subspace_with_itself_in_another_basis_is_one():
    random = torch.Generator().manual_seed(0)
    basis = torch.randn(8, 3, generator=random, dtype=torch.float64)
    assert overlap(basis, basis @ torch.randn(3, 3, generator=random, dtype=torch.float64)) == pytest.approx(1)
    assert overlap(torch.eye(8)[:, :3].double(), torch.eye(8)[:, 3:6].double()) == pytest.approx(0, abs=1e-12)


def test_interaction__shares_add_up_and_logits_follow(heads):
    for head in heads:
        found = interaction(head)
        assert found.diagonal + found.within + found.across == pytest.approx(1)
        assert found.dimensions <= min(8, sum(head.cell.task.ranks)) + 1e-9
        assert found.diagonal > 0.9
        z = torch.randn(2, len(found.matrix), generator=torch.Generator().manual_seed(0)).double()
        query = head.query.double() @ head.maps.query.double() @ z[0]
        key = head.key.double() @ head.maps.key.double() @ z[1]
        assert z[0] @ found.matrix @ z[1] == pytest.approx(float(query @ key))


def test_logit_parts__add_up_and_an_exchange_moves_only_its_own(heads):
    for head in heads:
        samples = draw_samples(head.cell.task, 50, stream(0))
        before, after = (logit_parts(head, each) for each in (samples, exchange(samples, "z1")))
        logits = (head.keys(samples) @ head.queries(samples)[:, :, None])[:, :, 0].double()
        assert torch.allclose(sum(before.values()), logits, atol=1e-4)
        assert torch.allclose(logits.div(8**0.5).softmax(-1).float(), head.attention(samples), atol=1e-5)
        assert torch.allclose(before["z2"], after["z2"])
        assert torch.allclose(before["rest"], after["rest"], atol=1e-4)
        moved = after["z1"].gather(1, samples.target[:, None]) - before["z1"].gather(1, samples.original[:, None])
        assert moved.abs().max() < 1e-4
        assert before["rest"].std() < 0.1 * before["z1"].std()
