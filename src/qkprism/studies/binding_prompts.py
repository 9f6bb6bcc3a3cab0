"""What the binding study asks, drawn from a template with places: the shelf's boxes, cities and drinks, or one's own.

A key has three factors: its order among the clauses, the entity of its clause, and the label, which is the key itself.
Of the template's `exchange`, other than `order`, the first is the entity and the second the label.

    order        twins: the clause asked for exchanges places with another; entity and label are the same in both
    lexical      twins: another entity in the clause asked for and in the question; place and label are the same
    reflexive    twins: another label in the clause asked for; place and entity are the same
    order_fixed  one set of entities, one of them always asked for, in random order (the paper's `order`). The entity is
                 the same throughout, so it is salience and falls out when q is centred; the label is not, and what q
                 knows of it stays in

Entities of the test are in no contrast; labels are, for there are too few of some to hold any out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from qkprism.contrasts import Contrast, Example
from qkprism.contrasts.fitting import Tokenizer
from qkprism.contrasts.sandbox import Compiled
from qkprism.contrasts.tasks import Task, task
from qkprism.contrasts.templates import ORDER, Template, read_template
from qkprism.errors import QKPrismError

PLAIN = "cloze"  # the phrasing of a template that has one prompt without a name


@dataclass(frozen=True)
class BindingPrompts:
    """The prompts of a study: `contrasts` are decomposed together, `extra` are for comparisons."""

    task: Task
    entity: str
    label: str
    phrasing: str
    contrasts: Mapping[str, Contrast]
    extra: Mapping[str, Contrast]

    def counterfactuals(self, factor: str) -> list[tuple[Example, Example]]:
        """Each test example, and the same after its positive key and its target exchanged order, lexical or label."""
        return self.task.counterfactuals({"lexical": self.entity, "label": self.label}.get(factor, factor))


def binding_prompts(
    template: str | Path | Template,
    n_pairs: int = 9,
    seed: int = 0,
    phrasing: str = PLAIN,
    tokenizer: Tokenizer | None = None,
    *,
    n_entities: int | None = None,
    **sizes: int,
) -> BindingPrompts:
    """Draw the prompts; with `n_entities` the contrasts know so many entities only."""
    chosen = template if isinstance(template, Template) else read_template(template)
    entity, label = _factors(chosen)
    options: dict[str, Any] = {"places": n_pairs, "shared": _lists_of(chosen, label), **sizes}
    if chosen.phrasings or phrasing != PLAIN:
        options["phrasing"] = phrasing
    drawn = task(chosen, seed, tokenizer, **options)
    if n_entities is not None:
        if n_entities <= n_pairs:
            few = f"n_entities={n_entities} is too few for n_pairs={n_pairs}"
            raise QKPrismError(f"{few}; give at least {n_pairs + 1}, one for the twins.")
        drawn = drawn.from_words(**{name: _some(drawn, name, n_entities) for name in _lists_of(chosen, entity)})
    names = {"order": ORDER, "lexical": entity, "reflexive": label}
    found = {name: replace(drawn.contrasts[variable], name=name) for name, variable in names.items()}
    extra = {"reflexive": found.pop("reflexive"), "order_fixed": replace(drawn.fixed(entity), name="order_fixed")}
    return BindingPrompts(drawn, entity, label, phrasing, found, extra)


def _factors(template: Template) -> tuple[str, str]:
    """The variables of a template that are entity and label."""
    rows = [name for name in template.exchange if name != ORDER]
    if len(rows) != 2 or not {ORDER, *rows} <= {*template.exchange} & {*template.twins}:
        raise QKPrismError(
            f"{template.name} is no template for the binding study: it needs places, and in exchange and twins order, "
            "entity and label, as the shelf's boxes has them (exchange = ['thing', 'box', 'order'])."
        )
    return rows[0], rows[1]


def _lists_of(template: Template, variable: str) -> list[str]:
    """The lists that a variable is drawn from."""
    draw = template.draws[variable]
    return [name for name in template.lists if isinstance(draw, Compiled) and name in draw.needs]


def _some(drawn: Task, name: str, count: int) -> list[str]:
    words = drawn.words[name]
    if count > len(words):
        raise QKPrismError(f"{count} words of {name} are wanted, and {len(words)} are left for the contrasts.")
    return Random(f"{drawn.name} {drawn.seed} {count} of {name}").sample(words, count)
