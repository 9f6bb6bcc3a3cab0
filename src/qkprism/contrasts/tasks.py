"""`Task`: what a template draws. Contrasts to find features with, and held-out words to test them on.

task = qk.task("induction")                      # a name of the shelf, or a file of your own
heads = qk.find_heads(model, task.search, encoding=task.encoding)
features = qk.decompose(model, task.contrasts, heads=heads.top(8), encoding=task.encoding,
                        recipe=qk.Recipe(center=task.center))
qk.validate(model, task.counterfactuals("before"), features)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from qkprism.contrasts.contrast import Contrast
from qkprism.contrasts.drawing import Roll, TemplateError, Values, Writer, placed, prompt_path, rolls
from qkprism.contrasts.examples import Example
from qkprism.contrasts.fitting import Tokenizer, fitting
from qkprism.contrasts.markup import Text
from qkprism.contrasts.templates import ORDER, Template, read_template
from qkprism.contrasts.values import Fault
from qkprism.encoding import Encoding
from qkprism.errors import QKPrismError
from qkprism.options import Center, Frame, checked_seed, whole_number

if TYPE_CHECKING:
    from qkprism.encoding import Chat

_SHOWN = 8


@dataclass(frozen=True, repr=False)
class Task:
    """Prompts of one template; words are split by the seed, and none of the test is in a contrast, but of shared lists.

    contrast    the plain contrast: positive and negative keys of each prompt
    contrasts   what to decompose: for each variable of `twins` the same prompts with twins, else the plain contrast
    search      examples to find heads with, of the same words
    test        examples of held-out words
    words       the words of the contrasts, by list; `held_out` those of the test, `dropped` those the tokenizer splits
    encoding    what the verbs take as `encoding`: the chat template and the frame that the template wants
    center      what `decompose` takes as `center`
    """

    template: Template
    words: Mapping[str, tuple[str, ...]]
    held_out: Mapping[str, tuple[str, ...]]
    dropped: Mapping[str, tuple[str, ...]]
    contrast: Contrast
    contrasts: Mapping[str, Contrast]
    search: Contrast
    test: Contrast
    seed: int = 0
    _rolls: tuple[Roll, ...] = field(default=(), repr=False)

    @property
    def name(self) -> str:
        """The name of the template."""
        return self.template.name

    @property
    def frame(self) -> Frame:
        """The frame in which the question means something."""
        return self.template.frame

    @property
    def center(self) -> Center:
        """Whether the question is about queries that differ, or about what the head likes whatever the query says."""
        return self.template.center

    @property
    def factors(self) -> tuple[str, ...]:
        """What `counterfactuals` can exchange."""
        return self.template.exchange

    @property
    def chat(self) -> Chat | None:
        """The options of the chat template, if the template wants one."""
        answer = self.template.answer
        return {"answer_prefix": answer} if isinstance(answer, str) else None

    @property
    def encoding(self) -> Encoding:
        """How these prompts become tokens: what the verbs take as `encoding`."""
        return Encoding(chat=self.chat, rope=self.frame)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out, in words."""
        return _left_out(self.dropped)

    def __repr__(self) -> str:
        sizes = f"{len(self.contrast)} examples, {len(self.search)} to search, {len(self.test)} of held-out words"
        return f"Task({self.name!r}, {sizes})"

    def counterfactuals(self, factor: str) -> list[tuple[Example, Example]]:
        """Each test example, and the same in which its positive key and its target really exchanged one variable.

        The second example's positive key and target are the keys that correspond to the first's, also where they no
        longer answer the question, which stays as it is.
        """
        if factor not in self.factors:
            can = f"use {', '.join(self.factors)}" if self.factors else "its template declares no exchange"
            raise QKPrismError(f"the task {self.name!r} has no counterfactuals of {factor!r}; {can}.")
        writer, changed = Writer(self.template, self.held_out), []
        for roll in self._rolls:
            source = f"{self.name} test:{roll.number} with exchanged {factor}"
            with placed(self.template, prompt_path(self.template, roll)):
                changed.append(Example(writer.exchanged(roll, factor), source=source))
        return list(zip(self.test, changed, strict=True))

    def from_words(self, **lists: Sequence[str]) -> Task:
        """The same task with contrasts that are drawn from other words: `from_words(things=["hat", "jam", ...])`."""
        self.template.check_lists(lists)
        words = {**self.words, **{name: tuple(chosen) for name, chosen in lists.items()}}
        sizes = (len(self.contrast), len(self.search), len(self.test))
        return _drawn(self.template, words, self.held_out, self.dropped, self.seed, sizes)

    def fixed(self, variable: str) -> Contrast:
        """The plain contrast with the same words of a variable in every prompt, and the same one at the place asked.

        As the paper has its order contrast: the words stand in random order, and nothing else of them varies.
        """
        writer = Writer(self.template, self.words)
        first = _rolls(self.template, self.seed, "train", 1)[0]
        row = writer.values(first).get(variable)
        if not isinstance(row, list) or len(row) != self.template.places:
            raise QKPrismError(f"the task {self.name!r} has no variable {variable!r} with a word for every place.")
        drawn = _rolls(self.template, self.seed, f"{variable}_fixed", len(self.contrast))
        return _contrast(writer, f"{variable}_fixed", drawn, {variable: row})


