"""Pairs of texts in which one factor was really exchanged between two keys, each text once, with its keys in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from qkprism.contrasts import Contrast, Example
from qkprism.errors import QKPrismError
from qkprism.models.encoding import EncodedExample, EncodedKey

Pair = tuple[Example, Example]
Pairs = Mapping[str, Sequence[Pair] | Contrast]


def pairs_of(contrast: Contrast) -> list[Pair]:
    """The pairs of a file: each example's text and its twin, in which the factor was exchanged."""
    pairs = []
    for number, example in enumerate(contrast):
        if example.twin is None:
            raise QKPrismError(
                f"{example.source or f'example {number}'}: no twin; a pair is a text and the changed text."
            )
        pairs.append((Example(example.text, source=example.source), Example(example.twin, source=example.source)))
    return pairs


@dataclass(frozen=True)
class Texts:
    """All texts to run, each once: a base text that several factors share is one text."""

    examples: list[Example]
    pairs: dict[str, list[tuple[int, int]]]  # factor -> places of base and changed text

    @classmethod
    def of(cls, named: Pairs) -> Texts:
        places: dict[Example, int] = {}
        found: dict[str, list[tuple[int, int]]] = {}
        for name, given in named.items():
            pairs = pairs_of(given) if isinstance(given, Contrast) else given
            if not pairs:
                raise QKPrismError(f"There are no pairs for the factor {name!r}.")
            found[name] = [tuple(places.setdefault(e, len(places)) for e in pair) for pair in pairs]  # type: ignore[misc]
        return cls([*places], found)

    @property
    def bases(self) -> set[int]:
        return {base for pairs in self.pairs.values() for base, _ in pairs}

    def check(self, keys: Mapping[int, list[EncodedKey]], encoded: Sequence[EncodedExample]) -> None:
        for pairs in self.pairs.values():
            for base, changed in pairs:
                if len(keys[base]) != len(keys[changed]):
                    raise QKPrismError(
                        f"{encoded[changed].source}: the changed text has {len(keys[changed])} keys and the base "
                        f"{len(keys[base])}; mark the keys that correspond."
                    )

    def shared(self) -> list[int]:
        """The base texts that every factor changes."""
        own = [{base for base, _ in pairs} for pairs in self.pairs.values()]
        return sorted(set.intersection(*own))


def keys_of(example: EncodedExample) -> list[EncodedKey]:
    """Original, target, and the other keys in the order of the text."""
    originals = [key for key in example.text.keys if key.positive]
    targets = [key for key in example.text.keys if key.target and not key.positive]
    if len(originals) != 1 or len(targets) != 1:
        raise QKPrismError(
            f"{example.source}: a text of a counterfactual pair has one positive key and one negative key marked as "
            f"target, not {len(originals)} and {len(targets)}."
        )
    rest = sorted((k for k in example.text.keys if k not in (originals[0], targets[0])), key=lambda k: k.position)
    return [originals[0], targets[0], *rest]
