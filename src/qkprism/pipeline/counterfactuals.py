"""Pairs of texts in which one factor was really exchanged between two keys, encoded side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qkprism.contrasts import Contrast, Example
from qkprism.core.feature_set import Features
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.models.encoding import EncodedExample, EncodedKey, EncodedText
from qkprism.models.model import Model
from qkprism.pipeline.inputs import encode_like

Pair = tuple[Example, Example]
Pairs = Mapping[str, Sequence[Pair] | Contrast]


@dataclass(frozen=True)
class Twins:
    """The pairs of one factor: each an example whose twin is the changed text, and the base text they start from."""

    encoded: list[EncodedExample]
    bases: list[Example]

    @classmethod
    def of(
        cls, model: Model, name: str, given: Sequence[Pair] | Contrast, features: Features, heads: Sequence[Head]
    ) -> Twins:
        """Encode the pairs of a factor as the features' texts were, and check that their keys correspond."""
        pairs = pairs_of(given) if isinstance(given, Contrast) else list(given)
        if not pairs:
            raise QKPrismError(f"There are no pairs for the factor {name!r}.")
        texts = [encode_like(model, [pair[side] for pair in pairs], features, heads) for side in (0, 1)]
        twins = [replace(base, twin=changed.text) for base, changed in zip(*texts, strict=True)]
        for twin in twins:
            _check(twin)
            if twin.weight != 1:
                raise QKPrismError(f"{twin.source}: pairs are not weighted; leave the weight at 1.")
        return cls(twins, [base for base, _ in pairs])


def pairs_of(contrast: Contrast) -> list[Pair]:
    """The pairs of a file: each example's text and its twin, in which the factor was exchanged."""
    pairs = []
    for number, example in enumerate(contrast):
        if example.twin is None:
            raise QKPrismError(f"{example.source or f'example {number}'}: a pair is a text and a changed twin.")
        pairs.append((Example(example.text, source=example.source), Example(example.twin, source=example.source)))
    return pairs


def _check(example: EncodedExample) -> None:
    assert example.twin is not None  # made so above
    base, changed = (keys_of(text, example.source) for text in example.texts)
    if example.text.ids == example.twin.ids and [k.position for k in base] == [k.position for k in changed]:
        raise QKPrismError(f"{example.source}: the changed text is the base text; nothing was exchanged.")
    if len(base) != len(changed):
        raise QKPrismError(
            f"{example.source}: the changed text has {len(changed)} keys and the base {len(base)}; mark the keys that "
            "correspond."
        )


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
