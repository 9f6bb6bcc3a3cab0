"""Lists of words: of a template, of a file beside it, or our own: common ones, which most tokenizers have whole."""

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from qkprism.contrasts.markup import check_unicode
from qkprism.errors import QKPrismError
from qkprism.options import show

FILE_LIMIT = 300_000  # bytes
_LIST_LIMIT = 5_000  # words
_WORD_LIMIT = 100  # characters
_FOLDER = files("qkprism.contrasts") / "shelf" / "words"


@cache
def words(name: str) -> tuple[str, ...]:
    """The words of a list of ours: `words("fruits")`."""
    if name not in word_lists():
        raise QKPrismError(f"no list of words is called {name!r}; there are {', '.join(word_lists())}")
    return tuple((_FOLDER / f"{name}.txt").read_text(encoding="utf-8").split())


@cache
def word_lists() -> tuple[str, ...]:
    """The names of all lists that come with the package."""
    return tuple(sorted(file.name.removesuffix(".txt") for file in _FOLDER.iterdir() if file.name.endswith(".txt")))


def word_list(name: str, value: Any, folder: Path | None) -> tuple[str, ...]:
    """The words that a template means by a list: written there, `"fruits+objects"`, or `"mine.txt"` in its folder."""
    if isinstance(value, str):
        found = _of_file(value, folder) if value.endswith(".txt") else _of_ours(value)
    elif isinstance(value, list) and all(isinstance(word, str) for word in value):
        found = value
    else:
        raise QKPrismError(
            f"a list is words, the name of one that comes with the package, or a file, not {show(value)}"
        )
    if len(set(found)) < 2:
        raise QKPrismError(f"the list {name!r} has {len(set(found))} words; it needs at least 2, one for the test")
    if len(found) > _LIST_LIMIT:
        raise QKPrismError(f"the list {name!r} has {len(found)} words; {_LIST_LIMIT} at most")
    for word in found:
        if not word.strip() or len(word) > _WORD_LIMIT or not word.isprintable():
            raise QKPrismError(f"{show(word)} is no word; give printable text of at most {_WORD_LIMIT} characters")
        check_unicode(word)
    return tuple(dict.fromkeys(found))


def _of_ours(names: str) -> list[str]:
    return [word for name in names.split("+") for word in words(name.strip())]


def _of_file(name: str, folder: Path | None) -> list[str]:
    """The words of a file: one a line, or all in one line."""
    if folder is None or Path(name).name != name or "\\" in name:
        raise QKPrismError(f"{show(name)} is no file beside the template; give its bare name, such as 'mine.txt'")
    path = folder / name
    if not path.is_file() or path.resolve().parent != folder.resolve():
        raise QKPrismError(f"there is no file {name!r} beside the template")
    if path.stat().st_size > FILE_LIMIT:
        raise QKPrismError(f"{name} has more than {FILE_LIMIT} bytes")
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise QKPrismError(f"{name} cannot be read: {error}") from error
    return [line.strip() for line in text.splitlines() if line.strip()] if "\n" in text else text.split()
