"""A template: one small TOML file that says which prompts make up a contrast.

    question = "Which box holds the thing that is asked for?"
    places   = 5
    prompt   = '''
    {% for i in range(places) %}
    {{ "The" if loop.first else ", the" }} {{ thing[i] }} is in box {{ key(i, box[i]) }}
    {%- endfor %}. The {{ goal }} is in box'''

    [words]
    things = "objects"
    boxes  = "letters"

    [draw]
    thing = "sample(things, places)"
    box   = "sample(boxes, places)"
    goal  = "thing[asked]"

`places` draws two of them, `asked` and `other`, each as often as any; `key` marks the word of the asked place as the
positive key, that of the other as the target, and the rest as negative keys. Here the file is read and checked, and
every mistake is told with its line.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from qkprism.contrasts.lines import Mistake, line_of, lines_of, mistake_of
from qkprism.contrasts.lines import Path as Place
from qkprism.contrasts.markup import check_unicode
from qkprism.contrasts.sandbox import Compiled, Sandbox
from qkprism.contrasts.values import Fault
from qkprism.contrasts.words import FILE_LIMIT, word_list
from qkprism.errors import QKPrismError
from qkprism.options import Center, Frame, show, whole_number

SHELF = files("qkprism.contrasts") / "shelf"
ORDER = "order"  # the exchange of whole places
PREDICTORS = ("place", "distance", "length", "token", "first")
FUNCTIONS = (
    *("sample", "choice", "turn", "row", "shuffle", "number", "each", "part", "range"),
    *("pos", "neg", "target", "query", "key"),
)
PLACES = ("places", "asked", "other")
_PLACES_LIMIT = 100
_ENTRY_LIMIT = 50  # lists, variables or prompts


@dataclass(frozen=True, repr=False)
class Template:
    """What a file says, compiled.

    prompts    ways to write a prompt, each used equally often; with names, `phrasings`, only one of them, the first
    lists      words to draw from; a share of each, `held_out`, is kept for the test
    draws      variables in their order: an expression, or a value that stands for itself
    places     how many places `asked` and `other` are drawn from; 0 without
    exchange   variables whose values at `asked` and `other` can really change places; `order` is whole places
    twins      variables of which one value changes in a twin
    confounds  what gives positive keys away by intent; each begins with one of place, distance, length, token, first
    frame      the frame of queries and keys in which the question means something
    shared     lists of which all words are in the contrasts and in the test
    answer     how the answer of a chat model begins, perhaps only in some phrasings; None for plain text
    center     "none" where the question is what the head likes whatever the query says, else "query"
    """

    name: str
    question: str
    prompts: tuple[Compiled, ...]
    lists: Mapping[str, tuple[str, ...]]
    draws: Mapping[str, Any]
    places: int = 0
    description: str = ""
    literature: tuple[str, ...] = ()
    confounds: tuple[str, ...] = ()
    exchange: tuple[str, ...] = ()
    twins: tuple[str, ...] = ()
    frame: Frame = "post"
    center: Center = "query"
    held_out: float = 1 / 3
    shared: tuple[str, ...] = ()
    whole_words: bool = True
    before: str = " "
    answer: str | Mapping[str, str] | None = None
    phrasings: tuple[str, ...] = ()
    file: str = ""
    source: str = field(default="", repr=False)
    lines: Mapping[Place, int] = field(default_factory=dict, repr=False)
    sandbox: Sandbox = field(default_factory=Sandbox, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"Template({self.name!r}, {self.question!r})"

    @property
    def digest(self) -> str:
        """SHA-256 of the file and of the words."""
        return hashlib.sha256(repr((self.source, sorted(self.lists.items()))).encode()).hexdigest()

    @property
    def declared(self) -> tuple[str, ...]:
        """The predictors that may tell the sides apart, because the file says so."""
        return tuple(name for name in PREDICTORS if any(re.match(rf"{name}\b", why) for why in self.confounds))

    def phrased(self, phrasing: str | None = None) -> Template:
        """The template with one of its phrasings: the first, unless another is named."""
        if phrasing is not None and phrasing not in self.phrasings:
            can = f"use {', '.join(self.phrasings)}" if self.phrasings else "it has none by name"
            raise QKPrismError(f"{self.name} has no phrasing {show(phrasing)}; {can}.")
        answer = self.answer
        if not self.phrasings:
            return self
        at = 0 if phrasing is None else self.phrasings.index(phrasing)
        if isinstance(answer, Mapping):
            answer = answer.get(self.phrasings[at])
        return replace(self, prompts=self.prompts[at : at + 1], phrasings=self.phrasings[at : at + 1], answer=answer)

    def having(self, **values: Any) -> Template:
        """The template with another number of places, other `shared` lists, or other values of drawn variables.

        >>> read_template("boxes").having(places=9).places
        9
        """
        can = [*(["places"] if self.places else []), "shared", *self.draws]
        for name, value in values.items():
            if name not in can:
                raise QKPrismError(f"{self.name} has no {name!r} to be set; there are {', '.join(can)}.")
            if not isinstance(value, str | int | float | list) or not _plain(value):
                raise QKPrismError(f"{name}={show(value)} is no word, number or list of them.")
        shared = values.pop("shared", [*self.shared])
        shared = shared if isinstance(shared, list) else [shared]
        self.check_lists(shared)
        places = whole_number(values.pop("places", self.places), "places", 2 if self.places else 0, _PLACES_LIMIT)
        return replace(self, places=places, shared=tuple(shared), draws={**self.draws, **values})

    def check_lists(self, names: Iterable[Any]) -> None:
        """Refuse what is no list of words."""
        if unknown := [name for name in names if name not in self.lists]:
            raise QKPrismError(f"{self.name} has no list of words {unknown[0]!r}; there are {', '.join(self.lists)}.")

    def mistake(self, path: Place, fault: Fault) -> Mistake:
        """A fault of one of the file's expressions, as a mistake in the file."""
        return mistake_of(self.source, self.lines, path, fault)


