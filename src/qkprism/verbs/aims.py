"""Which two keys of each example an intervention is about: the original (attended) one and the target.

The original is the positive key (a random one of several), the target the key that is marked so, else a random
negative. Where keys have labels there is a second kind of target: one that differs from the original in a single label.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from zlib import crc32

import numpy as np
import torch

from qkprism.core.rows import Places
from qkprism.errors import QKPrismError
from qkprism.models.encoding import EncodedExample, EncodedKey
from qkprism.results.effects import GIVEN
from qkprism.results.features import Features
from qkprism.subspaces.comparison import Comparison

ANSWER = "answer"  # the label of a key that names the model's answer; it is no factor


@dataclass(frozen=True)
class Aim:
    """The original and the target key of one example; `things` are what the two are, where a label tells."""

    original: EncodedKey
    target: EncodedKey
    things: tuple[Hashable, ...] | None = None


Aims = Mapping[int, Aim]  # by the example's index; an example without an aim is left out


def given_aims(encoded: Sequence[EncodedExample], seed: int) -> dict[int, Aim]:
    """The original and the target of every example."""
    return {example.index: _given(example, _rng(example, seed)) for example in encoded}


def _rng(example: EncodedExample, seed: int) -> np.random.Generator:
    """Random numbers that go with the text, wherever it stands in a list."""
    return np.random.default_rng((seed, crc32(str(example.text.ids).encode())))


def _given(example: EncodedExample, rng: np.random.Generator) -> Aim:
    keys = example.text.keys
    negatives = [key for key in keys if not key.positive]
    if not negatives:
        raise QKPrismError(f"{example.source}: an intervention needs a negative key in the text as its target.")
    marked = [key for key in negatives if key.target]
    return Aim(_one([key for key in keys if key.positive], rng), _one(marked or negatives, rng))


def _one(keys: Sequence[EncodedKey], rng: np.random.Generator) -> EncodedKey:
    return keys[int(rng.integers(len(keys)))]


def matched_aims(encoded: Sequence[EncodedExample], default: Aims, label: str, seed: int) -> dict[int, Aim]:
    """Targets that differ from the original in one label only, where an example has one."""
    found = {}
    for example in encoded:
        original = default[example.index].original
        fitting = [key for key in example.text.keys if _differs_only(original, key, label)]
        if fitting:
            found[example.index] = Aim(original, _one(fitting, _rng(example, seed)))
    return found


def _differs_only(original: EncodedKey, key: EncodedKey, label: str) -> bool:
    ours, theirs = ({name: v for name, v in k.labels.items() if name != ANSWER} for k in (original, key))
    if key.positive or label not in ours or set(theirs) != set(ours):
        return False
    return {name for name in ours if theirs[name] != ours[name]} == {label}


def all_aims(encoded: Sequence[EncodedExample], features: Features, compare: Comparison) -> dict[str, Aims]:
    """Every kind of target: the given one, and for each contrast with a label of its own the matched one."""
    named, item, seed = dict(compare.labels or {}), compare.item, compare.seed
    if unknown := set(named) - set(features.contrasts):
        raise QKPrismError(
            f"labels names the contrast {sorted(unknown)[0]!r}. There are: {', '.join(features.contrasts)}."
        )
    names = {name for example in encoded for key in example.text.keys for name in key.labels}
    if missing := {*named.values(), *([item] if item else [])} - names:
        raise QKPrismError(
            f"No key has a label {sorted(missing)[0]!r}. Labels of keys: {', '.join(sorted(names)) or 'none'}."
        )
    default = given_aims(encoded, seed)
    found: dict[str, Aims] = {GIVEN: default}
    for contrast in features.contrasts:
        matched = matched_aims(encoded, default, named.get(contrast, contrast), seed)
        if matched:
            found[contrast] = matched
    return found if item is None else {target: _named(aims, item) for target, aims in found.items()}


def _named(aims: Aims, item: str) -> Aims:
    """The same, each with what its two keys are."""
    for aim in aims.values():
        if any(item not in key.labels for key in (aim.original, aim.target)):
            raise QKPrismError(f"item={item!r}: not every key that is edited has this label. Label all of them.")
    return {i: replace(aim, things=(aim.original.labels[item], aim.target.labels[item])) for i, aim in aims.items()}


def things_of(aims: Sequence[Aim]) -> list[tuple[Hashable, ...]] | None:
    """What the edited keys of some examples are; None if no label tells."""
    return [aim.things for aim in aims if aim.things is not None] or None


def places_of(
    pairs: Sequence[tuple[EncodedKey, EncodedKey]], keys: Sequence[Sequence[EncodedKey]], tokens: int
) -> Places:
    """Where the original, the target and all marked keys of some texts of so many tokens are."""
    marked = torch.zeros(len(keys), tokens, dtype=torch.bool)
    for i, keys_of_text in enumerate(keys):
        marked[i, [key.position for key in keys_of_text]] = True
    original, target = torch.tensor([[key.position for key in pair] for pair in pairs]).unbind(1)
    return Places(original, target, marked)
