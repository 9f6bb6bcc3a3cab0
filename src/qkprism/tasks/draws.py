"""Which scenes make up each contrast of the binding task: only one factor differs between a scene and its twin.

Every factor of the positive key is balanced: each place, each entity and each label comes equally often, and in twins
equally often on either side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from qkprism.tasks.balance import balanced, balanced_pairs
from qkprism.tasks.scenes import Scene, exchange


@dataclass(frozen=True, slots=True)
class World:
    """The entities and labels that scenes are drawn from."""

    n_pairs: int
    entities: tuple[str, ...]
    labels: tuple[str, ...]

    def scene(self, place: int, entity: str, label: str, rng: Random, *, without: str = "") -> Scene:
        """A scene with the asked entity and its label in a place, and random others around; `without` is not there."""
        entities = self._around(place, entity, self.entities, rng, without)
        return Scene(entities, self._around(place, label, self.labels, rng, without), entity, place)

    def _around(self, place: int, value: str, values: Sequence[str], rng: Random, without: str) -> tuple[str, ...]:
        others = rng.sample([other for other in values if other not in (value, without)], self.n_pairs - 1)
        return (*others[:place], value, *others[place:])

    def places(self, count: int, rng: Random) -> list[int]:
        """Places of the clause asked for."""
        return balanced(range(self.n_pairs), count, rng)


Twins = tuple[Scene, Scene | None]
Draw = Callable[[World, int, Random], Iterator[Twins]]


def any_entity(world: World, count: int, rng: Random) -> Iterator[Twins]:
    """Scenes in which everything varies."""
    for place, entity, label in zip(
        world.places(count, rng),
        balanced(world.entities, count, rng),
        balanced(world.labels, count, rng),
        strict=True,
    ):
        yield world.scene(place, entity, label, rng), None


def with_target(world: World, count: int, rng: Random) -> Iterator[Twins]:
    """Scenes in which everything varies, with a target: the key that an intervention exchanges with the positive."""
    targets = balanced_pairs(range(world.n_pairs), count, rng)
    entities, labels = balanced(world.entities, count, rng), balanced(world.labels, count, rng)
    for (place, target), entity, label in zip(targets, entities, labels, strict=True):
        yield replace(world.scene(place, entity, label, rng), target=target), None


def order(world: World, count: int, rng: Random) -> Iterator[Twins]:
    """The same entities and the same question in every scene; the order and the labels are random."""
    asked, *_ = entities = rng.sample(world.entities, world.n_pairs)
    fixed = replace(world, entities=tuple(entities))
    for place, label in zip(fixed.places(count, rng), balanced(fixed.labels, count, rng), strict=True):
        yield fixed.scene(place, asked, label, rng), None


def order_free(world: World, count: int, rng: Random) -> Iterator[Twins]:
    """The clause asked for and another one, exchanged in the twin."""
    for scene, _ in with_target(world, count, rng):
        twin = exchange(scene, "order")
        yield replace(scene, target=None), replace(twin, target=None)


def lexical(world: World, count: int, rng: Random) -> Iterator[Twins]:
    """Another entity in the twin, in the clause and in the question."""
    entities = balanced_pairs(world.entities, count, rng)
    places, labels = world.places(count, rng), balanced(world.labels, count, rng)
    for place, (entity, other), label in zip(places, entities, labels, strict=True):
        scene = world.scene(place, entity, label, rng, without=other)
        changed = (*scene.entities[:place], other, *scene.entities[place + 1 :])
        yield scene, replace(scene, entities=changed, asked=other)


def reflexive(world: World, count: int, rng: Random) -> Iterator[Twins]:
    """Another label in the twin, in the clause asked for."""
    labels = balanced_pairs(world.labels, count, rng)
    places, entities = world.places(count, rng), balanced(world.entities, count, rng)
    for place, entity, (label, other) in zip(places, entities, labels, strict=True):
        scene = world.scene(place, entity, label, rng, without=other)
        changed = (*scene.labels[:place], other, *scene.labels[place + 1 :])
        yield scene, replace(scene, labels=changed)


CONTRASTS: dict[str, Draw] = {"order": order, "order_free": order_free, "lexical": lexical, "reflexive": reflexive}
