"""A factor that no contrast names must not break the contrast metric, with labels or without (GAUGE.md)."""

import pytest
import torch

from planted import basis_change, changed
from qkprism import Vectors, decompose_vector_sets

SIZES = (3, 5, 4)  # z1, z2, and a factor that no contrast names


class Planted:
    """Keys K z + noise; queries hold all factors. Pairs of z1 and z2; the third is held fixed in a pair, or varies."""

    def __init__(self, n, *, fixed=True, noise=1e-2, d=32, seed=0, labels=False):
        self.g = torch.Generator().manual_seed(seed)
        of_key = self.normal(d, sum(SIZES)) / d**0.5
        of_query = of_key @ torch.linalg.inv(of_key.T @ of_key)
        self.factors = of_key.split(SIZES, 1)
        self.sets = {}
        for which, name in enumerate(("z1", "z2")):
            z = [self.signs(n, r) if labels else self.normal(n, r) for r in SIZES]
            shared = [self.signs(n, r) if labels else self.normal(n, r) for r in SIZES]
            keys, cells = [], []
            for side in range(2):
                latents = list(shared)
                latents[2] = z[2] if fixed else self.normal(n, SIZES[2])
                latents[which] = z[which] if side == 0 else self.signs_or_normal(n, which, labels)
                keys.append(torch.cat(latents, 1) @ of_key.T + noise * self.normal(n, d))
                bits = (torch.cat(latents[:2], 1) > 0).long()
                cells.append((bits * 2 ** torch.arange(bits.shape[1])).sum(1) if labels else None)
            query = torch.cat(z, 1) @ of_query.T + noise * self.normal(n, d)
            self.sets[name] = Vectors(query, *keys, positive_label=cells[0], negative_label=cells[1])

    def normal(self, *shape):
        return torch.randn(shape, generator=self.g, dtype=torch.float64)

    def signs(self, *shape):
        return self.normal(*shape).sign()

    def signs_or_normal(self, n, which, labels):
        return self.signs(n, SIZES[which]) if labels else self.normal(n, SIZES[which])

    def error(self, projector):
        """Of z1's projector on what keys are made of: z1 whole, nothing of the others."""
        wanted = torch.cat([self.factors[0], *(torch.zeros_like(f) for f in self.factors[1:])], 1)
        return float((projector @ torch.cat(self.factors, 1) - wanted).norm() / wanted.norm())


def projector_of(sets, metric="contrast"):
    return decompose_vector_sets(sets, metric=metric, rank="energy").with_rank({"z1": 3, "z2": 5}).joint("L0H0")["z1"]


@pytest.mark.parametrize(("n", "most"), [(300, 0.2), (3000, 0.05)])
@pytest.mark.parametrize("seed", [0, 1])
def test_contrast_metric__withstands_an_unlisted_factor_that_pairs_share(n, most, seed):
    planted = Planted(n, seed=seed)
    assert planted.error(projector_of(planted.sets)) < most
    assert planted.error(projector_of(planted.sets, "raw")) > 0.3
    a = basis_change(32, seed=seed)
    other = projector_of({name: changed(v, a) for name, v in planted.sets.items()})
    assert planted.error(a @ other @ torch.linalg.inv(a)) < most


@pytest.mark.parametrize("noise", [1e-2, 0.1])
def test_contrast_metric__is_not_hurt_where_the_unlisted_factor_varies(noise):
    planted = Planted(3000, fixed=False, noise=noise)
    assert planted.error(projector_of(planted.sets)) < 0.1


@pytest.mark.parametrize("fixed", [True, False])
def test_contrast_metric__with_labels_is_as_good(fixed):
    planted = Planted(3000, fixed=fixed, labels=True)
    assert planted.error(projector_of(planted.sets)) < 0.1


def test_uncovered__is_the_unlisted_share_and_does_not_depend_on_the_basis():
    planted = Planted(3000)
    found = [f.uncovered for f in decompose_vector_sets(planted.sets).values()]
    assert found[0] == found[1]
    assert found[0] == pytest.approx(SIZES[2] / sum(SIZES), abs=0.03)  # every factor counts alike in the logits
    a = basis_change(32)
    other = decompose_vector_sets({name: changed(v, a) for name, v in planted.sets.items()})
    assert other["z1", "L0H0"].uncovered == pytest.approx(found[0], rel=1e-6)
    assert f"{found[0]:.0%} of the variance" in "".join(other["z1", "L0H0"].notes)
    varies = decompose_vector_sets(Planted(3000, fixed=False).sets)["z1", "L0H0"]
    assert varies.uncovered < 0.05
    assert not [note for note in varies.notes if "of the variance" in note]


def test_noise_within_cells__of_rounding_only_is_not_scaled_up():
    """Early layers: keys of one cell are identical but for rounding, in one of two key heads."""
    planted = Planted(600, labels=True)

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
