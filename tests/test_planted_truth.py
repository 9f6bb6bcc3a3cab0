"""Edits and attributions of estimated features against the truth of planted data (GAUGE.md)."""

from functools import cache

import pytest
import torch

from one_head import decompose_vector_sets
from plain_vectors import intervene_vectors
from planted import Lock, basis_change, swap
from qkprism import Head
from qkprism.core.effect_sums import Condition
from qkprism.core.splitting import split_of
from qkprism.results.effects import GIVEN
from qkprism.subspaces.comparison import PROJECTING
from qkprism.subspaces.conditions import layer_conditions
from qkprism.subspaces.intervention import Attending

SHARP = 3.5  # of the softmax, for a top attention of about 0.97
PLAIN = [Lock(seed=seed) for seed in (0, 1)]
CHANGED = [Lock(nuisance=3, change=basis_change(16, seed=seed), seed=seed) for seed in (0, 1)]


def attention(query, key):
    return torch.softmax(SHARP * torch.einsum("nd,ntd->nt", query, key), -1)


def total_variation(a, b):
    return float((a - b).abs().sum(-1).mean() / 2)


@cache
def learned(lock, n):
    """The features of a head from n examples a contrast."""
    return decompose_vector_sets(lock.contrasts(n), rank="heldout", scaling=SHARP)


def errors_of_edits(lock, n):
    """Mean total variation between each method's edit and the truth, by factor."""
    features = learned(lock, n)
    assert [f.rank for f in features.values()] == [3, 5]
    query, key, exchanged, _ = lock.scenes(2000)
    assert 0.96 < float(attention(query, key).amax(-1).mean()) < 0.98 or lock.sizes[2:]
    conditions = layer_conditions(features, 0, PROJECTING, draws=1)[Head(0, 0)]
    found = {}
    for name in ("z1", "z2"):
        truth = attention(query, exchanged[name])
        for method in PROJECTING:
            p = conditions.subspace(conditions.names.index(Condition("feature", name, method))).projector
            edited = key.clone()
            edited[:, 0], edited[:, 1] = swap(key[:, 0], key[:, 1], p)
            found[name, method] = total_variation(attention(query, edited), truth)
        found[name, "none"] = total_variation(attention(query, key), truth)
    return found


def errors_of_parts(lock, n):
    """Mean absolute error of each method's parts against the true ones, in logits, by factor."""
    features = learned(lock, n)
    query, key, _, z = lock.scenes(2000)
    found = {}
    for metric in ("contrast", "raw"):
        own = [features.with_metric(metric).with_rank({"z1": 3, "z2": 5})[name, "L0H0"] for name in ("z1", "z2")]
        for method in ("oblique", "sequential", "shapley", "both"):
            parts = split_of(own, method).parts(query, key, 1.0)
            for i, name in enumerate(split_of(own, method).names):
                which = int(name[1]) - 1
                true = torch.einsum("nr,ntr->nt", z[which][:, 0], z[which])
                found[name, metric, method] = float((parts[i] - true).abs().mean())
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_oblique_edits__come_within_two_hundredths_of_the_truth_and_the_orthogonal_one_does_not(seed):
    found = errors_of_edits(PLAIN[seed], 20_000)
    for name in ("z1", "z2"):
        oblique = [found[name, method] for method in ("contrast", "raw oblique")]
        assert max(oblique) < 0.02
        assert found[name, "raw"] > 5 * max(oblique)
        assert found[name, "none"] > 0.3


@pytest.mark.parametrize("seed", [0, 1])
def test_contrast_edit__withstands_an_unnamed_factor_and_a_change_of_basis(seed):
    found = errors_of_edits(CHANGED[seed], 2000)
    for name in ("z1", "z2"):
        assert found[name, "contrast"] < 0.05
        assert found[name, "raw oblique"] > 5 * found[name, "contrast"]


def test_oblique_parts__are_the_true_parts_and_sequential_ones_are_not():
    found = errors_of_parts(PLAIN[0], 20_000)
    for name in ("z1", "z2"):
        oblique = [found[name, metric, "oblique"] for metric in ("contrast", "raw")]
        assert max(oblique) < 0.05
        assert min(found[name, "raw", method] for method in ("sequential", "shapley")) > 5 * max(oblique)


