"""A toy in which factors multiply: a latent whose amplitude in the keys depends on the value of another.

    key    m_v + a_v B z + noise          v: a place, one of a few; z: the latent
    query  n_v + B+^T z + noise           which asks for both

Vectors are drawn, no head is trained, so the truth of an exchange is known: the same noise with the other place, or
with the other latent. A projector moves as much of z whatever the place, so its swap is wrong by a_v; the conditional
exchange is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from qkprism.capture.vector_source import VALUE, VectorSource
from qkprism.capture.vectors import Vectors
from qkprism.subspaces.intervention import Attending

PLACE, LATENT = "place", "latent"
FRESH = 0.3  # of the noise, by which twins differ


@dataclass(frozen=True)
class InteractingToy:
    """The world that vectors are drawn from; equal amplitudes are factors that add up."""

    amplitudes: tuple[float, ...] = (0.5, 0.8, 1.2, 1.6)
    d_head: int = 16
    rank: int = 3
    noise: float = 0.3
    seed: int = 0

    @cached_property
    def _random(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def _normal(self, *shape: int) -> Float64[Tensor, "*shape"]:
        return torch.randn(*shape, generator=self._random, dtype=torch.float64)

    @cached_property
    def _world(self) -> tuple[Tensor, Tensor, Tensor]:
        """Directions of the latent, and the means of keys and of queries at every place."""
        n = len(self.amplitudes)
        return self._normal(self.d_head, self.rank), 1.5 * self._normal(n, self.d_head), self._normal(n, self.d_head)

    def key(
        self, place: Int[Tensor, " example"], latent: Float64[Tensor, "example rank"], noise: Tensor | None = None
    ) -> Float64[Tensor, "example d_head"]:
        """Keys, with noise of their own unless it is given."""
        directions, means, _ = self._world
        amplitude = torch.tensor(self.amplitudes).double()[place][:, None]
        noise = self.noise * self._normal(len(place), self.d_head) if noise is None else noise
        return means[place] + amplitude * (latent @ directions.mT) + noise

    def query(
        self, place: Int[Tensor, " example"], latent: Float64[Tensor, "example rank"]
    ) -> Float64[Tensor, "example d_head"]:
        """Queries that ask for a place and a latent."""
        directions, _, means = self._world
        noise = self.noise / 3 * self._normal(len(place), self.d_head)
        return means[place] + latent @ torch.linalg.pinv(directions) + noise

    def _draw(self, n: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Two different places and two latents for each of n examples."""
        size = len(self.amplitudes)
        place = torch.randint(size, (n,), generator=self._random)
        other = (place + 1 + torch.randint(size - 1, (n,), generator=self._random)) % size
        return (place, other), (self._normal(n, self.rank), self._normal(n, self.rank))

    def source(self, n: int = 600) -> VectorSource:
        """Twins that differ in their place, and twins that differ in their latent."""
        found = {}
        for name in (PLACE, LATENT):
            places, latents = self._draw(n)
            twin = places[name == PLACE], latents[name == LATENT]
            noise = self.noise * self._normal(n, self.d_head)  # twins are one text but for what differs
            found[name] = Vectors(
                self.query(places[0], latents[0]),
                self.key(places[0], latents[0], noise),
                self.key(*twin, noise + self.noise * FRESH * self._normal(n, self.d_head)),
                twin_query=self.query(*twin),
                positive_value=places[0],
                negative_value=twin[0],
            )
        return VectorSource(found)

    def test(self, n: int = 400) -> tuple[Attending, dict[str, tuple[Tensor, Tensor]]]:
        """Queries with two keys each, and by factor the two keys after it was really exchanged."""
        (place, other), (latent, second) = self._draw(n)
        noise = [self.noise * self._normal(n, self.d_head) for _ in range(2)]
        original, target = self.key(place, latent, noise[0]), self.key(other, second, noise[1])
        truth = {
            PLACE: (self.key(other, latent, noise[0]), self.key(place, second, noise[1])),
            LATENT: (self.key(place, second, noise[0]), self.key(other, latent, noise[1])),
        }
        labels = [({VALUE: a}, {VALUE: b}) for a, b in zip(place.tolist(), other.tolist(), strict=True)]
        keys = torch.stack([original, target], 1)
        at = torch.zeros(n).long(), torch.ones(n).long()
        return Attending(self.query(place, latent), keys, *at, labels=labels), truth
