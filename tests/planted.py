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


class Lock:
    """A head that matches every factor: keys K z + noise, queries Q z + noise with Q^T K = 1, so a logit is z.z'.

    The factors' key directions are not orthogonal. `nuisance` adds a factor that no contrast names.
    """

    def __init__(self, d=16, ranks=(3, 5), noise=1e-2, nuisance=0, change=None, seed=0):
        self.g, self.d, self.noise = torch.Generator().manual_seed(seed), d, noise
        self.sizes = (*ranks, nuisance) if nuisance else ranks
        self.names = tuple(f"z{i + 1}" for i in range(len(ranks)))
        self.of_key = self.normal(d, sum(self.sizes)) / d**0.5
        self.of_query = self.of_key @ torch.linalg.inv(self.of_key.T @ self.of_key)
        self.change = torch.eye(d, dtype=torch.float64) if change is None else change

    def normal(self, *shape):
        return torch.randn(shape, generator=self.g, dtype=torch.float64)

    def draw(self, *shape):
        return [self.normal(*shape, r) for r in self.sizes]

    def keys(self, latents):
        noise = self.noise * self.normal(*latents[0].shape[:-1], self.d)
        return (torch.cat(latents, -1) @ self.of_key.T + noise) @ torch.linalg.inv(self.change).T

    def queries(self, latents):
        noise = self.noise * self.normal(*latents[0].shape[:-1], self.d)
        return (torch.cat(latents, -1) @ self.of_query.T + noise) @ self.change

    def contrasts(self, n):
        """For each named factor: keys that differ in it and share the others; a nuisance is never shared."""
        found = {}
        for which, name in enumerate(self.names):
            z, shared = self.draw(n), self.draw(n)
            keys = []
            for own in (z[which], self.normal(n, self.sizes[which])):
                latents = [own if i == which else x for i, x in enumerate(shared)]
                latents[len(self.names) :] = [self.normal(n, r) for r in self.sizes[len(self.names) :]]
                keys.append(self.keys(latents))
            found[name] = Vectors(self.queries(z), *keys)
        return found

    def scenes(self, n, tokens=8):
        """Queries that match token 0, all keys, for each factor the keys with it exchanged with token 1, latents."""
        z = self.draw(n, tokens)
        query, noise = self.queries([x[:, 0] for x in z]), self.g.get_state()
        key, exchanged = self.keys(z), {}
        for which, name in enumerate(self.names):
            other = [x.clone() for x in z]
            other[which][:, [0, 1]] = z[which][:, [1, 0]]
            self.g.set_state(noise)  # the same noise: nothing else is exchanged
            exchanged[name] = self.keys(other)
        return query, key, exchanged, z


def swap(original, target, projector):
    """The paper's swap by hand, to compare with."""
    change = (target - original) @ projector.mT
    return original + change, target - change