def task(
    template: str | Path | Template,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
    *,
    n_train: int = 300,
    n_search: int = 256,
    n_test: int = 128,
    phrasing: str | None = None,
    **values: Any,
) -> Task:
    """Draw the prompts of a template: a file, or a name of the shelf.

    >>> task("boxes", n_train=10, places=7, phrasing="question").contrast
    Contrast('boxes', 10 examples)

    template    a name of the shelf, the path of a TOML file, or a `Template`
    seed        draws the prompts and decides which words are held out for the test; default 0
    tokenizer   words that are not one token each are left out; without it (default) all are taken. Give the model's
    n_train     examples of each contrast; default 300. The contrast metric wants 1.6 for each dimension of a head
    n_search    examples to find heads with; default 256
    n_test      examples of held-out words; default 128
    phrasing    one of the template's named prompts; default the first
    values      another number of `places`, lists to be `shared` by contrasts and test, or other values of variables
    """
    for name, size in {"n_train": n_train, "n_search": n_search, "n_test": n_test}.items():
        whole_number(size, name, 1)
    chosen = template if isinstance(template, Template) else read_template(template)
    chosen = chosen.phrased(phrasing).having(**values)
    fit, dropped = fitting_words(chosen, tokenizer)
    seed = checked_seed(seed)
    split = {name: _split(name, words, chosen, seed) for name, words in fit.items()}
    words, held_out = ({name: halves[side] for name, halves in split.items()} for side in (0, 1))
    return _drawn(chosen, words, held_out, dropped, seed, (n_train, n_search, n_test))


Words = Mapping[str, tuple[str, ...]]


def _drawn(
    template: Template, words: Words, held_out: Words, dropped: Words, seed: int, sizes: tuple[int, int, int]
) -> Task:
    training, testing = Writer(template, words), Writer(template, held_out)
    parts = zip(("train", "search", "test"), sizes, strict=True)
    train, search, tested = (_rolls(template, seed, part, size) for part, size in parts)
    try:
        plain = _contrast(training, template.name, train)
        return Task(
            template=template,
            words=words,
            held_out=held_out,
            dropped=dropped,
            contrast=plain,
            contrasts=_twins(training, train, plain) or {template.name: plain},
            search=_contrast(training, "search", search),
            test=_contrast(testing, "test", tested),
            seed=seed,
            _rolls=tuple(tested),
        )
    except TemplateError as error:
        raise error.noting(_left_out(dropped)) from None


def _rolls(template: Template, seed: int, part: str, count: int) -> list[Roll]:
    return rolls(template, count, f"{template.name} {seed} {part}")


