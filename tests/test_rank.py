"""Ranks: planted ones are found, null data has none, and the energy rule's lack of a null is visible."""

from dataclasses import replace

import pytest
import torch

from one_head import decompose_vector_sets, decompose_vectors, marks_of
from planted import planted
from qkprism import Vectors
from qkprism.core.evidence import chance_of
from qkprism.core.metrics import factor, identity_like
from qkprism.core.moments import Moments, accumulate, assign_folds, make_plan, reduce_keys
from qkprism.core.rank import THRESHOLD, energy_rank, heldout_test, leading_run


def heldout_ranks(draws, n, **options):
    """The held-out rank of many independent draws, each a head of its own so that they are computed together."""
    ranks = []
    for start in range(0, draws, 25):
        drawn = [planted(n, seed=seed, **options)[0] for seed in range(start, start + 25)]
        query, key = (
            torch.stack([v.query for v in drawn], 1),
            torch.stack([torch.stack([v.positive, v.negative], 1) for v in drawn], 2),
        )
        side = torch.tensor([[1, -1]] * n)
        fold = torch.tensor(assign_folds(range(n), seed=start))
        plan = make_plan(marks_of(side, range(n), fold=fold), "plain", 0)
        moments = Moments.zeros(range(25), query.shape[-1])
        accumulate(moments, query[:, None], reduce_keys(moments, key, plan), plan)
        ranks += leading_run(heldout_test(moments, factor(identity_like(moments.product))).t).tolist()
    return ranks


