"""Features: subspaces of planted data, algebra of bases and projectors, salience and match, saving."""

import json
import math

import pytest
import torch

from one_head import decompose_vector_sets, decompose_vectors
from planted import planted, two_factors
from qkprism import Features, QKPrismError, Vectors
from qkprism.core.covariance import contrastive_covariance
from qkprism.core.projectors import joint_projectors, principal_angles, projector, span_projector, stretch_notes
from qkprism.heads import Head


def feature_of(vectors, **options):
    return decompose_vectors(vectors.query, vectors.positive, vectors.negative, **options)


def overlap(basis, truth):
    found = torch.linalg.qr(basis)[0]
    return float((found.mT @ truth).square().sum() / truth.shape[1])


@pytest.fixture(scope="module")
def factors():
    return decompose_vector_sets(two_factors(1500)[0], rank="heldout")


def test_feature__recovers_planted_rank_and_subspaces():
    vectors, u, v = planted(2000, d=32, rank=4, noise=0.1)
    assert feature_of(vectors).rank_heldout == 4
    feature = feature_of(vectors, metric="raw")
    assert feature.rank_heldout == 4
    assert overlap(feature.query_basis[:, :4], u) > 0.98
    assert overlap(feature.key_basis[:, :4], v) > 0.98
    assert min(feature.with_rank(4).agreement) > 0.95


def test_feature__paper_energy_rank_on_clean_data():
    vectors, _, _ = planted(5000, d=16, rank=3, noise=0.01, mean=0.0, aligned=True)
    assert feature_of(vectors, center="none").rank_energy == 3
    assert feature_of(vectors).rank_balanced == 3


@pytest.mark.parametrize("metric", ["raw", "contrast"])
def test_feature__bases_put_the_covariance_together(metric):
    features = decompose_vector_sets(two_factors(600)[0], metric=metric)
    for (name, _), feature in features.items():
        expected = contrastive_covariance(features.layers[0].moments[name], None, centred=True)[0]
        assert torch.allclose(feature.covariance, expected, atol=1e-10 * expected.norm())
        # dual bases: coordinates of the basis itself are the identity
        d = feature.d_head
        whole = feature.with_rank(d)
        assert torch.allclose(whole.key_coordinates(feature.key_basis.mT), torch.eye(d).double(), atol=1e-6)
        assert torch.allclose(whole.query_coordinates(feature.query_basis.mT), torch.eye(d).double(), atol=1e-6)


def test_features__each_contrast_can_have_its_own_centring():
    features = decompose_vector_sets(two_factors(600)[0])
    first, second = features.contrasts
    both = features.with_center({first: "none"})
    for name, expected in ((first, features.with_center("none")), (second, features)):
        assert all(torch.equal(both[name, h].strengths, expected[name, h].strengths) for h in features.heads)
    assert [both[name, features.heads[0]].choices.center for name in both.contrasts] == ["none", "query"]
    with pytest.raises(QKPrismError, match="no contrast 'third'"):
        features.with_center({"third": "none"})


def test_feature__signs_are_deterministic():
    vectors, _, _ = planted(300, d=16, rank=3)
    first, second = feature_of(vectors), feature_of(vectors)
    assert torch.equal(first.key_basis, second.key_basis)
    largest = first.key_basis.gather(0, first.key_basis.abs().argmax(0, keepdim=True))
    assert torch.all(largest > 0)


def test_feature__logit_gap_is_the_mean_gap_and_splits_exactly():
    vectors, _, _ = planted(500, d=16, rank=3)
    feature = feature_of(vectors, scaling=0.25)
    gaps = (vectors.query * (vectors.positive - vectors.negative)).sum(-1) * 0.25
    assert feature.logit_gap.total == pytest.approx(float(gaps.mean()), rel=1e-9)
    assert feature.logit_gap.match + feature.logit_gap.salience == pytest.approx(feature.logit_gap.total, rel=1e-9)
    assert feature.logit_gap.error == pytest.approx(float(gaps.std()) / 500**0.5, rel=0.7)


def test_feature__salience_is_told_from_match():
    g = torch.Generator().manual_seed(0)
    query = torch.randn(400, 8, generator=g) + 3
    noise = [torch.randn(400, 8, generator=g) for _ in range(2)]
    salient = decompose_vectors(query, noise[0] + 1, noise[1])
    assert salient.salience_energy > 0.9
    assert salient.salience_t > 4
    assert salient.rank_heldout == 0
    matching = decompose_vectors(query - 3, noise[0] + query - 3, noise[1])
    assert matching.salience_energy < 0.1
    assert matching.salience_t < 4
    assert matching.rank_heldout > 0