@pytest.mark.parametrize("seed", [0, 1])
def test_contrast_parts__withstand_an_unnamed_factor_and_a_change_of_basis(seed):
    found = errors_of_parts(CHANGED[seed], 2000)
    for name in ("z1", "z2"):
        assert found[name, "contrast", "oblique"] < 0.2
        assert found[name, "raw", "oblique"] > 5 * found[name, "contrast", "oblique"]


def attending(lock, n, matched=None):
    """Scenes with a random target, or one that differs from the original in one factor only."""
    z = lock.draw(n, 8)
    if matched is not None:
        for which in range(len(z)):
            if which != matched:
                z[which][:, 1] = z[which][:, 0]
    pair = torch.zeros(n, dtype=torch.long), torch.ones(n, dtype=torch.long)
    return Attending(lock.queries([x[:, 0] for x in z]), lock.keys(z), *pair)


@pytest.fixture(scope="module")
def effects():
    lock = Lock()
    features = decompose_vector_sets(lock.contrasts(2000), rank="heldout", scaling=SHARP)
    sets = {GIVEN: attending(lock, 1000), "z1": attending(lock, 1000, 0), "z2": attending(lock, 1000, 1)}
    return intervene_vectors(sets, features, methods=PROJECTING)


def test_effects__both_features_move_all_the_attention_and_beat_gaussian_subspaces(effects):
    both = effects.value("attention_target", head="L0H0", feature="z1+z2")[0]
    assert both == pytest.approx(effects.value("attention_original", head="L0H0", control="none")[0], abs=0.01)
    assert effects.value("shift", head="L0H0", control="full")[0] > 0.98
    for row in effects.beats():
        if row["target"] == GIVEN and row["feature"] == "z1+z2" and row["control"] == "gaussian":
            assert row["beaten"]
            assert not row["evidence"]


def test_effects__a_matched_target_moves_with_its_own_feature_and_stays_with_the_other(effects):
    for own, other in (("z1", "z2"), ("z2", "z1")):
        after = effects.value("attention_target", head="L0H0", feature=own, target=own)[0]
        before = effects.value("attention_original", head="L0H0", control="none", target=own)[0]
        assert after == pytest.approx(before, abs=0.02)
        none = effects.value("shift", head="L0H0", control="none", target=own)[0]
        assert effects.value("shift", head="L0H0", feature=other, target=own)[0] == pytest.approx(none, abs=0.02)
        paper = effects.value("shift", head="L0H0", feature=other, method="raw", target=own)[0]
        assert abs(paper - none) > 0.03


def test_effects__random_relabelling_shows_no_effect_beyond_its_null():
    """Features of sides that were dealt at random do not beat the permuted control; they do beat Gaussian draws."""
    beaten = {"permuted": 0, "gaussian": 0}
    for seed in range(12):
        lock = Lock(seed=seed)
        g = torch.Generator().manual_seed(seed)
        sets = lock.contrasts(400)
        for name, v in sets.items():
            side = torch.rand(400, 1, generator=g) < 0.5
            sets[name] = type(v)(
                v.query, torch.where(side, v.positive, v.negative), torch.where(side, v.negative, v.positive)
            )
        features = decompose_vector_sets(sets, rank=4, scaling=SHARP)
        found = intervene_vectors(attending(lock, 400), features)
        for row in found.beats():
            if row["control"] in beaten and row["method"] == "contrast" and "+" not in row["feature"]:
                beaten[row["control"]] += row["beaten"]
    assert beaten["permuted"] <= 2  # of 24
    assert beaten["gaussian"] >= 12  # so it is no evidence


def test_effects__a_real_feature_beats_permuted_labels():
    beaten = 0
    for seed in range(6):
        lock = Lock(seed=seed)
        features = decompose_vector_sets(lock.contrasts(400), rank="heldout", scaling=SHARP)
        rows = [r for r in intervene_vectors(attending(lock, 400), features).beats() if r["control"] == "permuted"]
        beaten += sum(r["beaten"] for r in rows if r["method"] == "contrast" and "+" not in r["feature"])
    assert beaten >= 10
