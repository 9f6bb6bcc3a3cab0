"""Our own lists of words, one file each: common ones, which most tokenizers have whole."""

from functools import cache
from importlib.resources import files

from qkprism.errors import QKPrismError

_FOLDER = files("qkprism.contrasts") / "shelf" / "words"


@cache
def words(name: str) -> tuple[str, ...]:
    """The words of a list: `words("fruits")`."""
    if name not in word_lists():
        raise QKPrismError(f"no list of words is called {name!r}; there are {', '.join(word_lists())}")
    return tuple((_FOLDER / f"{name}.txt").read_text(encoding="utf-8").split())


@cache
def word_lists() -> tuple[str, ...]:
    """The names of all lists that come with the package."""
    return tuple(sorted(file.name.removesuffix(".txt") for file in _FOLDER.iterdir() if file.name.endswith(".txt")))
