"""Our own lists of words, one file each: common ones, which most tokenizers have whole."""

from functools import cache
from importlib.resources import files


@cache
def words(name: str) -> tuple[str, ...]:
    """The words of a list: `words("fruits")`."""
    return tuple((files(__name__) / f"{name}.txt").read_text(encoding="utf-8").split())
