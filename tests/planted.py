"""Vectors with known truth: planted rank, null data, several factors, changes of basis."""

import torch

from qkprism import Vectors


def orthonormal(d, rank, g):
    return torch.linalg.qr(torch.randn(d, rank, generator=g, dtype=torch.float64))[0]


def planted(n, d=64, rank=5, noise=0.3, mean=1.0, seed=0, null=False, aligned=False):
    """q = U z + mean + noise; k+ = V z + mean + noise, k- with another z; `null`: the key's z is not the query's."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=g, dtype=torch.float64)

    def offset():
        direction = normal(d)
        return mean * direction / direction.norm()

    u, v = orthonormal(d, rank, g), orthonormal(d, rank, g)
    v = u if aligned else v
    z, other = normal(n, rank), normal(n, rank)
    matching = normal(n, rank) if null else z
    shared = offset()
    query = z @ u.T + offset() + noise * normal(n, d)
    positive = matching @ v.T + shared + offset() + noise * normal(n, d)
    negative = other @ v.T + shared + noise * normal(n, d)
    return Vectors(query, positive, negative), u, v


def two_factors(n, d=16, ranks=(3, 5), noise=1e-2, seed=0, nuisance=0):
    """Two factors that are not orthogonal, one contrast each: keys differ in one factor and share the other."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=g, dtype=torch.float64)

    sizes = (*ranks, nuisance)
    of_key = [normal(d, r) / d**0.5 for r in sizes]
    of_query = [normal(d, r) / d**0.5 for r in sizes]
    found = {}
    for which, name in enumerate(("z1", "z2")):
        z = [normal(n, r) for r in sizes]
        shared = [normal(n, r) for r in sizes]
        query = sum(x @ f.T for x, f in zip(z, of_query, strict=True)) + noise * normal(n, d)
        keys = []
        for own in (z[which], normal(n, sizes[which])):
            latent = [own if i == which else x for i, x in enumerate(shared)]
            latent[-1] = normal(n, nuisance)
            keys.append(sum(x @ f.T for x, f in zip(latent, of_key, strict=True)) + noise * normal(n, d))
        found[name] = Vectors(query, *keys)
    return found, of_query, of_key


def basis_change(d, condition=30.0, seed=0):
    """A random invertible A with this condition number."""
    g = torch.Generator().manual_seed(seed)
    left, right = orthonormal(d, d, g), orthonormal(d, d, g)
    return (
        left
        @ torch.diag(torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), d, dtype=torch.float64))
        @ right
    )


def changed(v, a):
    """q -> A^T q, k -> A^-1 k: every logit stays as it was."""
    inverse = torch.linalg.inv(a)
    return Vectors(
        v.query @ a,
        v.positive @ inverse.T,
        v.negative @ inverse.T,
        positive_label=v.positive_label,
        negative_label=v.negative_label,
    )