def test_feature__balanced_match_needs_centring():
    """A match contrast with a large mean query: uncentred, the first direction is the noise of the mean difference."""
    g = torch.Generator().manual_seed(1)
    n, d = 600, 32
    u = torch.linalg.qr(torch.randn(d, 2, generator=g))[0]
    z = torch.randn(n, 2, generator=g)
    query = z @ u.T + 40 * torch.nn.functional.normalize(torch.randn(d, generator=g), dim=0)
    keys = [x @ u.T + 0.5 * torch.randn(n, d, generator=g) for x in (z, torch.randn(n, 2, generator=g))]
    centred, plain = decompose_vectors(query, *keys), decompose_vectors(query, *keys, center="none")
    assert overlap(centred.key_basis[:, :2], u.double()) > 0.9
    assert overlap(plain.key_basis[:, :1], u.double()) < 0.4


def test_feature__variance_explained_rises_to_one_and_stays_below_the_ceiling(factors):
    for feature in factors.values():
        s = feature.spectrum
        assert torch.all(s.ceiling.diff() >= -1e-12)
        assert torch.all(s.explained <= s.ceiling + 1e-9)
        assert s.explained[-1] == pytest.approx(1)
        assert s.ceiling[-1] == pytest.approx(1)


def test_feature__variance_explained_is_that_of_independent_queries_and_keys():
    vectors, _, _ = planted(3000, d=8, rank=2, mean=0.0)
    feature = feature_of(vectors, rank=3)
    keys = torch.stack([vectors.positive, vectors.negative], 1)
    spread = (keys - keys.mean(1, keepdim=True)).flatten(0, 1)
    within, square = spread.mT @ spread, vectors.query.mT @ vectors.query
    rest = torch.eye(8).double() - projector(feature)
    expected = 1 - torch.trace(square @ rest @ within @ rest.mT) / torch.trace(square @ within)
    assert feature.spectrum.explained[2] == pytest.approx(float(expected), rel=1e-6)


def test_rank__can_be_changed_without_the_model(factors):
    assert factors.with_rank(2)["z1", "L0H0"].rank == 2
    cut = factors.with_rank({"z1": 1, "z2": "heldout"})
    assert [f.rank for f in cut.values()] == [1, cut["z2", "L0H0"].rank_heldout]
    assert factors.with_rank("energy")["z1", "L0H0"].rank == factors["z1", "L0H0"].rank_energy
    with pytest.raises(QKPrismError, match="rank of 17 is not possible"):
        factors.with_rank(17)
    with pytest.raises(QKPrismError, match="'best' is not a rule"):
        factors.with_rank("best")
    with pytest.raises(QKPrismError, match="no contrast 'z3'"):
        factors.with_rank({"z3": 1})


def test_metric__can_be_changed_without_the_model(factors):
    raw = factors.with_metric("raw")
    again = decompose_vector_sets(two_factors(1500)[0], metric="raw", rank="heldout")
    assert torch.equal(raw["z1", "L0H0"].key_basis, again["z1", "L0H0"].key_basis)
    with pytest.raises(QKPrismError, match="'balanced' is not a metric"):
        factors.with_metric("balanced")


def test_projectors__are_oblique_and_do_not_touch_each_other(factors):
    joint = factors.with_rank({"z1": 3, "z2": 5}).joint("L0H0")
    p1, p2 = joint["z1"], joint["z2"]
    assert torch.allclose(p1 @ p1, p1, atol=1e-8)
    assert torch.allclose(p1 @ p2, torch.zeros_like(p1), atol=1e-8)
    whole = span_projector([f.with_rank(r) for f, r in zip(factors.values(), (3, 5), strict=True)])
    assert torch.allclose(p1 + p2, whole, atol=1e-8)
    assert joint.condition >= 1


