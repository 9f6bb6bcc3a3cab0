"""A factor that no contrast names must not break the contrast metric, with labels or without (GAUGE.md)."""

import pytest
import torch

from one_head import decompose_vector_sets
from planted import UNLISTED, Unlisted, basis_change, changed
from qkprism import Vectors


def projector_of(sets, metric="contrast"):
    return decompose_vector_sets(sets, metric=metric, rank="energy").with_rank({"z1": 3, "z2": 5}).joint("L0H0")["z1"]


@pytest.mark.parametrize(("n", "most"), [(300, 0.2), (3000, 0.05)])
@pytest.mark.parametrize("seed", [0, 1])
def test_contrast_metric__withstands_an_unlisted_factor_that_pairs_share(n, most, seed):
    planted = Unlisted(n, seed=seed)
    assert planted.error(projector_of(planted.sets)) < most
    assert planted.error(projector_of(planted.sets, "raw")) > 0.3
    a = basis_change(32, seed=seed)
    other = projector_of({name: changed(v, a) for name, v in planted.sets.items()})
    assert planted.error(a @ other @ torch.linalg.inv(a)) < most


@pytest.mark.parametrize("noise", [1e-2, 0.1])
def test_contrast_metric__is_not_hurt_where_the_unlisted_factor_varies(noise):
    planted = Unlisted(3000, fixed=False, noise=noise)
    assert planted.error(projector_of(planted.sets)) < 0.1


@pytest.mark.parametrize("fixed", [True, False])
def test_contrast_metric__with_labels_is_as_good(fixed):
    planted = Unlisted(3000, fixed=fixed, labels=True)
    assert planted.error(projector_of(planted.sets)) < 0.1


def test_uncovered__is_the_unlisted_share_and_does_not_depend_on_the_basis():
    planted = Unlisted(3000)
    found = [f.uncovered for f in decompose_vector_sets(planted.sets).values()]
    assert found[0] == found[1]
    assert found[0] == pytest.approx(UNLISTED[2] / sum(UNLISTED), abs=0.03)  # every factor counts alike in the logits
    a = basis_change(32)
    other = decompose_vector_sets({name: changed(v, a) for name, v in planted.sets.items()})
    assert other["z1", "L0H0"].uncovered == pytest.approx(found[0], rel=1e-6)
    assert f"{found[0]:.0%} of the variance" in "".join(other["z1", "L0H0"].notes)
    varies = decompose_vector_sets(Unlisted(3000, fixed=False).sets)["z1", "L0H0"]
    assert varies.uncovered < 0.05
    assert not [note for note in varies.notes if "of the variance" in note]


def test_noise_within_cells__of_rounding_only_is_not_scaled_up():
    """Early layers: keys of one cell are identical but for rounding, in one of two key heads."""
    planted = Unlisted(600, labels=True)

    def twice(keys):
        return (keys.double() * (1 + 1e-12 * planted.normal(*keys.shape))).to(keys)

    clean = {}
    for name, v in planted.sets.items():
        of_cell = {}
        for label, key in zip(
            torch.cat([v.positive_label, v.negative_label]).tolist(), torch.cat([v.positive, v.negative]), strict=True
        ):
            of_cell.setdefault(label, key)
        keys = [
            twice(torch.stack([of_cell[label] for label in labels.tolist()]))
            for labels in (v.positive_label, v.negative_label)
        ]
        clean[name] = Vectors(v.query, *keys, positive_label=v.positive_label, negative_label=v.negative_label)
    with_labels = decompose_vector_sets(clean)["z1", "L0H0"]
    without = decompose_vector_sets({n: Vectors(v.query, v.positive, v.negative) for n, v in clean.items()})
    assert torch.allclose(with_labels.metric, without["z1", "L0H0"].metric, rtol=1e-9)
    assert "Labels on the keys" in "".join(with_labels.notes)
