"""The same decomposition from plain tensors, for vectors that come from elsewhere (TransformerLens, nnsight, a toy).

feature  = decompose_vectors(query, positive, negative)
features = decompose_vector_sets({"z1": Vectors(q1, p1, n1), "z2": Vectors(q2, p2, n2)})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkprism.core.feature import Choices, Feature
from qkprism.core.groups import Grouping
from qkprism.core.moments import Moments, accumulate, assign_folds, group_weights, make_plan, reduce_keys
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike
from qkprism.notes import warn_of
from qkprism.options import READINGS, Center, Rank, Reading, checked_seed, choice, finite, resolve_metric, show
from qkprism.results.features import Features, LayerMoments

_CHUNK = 1024
MAX_WEIGHT = 1e30
SAME = 1e-3  # of the spread of a coordinate: vectors that differ by far less are the same but for rounding
_SHIFTS = (0.0, 0.25, 0.5, 0.75)  # of a grid, in cells


@dataclass(frozen=True)
class Vectors:
    """The vectors of one head: a query and the positive and negative keys of each example.

    With `twin_query` an example is a text and its twin: `positive` is the text's key and `negative` the twin's.
    `*_label` numbers the label cell of each key. `group` keeps related examples in one fold; examples with the same
    vectors, up to rounding, are one group by themselves. Examples of one text with other keys need a `group`. Arrays of
    numpy and lists will do for tensors.
    """

    query: Float[Tensor, "example d_head"]
    positive: Float[Tensor, "example *positive_key d_head"]
    negative: Float[Tensor, "example *negative_key d_head"]
    twin_query: Float[Tensor, "example d_head"] | None = None
    weight: Float[Tensor, " example"] | None = None
    group: Sequence[str | int] | None = None
    positive_label: Int[Tensor, " example *positive_key"] | None = None
    negative_label: Int[Tensor, " example *negative_key"] | None = None

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name != "group"):
            if (given := getattr(self, name)) is not None:
                object.__setattr__(self, name, _tensor(given, name, whole=name.endswith("label")))
        if self.group is not None:
            object.__setattr__(self, "group", _groups(self.group))
        if self.query.ndim != 2:
            raise QKPrismError(f"The queries have shape {tuple(self.query.shape)}; they need [example, d_head].")

    def moments(self, reading: Reading | None = None, seed: int = 0) -> Moments:
        """Their sums, with one head."""
        reading, seed = self._reading(reading), checked_seed(seed)
        n, d_head = self.query.shape
        positive, negative = (k if k.ndim == 3 else k[:, None] for k in (self.positive, self.negative))
        self._check(positive, negative)
        key = torch.cat([positive, negative], 1)[:, :, None]
        is_positive = torch.arange(key.shape[1]) < positive.shape[1]
        twins = reading != "plain"
        side = torch.where(is_positive, 1, 1 if twins else -1).expand(n, -1)
        text = (~is_positive).long().expand(n, -1) * (1 if twins else 0)
        cell = self._cells(positive.shape[:2], negative.shape[:2])
        groups = self.grouping().group
        fold = torch.tensor(assign_folds(groups, seed))
        weight = torch.ones(n) if self.weight is None else self.weight
        group_weight = group_weights(groups, weight)
        query = self.query[:, None, None]
        if self.twin_query is not None:
            query = torch.cat([query, self.twin_query[:, None, None]], 1)
        sums = Moments.zeros([0], d_head, reading=reading, n_cells=int(cell.max()) + 1)
        for at in range(0, n, _CHUNK):
            part = slice(at, at + _CHUNK)
            plan = make_plan(
                side=side[part],
                text=text[part],
                cell=cell[part],
                weight=weight[part],
                group_weight=group_weight[part],
                fold=fold[part],
                index=groups[part],
                reading=reading,
                seed=seed,
            )
            accumulate(sums, query[part], reduce_keys(sums, key[part], plan), plan)
        return sums

    def grouping(self) -> Grouping:
        """The groups that were given, joined where vectors are the same."""
        queries = [self.query] if self.twin_query is None else [self.query, self.twin_query]
        steps = _steps(queries), _steps([self.positive, self.negative])
        if self.twin_query is None:
            texts = [_digests(steps, self.query, self.positive, self.negative)]
        else:
            texts = [_digests(steps, self.query, self.positive), _digests(steps, self.twin_query, self.negative)]
        named = [None] * len(self.query) if self.group is None else list(self.group)
        return Grouping.of(named, [[own for text in example for own in text] for example in zip(*texts, strict=True)])

    def _reading(self, asked: Reading | None) -> Reading:
        if asked is not None:
            choice(asked, READINGS, "a reading of twins")
        if self.twin_query is None:
            if asked not in (None, "plain"):
                raise QKPrismError(f"The reading {asked!r} needs twins: give twin_query.")
            return "plain"
        if asked == "plain":
            raise QKPrismError("The reading 'plain' is of examples without twins: leave twin_query out.")
        return asked or "symmetric"

    def _check(self, positive: Tensor, negative: Tensor) -> None:
        for name, keys in (("positive", positive), ("negative", negative)):
            if (
                keys.ndim != 3
                or keys.shape[1] == 0
                or len(keys) != len(self.query)
                or keys.shape[-1] != self.query.shape[-1]
            ):
                raise QKPrismError(
                    f"The {name} keys have shape {tuple(keys.shape)}; with queries of shape {tuple(self.query.shape)} "
                    "they need one or more keys an example: [example, d_head] or [example, key, d_head]."
                )
        n = len(self.query)
        if n == 0:
            raise QKPrismError("There are no examples.")
        for name in ("weight", "group"):
            given = getattr(self, name)
            if given is not None and (len(given) != n or getattr(given, "ndim", 1) != 1):
                raise QKPrismError(f"{name} has {len(given)} entries for {n} examples; give one for each.")
        if self.twin_query is not None and self.twin_query.shape != self.query.shape:
            theirs, ours = tuple(self.twin_query.shape), tuple(self.query.shape)
            raise QKPrismError(f"twin_query has shape {theirs}; it needs that of query, {ours}.")
        for name, keys in (("positive_label", positive), ("negative_label", negative)):
            label, count = getattr(self, name), len(keys) * keys.shape[1]
            if label is not None and label.numel() != count:
                raise QKPrismError(f"{name} has {label.numel()} entries for {count} keys; give one for each.")
        if self.weight is not None and not bool(((self.weight > 0) & (self.weight <= MAX_WEIGHT)).all()):
            raise QKPrismError(f"Weights are numbers above 0 and up to {MAX_WEIGHT:g}.")

    def _cells(self, positive: torch.Size, negative: torch.Size) -> Int[Tensor, "example key"]:
        sides = zip((self.positive_label, self.negative_label), (positive, negative), strict=True)
        return torch.cat(
            [torch.full(shape, -1) if label is None else label.reshape(shape).long() for label, shape in sides], 1
        )


def _tensor(given: Any, name: str, *, whole: bool) -> Tensor:
    """A tensor of what was given as one: of float32 or float64, or of whole numbers."""
    try:
        tensor = torch.as_tensor(given).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise QKPrismError(f"{name} is not a tensor of numbers: {show(given)}.") from error
    if tensor.ndim == 0 or tensor.is_complex() or tensor.device.type == "meta":
        raise QKPrismError(f"{name} is not a tensor of numbers with a row an example: {show(given)}.")
    if whole:
        if tensor.is_floating_point():
            raise QKPrismError(f"{name} numbers the cells of labels: give whole numbers, not {tensor.dtype}.")
        return tensor.long()
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _groups(given: Any) -> list[Any]:
    """Names or numbers of groups, of Python's own types."""
    plain = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(plain, str) or not isinstance(plain, Sequence):
        raise QKPrismError(f"group is a list of names or numbers, one for each example, not {show(given)}.")
    return [name.item() if hasattr(name, "item") else name for name in plain]


