"""The task: what is drawn, what is exchanged, and how well it can be solved at best."""

import itertools
from dataclasses import asdict

import pytest
import torch
from jaxtyping import TypeCheckError

from qkprism import QKPrismError
from qkprism.toy.ceiling import bayes_ceiling, dot_product_ceiling, expected_largest
from qkprism.toy.cells import Cell
from qkprism.toy.contrasts import Sampling
from qkprism.toy.samples import (
    draw_contrast,
    draw_given,
    draw_latents,
    draw_samples,
    draw_signs,
    exchange,
    take,
)
from qkprism.toy.task import Maps, ToyTask, embed_payloads, embed_selector, stream

VARIANTS = ["discrete", "continuous"]


@pytest.mark.parametrize("latent", ["z1", "z2"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_contrast__differs_in_one_latent_and_shares_the_rest(variant, latent):
    task, other = ToyTask(variant, 2, 3), "z2" if latent == "z1" else "z1"
    samples = draw_contrast(task, latent, 500, stream(0))
    own, held = getattr(samples, latent), getattr(samples, other)
    assert torch.equal(own[:, 0], getattr(samples, f"query_{latent}"))
    assert bool((own[:, 0] != own[:, 1]).any(-1).all())
    assert torch.equal(held[:, 0], held[:, 1])
    assert not torch.equal(held[:, 0], getattr(samples, f"query_{other}"))
    assert not torch.equal(samples.payload[:, 0], samples.payload[:, 1])


def test_contrast__redrawn_negatives_may_be_the_same():
    samples = draw_contrast(ToyTask("discrete", 2, 3), "z1", 2000, stream(0), negatives="redrawn")
    same = (samples.z1[:, 0] == samples.z1[:, 1]).all(-1).float().mean()
    assert same == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("variant", VARIANTS)
def test_draw_given__has_the_correlation(variant):
    z1 = draw_latents(variant, (20_000, 3), stream(0))
    z2 = draw_given(variant, z1, 5, 0.5, stream(1))
    found = torch.corrcoef(torch.cat([z1, z2], 1).T)[:3, 3:]
    assert torch.allclose(found, torch.eye(3, 5) * 0.5, atol=0.03)


@pytest.mark.parametrize("variant", VARIANTS)
def test_exchange__moves_one_latent_and_nothing_else_and_twice_is_nothing(variant):
    samples = draw_samples(ToyTask(variant, 3, 4), 200, stream(0))
    changed = exchange(samples, "z1")
    assert torch.equal(take(changed.z1, samples.original), take(samples.z1, samples.target))
    assert torch.equal(take(changed.z1, samples.target), take(samples.z1, samples.original))
    for name in ("z2", "payload", "noise", "query_z1", "query_z2", "query_noise"):
        assert torch.equal(getattr(changed, name), getattr(samples, name))
    untouched = torch.ones_like(samples.payload, dtype=torch.bool)
    for index in (samples.original, samples.target):
        untouched[torch.arange(200), index] = False
    assert torch.equal(changed.z1[untouched], samples.z1[untouched])
    assert torch.equal(exchange(changed, "z1").z1, samples.z1)


def test_draw_signs__are_fair_and_independent():
    signs = draw_signs((20_000, 5), stream(0))
    assert signs.unique().tolist() == [-1, 1]
    assert signs.mean(0).abs().max() < 0.03
    assert (torch.corrcoef(signs.T) - torch.eye(5)).abs().max() < 0.03
    runs = (signs.flatten()[1:] * signs.flatten()[:-1]).mean()
    assert abs(runs) < 0.02
    assert draw_signs((3, 7), stream(1)).shape == (3, 7)


def test_embeddings__are_the_sums_of_the_paper():
    task = ToyTask("discrete", 2, 3, "paper")
    maps, samples = Maps.draw(task, 0), draw_samples(task, 5, stream(0))
    payloads, i = embed_payloads(maps, samples), int(samples.original[3])
    expected = maps.key_1 @ samples.z1[3, i] + maps.key_2 @ samples.z2[3, i] + samples.noise[3, i]
    assert torch.allclose(payloads[3, i], expected + maps.payload[:, samples.answer[3]], atol=1e-5)
    selector = maps.query_1 @ samples.z1[3, i] + maps.query_2 @ samples.z2[3, i] + samples.query_noise[3]
    assert torch.allclose(embed_selector(maps, samples)[3], selector, atol=1e-5)


def test_presets__set_the_scales():
    for preset, scale, of_payload, noise in (("paper", 1, 1, 1.0), ("calibrated", 1 / 4, 1 / 32, 0.01)):
        maps = Maps.draw(ToyTask("discrete", 4, 4, preset, width=32, payloads=1000), 0)
        assert maps.key_1.var() == pytest.approx(scale, rel=0.4)
        assert maps.payload.var() == pytest.approx(of_payload, rel=0.05)
        assert maps.noise == noise


def test_maps__depend_on_task_and_seed():
    assert torch.equal(Maps.draw(ToyTask("discrete", 2, 3), 1).key, Maps.draw(ToyTask("discrete", 2, 3), 1).key)
    assert not torch.equal(Maps.draw(ToyTask("discrete", 2, 3), 1).key, Maps.draw(ToyTask("discrete", 2, 3), 2).key)


def test_expected_largest__against_every_outcome():
    for n, payloads in ((1, 3), (2, 3), (4, 3), (5, 2), (3, 5)):
        outcomes = list(itertools.product(range(payloads), repeat=n))
        largest = [max(outcome.count(value) for value in outcome) for outcome in outcomes]
        assert expected_largest(n, payloads) == pytest.approx(sum(largest) / len(outcomes))


@pytest.mark.parametrize("ranks", [(1, 1), (2, 2), (3, 4)])
def test_bayes_ceiling__is_what_the_best_answer_gets(ranks):
    task = ToyTask("discrete", *ranks)
    samples = draw_samples(task, 40_000, stream(0))
    same = (samples.z1 == samples.query_z1[:, None]).all(-1) & (samples.z2 == samples.query_z2[:, None]).all(-1)
    counts = torch.nn.functional.one_hot(samples.payload, task.payloads) * same[..., None]
    best = counts.sum(1) + 1e-3 * torch.rand(40_000, task.payloads, generator=stream(1))
    accuracy = float((best.argmax(1) == samples.answer).float().mean())
    assert bayes_ceiling(task) == pytest.approx(accuracy, abs=0.01)


def test_bayes_ceiling__grows_with_the_ranks_to_one():
    ceilings = [bayes_ceiling(ToyTask("discrete", r, r)) for r in (1, 2, 3, 4, 8, 12)]
    assert ceilings == sorted(ceilings)
    assert ceilings[-1] == pytest.approx(1, abs=1e-5)
    assert bayes_ceiling(ToyTask("continuous", 2, 2)) == 1


@pytest.mark.parametrize(("ranks", "d_head"), [((2, 3), 8), ((3, 1), 16)])
def test_dot_product_ceiling__is_what_the_largest_product_gets(ranks, d_head):
    task = ToyTask("continuous", *ranks)
    samples = draw_samples(task, 40_000, stream(0))
    z, query = torch.cat([samples.z1, samples.z2], -1), torch.cat([samples.query_z1, samples.query_z2], -1)
    picked = (z @ query[:, :, None])[:, :, 0].argmax(1)
    accuracy = float((samples.payload[torch.arange(40_000), picked] == samples.answer).float().mean())
    assert dot_product_ceiling(task, d_head) == pytest.approx(accuracy, abs=0.01)


def test_dot_product_ceiling__is_that_of_bayes_for_signs_and_counts_the_dimensions_of_the_head():
    assert dot_product_ceiling(ToyTask("discrete", 2, 3), 8) == bayes_ceiling(ToyTask("discrete", 2, 3))
    assert dot_product_ceiling(ToyTask("continuous", 6, 6), 8) == dot_product_ceiling(ToyTask("continuous", 4, 4), 16)


@pytest.mark.parametrize(
    "wrong", [{"variant": "ternary"}, {"preset": "loud"}, {"r1": 0}, {"noise": -1.0}, {"latent_scale": 0.0}]
)
def test_task__refuses_what_it_does_not_know(wrong):
    with pytest.raises((QKPrismError, TypeCheckError)):  # types are checked in tests only
        ToyTask(**({"variant": "discrete", "r1": 2, "r2": 2} | wrong))


def test_task__scales_can_be_given_and_are_told():
    task = ToyTask("discrete", 4, 4, payloads=1000, noise=0.5, latent_scale=2.0, payload_scale=3.0)
    maps = Maps.draw(task, 0)
    assert maps.noise == 0.5
    assert maps.key_1.std() == pytest.approx(2, rel=0.2)
    assert maps.query_2.std() == pytest.approx(2, rel=0.2)
    assert maps.payload.std() == pytest.approx(3, rel=0.05)
    assert str(Cell(task, 8)).endswith("seed=0 calibrated noise=0.5 latent_scale=2 payload_scale=3")
    assert str(Cell(ToyTask("discrete", 4, 4, "paper"), 8)).endswith("seed=0 paper")
    assert Cell.from_json(asdict(Cell(task, 8))) == Cell(task, 8)


def test_task__its_text_is_that_of_the_preset_unless_scales_are_given():
    """Random streams are keyed by it: heads that were trained before stay the same."""
    told = "Task(variant='discrete', r1=2, r2=3, preset='calibrated', tokens=16, payloads=10, width=32"
    assert repr(ToyTask("discrete", 2, 3)) == f"{told})"
    assert repr(ToyTask("discrete", 2, 3, noise=0.1)) == f"{told}, noise=0.1)"
    assert float(Maps.draw(ToyTask("discrete", 2, 3), 0).key_1[0, 0]) == pytest.approx(0.875693, abs=1e-6)


@pytest.mark.parametrize("wrong", [1.0, -1.0, 2.0, float("nan")])
def test_correlation__is_below_one(wrong):
    with pytest.raises(QKPrismError, match="correlation"):
        Sampling(correlation=wrong)
    with pytest.raises(QKPrismError, match="correlation"):
        draw_samples(ToyTask("discrete", 2, 3), 5, stream(0), correlation=wrong)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"d_head": 0}, "d_head=0"),
        ({"d_head": 64}, "width 32"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": True}, "seed=True"),
    ],
)
def test_cell__refuses_what_cannot_be_trained(wrong, told):
    with pytest.raises(QKPrismError, match=told):
        Cell(ToyTask("discrete", 2, 3), **({"d_head": 8} | wrong))