def test_energy_rank__is_the_fewest_that_reach_the_share():
    strengths = torch.tensor([[3.0, 4.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).double()
    assert energy_rank(strengths.sort(descending=True).values, 0.6).tolist() == [1, 1, 0]
    assert energy_rank(strengths.sort(descending=True).values, 0.99).tolist() == [2, 1, 0]


def test_leading_run__stops_at_the_first_that_fails():
    assert leading_run(torch.tensor([9.0, 5.0, 1.0, 9.0]).double()).item() == 2


@pytest.mark.slow
@pytest.mark.parametrize(("d", "n"), [(64, 256), (16, 200)])
def test_heldout_rank__rarely_sees_a_rank_in_null_data(d, n):
    ranks = heldout_ranks(500, n, d=d, null=True)
    assert sum(rank > 0 for rank in ranks) <= 12


@pytest.mark.slow
@pytest.mark.parametrize(("n", "least"), [(256, 0.85), (600, 0.95)])
def test_heldout_rank__is_exact_on_planted_data(n, least):
    ranks = heldout_ranks(200, n)
    assert sum(rank == 5 for rank in ranks) >= least * 200


def test_heldout_rank__does_not_depend_on_the_size_of_the_means():
    assert heldout_ranks(25, 400, mean=1.0) == heldout_ranks(25, 400, mean=30.0) == [5] * 25


def test_energy_rank__sees_a_large_rank_in_pure_noise_and_the_null_shows_it():
    vectors, _, _ = planted(256, rank=1, noise=1.0, seed=1, null=True)
    feature = decompose_vectors(vectors.query, vectors.positive, vectors.negative)
    assert feature.rank_energy > 10
    assert feature.rank_heldout == 0
    assert feature.strengths[0] < 1.5 * feature.spectrum.null_high[0]
    assert feature.evidence.startswith("no leading direction holds")


def test_heldout_rank__sees_nothing_in_random_labels():
    vectors, _, _ = planted(400, seed=5)
    swap = torch.rand(400, generator=torch.Generator().manual_seed(0)) < 0.5
    positive = torch.where(swap[:, None], vectors.negative, vectors.positive)
    negative = torch.where(swap[:, None], vectors.positive, vectors.negative)
    feature = decompose_vectors(vectors.query, positive, negative)
    assert feature.rank_heldout == 0
    assert feature.rank_energy > 0


def copies(vectors, times):
    """The same vectors several times, one after another."""
    return Vectors(*(own.repeat(times, 1) for own in (vectors.query, vectors.positive, vectors.negative)))


def test_heldout_rank__sees_nothing_in_copies_of_null_data():
    drawn = [planted(60, d=8, rank=1, seed=seed, null=True)[0] for seed in range(48)]
    once = [decompose_vector_sets({"z": v})["z", "L0H0"].rank_heldout for v in drawn]
    with pytest.warns(UserWarning, match="240 of 300 examples of 'z' repeat the vectors of another.*60 groups"):
        found = [decompose_vector_sets({"z": copies(v, 5)})["z", "L0H0"] for v in drawn]
    assert sum(rank > 0 for rank in once) <= 2
    assert sum(feature.rank_heldout > 0 for feature in found) <= 2
    assert all(any("240 of 300 examples" in note for note in feature.notes) for feature in found)


def test_grouping__copies_are_one_group_with_those_that_were_given():
    vectors, _, _ = planted(6, d=4, rank=1)
    whole = copies(vectors, 2)
    assert whole.grouping().group == (*range(6), *range(6))
    given = Vectors(whole.query, whole.positive, whole.negative, group=[*"aabcde", *"fghijj"])
    assert given.grouping().group == (0, 0, 2, 3, 4, 4, 0, 0, 2, 3, 4, 4)  # f and g are a, the copy of d and e are one
    turned = Vectors(whole.query, whole.positive.clone(), whole.negative.clone())
    turned.positive[6:], turned.negative[6:] = whole.negative[6:], whole.positive[6:]
    assert turned.grouping().group == whole.grouping().group  # the same text, marked otherwise
    assert Vectors(vectors.query, vectors.positive, vectors.negative).grouping().repeated == 0


def test_grouping__a_twin_that_is_the_text_of_another_joins_them():
    g = torch.Generator().manual_seed(0)
    query, key = torch.randn(7, 4, generator=g), torch.randn(7, 4, generator=g)
    chain = Vectors(query[:6], key[:6], key[1:], twin_query=query[1:])
    assert chain.grouping().group == (0,) * 6
    apart = Vectors(query[:6:2], key[:6:2], key[1::2], twin_query=query[1::2])
    assert apart.grouping().group == (0, 1, 2)


def test_heldout_test__says_that_repeats_left_too_few_groups():
    vectors, _, _ = planted(5, d=4, rank=1)
    with pytest.warns(UserWarning, match="there are 5 groups"):
        feature = decompose_vector_sets({"z": copies(vectors, 20)})["z", "L0H0"]
    assert feature.rank_heldout is None
    assert any("needs 8 groups of examples, and there are 5" in note for note in feature.notes)


def test_strengths__stand_out_of_the_null_exactly_at_the_planted_rank():
    vectors, _, _ = planted(600, seed=2)
    spectrum = decompose_vectors(vectors.query, vectors.positive, vectors.negative, metric="raw").spectrum
    for null in (spectrum.null_high, spectrum.shuffled_high):
        assert torch.all(spectrum.strength[:5] > 2 * null[:5])
        assert torch.all(spectrum.strength[5:15] < 1.5 * null[5:15])


def test_heldout_test__needs_an_example_in_every_fold():
    vectors, _, _ = planted(5, d=4, rank=1)
    feature = decompose_vectors(vectors.query, vectors.positive, vectors.negative)
    assert feature.rank_heldout is None
    assert "not tested" in feature.evidence
    assert feature.choices.threshold == THRESHOLD


def with_weak_rest(n, seed=0, weak=0.05):
    """z1 in three directions of its own and, weakly, in the five directions of z2; one contrast each."""
    g = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(16, 16, generator=g, dtype=torch.float64))[0]
    found = {}
    for name, differs in (("z1", slice(0, 8)), ("z2", slice(8, 13))):
        shared, query_latent = (torch.randn(n, 13, generator=g, dtype=torch.float64) for _ in range(2))
        keys = []
        for own in (query_latent, torch.randn(n, 13, generator=g, dtype=torch.float64)):
            latent = shared.clone()
            latent[:, differs] = own[:, differs]
            mixed = torch.cat([latent[:, :3], latent[:, 8:] + weak * latent[:, 3:8]], 1)
            keys.append(mixed @ basis[:, :8].T + 0.1 * torch.randn(n, 16, generator=g, dtype=torch.float64))
        asked = torch.cat([query_latent[:, :3], query_latent[:, 8:] + query_latent[:, 3:8]], 1)
        query = asked @ basis[:, :8].T + 0.1 * torch.randn(n, 16, generator=g, dtype=torch.float64)
        found[name] = Vectors(query, *keys)
    return decompose_vector_sets(found, rank="own")


def test_rank_own__settles_where_more_examples_let_weak_directions_of_others_hold():
    few, many = with_weak_rest(400), with_weak_rest(20000)
    assert few["z1", "L0H0"].rank_heldout == 3
    assert many["z1", "L0H0"].rank_heldout == 8
    for found in (few, many):
        assert found["z1", "L0H0"].rank_own == 3
        assert found["z2", "L0H0"].rank_own == 5
    assert many["z1", "L0H0"].rank == max(3, many["z1", "L0H0"].rank_balanced)
    own = many["z1", "L0H0"].spectrum.own
    assert float(own[:3].min()) > 0.9
    assert float(own[3:8].max()) < 0.3


def test_rank_own__is_not_known_in_the_raw_metric():
    feature = with_weak_rest(400).with_metric("raw")["z1", "L0H0"]
    assert feature.rank_own is None
    assert feature.with_rank("own").rank == feature.rank_balanced


def test_evidence__tells_a_late_direction_by_how_often_chance_shows_one():
    vectors, _, _ = planted(256, rank=1, noise=1.0, seed=1, null=True)
    feature = decompose_vectors(vectors.query, vectors.positive, vectors.negative)
    weak, strong = (feature.spectrum.t.clone() for _ in range(2))
    weak[17], strong[2] = 5.0, 25.0
    for t, words in (
        (weak, "direction 18 of 64 alone reaches what chance"),
        (strong, "direction 3 of 64 does (t = 25.0)"),
    ):
        changed = replace(feature, spectrum=replace(feature.spectrum, t=t))
        assert words in changed.evidence


def test_chance_of__is_students_t():
    found = chance_of(torch.tensor([0.0, 1.943, 3.707], dtype=torch.float64))
    assert found.tolist() == pytest.approx([0.5, 0.05, 0.005], rel=1e-3)


@pytest.mark.parametrize("copies", [1, 4])
def test_logit_gap_error__is_that_of_examples_and_copies_do_not_shrink_it(copies):
    vectors, _, _ = planted(300, d=16, seed=3)
    gaps = (vectors.query * (vectors.positive - vectors.negative)).sum(1) / 16**0.5
    repeated = [x.repeat(copies, 1) for x in (vectors.query, vectors.positive, vectors.negative)]
    feature = decompose_vectors(*repeated, group=[i % 300 for i in range(300 * copies)])
    assert feature.logit_gap.total == pytest.approx(float(gaps.mean()), rel=1e-9)
    assert feature.logit_gap.error == pytest.approx(float(gaps.std() / 300**0.5), rel=1e-6)


def test_notes__say_that_the_head_prefers_keys_where_no_direction_holds():
    g = torch.Generator().manual_seed(0)
    query = torch.randn(200, 16, generator=g, dtype=torch.float64)
    query[:, 0] += 3
    negative = torch.randn(200, 16, generator=g, dtype=torch.float64)
    positive = torch.randn(200, 16, generator=g, dtype=torch.float64)
    positive[:, 0] += 1
    feature = decompose_vectors(query, positive, negative)
    assert feature.rank_heldout == 0
    assert any("does prefer the positive keys" in note for note in feature.notes)


@pytest.mark.parametrize("rounding", [0.0, 1e-6])
def test_grouping__copies_of_vectors_are_one_group_also_where_they_differ_by_rounding(rounding):
    """The same text in another batch: its vectors differ in the last bits, and zeros in their sign."""
    g = torch.Generator().manual_seed(0)
    once = [torch.randn(60, 64, generator=g, dtype=torch.float64) for _ in range(3)]
    copies = [v.repeat(5, 1) * (1 + rounding * torch.randn(300, 64, generator=g, dtype=torch.float64)) for v in once]
    copies[0][:, 0] = torch.where(torch.arange(300) < 150, 0.0, -0.0)
    assert Vectors(*copies).grouping().n_groups == 60
    assert Vectors(*once).grouping().n_groups == 60