def _digests(steps: tuple[Tensor, Tensor], query: Tensor, *keys: Tensor) -> list[tuple[bytes, ...]]:
    """Digests of each example's query and keys, in whichever order the keys are, one for each of some shifted grids.

    The same text in another batch gives vectors that differ in their last bits. They share a cell of one of the grids,
    unless a number lies at an edge of each.
    """
    n, d_head = query.shape
    sides = (query.reshape(n, 1, d_head), torch.cat([side.reshape(n, -1, d_head) for side in keys], 1))
    scaled = [side.detach().cpu().double() / step for side, step in zip(sides, steps, strict=True)]
    found = []
    for shift in _SHIFTS:
        cells = [((side + shift).floor() + 0.0).numpy() for side in scaled]  # + 0.0: of two zeros one
        bits = (
            one.tobytes() + b"".join(sorted(key.tobytes() for key in of_keys))
            for one, of_keys in zip(*cells, strict=True)
        )
        found.append([blake2b(row, digest_size=16, salt=str(shift).encode()).digest() for row in bits])
    return list(zip(*found, strict=True))


def _steps(vectors: Sequence[Tensor]) -> Float[Tensor, " d_head"]:
    """What counts as rounding in each coordinate: a thousandth of what the middle half of the vectors spans."""
    every = torch.cat([side.detach().cpu().double().reshape(-1, side.shape[-1]) for side in vectors])
    rows = every.sort(0).values
    middle = rows[3 * len(rows) // 4] - rows[len(rows) // 4]
    least = rows.abs().amax(0).clamp(min=1e-30) * 1e-6
    return SAME * torch.maximum(middle, least)


def decompose_vector_sets(
    vectors: Mapping[str, Vectors],
    *,
    center: Center = "query",
    reading: Reading | None = None,
    metric: str | None = None,
    rank: Rank = "own",
    scaling: float | None = None,
    head: HeadLike = "L0H0",
    seed: int = 0,
) -> Features:
    """The features of several contrasts in one head, from its vectors; `scaling` is 1/sqrt(d_head) unless given."""
    if not isinstance(vectors, Mapping) or not vectors:
        raise QKPrismError("No contrast was given. Give vectors by the name of their contrast: {'z1': Vectors(...)}.")
    for name, own in vectors.items():
        if not isinstance(name, str) or not isinstance(own, Vectors):
            raise QKPrismError(f"Give Vectors by the name of their contrast, not {show(name)}: {type(own).__name__}.")
    choices = Choices(center=center, metric=resolve_metric(metric, len(vectors)), rank=rank, seed=seed)
    moments = {name: own.moments(reading, seed) for name, own in vectors.items()}
    place, d_head = Head.parse(head), next(iter(moments.values())).d_head
    layer = LayerMoments((place,), d_head**-0.5 if scaling is None else finite(scaling, "scaling"), moments)
    notes = {name: own.grouping().notes(name, "vectors") for name, own in vectors.items()}
    warn_of((note for own in notes.values() for note in own), 2)
    provenance = {name: {"notes": [note.text for note in own]} for name, own in notes.items()}
    return Features.from_moments({place.layer: layer}, choices, {"contrasts": provenance})


def decompose_vectors(
    query: Float[Tensor, "example d_head"],
    positive: Float[Tensor, "example *positive_key d_head"],
    negative: Float[Tensor, "example *negative_key d_head"],
    *,
    name: str = "contrast",
    twin_query: Float[Tensor, "example d_head"] | None = None,
    weight: Float[Tensor, " example"] | None = None,
    group: Sequence[str | int] | None = None,
    center: Center = "query",
    reading: Reading | None = None,
    rank: Rank = "own",
    scaling: float | None = None,
    seed: int = 0,
) -> Feature:
    """The feature of one contrast in one head, from its vectors."""
    own = Vectors(query, positive, negative, twin_query, weight, group)
    found = decompose_vector_sets({name: own}, center=center, reading=reading, rank=rank, scaling=scaling, seed=seed)
    return next(iter(found.values()))
