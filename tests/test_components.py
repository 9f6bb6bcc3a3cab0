"""Components of the match: independent directions are the toy's bits; what is not found again is not listed."""

from functools import cache

import pytest
import torch
from torch import Tensor

from qkprism.atlas.components import Components, Forms, Part, Sample, agreement, components, read_sample
from qkprism.atlas.independent import independent_directions
from qkprism.atlas.survey import survey
from qkprism.atlas.windows import Windows, cut
from qkprism.core.projectors import joint_projectors
from qkprism.core.row_split import MatchDirections, RowSplit
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.models.model import Model
from qkprism.toy import Cell, ToyHead, ToyTask, train
from qkprism.toy.contrasts import Sampling, recipes_of
from qkprism.toy.samples import draw_samples
from qkprism.toy.stack import Protocol
from qkprism.toy.task import stream
from qkprism.toy.truth import logit_parts, rebased
from tiny import one_thread, tiny  # noqa: F401
from tokenizers_for_tests import byte_level

ROOM = [Cell(ToyTask("discrete", 2, 3), 8), Cell(ToyTask("discrete", 4, 4), 8)]
SHORT = Protocol("short", 2e-2, 300, warmup=50, decays=True, batch=128, check_batches=1, test_batches=1)
TEXT = "the cat sat on the mat and the dog lay by the door, but nobody in the old house had seen them come. " * 30


