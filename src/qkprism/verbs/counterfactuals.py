"""Texts in which one factor was really exchanged between two keys, encoded beside the text they were made of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qkprism.contrasts import Contrast, Example
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.models.encoding import EncodedExample, EncodedKey, EncodedText
from qkprism.models.model import Model
from qkprism.options import show
from qkprism.results.features import Features
from qkprism.verbs.inputs import encode_like

Pair = tuple[Example, Example]
Pairs = Mapping[str, Sequence[Pair] | Contrast]


@dataclass(frozen=True)
class Cases:
    """Base texts, each encoded with the texts that factors made of it: a base that several factors change runs once.

    `changes[i]` says of which of the factors each further text of encoded[i] is.
    """

    encoded: list[EncodedExample]
    changes: list[list[str]]
    factors: tuple[str, ...]

    @classmethod
    def of(cls, model: Model, pairs: Pairs, features: Features, heads: Sequence[Head]) -> Cases:
        """Encode the pairs of all factors as the features' texts were, and check that their keys correspond."""
        named = {name: _pairs(pair, name) for name, pair in pairs.items()}
        if empty := [name for name, pairs_of in named.items() if not pairs_of]:
            raise QKPrismError(f"There are no pairs for the factor {empty[0]!r}.")
        changed = {
            name: encode_like(model, [pair[1] for pair in pairs_of], features, heads)
            for name, pairs_of in named.items()
        }
        bases = dict.fromkeys(base for pairs_of in named.values() for base, _ in pairs_of)
        places = {base: i for i, base in enumerate(bases)}
        encoded = encode_like(model, [*places], features, heads)
        changes: list[list[str]] = [[] for _ in places]
        for name, pairs_of in named.items():
            for number, (base, _) in enumerate(pairs_of):
                at, text = places[base], changed[name][number].text
                _check(encoded[at], text)
                encoded[at] = replace(encoded[at], more=(*encoded[at].more, text))
                changes[at].append(name)
        return cls(encoded, changes, tuple(named))


def _pairs(pairs_like: Any, factor: str) -> list[Pair]:
    """The pairs of a factor, in whatever form they were given; a file is read."""
    if isinstance(pairs_like, Contrast | str | os.PathLike):
        return pairs_of(pairs_like if isinstance(pairs_like, Contrast) else Contrast.read(pairs_like))
    pairs = list(pairs_like) if isinstance(pairs_like, Iterable) else [pairs_like]
    for pair in pairs:
        if not isinstance(pair, tuple | list) or [isinstance(one, Example) for one in pair] != [True, True]:
            raise QKPrismError(f"A pair of the factor {factor!r} is (example, changed example), not {show(pair)}.")
    return [(base, changed) for base, changed in pairs]


def pairs_of(contrast: Contrast) -> list[Pair]:
    """The pairs of a file: each example's text and its twin, in which the factor was exchanged."""
    pairs = []
    for number, example in enumerate(contrast):
        if example.twin is None:
            raise QKPrismError(f"{example.source or f'example {number}'}: a pair is a text and a changed twin.")
        pairs.append((Example(example.text, source=example.source), Example(example.twin, source=example.source)))
    return pairs


def _check(base: EncodedExample, changed: EncodedText) -> None:
    keys = [keys_of(text, base.source) for text in (base.text, changed)]
    if base.text.ids == changed.ids and [k.position for k in keys[0]] == [k.position for k in keys[1]]:
        raise QKPrismError(f"{base.source}: the changed text is the base text; nothing was exchanged.")
    if len(keys[0]) != len(keys[1]):
        raise QKPrismError(
            f"{base.source}: the changed text has {len(keys[1])} keys and the base {len(keys[0])}; mark the keys that "
            "correspond."
        )
    if base.weight != 1:
        raise QKPrismError(f"{base.source}: pairs are not weighted; leave the weight at 1.")


def keys_of(text: EncodedText, source: str) -> list[EncodedKey]:
    """Original, target, and the other keys in the order of the text."""
    originals = [key for key in text.keys if key.positive]
    targets = [key for key in text.keys if key.target and not key.positive]
    if len(originals) != 1 or len(targets) != 1:
        raise QKPrismError(
            f"{source}: a text of a counterfactual pair has one positive key and one negative key marked as target, "
            f"not {len(originals)} and {len(targets)}."
        )
    rest = sorted((k for k in text.keys if k not in (originals[0], targets[0])), key=lambda k: k.position)
    return [originals[0], targets[0], *rest]