@cache
def shelf_names() -> tuple[str, ...]:
    """The templates that come with the package."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in SHELF.iterdir() if file.name.endswith(".toml")))


def read_template(name: str | Path) -> Template:
    """The template in a file, or on the shelf; the first mistake is an error with file and line.

    >>> read_template("induction").question
    'What followed the same word before?'
    """
    file, source, folder = open_template(name)
    template, mistakes = parse_template(source, file=file, folder=folder)
    if mistakes or template is None:
        raise QKPrismError(f"{file}:{mistakes[0].line}: {mistakes[0].message}")
    return template


def open_template(name: str | Path) -> tuple[str, str, Path | None]:
    """Where a template is, its text, and the folder of its word lists (none on the shelf)."""
    if str(name) in shelf_names():
        return str(name), (SHELF / f"{name}.toml").read_text(encoding="utf-8"), None
    path = Path(name)
    if path.suffix != ".toml":
        near = difflib.get_close_matches(str(name), shelf_names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise QKPrismError(
            f"{name} is no template: {hint}Give a .toml file, or a name of the shelf ({', '.join(shelf_names())})."
        )
    try:
        if path.stat().st_size > FILE_LIMIT:
            raise QKPrismError(f"{path} has more than {FILE_LIMIT} bytes; put long lists into text files beside it.")
        return str(path), path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n"), path.resolve().parent
    except FileNotFoundError as error:
        raise QKPrismError(
            f"{path} cannot be read: there is no such file. `qkprism new {path}` writes one to start from."
        ) from error
    except OSError as error:
        raise QKPrismError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise QKPrismError(
            f"{path} is not UTF-8: byte {error.start + 1} is 0x{error.object[error.start]:02x}"
        ) from error


def parse_template(source: str, *, file: str = "", folder: Path | None = None) -> tuple[Template | None, list[Mistake]]:
    """The template that a text says, and all mistakes in it; with mistakes there may be none."""
    try:
        table = tomllib.loads(source)
    except (ValueError, RecursionError) as error:
        return None, [_broken(error)]
    reading = _TemplateReader(table, source, lines_of(source), folder, file)
    return reading.template(), sorted(reading.mistakes, key=lambda mistake: mistake.line)


def _broken(error: Exception) -> Mistake:
    found = re.search(r"\(at line (\d+), column \d+\)", str(error))
    message = " ".join(re.sub(r"\(at .*?\)", "", str(error)).split())
    hint = "; a quote is not closed" if r"'\n'" in message else ""
    return Mistake(int(found[1]) if found else 1, f"broken TOML: {message[:200]}{hint}")


# Reading


_FIELDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "name": (str, "a text"),
    "question": (str, "a text"),
    "prompt": ((str, list, dict), "a text, a list of texts, or a table of texts by name"),
    "places": (int, "a whole number"),
    "description": (str, "a text"),
    "literature": ((str, list), "a text, or a list of texts"),
    "confounds": ((str, list), "a text, or a list of texts"),
    "exchange": ((str, list), "the name of a drawn variable, or a list of them"),
    "twins": ((str, list), "the name of a drawn variable, or a list of them"),
    "frame": (str, "'post' or 'relative'"),
    "center": (str, "'query' or 'none'"),
    "held_out": ((int, float), "a share of the words, such as 0.33"),
    "shared": ((str, list), "the name of a list of words, or a list of names"),
    "whole_words": (bool, "true or false"),
    "before": (str, "the characters in front of a word, such as a space"),
    "answer": ((str, dict), "how the answer of a chat model begins, or a table of that by phrasing"),
    "words": (dict, "a table: lists of words by name"),
    "draw": (dict, "a table: variables by name"),
}


_PLAIN = ("question", "places", "description", "frame", "center", "held_out", "whole_words", "before", "answer")
_LISTED = ("literature", "confounds", "exchange", "twins", "shared")  # one text or several


class _TemplateReader:
    """One file, read entry by entry; mistakes are collected."""

    def __init__(self, table: dict[str, Any], source: str, lines: Mapping[Place, int], folder: Any, file: str) -> None:
        self.table, self.source, self.lines, self.folder, self.file = table, source, lines, folder, file
        self.mistakes: list[Mistake] = []
        self.sandbox = Sandbox()

    def wrong(self, path: Place, message: str, word: str = "") -> None:
        self.mistakes.append(Mistake(line_of(self.lines, path), message, word or str(path[-1])))

    def template(self) -> Template | None:
        self._check_fields()
        lists = self._lists()
        draws = self._draws(lists)
        prompts = self._prompts({*lists, *draws, *(PLACES if self.places else ())})
        name = self.value_of("name", Path(self.file).stem or "contrast")
        if not name.strip() or not name.isprintable():
            self.wrong(("name",), f"a name is one line of printable text, not {show(name)}")
        for named in ("exchange", "twins"):
            self._check_variables(named, draws)
        self._check_names("shared", lists)
        if not isinstance(self.value_of("answer", ""), str):
            self._check_names("answer", self.phrasings)
        self._check_values()
        if self.mistakes:
            return None
        fields: dict[str, Any] = {entry: self.table[entry] for entry in _PLAIN if entry in self.table}
        fields |= {entry: self.texts(entry) for entry in _LISTED}
        return Template(
            name=name,
            prompts=prompts,
            lists=lists,
            draws=draws,
            phrasings=self.phrasings,
            file=self.file,
            source=self.source,
            lines=self.lines,
            sandbox=self.sandbox,
            **fields,
        )

    def value_of(self, entry: str, default: Any) -> Any:
        """A field of the right type, or the default where it is missing or wrong."""
        value, types = self.table.get(entry, default), _FIELDS[entry][0]
        return value if isinstance(value, types) else default

    def texts(self, entry: str) -> tuple[str, ...]:
        value = self.value_of(entry, [])
        return tuple(one for one in ([value] if isinstance(value, str) else value) if isinstance(one, str))

    @property
    def places(self) -> int:
        return int(self.value_of("places", 0))

    @property
    def phrasings(self) -> tuple[str, ...]:
        """The names of prompts in a table."""
        prompts = self.table.get("prompt")
        return tuple(prompts) if isinstance(prompts, dict) else ()

    def _check_fields(self) -> None:
        for entry, value in self.table.items():
            if entry not in _FIELDS:
                near = difflib.get_close_matches(entry, _FIELDS, n=1, cutoff=0.0)[0]
                self.wrong(
                    (entry,), f"unknown field {entry!r}, the nearest is {near!r} (there are {', '.join(_FIELDS)})"
                )
                continue
            types, words = _FIELDS[entry]
            if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
                self.wrong((entry,), f"{entry} is {words}, not {show(value)}")
            elif entry not in ("words", "draw") and isinstance(value, list | dict):
                for place, one in _placed(value):
                    if not isinstance(one, str) or not (one or entry == "answer"):
                        self.wrong((entry, place), f"{entry} is {words}, and one of them is no text", entry)
        for entry in ("question", "prompt"):
            if not self.table.get(entry):
                self.mistakes.append(Mistake(1, f"the field {entry} is missing: {_NEEDED[entry]}"))

    def _check_names(self, entry: str, allowed: Iterable[str]) -> None:
        """The names in a list, or of the texts in a table."""
        value = self.value_of(entry, {})
        for name in value if isinstance(value, list | dict) else [value]:
            if name not in allowed:
                self.wrong((entry, name), f"{entry}: there is no {name!r}; there are {', '.join(allowed) or 'none'}")

    def _check_values(self) -> None:
        if "places" in self.table and not 2 <= self.places <= _PLACES_LIMIT:
            self.wrong(("places",), f"places is a number from 2 to {_PLACES_LIMIT}, not {show(self.table['places'])}")
        for entry, allowed in (("frame", ("post", "relative")), ("center", ("query", "none"))):
            if self.value_of(entry, allowed[0]) not in allowed:
                self.wrong((entry,), f"{entry} is {' or '.join(map(repr, allowed))}, not {show(self.table[entry])}")
        if not 0 < self.value_of("held_out", 0.5) < 1:
            self.wrong(("held_out",), f"held_out is a share between 0 and 1, not {show(self.table['held_out'])}")
        for entry, value in self.table.items():
            try:
                check_unicode(value if isinstance(value, str) else "")
            except QKPrismError as error:
                self.wrong((entry,), str(error))
        for entry in ("words", "draw", "prompt"):
            value = self.table.get(entry)
            if isinstance(value, dict | list) and len(value) > _ENTRY_LIMIT:
                self.wrong((entry,), f"{entry} has {len(value)} entries; {_ENTRY_LIMIT} at most")

    def _check_variables(self, entry: str, draws: Mapping[str, Any]) -> None:
        for name in self.texts(entry):
            if name == ORDER and not self.places:
                self.wrong((entry,), f"{ORDER!r} exchanges whole places; say how many there are: places = 5", name)
            elif name not in draws and name != ORDER:
                can = [*draws, *([ORDER] if self.places else [])]
                self.wrong((entry,), f"{name!r} is not drawn; {entry} can have {', '.join(can) or 'nothing'}", name)
        if entry == "exchange" and self.texts(entry) and not self.places:
            self.wrong(
                (entry,), "an exchange is between the places asked and other; say how many there are: places = 2"
            )

    # words

    def _lists(self) -> dict[str, tuple[str, ...]]:
        return {name: self._list(name, value) for name, value in self.value_of("words", {}).items()}

    def _list(self, name: str, value: Any) -> tuple[str, ...]:
        path = ("words", name)
        self._check_name(path)
        try:
            return word_list(name, value, self.folder)
        except QKPrismError as error:
            self.wrong(path, str(error))
            return ()

    def _check_name(self, path: tuple[str, str]) -> None:
        name = path[1]
        if not name.isidentifier() or name.startswith("_") or name in (*FUNCTIONS, *PLACES, "loop", "result"):
            self.wrong(path, f"{name!r} cannot be the name of a variable; use another word")

    # expressions

    def _draws(self, lists: Mapping[str, Any]) -> dict[str, Any]:
        draws: dict[str, Any] = {}
        places = PLACES if self.places else ()
        for name, value in self.value_of("draw", {}).items():
            path = ("draw", name)
            free = not self.places and name in ("asked", "other")
            if not free:
                self._check_name(path)
            if name in lists:
                self.wrong(path, f"{name!r} is the name of a list of words too; rename one of them")
            if isinstance(value, str):
                draws[name] = self._compiled(path, value, self.sandbox.expression, {*lists, *draws, *places})
            elif isinstance(value, int | float | list) and _plain(value):
                draws[name] = value
            else:
                self.wrong(path, f"a draw is an expression in quotes, a number, or a list of words, not {show(value)}")
        return draws

    def _prompts(self, variables: set[str]) -> tuple[Compiled, ...]:
        value = self.value_of("prompt", "")
        texts = [((), value)] if isinstance(value, str) else [((place,), text) for place, text in _placed(value)]
        found = [
            self._compiled(("prompt", *place), text, self.sandbox.text, variables)
            for place, text in texts
            if isinstance(text, str) and text
        ]
        return tuple(one for one in found if one is not None)

    def _compiled(
        self,
        path: Place,
        source: str,
        compiled: Callable[[str], Compiled],
        variables: set[str],
    ) -> Compiled | None:
        try:
            check_unicode(source)
            made = compiled(source)
        except QKPrismError as error:
            fault = error if isinstance(error, Fault) else Fault(str(error))
            self.mistakes.append(mistake_of(self.source, self.lines, path, fault))
            return None
        for name, line in made.needs.items():
            if name not in variables and name not in FUNCTIONS:
                message = f"{name!r} is not known here{_nearest(name, {*variables, *FUNCTIONS})}"
                self.mistakes.append(mistake_of(self.source, self.lines, path, Fault(message, line, name)))
        return made


_NEEDED = {
    "question": 'say in plain words what the contrast asks, such as question = "Which box holds the thing?"',
    "prompt": 'write how a text reads, such as prompt = "in box {{ neg(a) }}, in box {{ pos(b) }}"',
}


def _nearest(name: str, names: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(sorted(names - {*FUNCTIONS}))}"


def _placed(value: Mapping[str, Any] | Sequence[Any]) -> Iterable[tuple[str | int, Any]]:
    """What is in a table or a list, with its name or number."""
    return value.items() if isinstance(value, Mapping) else enumerate(value)


def _plain(value: Any) -> bool:
    if isinstance(value, list):
        return 0 < len(value) <= 1000 and all(isinstance(one, str | int | float) and _plain(one) for one in value)
    return isinstance(value, str) or abs(value) <= 10**15
