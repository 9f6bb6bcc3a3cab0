"""What is wrong with a contrast, or may be, before any model is run: the work of `qkprism check`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qkprism.contrasts.balance import Balance, Offsets, balance, words_of
from qkprism.contrasts.contrast import Contrast
from qkprism.contrasts.drawing import TemplateError
from qkprism.contrasts.examples import Example
from qkprism.contrasts.fitting import Tokenizer
from qkprism.contrasts.lines import Mistake
from qkprism.contrasts.markup import Span, Text
from qkprism.contrasts.sources import check_twin, is_template, parts_of
from qkprism.contrasts.tasks import Task, task
from qkprism.contrasts.templates import Template, open_template, parse_template
from qkprism.errors import QKPrismError

FEW = 8  # examples that a test needs at least


@dataclass(frozen=True)
class ContrastCheck:
    """All that was found: `mistakes` keep a contrast from being used, `notes` are to be read.

    source is the text of a template, which pictures of mistakes are made of; `task` is what it draws.
    """

    name: str
    mistakes: tuple[Mistake, ...] = ()
    notes: tuple[str, ...] = ()
    balance: tuple[Balance, ...] = ()
    contrast: Contrast | None = None
    task: Task | None = None
    source: str = ""

    @property
    def declared(self) -> tuple[str, ...]:
        """The predictors that the template says may tell the sides apart."""
        return self.task.template.declared if self.task else ()


def check(
    name: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    offsets: Offsets | None = None,
    n: int = 200,
    seed: int = 0,
) -> ContrastCheck:
    """Check a template, a name of the shelf, or a file of examples; `my.toml:order` is the template with that twin.

    >>> [row.tells for row in check("induction").balance]
    [False, False, False, False]

    tokenizer   to leave out words that it splits; `offsets` gives the tokens of a text as (start, end)
    n           how many prompts a template draws
    """
    if not is_template(name):
        contrast = Contrast.read(name)
        return _judged(ContrastCheck(str(name), contrast=contrast), offsets)
    stem, variable = parts_of(str(name))
    file, source, folder = open_template(stem)
    template, mistakes = parse_template(source, file=file, folder=folder)
    if template is not None:
        check_twin(template, variable)
    found = ContrastCheck(file, tuple(mistakes), source=source)
    if template is None or mistakes:
        return found
    try:
        drawn = task(template, seed, tokenizer, n_train=n, n_search=1, n_test=max(n // 4, 1))
        changed = tuple(_exchanges(template, drawn))
        for phrasing in template.phrasings[1:]:
            task(template, seed, tokenizer, n_train=FEW, n_search=1, n_test=1, phrasing=phrasing)
    except TemplateError as error:
        return replace(found, mistakes=(error.mistake,))
    except QKPrismError as error:
        return replace(found, mistakes=(Mistake(1, str(error).removeprefix(f"{file}: ")),))
    contrast = drawn.contrasts[variable] if variable else drawn.contrast
    return _judged(replace(found, mistakes=changed, contrast=contrast, task=drawn, notes=drawn.notes), offsets)


def _exchanges(template: Template, drawn: Task) -> Iterator[Mistake]:
    """Exchanges and twins that change nothing, or more than they may."""
    for factor in template.exchange:
        pairs = [(base.text, changed.text) for base, changed in drawn.counterfactuals(factor)]
        if reason := _unchanged(pairs):
            yield _variable_mistake(template, "exchange", factor, reason)
        elif any(len(text.positive) != 1 or _targets(text) != 1 for pair in pairs for text in pair):
            yield _variable_mistake(template, "exchange", factor, "needs one positive key and one target in every text")
    for variable in template.twins:
        pairs = [(e.text, e.twin) for e in drawn.contrasts[variable] if e.twin]
        if reason := _unchanged(pairs):
            yield _variable_mistake(template, "twins", variable, reason)


def _variable_mistake(template: Template, field: str, variable: str, reason: str) -> Mistake:
    line = template.lines.get((field,), 1)
    return Mistake(line, f"{field}: {variable!r} {reason}", variable)


def _targets(text: Text) -> int:
    return sum(span.target for span in text.negative)


def _unchanged(pairs: Sequence[tuple[Text, Text]]) -> str:
    same = sum(text.text == other.text for text, other in pairs)
    return f"changes nothing in {same} of {len(pairs)} prompts" if same else ""


def _judged(found: ContrastCheck, offsets: Offsets | None) -> ContrastCheck:
    """The check with the balance of its examples and what else may be wrong with them."""
    contrast, tokens = found.contrast, offsets or words_of
    assert contrast is not None
    examples, declared = list(contrast), found.declared
    rows = balance(examples, tokens)
    notes = [*found.notes, *_telling(rows, declared), *_texts(examples, tokens, declared)]
    notes += _moved(found.task, tokens) if found.task else []
    late = [e for e in examples if any(_after_query(text) for text in e.texts)]
    mistakes = list(found.mistakes)
    if late:
        line = found.task.template.lines.get(("prompt",), 1) if found.task else _line(late[0])
        mistakes.append(Mistake(line, f"a key comes after the query, which cannot see it, in {_share(late, examples)}"))
    return replace(found, balance=rows, notes=tuple(notes), mistakes=tuple(mistakes))


def _moved(drawn: Task, offsets: Offsets) -> Iterator[str]:
    """Exchanges after which other tokens stand elsewhere: nothing can then be compared with them token by token."""
    for factor in drawn.factors:
        pairs = drawn.counterfactuals(factor)
        if moved := sum(_places(base.text, offsets) != _places(changed.text, offsets) for base, changed in pairs):
            share = f"{moved} of {len(pairs)} prompts"
            yield f"exchange {factor!r} moves keys to other tokens in {share}; `validate` needs words of one token"


def _places(text: Text, offsets: Offsets) -> list[int]:
    """The number of tokens of a text, and the numbers of its keys."""
    tokens = offsets(text.text)
    ends = [span.end for sign, span in text.marks if sign != "?"]
    return [len(tokens), *sorted(sum(start < end for start, _ in tokens) for end in ends)]


def _telling(rows: Sequence[Balance], declared: Sequence[str]) -> Iterator[str]:
    for row in rows:
        if row.tells and row.predictor not in declared:
            yield (
                f"the {row.predictor} of a key alone distinguishes positive from negative keys (AUC {row.auc:.2f}; a "
                f"coin toss has 0.50): a feature may be that. {_ADVICE[row.predictor]}"
            )


_ADVICE = {
    "place": "Let the positive key stand in every place: places = 5 with key(), or shuffle().",
    "distance": "Let positive and negative keys be equally far from the query, also where words that tell them apart "
    "have unequally many tokens, or write several prompts.",
    "length": "Draw positive and negative keys from words of equal length.",
    "token": "Draw positive and negative keys from the same list, or ask for either kind in turn.",
}


def _texts(examples: Sequence[Example], offsets: Offsets, declared: Sequence[str]) -> Iterator[str]:
    """What is odd about texts, each said once with how often it comes."""
    questions: list[tuple[str, Callable[[Text], bool]]] = [
        ("the text ends with a space, so the query may be a token of nothing but space", _ends_with_space),
        ("a key is more than one token, of which the last is taken", lambda text: _split_keys(text, offsets)),
    ]
    if "first" not in declared:
        first = "a key is the first token of the text, which many heads look at whatever it is; write a word before it"
        questions.append((first, _first_token))
    for words, holds in questions:
        if found := [example for example in examples if any(holds(text) for text in example.texts)]:
            yield f"in {_share(found, examples)} {words}"
    different = len({example.text.text for example in examples})
    if len(examples) >= FEW and different < len(examples) / 2:
        yield f"{len(examples)} prompts are {different} different texts; draw from more words"
    twice = Counter(len(example.text.positive) for example in examples)
    if len(twice) > 1:
        yield f"texts have different numbers of positive keys: {', '.join(map(str, sorted(twice)))}"


def _share(found: Sequence[Example], examples: Sequence[Example]) -> str:
    return f"{len(found)} of {len(examples)} prompts"


def _ends_with_space(text: Text) -> bool:
    return text.query is None and text.text[-1:].isspace()


def _first_token(text: Text) -> bool:
    return any(span.unit == "char" and not text.text[: span.start].strip() for sign, span in text.marks if sign != "?")


def _split_keys(text: Text, offsets: Offsets) -> bool:
    tokens = offsets(text.text)
    return any(_token_count(span, tokens) > 1 for sign, span in text.marks if sign != "?" and span.unit == "char")


def _token_count(span: Span, tokens: Sequence[tuple[int, int]]) -> int:
    return sum(start < span.end and span.start < end for start, end in tokens)


def _after_query(text: Text) -> bool:
    query = text.query
    return query is not None and any(
        sign != "?" and span.unit == query.unit and span.start > query.end for sign, span in text.marks
    )


def _line(example: Example) -> int:
    number = example.source.rpartition(":")[2]
    return int(number) if number.isdigit() else 1
