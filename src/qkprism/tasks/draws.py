"""Which scenes make up each contrast of the binding task: only one factor differs between a scene and its twin.

Every factor of the positive key is balanced: each place, each entity and each label comes equally often, and in twins
equally often on either side. The three contrasts with twins change the same scenes, each its own factor: a scene is
kept and run once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from qkprism.contrasts.rounds import balanced, balanced_pairs
from qkprism.tasks.scenes import Scene, exchange


@dataclass(frozen=True, slots=True)
class World:
    """The entities and labels that scenes are drawn from."""

    n_pairs: int
    entities: tuple[str, ...]
    labels: tuple[str, ...]

    def scene(self, place: int, entity: str, label: str, rng: Random, *, without: tuple[str, str] = ("", "")) -> Scene:
        """The asked entity and its label in a place, and random others around: not the entity and label `without`."""
        entities = self._around(place, entity, self.entities, rng, without[0])
        return Scene(entities, self._around(place, label, self.labels, rng, without[1]), entity, place)

    def _around(self, place: int, value: str, values: Sequence[str], rng: Random, without: str) -> tuple[str, ...]:
        others = rng.sample([other for other in values if other not in (value, without)], self.n_pairs - 1)
        return (*others[:place], value, *others[place:])

    def places(self, count: int, rng: Random) -> list[int]:
        """Places of the clause asked for."""
        return balanced(range(self.n_pairs), count, rng)


Twins = tuple[Scene, Scene | None]


@dataclass(frozen=True, slots=True)
class Changeable:
    """A scene with a target, and an entity and a label that are not in it: what its twins are made of."""

    scene: Scene
    entity: str
    label: str


def any_entity(world: World, count: int, rng: Random) -> Iterator[Scene]:
    """Scenes in which everything varies."""
    for place, entity, label in zip(
        world.places(count, rng),
        balanced(world.entities, count, rng),
        balanced(world.labels, count, rng),
        strict=True,
    ):
        yield world.scene(place, entity, label, rng)


def with_target(world: World, count: int, rng: Random) -> Iterator[Scene]:
    """Scenes in which everything varies, with a target: the key that an intervention exchanges with the positive."""
    targets = balanced_pairs(range(world.n_pairs), count, rng)
    entities, labels = balanced(world.entities, count, rng), balanced(world.labels, count, rng)
    for (place, target), entity, label in zip(targets, entities, labels, strict=True):
        yield replace(world.scene(place, entity, label, rng), target=target)


def same_question(world: World, count: int, rng: Random) -> Iterator[Scene]:
    """The same entities and the same question in every scene; the order and the labels are random."""
    asked, *_ = entities = rng.sample(world.entities, world.n_pairs)
    fixed = replace(world, entities=tuple(entities))
    for place, label in zip(fixed.places(count, rng), balanced(fixed.labels, count, rng), strict=True):
        yield fixed.scene(place, asked, label, rng)


def changeable(world: World, count: int, rng: Random) -> Iterator[Changeable]:
    """Scenes in which everything varies, each with what its twins need."""
    places = balanced_pairs(range(world.n_pairs), count, rng)
    entities, labels = (balanced_pairs(values, count, rng) for values in (world.entities, world.labels))
    for (place, target), (entity, other), (label, spare) in zip(places, entities, labels, strict=True):
        scene = world.scene(place, entity, label, rng, without=(other, spare))
        yield Changeable(replace(scene, target=target), other, spare)


def alone(scene: Scene) -> Twins:
    """A scene without a twin."""
    return scene, None


def order(drawn: Changeable) -> Twins:
    """The clause asked for and another one, exchanged in the twin."""
    twin = exchange(drawn.scene, "order")
    return replace(drawn.scene, target=None), replace(twin, target=None)


def lexical(drawn: Changeable) -> Twins:
    """Another entity in the twin, in the clause and in the question."""
    scene = replace(drawn.scene, target=None)
    return scene, replace(scene, entities=_with(scene.entities, scene.positive, drawn.entity), asked=drawn.entity)


def reflexive(drawn: Changeable) -> Twins:
    """Another label in the twin, in the clause asked for."""
    scene = replace(drawn.scene, target=None)
    return scene, replace(scene, labels=_with(scene.labels, scene.positive, drawn.label))


def _with(values: tuple[str, ...], place: int, value: str) -> tuple[str, ...]:
    return (*values[:place], value, *values[place + 1 :])


TWINS: dict[str, Callable[[Changeable], Twins]] = {"order": order, "lexical": lexical, "reflexive": reflexive}
