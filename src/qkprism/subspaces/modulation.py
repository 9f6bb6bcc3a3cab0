"""Which label modulates features, and the conditional edits that follow: from the sums that features keep.

A label modulates a head if other features are stronger at some of its values than at others. A contrast moves the
label if it bears its name, or if its twins never share a value of it. All other contrasts need twins that do.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from qkprism.core.conditional import (
    UNKNOWN,
    ConditionalParts,
    ConditionalSwap,
    KeysByValue,
    Standard,
    Twins,
    amplitudes,
    counted_share,
    exchanged_share,
    pooled_spread,
)
from qkprism.core.metrics import is_singular
from qkprism.core.moments import Moments
from qkprism.core.projectors import Subspace
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike
from qkprism.results.features import Features
from qkprism.results.interaction import FeatureAmplitudes, Interactions

KeyLabels = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]  # of the original and of the target of each example
FEWEST = 2.0  # keys of a value that a covariance needs


@dataclass(frozen=True)
class Modulation:
    """The label that modulates, its values, and which contrasts move it."""

    label: str
    values: tuple[Hashable, ...]
    movers: tuple[str, ...]

    def number(self, labels: Mapping[str, object]) -> int:
        """The number of a key's value, -1 where it is not known."""
        value = labels.get(self.label)
        return self.values.index(value) if value in self.values else UNKNOWN

    def numbers(self, pairs: KeyLabels, device: torch.device) -> tuple[Int[Tensor, " pair"], Int[Tensor, " pair"]]:
        """The values of pairs of keys: of the first of each, and of the second."""
        both = torch.tensor([[self.number(labels) for labels in pair] for pair in pairs], device=device)
        return both[:, 0], both[:, 1]


def labels_by_value(features: Features) -> dict[str, tuple[Hashable, ...]]:
    """The labels by whose values the keys of these features were summed, with all their values."""
    found: dict[str, dict[Hashable, None]] = {}
    for name in features.contrasts:
        for label, values in _numbers(features, name).items():
            found.setdefault(label, {}).update(dict.fromkeys(values))
    return {label: tuple(values) for label, values in found.items()}


def _numbers(features: Features, contrast: str) -> Mapping[str, Sequence[Hashable]]:
    """Of one contrast: its labels and their values, in the order in which they stand in its sums."""
    facts = features.provenance.get("contrasts", {}).get(contrast, {})
    found: Mapping[str, Sequence[Hashable]] = facts.get("values", {})
    return found


def why_not_conditional(features: Features, label: str | None = None) -> str | None:
    """What is missing for conditional edits, in a sentence; None if nothing is."""
    if features.choices.metric != "contrast":
        return "the conditional edit needs features in the contrast metric."
    summed = labels_by_value(features)
    if not summed:
        return (
            "the conditional edit needs twins whose keys have a label of few values, such as their order in the text, "
            "by which the keys were summed; these features have none."
        )
    if label is not None and label not in summed:
        return f"keys were not summed by the label {label!r}. There are: {', '.join(summed)}."
    reasons = [_lacking(features, one, summed[one]) for one in ([label] if label else summed)]
    return None if None in reasons else reasons[0]


def _lacking(features: Features, label: str, values: Sequence[Hashable]) -> str | None:
    """Why a label cannot be the one that modulates."""
    if len(values) < 2:
        return f"all keys have one {label}, {values[0]}; the conditional edit needs two or more."
    layer = next(iter(features.layers.values()))
    still = [name for name in features.contrasts if name not in _movers(features, label)]
    for name in still:
        if layer.moments[name].reading == "plain":
            return f"the conditional edit needs twins, and the contrast {name!r} has none."
        if not float(_pooled_twins(features, layer.moments[name], name, label, values, 0).weight.sum()):
            return f"no key of the contrast {name!r} has the label {label!r}, which the conditional edit goes by."
    for one in features.layers.values():
        for kv in set(next(iter(one.moments.values())).kv_index):
            keys = _keys_by_value(features, one.moments, label, values, kv)
            if float(keys.weight.min()) < FEWEST or bool(is_singular(keys.covariance.mean(0))):
                return f"keys of one {label} do not span the key space (too few examples) for the conditional edit."
    return None


def _movers(features: Features, label: str) -> tuple[str, ...]:
    layer = next(iter(features.layers.values()))
    found = []
    for name in features.contrasts:
        places, moments = _places(features, name, label), layer.moments[name]
        keys = float(moments.value_weight[:, places].sum()) if places else 0.0
        if name == label or (keys and not float(moments.twin_weight[places].sum())):
            found.append(name)
    return tuple(found)


