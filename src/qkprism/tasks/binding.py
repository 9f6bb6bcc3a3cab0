"""Binding: several entities, each with its label, and a question for the label of one (paper, section 5.2).

    The hat is in box O, the jam is in box Z. The jam is in box

The query is the last token and the keys are the tokens of the labels. What may lead from one to the other: the order
of the clause, the entity in it (lexical), the label itself (reflexive). The contrasts, each about one of them:

    order        twins: the clause asked for exchanges places with another; entity and label are the same in both
    lexical      twins: another entity in the clause asked for and in the question; place and label are the same
    reflexive    twins: another label in the clause asked for; place and entity are the same
    order_fixed  one set of entities, one of them always asked for, in random order (the paper's `order`). The entity is
                 the same throughout, so it is salience and falls out when q is centred; the label is not, and what q
                 knows of it stays in

The texts whose twins these are, are the same in all three contrasts, and run once. The first two are what a task hands
out to be decomposed together; `order_fixed` asks what `order` asks and takes its place, not a place beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Generic, TypeVar

from qkprism.contrasts import Contrast, Example, Text, Written
from qkprism.contrasts.fitting import Tokenizer, check_sizes, fitting, require
from qkprism.encoding import Encoding
from qkprism.errors import QKPrismError
from qkprism.options import checked_seed
from qkprism.tasks.draws import TWINS, Twins, World, alone, any_entity, changeable, same_question, with_target
from qkprism.tasks.naming import named
from qkprism.tasks.scenes import FACTORS, Factor, Scene, exchange, text_of
from qkprism.tasks.schemas import PHRASINGS, SCHEMAS, Phrasing, Schema

if TYPE_CHECKING:
    from qkprism.encoding import Chat

Drawn = TypeVar("Drawn")


@dataclass(frozen=True)
class BindingTask:
    """Prompts of one schema and phrasing: contrasts to find features with, and held-out entities to test them on.

    contrasts   order and lexical, of the entities in `entities`: decompose them as they are
    extra       reflexive, to be added to them; order_fixed, the paper's, to be used in the place of order
    search      examples to find heads with, of the same entities
    test        examples of the entities in `held_out`, each with a target
    chat        what the verbs take as `chat`: None for plain text
    """

    schema: Schema
    phrasing: Phrasing
    entities: tuple[str, ...]
    held_out: tuple[str, ...]
    labels: tuple[str, ...]
    contrasts: Mapping[str, Contrast]
    extra: Mapping[str, Contrast]
    search: Contrast
    test: Contrast
    scenes: tuple[Scene, ...] = field(repr=False)

    @property
    def chat(self) -> Chat | None:
        """The options of the chat template, if the phrasing wants one."""
        return {"answer_prefix": self.schema.answer} if self.phrasing.chat else None

    @property
    def encoding(self) -> Encoding:
        """How these prompts become tokens: what the verbs take as `encoding`."""
        return Encoding(chat=self.chat)

    def counterfactuals(self, factor: Factor) -> list[tuple[Example, Example]]:
        """Each test example, and the same in which its positive key and its target really exchanged one factor.

        The second example's positive key and target are the keys that correspond to the first's, also where they no
        longer answer the question. The question stays as it is, but not its query vector, which finds its entity in
        another place: what an edit of keys should do is shown by the first's query with the second's keys.
        """
        if factor not in FACTORS:
            raise QKPrismError(f"unknown factor {factor!r}; use {', '.join(FACTORS)}.")
        texts = [text_of(exchange(scene, factor), self.schema, self.phrasing) for scene in self.scenes]
        changed = [Example(text, source=f"test:{n} with exchanged {factor}") for n, text in enumerate(texts, start=1)]
        return list(zip(self.test, changed, strict=True))


def binding(
    n_pairs: int = 9,
    seed: int = 0,
    schema: str | Schema = "boxes",
    phrasing: str = "cloze",
    tokenizer: Tokenizer | None = None,
    *,
    n_train: int = 300,
    n_search: int = 256,
    n_test: int = 128,
    n_entities: int | None = None,
) -> BindingTask:
    """Prompts of `n_pairs` entities with their labels; the seed draws the prompts and splits the words.

    >>> task = binding(n_pairs=2, n_train=10, n_test=10)
    >>> [*task.contrasts.values(), task.test]
    [Contrast('order', 10 examples), Contrast('lexical', 10 examples), Contrast('test', 10 examples)]

    `n_train` is the size of each contrast. With a tokenizer, words that are not one token are left out. `n_entities`
    says how many entities the contrasts draw from; with `n_pairs + 1`, the fewest, prompts differ in one at most.
    """
    check_sizes(n_pairs=n_pairs, n_train=n_train, n_search=n_search, n_test=n_test)
    check_sizes(n_entities=1 if n_entities is None else n_entities)
    seed = checked_seed(seed)
    world = named(schema, SCHEMAS, "schema", own="a Schema of your own")
    phrases = named(phrasing, PHRASINGS, "phrasing")
    labels = _labels(world, phrases, n_pairs, tokenizer)
    entities, held_out = _entities(world, n_pairs, n_entities, tokenizer, seed)
    train, held = World(n_pairs, entities, labels), World(n_pairs, held_out, labels)
    scenes = tuple(with_target(held, n_test, _rng(seed, "test")))
    search = _numbered(any_entity(train, n_search, _rng(seed, "search")))
    # What is needed for the whole of a study was drawn first: contrasts leave no holes around it when they go.
    fixed = _numbered(same_question(train, n_train, _rng(seed, "order")))
    varied = _numbered(changeable(train, n_train, _rng(seed, "twins")))

    def contrast(name: str, drawn: tuple[tuple[int, Drawn], ...], twins: Callable[[Drawn], Twins]) -> Contrast:
        examples = Written(drawn, _SceneWriter(name, world, phrases, twins).write)
        return Contrast(name, examples, f"binding, {world.name}, {phrases.name}")

    return BindingTask(
        schema=world,
        phrasing=phrases,
        entities=entities,
        held_out=held_out,
        labels=labels,
        contrasts={name: contrast(name, varied, TWINS[name]) for name in ("order", "lexical")},
        extra={
            "reflexive": contrast("reflexive", varied, TWINS["reflexive"]),
            "order_fixed": contrast("order_fixed", fixed, alone),
        },
        search=contrast("search", search, alone),
        test=contrast("test", _numbered(scenes), alone),
        scenes=scenes,
    )


def _numbered(drawn: Iterable[Drawn]) -> tuple[tuple[int, Drawn], ...]:
    return tuple(enumerate(drawn, start=1))


def _rng(seed: int, name: str) -> Random:
    """Each part has its own numbers, so that its size changes no other."""
    return Random(f"binding {seed} {name}")


@dataclass(frozen=True)
class _SceneWriter(Generic[Drawn]):
    """Scenes in words, as examples of one contrast, which are written when they are asked for."""

    name: str
    schema: Schema
    phrasing: Phrasing
    twins: Callable[[Drawn], Twins]

    def write(self, numbered: tuple[int, Drawn]) -> Example:
        scene, twin = self.twins(numbered[1])
        return Example(self._text(scene), self._text(twin) if twin else None, source=f"{self.name}:{numbered[0]}")

    def _text(self, scene: Scene) -> Text:
        # Keys of equal labels are taken to differ by noise: where the scene's label is the signal it is among them.
        return text_of(scene, self.schema, self.phrasing, name_labels=self.name == "reflexive")


def _labels(schema: Schema, phrasing: Phrasing, n_pairs: int, tokenizer: Tokenizer | None) -> tuple[str, ...]:
    if n_pairs < 2:
        raise QKPrismError(f"n_pairs={n_pairs} leaves nothing to choose from; give at least 2.")
    fit = fitting(schema.labels, tokenizer, before=schema.before_label, after=schema.after_label(phrasing))
    what = f"labels of the schema {schema.name!r} (n_pairs={n_pairs} and one for the twins)"
    require(fit, schema.labels, n_pairs + 1, what=what, advice="use fewer pairs or another schema")
    return fit


def _entities(
    schema: Schema, n_pairs: int, n_entities: int | None, tokenizer: Tokenizer | None, seed: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Entities of the contrasts, and those held out for the test: a third, and enough for a prompt."""
    least = n_pairs + 1 if n_entities is None else n_entities
    if least <= n_pairs:
        raise QKPrismError(f"n_entities={n_entities} is too few for n_pairs={n_pairs}; give at least {n_pairs + 1}.")
    fit = fitting(schema.entities, tokenizer, before=schema.before_entity)
    what = f"entities of the schema {schema.name!r} ({least} for the contrasts, {n_pairs} held out)"
    require(fit, schema.entities, least + n_pairs, what=what, advice="use fewer of them, or another schema")
    mixed = _rng(seed, "entities").sample(fit, len(fit))
    n_held_out = max(n_pairs, min(len(fit) // 3, len(fit) - least))
    return tuple(mixed[n_held_out:][:n_entities]), tuple(mixed[:n_held_out])
