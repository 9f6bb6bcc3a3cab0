"""docs/api.md, written from docstrings: every public name with its signature, parameters and examples.

python tests/api_page.py        # writes the page
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import qkprism as qk

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
INTRODUCTION = """# Python

Everything here is `qk.NAME` after `import qkprism as qk`. Options are given by name. Results are frozen: they have
`.to_frame()`, most have `.plot()` and `.save(folder)`, and their class has `.load(folder)`.

This page is written by `python tests/api_page.py` from docstrings. A test fails when it is stale; another one runs the
examples.
"""
FLOW = (
    "load",
    "explain",
    "survey",
    "task",
    "find_heads",
    "decompose",
    "intervene",
    "validate",
    "attribute",
    "project",
    "run_shelf",
)
ROW = re.compile(r"(\w[\w, ]*?) {2,}(\S.*)")


def page() -> str:
    """The whole page: verbs in the order of their use, then the rest, then classes."""
    functions = [name for name in qk.__all__ if inspect.isfunction(getattr(qk, name))]
    verbs = [*FLOW, *(name for name in functions if name not in FLOW)]
    classes = [name for name in qk.__all__ if inspect.isclass(getattr(qk, name))]
    lines = [INTRODUCTION, "## Verbs\n", *(line for name in verbs for line in _function(name))]
    return "\n".join([*lines, "## Nouns\n", *(line for name in classes for line in _class(name))])


def _function(name: str) -> Iterator[str]:
    function = getattr(qk, name)
    yield f"### {name}\n"
    yield f"```text\nqk.{name}({', '.join(_parameters(function))})\n```\n"
    yield from _blocks(inspect.getdoc(function) or "")


def _class(name: str) -> Iterator[str]:
    found = getattr(qk, name)
    yield f"### {name}\n"
    yield from _blocks(inspect.getdoc(found) or "")
    ours = [one for one in found.__mro__ if one.__module__.startswith("qkprism")]
    every = {key: inspect.getattr_static(found, key) for one in ours for key in vars(one) if not key.startswith("_")}
    methods = [(key, value) for key, value in every.items() if _said(value)]
    if methods:
        yield "| | |\n|---|---|"
        yield from (f"| `{_call(key, value)}` | {_cell(_said(value))} |" for key, value in methods)
        yield ""


def _said(value: Any) -> str:
    """The first paragraph of what a method or property says of itself."""
    plain = value.fget if isinstance(value, property) else getattr(value, "__func__", getattr(value, "func", value))
    return (inspect.getdoc(plain) or "").split("\n\n")[0] if callable(plain) and plain is not None else ""


def _call(name: str, value: Any) -> str:
    """A method with its parameters, a property by its name."""
    plain = getattr(value, "__func__", value)
    return f"{name}({', '.join(_parameters(plain)[1:])})" if inspect.isfunction(plain) else name


def _parameters(function: Any) -> list[str]:
    """Names with their defaults; what types they have stands in the docstring."""
    found, keywords = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            found.append("*")
            keywords = True
        keywords |= parameter.kind is parameter.VAR_POSITIONAL
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={_default(parameter.default)}"
        found.append(f"{star}{parameter.name}{default}")
    return found


def _default(value: Any) -> str:
    return f"{value.__name__}" if callable(value) else "Encoding()" if isinstance(value, qk.Encoding) else repr(value)


def _blocks(said: str) -> Iterator[str]:
    """Paragraphs as they are, examples as sessions, lines of name and meaning as a table, formulas as they stand."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(said)):
        lines = inspect.cleandoc(block).splitlines()
        if lines[0].startswith(">>>"):
            shown = [re.sub(r" +# doctest:.*", "", line) for line in lines]
            yield "\n".join(["```pycon", *shown, "```\n"])
        elif rows := _rows(lines):
            yield "| | |\n|---|---|"
            yield from (f"| `{name}` | {_cell(meaning)} |" for name, meaning in rows)
            yield ""
        elif block.startswith("    "):
            yield "\n".join(["```text", *lines, "```\n"])
        else:
            yield "\n".join(lines) + "\n"


def _rows(lines: list[str]) -> list[tuple[str, str]]:
    """Names and meanings, if every line is one or goes on with the one before."""
    rows: list[tuple[str, str]] = []
    for line in lines:
        if found := ROW.fullmatch(line):
            rows.append((found[1], found[2]))
        elif rows and line.startswith("   "):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line.strip()}")
        else:
            return []
    return rows


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