def _places(features: Features, contrast: str, label: str) -> list[int]:
    """Where the values of a label stand in the sums of a contrast."""
    start = 0
    for name, values in _numbers(features, contrast).items():
        if name == label:
            return list(range(start, start + len(values)))
        start += len(values)
    return []


def modulation_of(features: Features, label: str | None = None) -> Modulation:
    """The label that modulates: the one that was named, or that by which amplitudes differ most beyond their errors."""
    if (reason := why_not_conditional(features, label)) is not None:
        raise QKPrismError(reason[0].upper() + reason[1:])
    summed = labels_by_value(features)
    possible = [one for one in ([label] if label else summed) if _lacking(features, one, summed[one]) is None]
    found = [Modulation(one, summed[one], _movers(features, one)) for one in possible]
    return found[0] if len(found) == 1 else max(found, key=lambda one: _evidence(features, one))


def _evidence(features: Features, modulation: Modulation) -> float:
    """The mean over heads and features of how far amplitudes are from 1, in errors."""
    every = [
        amplitude.statistic
        for number in features.layers
        for of_head in layer_amplitudes(features, number, modulation).values()
        for amplitude in of_head.values()
    ]
    return sum(every) / len(every) if every else 0.0


@dataclass(frozen=True)
class Amplitudes:
    """gamma_v of one feature in one head, and in both halves of the examples."""

    value: Float64[Tensor, " value"]
    halves: Float64[Tensor, "half value"]

    @property
    def error(self) -> Float64[Tensor, " value"]:
        """The standard error of each amplitude: the halves' mean squared relative difference, over all values."""
        apart = (self.halves[0] - self.halves[1]) / self.value / 2
        return self.value * apart.square().mean().sqrt()

    @property
    def statistic(self) -> float:
        """sum_v (gamma_v - 1)^2 / error^2 over V - 1: about 1 where amplitudes are all alike (F with V - 1, V)."""
        squares = ((self.value - 1) / self.error).square()
        return float(squares.sum() / max(len(squares) - 1, 1))


def layer_amplitudes(
    features: Features, number: int, modulation: Modulation, heads: Sequence[Head] | None = None
) -> dict[Head, dict[str, Amplitudes]]:
    """The amplitudes of all features that do not move the label themselves, in some heads (or all) of one layer."""
    layer = features.layers[number]
    found: dict[Head, dict[str, Amplitudes]] = {}
    for place, head in enumerate(layer.heads):
        if heads is not None and head not in heads:
            continue
        joint = features.joint(head)
        if joint.subspaces is None:
            continue
        kv = next(iter(layer.moments.values())).kv_index[place]
        sides = [
            _keys_by_value(features, layer.moments, modulation.label, modulation.values, kv, half=half).covariance
            for half in (None, 0, 1)
        ]
        others = [name for name in features.contrasts if name not in modulation.movers]
        found[head] = {}
        for name in others:
            whole, *halves = (amplitudes(side, joint.subspace(name)) for side in sides)
            found[head][name] = Amplitudes(whole, torch.stack(halves))
    return found


@dataclass(frozen=True)
class HeadModulation:
    """What conditional edits of one head are made of: of the keys as they are, or with values and twins dealt anew."""

    standard: Standard
    spread: Float64[Tensor, "d_head d_head"]
    twins: Mapping[str, Twins]
    spaces: Mapping[str, Subspace]
    notes: tuple[str, ...] = ()

    def swap(self, group: Sequence[str], movers: Sequence[str]) -> ConditionalSwap:
        """The exchange of some features together."""
        others = [self.twins[name] for name in group if name not in movers]
        nothing = torch.zeros_like(self.spread)
        share = exchanged_share(others, self.standard, self.spread) if others else nothing
        return ConditionalSwap(self.standard, share, any(name in movers for name in group))

    def parts(self, names: Sequence[str], movers: Sequence[str]) -> ConditionalParts:
        """How logits are split into some of the features."""
        counted = {}
        for name in (one for one in names if one not in movers):
            share = exchanged_share([self.twins[name]], self.standard, self.spread)
            counted[name] = counted_share(share, self.spaces[name], self.spread) if self.spaces else share
        return ConditionalParts(self.standard, tuple(names), tuple(movers), counted)


def has_dealt_values(features: Features, head: Head) -> bool:
    """Whether there is anything to deal: twins without a negative key have no key that stays."""
    moments = features.layers[head.layer].moments.values()
    return any(float(one.dealt_weight.sum()) for one in moments)