def test_stretch__is_that_of_the_angle_and_is_told_where_projectors_are_badly_conditioned(factors):
    found = factors.with_metric("raw").with_rank(2)
    frame = found.to_frame().set_index("feature")
    first, second = (found[name, "L0H0"].key_basis[:, :2] for name in ("z1", "z2"))
    cosine = torch.linalg.svdvals(torch.linalg.qr(first)[0].mT @ torch.linalg.qr(second)[0]).max()
    for name in ("z1", "z2"):
        assert frame["stretch"][name] == pytest.approx(float((1 - cosine.square()).rsqrt()), rel=1e-6)
    assert not any("badly conditioned" in note for note in found.notes)
    assert not stretch_notes(Head(0, 0), {"z1": torch.eye(4).double()})
    turned = torch.zeros(2, 2).double()
    turned[0] = torch.tensor([1.0, 20.0])
    (note,) = stretch_notes(Head(0, 0), {"z1": turned, "z2": torch.eye(2).double() - turned})
    assert note.startswith("L0H0: joint projectors can lengthen a key (z1 20 times and z2 20 times at most")


def test_projectors__find_the_true_oblique_parts(factors):
    """In the contrast metric the projector of one factor moves that factor and not the other."""
    _, _, of_key = two_factors(1500)
    joint = factors.with_rank({"z1": 3, "z2": 5}).joint("L0H0")
    for own, other, name in ((0, 1, "z1"), (1, 0, "z2")):
        assert (joint[name] @ of_key[own] - of_key[own]).norm() < 0.05 * of_key[own].norm()
        assert (joint[name] @ of_key[other]).norm() < 0.05 * of_key[other].norm()


def test_projectors__say_why_there_are_none(factors):
    joint = factors.with_rank(16).joint("L0H0")
    assert joint.subspaces is None
    with pytest.raises(QKPrismError, match=r"ranks 16 \+ 16 exceed d_head 16"):
        joint["z1"]
    same = factors["z1", "L0H0"].with_rank(2)
    assert "depend on each other" in joint_projectors([same, same]).reason


def test_projector__of_full_rank_is_the_identity(factors):
    for feature in factors.values():
        assert torch.allclose(projector(feature.with_rank(16)), torch.eye(16).double(), atol=1e-8)
        assert torch.equal(projector(feature.with_rank(0)), torch.zeros(16, 16).double())


def test_principal_angles__lie_between_0_and_90_degrees(factors):
    first, second = (f.with_rank(3) for f in factors.values())
    angles = principal_angles(first, second)
    assert len(angles) == 3
    assert torch.all((angles >= 0) & (angles <= 90))
    assert principal_angles(first, first).max() < 1e-3


def test_contrast_metric__is_refused_with_too_few_examples():
    vectors = two_factors(300)[0]
    few = {name: Vectors(v.query[:6], v.positive[:6], v.negative[:6]) for name, v in vectors.items()}
    with pytest.raises(QKPrismError, match="do not span the key space"):
        decompose_vector_sets(few)
    raw = decompose_vector_sets(few, metric="raw")
    assert raw["z1", "L0H0"].rank_balanced is None
    assert raw["z1", "L0H0"].rank == raw["z1", "L0H0"].rank_energy
    assert any("no balanced rank" in note for note in raw["z1", "L0H0"].notes)


def test_contrast_metric__warns_of_few_examples_and_of_missing_labels():
    vectors = two_factors(20)[0]
    with pytest.warns(UserWarning, match="noisy"):
        notes = decompose_vector_sets(vectors)["z1", "L0H0"].notes
    assert any("noisy" in note for note in notes)
    assert any("keys have no labels" in note for note in notes)


def test_features__is_a_mapping_with_clear_errors(factors):
    assert len(factors) == 2
    assert list(factors) == [("z1", factors.heads[0]), ("z2", factors.heads[0])]
    assert ("z1", "L0H0") in factors
    assert ("z1", "L3H0") not in factors
    with pytest.raises(QKPrismError, match=r"no feature for head L3H0\. There are: L0H0"):
        factors["z1", "L3H0"]
    with pytest.raises(QKPrismError, match=r"no feature for contrast z9\. There are: z1, z2"):
        factors["z9", "L0H0"]
    with pytest.raises(QKPrismError, match="Name the contrast and the head"):
        factors["L0H0"]
    assert list(factors.to_frame()["feature"]) == ["z1", "z2"]
    assert factors.get(("z9", "L0H0"), "none") == "none"


def test_features__escape_html():
    vectors, _, _ = planted(50, d=4, rank=1)
    feature = feature_of(vectors, name="<script>alert(1)</script>")
    assert "<script>" not in feature._repr_html_()


