"""The bank computes exactly what its heads compute alone."""

import pytest
import torch

from qkprism import QKPrismError
from qkprism.toy.bank import Embedding, Workspace, accuracies, deal, draws_of, fold, forward, gradients, losses
from qkprism.toy.cells import Cell, paper_grid, untrained
from qkprism.toy.samples import take
from qkprism.toy.stack import PROTOCOLS, Protocol, Stack, adamw, protocol_named
from qkprism.toy.task import Samples, ToyTask
from toy_oracle import loss_and_gradients, scores

RANKS = ((2, 3), (5, 1), (4, 4))


def samples_of(dealt, variant, ranks):
    """What one head sees of the draws that all share."""
    z = dealt.latents if variant == "continuous" else dealt.latents.sign()
    z1, z2 = (z[:, :, i, :r].contiguous() for i, r in enumerate(ranks))
    return Samples(
        z1=z1,
        z2=z2,
        payload=dealt.payload.argmax(-1),
        noise=dealt.noise,
        query_z1=take(z1, dealt.original),
        query_z2=take(z2, dealt.original),
        query_noise=dealt.query_noise,
        original=dealt.original,
        target=dealt.original,
    )


@pytest.fixture(scope="module", params=[("discrete", "calibrated", 8), ("continuous", "paper", 16)], ids=str)
def bank(request):
    variant, preset, d_head = request.param
    cells = [Cell(ToyTask(variant, *ranks, preset), d_head, seed) for seed, ranks in enumerate(RANKS)]
    dealt = deal(cells[0].task, 5, 64, "test")
    return Stack.of(cells), [untrained(cell) for cell in cells], dealt


def test_gradients__are_those_of_each_head_alone(bank):
    stack, heads, dealt = bank
    found = gradients(stack.unflatten(stack.parameter), stack.embedding, draws_of(dealt, stack.variant, stack.rank))
    for i, head in enumerate(heads):
        _, expected = loss_and_gradients(head, samples_of(dealt, stack.variant, head.cell.task.ranks))
        for name, gradient in expected.items():
            error = (getattr(found, name)[i] - gradient).norm() / gradient.norm()
            assert error <= 1e-5, (name, error)


def test_loss_and_accuracy__are_those_of_each_head_alone(bank):
    stack, heads, dealt = bank
    draws = draws_of(dealt, stack.variant, stack.rank)
    done = forward(fold(stack.unflatten(stack.parameter), stack.embedding), draws, Workspace.of(stack.embedding, draws))
    for i, head in enumerate(heads):
        samples = samples_of(dealt, stack.variant, head.cell.task.ranks)
        weights = {name: getattr(head, name) for name in ("query", "key", "value", "output")}
        right = (scores(weights, head.maps, samples).argmax(1) == samples.answer).float().mean()
        assert losses(done, draws)[i] == pytest.approx(float(loss_and_gradients(head, samples)[0]), rel=1e-5)
        assert accuracies(done, draws)[i] == pytest.approx(float(right), abs=1e-6)


def test_gradients__do_not_depend_on_the_other_cells(bank):
    stack, _, dealt = bank
    draws = draws_of(dealt, stack.variant, stack.rank)
    together = gradients(stack.unflatten(stack.parameter), stack.embedding, draws)
    one = torch.tensor([1])
    alone = gradients(stack.unflatten(stack.parameter[one]), stack.embedding.pick(one), draws)
    assert torch.allclose(together.flat()[one], alone.flat(), rtol=1e-5, atol=1e-7)


def test_draws__of_a_larger_bank_begin_with_those_of_a_smaller():
    task = ToyTask("continuous", 3, 4)
    small, large = deal(task, 4, 32, "a", 7), deal(task, 9, 32, "a", 7)
    assert torch.equal(small.latents, large.latents[..., :4])
    assert torch.equal(small.noise, large.noise)
    assert torch.equal(small.original, large.original)
    assert not torch.equal(small.noise, deal(task, 4, 32, "a", 8).noise)


def test_adamw__is_that_of_torch():
    random = torch.Generator().manual_seed(0)
    ours = torch.randn(3, 50, generator=random)
    theirs = ours.clone().requires_grad_()
    optimizer = torch.optim.AdamW([theirs], lr=1e-2, weight_decay=0.01)
    first, second = torch.zeros_like(ours), torch.zeros_like(ours)
    for step in range(20):
        gradient = torch.randn(3, 50, generator=random)
        theirs.grad = gradient.clone()
        optimizer.step()
        adamw(ours, gradient, first, second, step=step, rate=1e-2, weight_decay=0.01)
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_embedding__has_zeros_beyond_the_ranks_of_a_cell():
    head = untrained(Cell(ToyTask("discrete", 2, 3), 8))
    embedding = Embedding.of([head.maps], 5).key[0]
    assert torch.equal(embedding[:, :2], head.maps.key_1)
    assert embedding[:, 2:5].abs().max() == 0
    assert torch.equal(embedding[:, 5:8], head.maps.key_2)
    assert torch.equal(embedding[:, -32:], 0.01 * torch.eye(32))


def test_protocols__rates():
    fast = Protocol("x", rate=1.0, steps=110, warmup=10, decays=True)
    assert [fast.rate_at(step) for step in (0, 9)] == pytest.approx([0.1, 1.0])
    assert fast.rate_at(60) == pytest.approx(0.5)
    assert fast.rate_at(109) < 1e-3
    paper = PROTOCOLS["paper"]
    assert {paper.rate_at(step) for step in (0, 5, 10**5)} == {1e-4}
    with pytest.raises(QKPrismError, match="paper or fast"):
        protocol_named("slow")


def test_paper_grid__has_the_212_heads_of_the_paper():
    grid = paper_grid()
    assert len(grid) == len(set(grid)) == 212
    assert sum(cell.d_head == 8 for cell in grid) == 50
    assert not any(cell.superposed for cell in grid if sum(cell.task.ranks) == cell.d_head)


def test_paper_grid__refuses_sizes_that_the_paper_has_not():
    with pytest.raises(QKPrismError, match="no heads of d_head 4"):
        paper_grid(d_heads=(4,))