def head_modulation(features: Features, head: Head, modulation: Modulation, *, dealt: bool = False) -> HeadModulation:
    """What conditional edits of a head are made of."""
    layer = features.layers[head.layer]
    kv = next(iter(layer.moments.values())).kv_index[layer.heads.index(head)]
    label, values = modulation.label, modulation.values
    keys = _keys_by_value(features, layer.moments, label, values, kv, dealt=dealt)
    joint = features.joint(head).subspaces
    notes: tuple[str, ...] = ()
    others = [name for name in features.contrasts if name not in modulation.movers]
    if joint is None:
        notes = (f"{head}: no joint projectors, so features count as equally strong at every {label}.",)
        joint = {}
    gammas = {name: amplitudes(keys.covariance, joint[name]) for name in others if joint}
    standard = Standard.of(keys, joint, gammas)
    twins = {
        name: _pooled_twins(features, layer.moments[name], name, label, values, kv, dealt=dealt) for name in others
    }
    return HeadModulation(standard, pooled_spread(keys, standard), twins, joint, notes)


def _keys_by_value(
    features: Features,
    moments: Mapping[str, Moments],
    label: str,
    values: Sequence[Hashable],
    kv: int,
    *,
    half: int | None = None,
    dealt: bool = False,
) -> KeysByValue:
    """Of one key head, over all contrasts, both halves or one of them."""
    d = next(iter(moments.values())).d_head
    sums = [torch.zeros(len(values), *shape, dtype=torch.float64) for shape in ((), (d,), (d, d))]
    for name, of_contrast in moments.items():
        places, at = _aligned(features, name, label, values)
        if dealt:
            parts = of_contrast.dealt_weight, of_contrast.dealt_sum[:, kv], of_contrast.dealt_square[:, kv]
        else:
            chosen = slice(None) if half is None else slice(half, half + 1)
            every = of_contrast.value_weight, of_contrast.value_sum[:, :, kv], of_contrast.value_square[:, :, kv]
            parts = tuple(one[chosen].sum(0) for one in every)  # type: ignore[assignment]
        for total, part in zip(sums, parts, strict=True):
            total[at] += part[places].double()
    return KeysByValue.of(*sums)


def _pooled_twins(
    features: Features,
    moments: Moments,
    contrast: str,
    label: str,
    values: Sequence[Hashable],
    kv: int,
    *,
    dealt: bool = False,
) -> Twins:
    places, at = _aligned(features, contrast, label, values)
    weight = torch.zeros(len(values), dtype=torch.float64)
    square = torch.zeros(len(values), moments.d_head, moments.d_head, dtype=torch.float64)
    weights, squares = (
        (moments.dealt_twin_weight, moments.dealt_twin_square) if dealt else (moments.twin_weight, moments.twin_square)
    )
    weight[at] = weights[places]
    square[at] = squares[places, kv].double() / weights[places].clamp(min=1e-300)[:, None, None]
    return Twins(weight, square)


def _aligned(features: Features, contrast: str, label: str, values: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """Where a contrast's sums of a label's values stand, and which of all values these are."""
    named = _numbers(features, contrast).get(label, ())
    return _places(features, contrast, label), [values.index(value) for value in named]


def interactions(
    features: Features, label: str | None = None, *, heads: Sequence[HeadLike] | None = None
) -> Interactions:
    """How strong each feature is at each value of the label that modulates it, with errors and a test.

    >>> qk.interactions(features).verdict()   # doctest: +SKIP
    ['L18H6: lexical is 1.8 times as strong at order 8 as at order 0.']

    features     what `decompose` gave, of twins whose keys have a label of few values
    label        that modulates; by default the one by which amplitudes differ most beyond their errors
    heads        some of the heads that have features; all by default
    """
    modulation = modulation_of(features, label)
    chosen = features.heads if heads is None else [Head.parse(head) for head in heads]
    found, notes = [], []
    for number, layer in features.layers.items():
        of_layer = layer_amplitudes(features, number, modulation, chosen)
        notes += [
            f"{head}: {features.joint(head).reason}" for head in layer.heads if head in chosen and head not in of_layer
        ]
        for head, amplitudes_of in of_layer.items():
            for name, one in amplitudes_of.items():
                numbers = tuple(one.value.tolist()), tuple(one.error.tolist()), one.statistic
                found.append(FeatureAmplitudes(head, name, modulation.label, modulation.values, *numbers))
    return Interactions(tuple(found), tuple(notes))


def interactions_in_words(features: Features) -> list[str]:
    """Whether features are as strong at every value of the label that modulates; nothing where that cannot be told."""
    return [] if why_not_conditional(features) is not None else interactions(features).in_words()