def test_save__gives_back_the_same_features(factors, tmp_path):
    loaded = Features.load(factors.save(tmp_path / "run"))
    assert list(loaded) == list(factors)
    assert loaded.choices == factors.choices
    for key, feature in factors.items():
        other = loaded[key]
        for name in ("query_basis", "strengths", "key_basis", "metric"):
            assert torch.equal(getattr(feature, name), getattr(other, name))
        assert feature.spectrum.to_frame().equals(other.spectrum.to_frame())
        assert str(feature.summary()) == str(other.summary())
        assert (feature.notes, feature.choices, feature.provenance) == (other.notes, other.choices, other.provenance)
    assert torch.equal(
        loaded.with_metric("raw")["z1", "L0H0"].key_basis, factors.with_metric("raw")["z1", "L0H0"].key_basis
    )


def test_save__replaces_an_older_run_and_nothing_else(factors, tmp_path):
    factors.save(tmp_path / "run")
    factors.with_rank(1).save(tmp_path / "run")
    assert Features.load(tmp_path / "run")["z1", "L0H0"].rank == 1
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    (tmp_path / "run" / "notes.txt").write_text("mine")
    factors.save(tmp_path / "run")
    assert sorted(p.name.split("-")[0] for p in (tmp_path / "run").iterdir()) == [
        "features",
        "manifest.json",
        "moments",
        "notes.txt",
    ]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not lose me")
    for manifest in (None, '{"name": "chrome extension"}'):
        if manifest:
            (tmp_path / "mine" / "manifest.json").write_text(manifest)
        with pytest.raises(QKPrismError, match="qkprism run"):
            factors.save(tmp_path / "mine")
        assert (tmp_path / "mine" / "thesis.txt").exists()
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "run", "/proc/run"):
        with pytest.raises(QKPrismError):
            factors.save(place)


@pytest.mark.parametrize("damage", ["truncate", "flip", "missing", "manifest", "foreign", "version", "kind", "rank"])
def test_load__refuses_damaged_and_foreign_folders(factors, tmp_path, damage):
    run = factors.save(tmp_path / "run")
    weights, manifest = next(run.glob("features-*.safetensors")), run / "manifest.json"
    if damage == "truncate":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "flip":
        body = bytearray(weights.read_bytes())
        body[-1] ^= 1
        weights.write_bytes(body)
    elif damage == "missing":
        weights.unlink()
    elif damage == "manifest":
        manifest.write_text(manifest.read_text()[:-20])
    elif damage == "foreign":
        manifest.unlink()
    elif damage == "rank":
        manifest.write_text(manifest.read_text().replace('"rank_heldout": 3', '"rank_heldout": 4'))
    else:
        body = json.loads(manifest.read_text())
        body["qkprism" if damage == "version" else "kind"] = "other"
        manifest.write_text(json.dumps(body))
    with pytest.raises(QKPrismError) as caught:
        Features.load(run)
    assert "\n" not in str(caught.value)
    assert ("Make it again with this one." in str(caught.value)) == (damage == "version")


def test_feature__a_constant_query_has_nothing_to_match():
    g = torch.Generator().manual_seed(0)
    query = torch.randn(1, 8, generator=g).expand(200, -1)
    feature = decompose_vectors(query, torch.randn(200, 8, generator=g) + 1, torch.randn(200, 8, generator=g))
    assert (feature.rank, feature.rank_energy, feature.rank_heldout) == (0, 0, 0)
    assert any("nothing to match" in note for note in feature.notes)
    assert feature.salience_t > 4


def test_vectors__bad_shapes_and_nan_are_refused():
    q, k = torch.randn(20, 4), torch.randn(20, 4)
    with pytest.raises(QKPrismError, match="positive keys have shape"):
        decompose_vectors(q, torch.randn(20, 0, 4), k)
    with pytest.raises(QKPrismError, match="is of twins"):
        decompose_vectors(q, k, k + 1, reading="paired")
    with pytest.raises(QKPrismError, match="not finite"):
        decompose_vectors(q * math.nan, k, k + 1)


def test_features__tensors_cannot_be_written_in_place_and_a_clone_can(factors, tmp_path):
    factors.save(tmp_path / "run")
    for features in (factors, Features.load(tmp_path / "run"), factors.with_rank(2), factors.with_metric("raw")):
        feature = features["z1", "L0H0"]
        for tensor in (feature.strengths, feature.key_basis, feature.query_basis, feature.metric, feature.spectrum.t):
            with pytest.raises(RuntimeError, match="clone"):
                tensor[0] = 1.0
        feature.strengths.clone()[0] = 1.0
