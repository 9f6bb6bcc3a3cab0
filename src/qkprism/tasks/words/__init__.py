"""Our own lists of words, one file each: common ones, which most tokenizers have whole."""

from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from qkprism.errors import QKPrismError
from qkprism.markup import check_unicode


@cache
def words(name: str) -> tuple[str, ...]:
    """The words of a list: `words("fruits")`."""
    return tuple((files(__name__) / f"{name}.txt").read_text(encoding="utf-8").split())


def check_words(given: Iterable[str], what: str) -> None:
    """Refuse what cannot be a word in a text."""
    for word in given:
        if not isinstance(word, str) or not word.strip():
            raise QKPrismError(f"{what} has {word!r} among its words; give words that are not empty.")
        check_unicode(word)