def fitting_words(
    template: Template, tokenizer: Tokenizer | None
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """The words of each list that the tokenizer keeps whole, and the others."""
    if tokenizer is None or not template.whole_words:
        return dict(template.lists), {}
    fit = {name: _whole(words, tokenizer, template.before) for name, words in template.lists.items()}
    dropped = {name: tuple(w for w in words if w not in set(fit[name])) for name, words in template.lists.items()}
    for name, words in fit.items():
        if len(words) < 2:
            raise QKPrismError(
                f"{template.file}: {len(words)} words of the list {name!r} are one token each for this tokenizer, and "
                f"2 are needed ({_listed(dropped[name])} are not); use other words, or whole_words = false."
            )
    return fit, dropped


def _whole(words: Sequence[str], tokenizer: Tokenizer, space: str) -> tuple[str, ...]:
    """The words that are one token each; of words that belong together, such as "hot/cold", every one."""
    parts = [part for word in words for part in word.split("/") if part]
    whole_words = set(fitting(parts, tokenizer, before="the", after=(",", "."), space=space))
    return tuple(word for word in words if whole_words.issuperset(word.split("/")))


def _split(name: str, words: Sequence[str], template: Template, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The words of the contrasts and those of the test, each in the order of the list."""
    if name in template.shared:
        return tuple(words), tuple(words)
    count = min(max(round(len(words) * template.held_out), 1), len(words) - 1)
    held = set(Random(f"{template.name} {seed} {name}").sample(range(len(words)), count))
    first = tuple(word for place, word in enumerate(words) if place not in held)
    return first, tuple(word for place, word in enumerate(words) if place in held)


def _contrast(writer: Writer, name: str, drawn: Sequence[Roll], fixed: Values | None = None) -> Contrast:
    """The texts of rolls; `fixed` are rows that are the same in all, the first of each at the place asked."""
    texts = (writer.text(roll, {name: _around(roll, row) for name, row in (fixed or {}).items()}) for roll in drawn)
    examples = [_example(writer.template, roll, text) for roll, text in zip(drawn, texts, strict=True)]
    return Contrast(name, tuple(examples), writer.template.question, drawn=True)


def _around(roll: Roll, row: Sequence[Any]) -> list[Any]:
    first, *others = row
    others = roll.rng("fixed").sample(others, len(others))
    return [*others[: roll.asked], first, *others[roll.asked :]]


def _twins(writer: Writer, drawn: Sequence[Roll], plain: Contrast) -> dict[str, Contrast]:
    """For each variable of `twins` the texts of the plain contrast with their twins.

    Keys with equal labels are taken to differ by noise, so the variable is always among the labels of its contrast.
    """
    contrasts, labelled = {}, {ORDER, *plain.key_labels}
    for variable in writer.template.twins:
        bases = [
            base.text if variable in labelled else writer.text(roll, label=variable)
            for roll, base in zip(drawn, plain, strict=True)
        ]
        pairs = zip(drawn, bases, strict=True)
        examples = [_example(writer.template, roll, base, writer.twin(roll, variable)) for roll, base in pairs]
        asks = f"{writer.template.question} ({variable})"
        contrasts[variable] = Contrast(variable, tuple(examples), asks, drawn=True)
    return contrasts


def _example(template: Template, roll: Roll, text: Text, twin: Text | None = None) -> Example:
    source = f"{template.name} {roll.seed.rpartition(' ')[2]}:{roll.number}"
    with placed(template, prompt_path(template, roll)):
        if not text.positive:
            raise Fault(
                "no positive key is marked; mark one with pos(word), or the words of all places with key(i, word)"
            )
        if twin is None and not text.negative:
            raise Fault(
                "no negative key is marked; mark one with neg(word), or the words of all places with key(i, word)"
            )
        return Example(text, twin, source=source)


def _left_out(dropped: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(
        f"{len(words)} words of {name!r} are not one token each and were left out: {_listed(words)}"
        for name, words in dropped.items()
        if words
    )


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more