def gaussian(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def correlations(one: Tensor, other: Tensor) -> Tensor:
    one, other = ((x - x.mean(0)) / x.std(0) for x in (one, other))
    return (one.mT @ other / len(one)).abs()


def test_independent_directions__find_mixed_bits_and_not_gaussians() -> None:
    bits, mixing = gaussian(6000, 5).sign(), gaussian(5, 5, seed=1)
    vectors = bits @ mixing + 3.0
    unmixing = independent_directions(vectors)
    found = vectors @ unmixing.mT
    assert correlations(found, bits).amax(0).min() > 0.99
    torch.testing.assert_close(found.T.cov(), torch.eye(5, dtype=torch.float64), atol=1e-3, rtol=0)
    nothing = gaussian(6000, 5)
    assert correlations(nothing @ independent_directions(nothing @ mixing).mT, nothing).amax(0).min() < 0.95


def sample_of(head: ToyHead) -> tuple[Sample, Tensor]:
    """Queries and keys of a toy head as an atlas would have them, and the bits of each key."""
    samples = draw_samples(head.cell.task, 1500, stream("components", 0))
    query, key = head.queries(samples).double(), head.keys(samples).double()
    query, key = query - query.mean(0), (key - key.mean(1, keepdim=True)).flatten(0, 1)
    directions = MatchDirections.of(query.T.cov(), key.T.cov(), head.cell.d_head**-0.5)
    bits = torch.cat([samples.z1, samples.z2], -1).double()
    within = (bits - bits.mean(1, keepdim=True)).flatten(0, 1)
    return Sample(directions, query, key, torch.zeros(len(key)).long()), within


def bits_found(head: ToyHead, method: str) -> float:
    """The mean over bits of the correlation with the direction that has most of it."""
    sample, bits = sample_of(head)
    forms = sample.forms(method, most=bits.shape[1])  # type: ignore[arg-type]
    return float(correlations(sample.key @ forms.key.mT, bits).amax(0).mean())


@cache
def heads() -> list[ToyHead]:
    return list(train(ROOM, SHORT).values())


@pytest.mark.parametrize("number", range(len(ROOM)))
def test_components__of_toy_heads_with_room_are_the_bits_whatever_the_basis(number: int) -> None:
    head = heads()[number]
    found, again = bits_found(head, "ica"), bits_found(rebased(head), "ica")
    assert found >= 0.95
    assert abs(found - again) < 0.005
    assert bits_found(head, "svd") < 0.9  # the strongest directions alone mix the bits


def test_forms__independent_directions_add_up_to_the_same_match() -> None:
    sample, _ = sample_of(heads()[1])
    strongest, independent = (sample.forms(method, most=8) for method in ("svd", "ica"))
    logits = [(sample.query[:50] @ f.query.mT) @ (sample.key[:60] @ f.key.mT).mT for f in (strongest, independent)]
    torch.testing.assert_close(logits[0], logits[1])
    true = sample.query[:50] @ sample.key[:60].mT * 8**-0.5
    torch.testing.assert_close(logits[0], true)


def test_agreement__needs_both_sides_and_one_sign() -> None:
    query, key, ours = gaussian(500, 6), gaussian(500, 6, seed=1), Forms(gaussian(4, 6, seed=2), gaussian(4, 6, seed=3))
    order = [2, 0, 3, 1]
    same = Forms(-2 * ours.query[order], -3 * ours.key[order])
    torch.testing.assert_close(agreement(ours, same, query, key), torch.ones(4, dtype=torch.float64))
    flipped = agreement(ours, Forms(ours.query, -ours.key), query, key)
    elsewhere = agreement(ours, Forms(ours.query, gaussian(4, 6, seed=4)), query, key)
    assert max(flipped.max(), elsewhere.max()) < 0.95


@cache
def model() -> Model:
    tokenizer = byte_level()
    return Model.wrap(tiny("llama", vocab_size=len(tokenizer)), tokenizer)


@cache
def part(text: str) -> Part:
    windows: Windows = cut(model().tokenizer, [text], 48, 12, "text")  # type: ignore[arg-type]
    return Part(survey(model(), [text], windows=12, length=48, progress=False).layers, windows)


@cache
def listed(method: str) -> Components:
    here, there = part(TEXT), part("".join(reversed(TEXT)))
    return components(model(), here, here, there, heads=["L0H1", "L1H2"], method=method)  # type: ignore[arg-type]


def test_components__only_what_every_text_agrees_on_is_listed() -> None:
    here = part(TEXT)
    every = components(model(), here, here, here, heads="L1H2")
    assert next(iter(every.to_frame().columns)) == "head"
    assert len(every) == sum(every.tried.values()) == 8
    assert every.to_frame()["halves"].min() > 0.999
    assert len(listed("svd")) < sum(listed("svd").tried.values())
    for method in ("svd", "ica"):
        assert all(min(one.halves, one.corpora) >= 0.9 for one in listed(method))


def test_components__tokens_at_the_ends_are_those_furthest_out() -> None:
    here, head = part(TEXT), Head(0, 1)
    one = components(model(), here, here, here, heads=head).found[0]
    sample = read_sample(model(), here, [head])[head]
    forms = sample.forms("svd")
    for place, values in enumerate((sample.query @ forms.query[0], sample.key @ forms.key[0])):
        means = {}
        for token in set(sample.token.tolist()):
            there = values[sample.token == token] - values.mean()
            means[str(model().tokenizer.decode([token]))] = float(there.sum() / (len(there) + 1))  # type: ignore[union-attr]
        order = sorted(means, key=lambda token: -means[token])
        assert [pair[place] for pair in one.high] == order[:5]
        assert [pair[place] for pair in one.low] == order[::-1][:5]


def test_components__another_method_is_refused() -> None:
    here = part(TEXT)
    with pytest.raises(QKPrismError, match=r"method='pca' is not known\. Use 'svd' or 'ica'"):
        components(model(), here, here, here, heads="L0H0", method="pca")  # type: ignore[arg-type]


def test_row_split__of_a_toy_head_is_all_match_and_named_parts_are_the_true_ones() -> None:
    head = heads()[0]
    samples, scaling = draw_samples(head.cell.task, 600, stream("split", 0)), head.cell.d_head**-0.5
    query, key = head.queries(samples).double(), head.keys(samples).double()
    mean_key = key.mean((0, 1)).expand(1, 1, key.shape[1], -1)
    split = RowSplit(query[:, None, None], query.mean(0).expand(1, 1, 1, -1), key[:, None], mean_key, scaling)
    parts = split.parts()[:, :, 0, 0]
    torch.testing.assert_close(parts.sum(0), (key @ query[:, :, None])[..., 0] * scaling)
    spread = (parts - parts.mean(-1, keepdim=True)).square().mean((1, 2)).sqrt()
    assert spread[:4].max() < 0.1 * spread[4], "no position, and no key that is liked whatever the query is"
    joint = joint_projectors(recipes_of([head], Sampling(512)).features(0, "contrast")).subspaces
    assert joint is not None
    true = logit_parts(head, samples)
    for latent in ("z1", "z2"):
        named = split.asks(split.query_change @ joint[latent].projector)[:, 0, 0] * scaling
        error = (named - true[latent] * scaling).abs().mean() / (true[latent] * scaling).abs().mean()
        assert error < 0.15, latent
