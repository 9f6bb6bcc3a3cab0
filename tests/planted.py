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


UNLISTED = (3, 5, 4)  # ranks of z1, z2 and a factor that no contrast names


class Unlisted:
    """Keys K z + noise; queries hold all factors. Pairs of z1 and z2; the third is held fixed in a pair, or varies."""

    def __init__(self, n, *, fixed=True, noise=1e-2, d=32, seed=0, labels=False):
        self.g = torch.Generator().manual_seed(seed)
        of_key = self.normal(d, sum(UNLISTED)) / d**0.5
        of_query = of_key @ torch.linalg.inv(of_key.T @ of_key)
        self.factors = of_key.split(UNLISTED, 1)
        self.sets = {}
        for which, name in enumerate(("z1", "z2")):
            z = [self.signs(n, r) if labels else self.normal(n, r) for r in UNLISTED]
            shared = [self.signs(n, r) if labels else self.normal(n, r) for r in UNLISTED]
            keys, cells = [], []
            for side in range(2):
                latents = list(shared)
                latents[2] = z[2] if fixed else self.normal(n, UNLISTED[2])
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
        return self.signs(n, UNLISTED[which]) if labels else self.normal(n, UNLISTED[which])

    def error(self, projector):
        """Of z1's projector on what keys are made of: z1 whole, nothing of the others."""
        wanted = torch.cat([self.factors[0], *(torch.zeros_like(f) for f in self.factors[1:])], 1)
        return float((projector @ torch.cat(self.factors, 1) - wanted).norm() / wanted.norm())
