"""Moments: the additive sums of query and key vectors that every feature is computed from (paper, section 3).

For one contrast and the chosen heads of one layer. An example gives a query q and a key difference
d = (mean positive key) - (mean negative key), so that it weighs 1 on each side however many keys it has, and

    dC = C+ - C- = sum w q d^T / sum w.

How an example gives q and d is its reading:

    plain      q, d = mean k+ - mean k-                     one text
    paired     q = q_A,             d = k_A - k_B           a text A and its twin B
    symmetric  q = (q_A - q_B) / 2, d = k_A - k_B           a double difference
    matched    sum of (q_A, k_A) and (q_B, -k_B)            two products an example: two slots

Sums are additive, so they stream, merge with `+`, are checkpointed and all-reduced. The sums that define
results are float64; copies for the null and the folds of the held-out test are float32, each addition a chunk
that was summed in float64.

Where keys have a label of few values and examples have twins, keys and the differences of twins are also summed by
that value (`core/by_value.py`): what factors that do not add up need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from einops import einsum, rearrange
from jaxtyping import Float, Float64, Int
from torch import Tensor

from qkprism.core.by_value import N_HALVES, ValuePlan, add_by_value
from qkprism.errors import QKPrismError
from qkprism.options import Reading

N_FOLDS = 8
N_FLIPS = 4
N_SHUFFLES = 3
MAX_CELLS = 512  # the fullest label cells that are summed: enough for the noise within cells, and bounded


def slots_of(reading: Reading) -> int:
    """How many products q d^T an example of this reading contributes."""
    return 2 if reading == "matched" else 1


@dataclass(frozen=True)
class Moments:
    """Weighted sums over examples, for one contrast and the heads of one layer; `a + b` is the sums of both.

    `kv_index` maps each head to its place on the kv_head axis: under grouped-query attention heads share keys.
    """

    reading: Reading
    kv_index: tuple[int, ...]
    count: Float64[Tensor, " fold"]
    weight: Float64[Tensor, " fold"]
    weight_square: Float64[Tensor, " fold"]
    group_square: Float64[Tensor, " fold"]
    query: Float64[Tensor, "slot fold head d_head"]
    difference: Float64[Tensor, "slot fold kv_head d_head"]
    product: Float64[Tensor, "head d_head d_head"]
    gap_square: Float64[Tensor, " head"]
    fold_product: Float[Tensor, "fold head d_head d_head"]
    query_square: Float64[Tensor, "head d_head d_head"]
    difference_square: Float64[Tensor, "kv_head d_head d_head"]
    flip_weight: Float64[Tensor, " flip"]
    flip_query: Float64[Tensor, "flip slot head d_head"]
    flip_difference: Float64[Tensor, "flip slot kv_head d_head"]
    flip_product: Float[Tensor, "flip head d_head d_head"]
    shuffle_difference: Float64[Tensor, "shuffle slot kv_head d_head"]
    shuffle_product: Float[Tensor, "shuffle head d_head d_head"]
    key_within: Float64[Tensor, "kv_head d_head d_head"]
    key_freedom: Float64[Tensor, ""]
    key_mean: Float64[Tensor, "kv_head d_head"]
    key_mean_square: Float64[Tensor, "kv_head d_head d_head"]
    cell_weight: Float64[Tensor, " cell"]
    cell_sum: Float64[Tensor, "cell kv_head d_head"]
    cell_square: Float64[Tensor, "kv_head d_head d_head"]
    value_weight: Float64[Tensor, "half value"]
    value_sum: Float64[Tensor, "half value kv_head d_head"]
    value_square: Float64[Tensor, "half value kv_head d_head d_head"]
    twin_weight: Float64[Tensor, " value"]
    twin_square: Float64[Tensor, "value kv_head d_head d_head"]
    dealt_weight: Float64[Tensor, " value"]
    dealt_sum: Float64[Tensor, "value kv_head d_head"]
    dealt_square: Float[Tensor, "value kv_head d_head d_head"]
    dealt_twin_weight: Float64[Tensor, " value"]
    dealt_twin_square: Float[Tensor, "value kv_head d_head d_head"]

    @classmethod
    def zeros(
        cls,
        kv_index: Sequence[int],
        d_head: int,
        *,
        reading: Reading = "plain",
        n_cells: int = 0,
        n_values: int = 0,
        device: str = "cpu",
    ) -> Moments:
        """Sums of nothing."""
        kv = max(kv_index) + 1
        sizes = {"slot": slots_of(reading), "fold": N_FOLDS, "head": len(kv_index), "kv_head": kv, "d_head": d_head}
        sizes |= {"flip": N_FLIPS, "shuffle": N_SHUFFLES, "cell": n_cells, "value": n_values, "half": N_HALVES}

        def nothing(name: str) -> Tensor:
            return torch.zeros([sizes[axis] for axis in _AXES[name]], dtype=_DTYPES[name], device=device)

        return cls(reading, tuple(kv_index), **{name: nothing(name) for name in _AXES})

    def tensors(self) -> dict[str, Tensor]:
        """The sums by name: what is stored, sent and added."""
        return {f.name: getattr(self, f.name) for f in fields(self) if isinstance(getattr(self, f.name), Tensor)}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> Moments:
        """The same moments with other sums."""
        return replace(self, **tensors)  # type: ignore[arg-type]

    def to(self, device: str | torch.device) -> Moments:
        """A copy on another device."""
        return self.with_tensors({name: tensor.to(device) for name, tensor in self.tensors().items()})

    def pick(self, heads: Sequence[int]) -> Moments:
        """The sums of some heads, by their places, and of the key heads that these use."""
        keys = [self.kv_index[place] for place in heads]
        used = sorted(set(keys))
        chosen = {"head": torch.tensor([*heads]), "kv_head": torch.tensor(used)}
        picked = self.tensors()
        for axis, places in chosen.items():
            for name in (one for one in _AXES if axis in _AXES[one]):
                picked[name] = picked[name].index_select(_AXES[name].index(axis), places.to(picked[name].device))
        return replace(self, kv_index=tuple(used.index(key) for key in keys), **picked)  # type: ignore[arg-type]

    def __add__(self, other: Moments) -> Moments:
        ours, theirs = self.tensors(), other.tensors()
        if self.reading != other.reading or self.kv_index != other.kv_index:
            raise QKPrismError("Moments of different readings or heads cannot be added.")
        if any(ours[name].shape != theirs[name].shape for name in ours):
            raise QKPrismError("Moments of different head sizes, label cells or values cannot be added.")
        return self.with_tensors({name: ours[name] + theirs[name] for name in ours})

    @property
    def n_examples(self) -> int:
        return int(self.count.sum())

    @property
    def n_effective(self) -> float:
        """(sum w)^2 / sum w^2: how many equally weighted examples tell as much."""
        return float(self.weight.sum() ** 2 / self.weight_square.sum()) if self.n_examples else 0.0

    @property
    def n_independent(self) -> float:
        """(sum w)^2 / sum over groups of (sum w in it)^2: as if the examples of a group were copies of each other."""
        return float(self.weight.sum() ** 2 / self.group_square.sum()) if self.n_examples else 0.0

    @property
    def n_heads(self) -> int:
        return len(self.kv_index)

    @property
    def d_head(self) -> int:
        return self.product.shape[-1]


_SUMS = {one.name: str(one.type) for one in fields(Moments) if str(one.type).startswith("Float")}
_AXES = {name: re.findall(r"\w+", kind.partition(",")[2]) for name, kind in _SUMS.items()}  # their types say so
_DTYPES = {name: torch.float64 if kind.startswith("Float64") else torch.float32 for name, kind in _SUMS.items()}


def pack(sums: Mapping[str, Moments]) -> dict[str, Tensor]:
    """All tensors of some moments under `name/tensor`, as a file holds them."""
    return {f"{name}/{key}": tensor for name, total in sums.items() for key, tensor in total.tensors().items()}


def unpack(tensors: Mapping[str, Tensor], name: str, reading: Reading, kv_index: Sequence[int]) -> Moments:
    """The moments that `pack` put under a name."""
    found = {key.removeprefix(f"{name}/"): t for key, t in tensors.items() if key.startswith(f"{name}/")}
    return Moments(reading=reading, kv_index=tuple(kv_index), **found)


@dataclass(frozen=True, eq=False)
class Marks:
    """What is known of some examples, the same in every layer.

    side    +1 or -1 of each key, 0 where an example has fewer; `text` is 1 for keys of the twin
    cell    which combination of labels a key has, -1 without
    value   which value a key has of each label that keys are summed by, -1 without
    group   examples with one number are not independent; `group_weight` is the weight of an example's group
    """

    side: Int[Tensor, "example key"]
    text: Int[Tensor, "example key"]
    cell: Int[Tensor, "example key"]
    weight: Float[Tensor, " example"]
    group_weight: Float[Tensor, " example"]
    fold: Int[Tensor, " example"]
    group: tuple[int, ...]
    value: Int[Tensor, "example key label"]


@dataclass(frozen=True)
class Plan:
    """What is done with the vectors of some examples, the same for every layer and head.

    `coefficient` turns the marked keys of an example into its rows: one a slot, and the slots of each
    shuffle. `share` is 1/m for each of its m marked keys. A padded key has zeros in both.
    """

    reading: Reading
    weight: Float64[Tensor, " example"]
    group_weight: Float64[Tensor, " example"]
    fold: Int[Tensor, " example"]
    sign: Float64[Tensor, "flip example"]
    coefficient: Float64[Tensor, "row example key"]
    share: Float64[Tensor, "example key"]
    cell: Int[Tensor, "example key"]
    values: ValuePlan

    def to(self, device: str | torch.device) -> Plan:
        """A copy on another device."""
        moved = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: v.to(device) for k, v in moved.items() if isinstance(v, Tensor | ValuePlan)})  # type: ignore[arg-type]


def make_plan(marks: Marks, reading: Reading, seed: int) -> Plan:
    """What is done with the vectors of some examples.

    Random signs and shuffles depend on the seed and the number of the example's group alone, never on the batch:
    examples of one group are not independent, and a null that treats them so is too narrow.
    """
    side, text = marks.side, marks.text
    rngs = [np.random.default_rng((seed, i)) for i in marks.group]
    sign = torch.tensor(np.array([rng.choice([-1.0, 1.0], N_FLIPS) for rng in rngs]).T)
    swap = torch.tensor(np.array([rng.choice([-1.0, 1.0], N_SHUFFLES) for rng in rngs]).T)
    order = torch.zeros(len(rngs), N_SHUFFLES, side.shape[1], dtype=torch.float64)
    for i, (rng, count) in enumerate(zip(rngs, (side != 0).sum(1).tolist(), strict=True)):
        order[i, :, side[i] != 0] = torch.tensor(rng.random((N_SHUFFLES, count)))
    rows = list(_slot_rows(side, text, reading))
    for shuffle in range(N_SHUFFLES):
        if reading == "plain":
            rows.extend(_slot_rows(_shuffled(side, order[:, shuffle]), text, reading))
        else:  # exchanging text and twin turns every product around
            rows.extend(row * swap[shuffle][:, None] for row in _slot_rows(side, text, reading))
    share = _mean_row(side != 0)
    value = marks.value[..., :0] if reading == "plain" else marks.value  # only twins are summed by values
    values = ValuePlan.of(value, side, text, rngs)  # the last to draw: what was drawn before stays as it is
    weight, group_weight = marks.weight.double(), marks.group_weight.double()
    return Plan(reading, weight, group_weight, marks.fold, sign, torch.stack(rows), share, marks.cell, values)


def _mean_row(chosen: Tensor) -> Float64[Tensor, "example key"]:
    return chosen.double() / chosen.sum(1, keepdim=True).clamp(min=1)


def _slot_rows(side: Tensor, text: Tensor, reading: Reading) -> list[Tensor]:
    """The coefficients of the keys in each slot's d."""
    if reading == "plain":
        return [_mean_row(side > 0) - _mean_row(side < 0)]
    ours, twins = _mean_row((side > 0) & (text == 0)), _mean_row((side > 0) & (text == 1))
    return [ours, -twins] if reading == "matched" else [ours - twins]


def _shuffled(side: Tensor, order: Tensor) -> Tensor:
    """Deal the sides of each example anew among its keys, in random order."""
    rank = order.masked_fill(side == 0, torch.inf).argsort(1).argsort(1)
    dealt = torch.where(rank < (side > 0).sum(1, keepdim=True), 1, -1)
    return dealt * (side != 0)


def slot_queries(
    query: Float[Tensor, "example text head d_head"], reading: Reading
) -> Float[Tensor, "slot example head d_head"]:
    """The query of each slot."""
    if reading in ("plain", "paired"):
        return query[None, :, 0]
    if reading == "symmetric":
        return (query[None, :, 0] - query[None, :, 1]) / 2
    return torch.stack([query[:, 0], query[:, 1]])


def reduce_keys(
    moments: Moments, key: Float[Tensor, "example key kv_head d_head"], plan: Plan
) -> Float[Tensor, "row example kv_head d_head"]:
    """Add what needs the single keys (within and between examples, within cells); the rows that go with queries."""
    key = key.double()
    mean = einsum(plan.share, key, "example key, example key kv d -> example kv d")
    spread = (key - mean[:, None]) * (plan.weight[:, None] * plan.share).sqrt()[..., None, None]
    moments.key_within.add_(_square(spread.flatten(0, 1)))
    moments.key_freedom.add_((plan.weight * (1 - plan.share.square().sum(1))).sum())
    moments.key_mean.add_(einsum(plan.weight, mean, "example, example kv d -> kv d"))
    moments.key_mean_square.add_(_square(mean * plan.weight.sqrt()[:, None, None]))
    if len(moments.cell_weight) and bool((inside := plan.cell >= 0).any()):
        mass, cell = (plan.weight[:, None] * plan.share)[inside], plan.cell[inside]
        weighted = key[inside] * mass[:, None, None]
        moments.cell_weight.index_add_(0, cell, mass)
        moments.cell_sum.index_add_(0, cell, weighted)
        moments.cell_square.add_(_square(key[inside] * mass.sqrt()[:, None, None]))
    if moments.twin_weight.numel():
        _add_values(moments, key, plan)
    return einsum(plan.coefficient, key, "row example key, example key kv d -> row example kv d")


def _add_values(moments: Moments, key: Float64[Tensor, "example key kv_head d_head"], plan: Plan) -> None:
    """Add keys by the values of their labels, and differences of twins by the value that both have."""
    values, slots = plan.values, slots_of(plan.reading)
    mass, vectors = (plan.weight[:, None] * plan.share).flatten(), key.flatten(0, 1)
    half = (plan.fold % N_HALVES)[:, None].expand_as(plan.share).flatten()
    for number in range(N_HALVES):
        into = moments.value_weight[number], moments.value_square[number]
        value = values.value.flatten(0, 1).masked_fill((half != number)[:, None], -1)
        add_by_value(*into, vectors, value, mass, moments.value_sum[number])
    dealt = values.dealt.flatten(0, 1)
    add_by_value(moments.dealt_weight, moments.dealt_square, vectors, dealt, mass, moments.dealt_sum)
    twins, pairs = (
        einsum(row, key, "example key, example key kv d -> example kv d")
        for row in (plan.coefficient[:slots].sum(0), values.pair)
    )
    add_by_value(moments.twin_weight, moments.twin_square, twins, values.twin, plan.weight)
    add_by_value(moments.dealt_twin_weight, moments.dealt_twin_square, pairs, values.dealt_twin, plan.weight)


def _square(vectors: Float64[Tensor, "row kv_head d_head"]) -> Float64[Tensor, "kv_head d_head d_head"]:
    rows = rearrange(vectors, "row kv d -> kv row d")
    return rows.mT @ rows


def accumulate(
    moments: Moments,
    query: Float[Tensor, "example text head d_head"],
    rows: Float[Tensor, "row example kv_head d_head"],
    plan: Plan,
) -> None:
    """Add the products of queries and key rows (from `reduce_keys`) of some examples."""
    by_fold = plan.fold.argsort(stable=True)  # then each fold is a slice
    query, rows, weight, sign = query[by_fold], rows[:, by_fold], plan.weight[by_fold], plan.sign[:, by_fold]
    kv = torch.tensor(moments.kv_index, device=query.device)
    slots = slots_of(plan.reading)
    q = rearrange(slot_queries(query.double(), plan.reading), "slot example head d -> slot head example d")
    d = rearrange(rows.double(), "row example kv d -> row kv example d")
    q, difference = q * weight[:, None], d[:slots]
    by_head = difference[:, kv]
    _add_folds(moments, q, difference * weight[:, None], by_head, plan.fold[by_fold], weight)
    moments.group_square.index_add_(0, plan.fold, plan.weight * plan.group_weight)
    gap = einsum(q, by_head, "slot head example d, slot head example d -> head example")  # q is weighted
    moments.gap_square.add_((gap.square() / weight).sum(1))
    texts = rearrange(query.double(), "example text head d -> head (example text) d")
    repeated = weight.repeat_interleave(query.shape[1])[:, None] / query.shape[1]
    moments.query_square.add_((texts * repeated).mT @ texts)
    both_slots = difference.sum(0)
    moments.difference_square.add_((both_slots * weight[:, None]).mT @ both_slots)
    _add_flips(moments, q, difference * weight[:, None], by_head, sign, weight)
    _add_shuffles(moments, q, rearrange(d[slots:], "(shuffle slot) ... -> shuffle slot ...", slot=slots), weight)


def _add_folds(
    moments: Moments, q: Tensor, weighted: Tensor, by_head: Tensor, fold: Tensor, weight: Float64[Tensor, " example"]
) -> None:
    """Products of all and by fold; examples are sorted by fold."""
    moments.count.index_add_(0, fold, torch.ones_like(weight))
    moments.weight.index_add_(0, fold, weight)
    moments.weight_square.index_add_(0, fold, weight**2)
    moments.product.add_((q.mT @ by_head).sum(0))
    end = 0
    for number, size in enumerate(torch.bincount(fold, minlength=N_FOLDS).tolist()):
        start, end = end, end + size
        if size:
            part = slice(start, end)
            moments.fold_product[number] += (q[:, :, part].mT @ by_head[:, :, part]).sum(0)
            moments.query[:, number] += q[:, :, part].sum(2)
            moments.difference[:, number] += weighted[:, :, part].sum(2)


def _add_flips(
    moments: Moments, q: Tensor, weighted: Tensor, by_head: Tensor, sign: Tensor, weight: Float64[Tensor, " example"]
) -> None:
    """Copies with a random sign on each example, in which no query belongs to its difference."""
    moments.flip_weight.add_(sign @ weight)
    moments.flip_query.add_(einsum(sign, q, "flip example, slot head example d -> flip slot head d"))
    moments.flip_difference.add_(einsum(sign, weighted, "flip example, slot kv example d -> flip slot kv d"))
    q, by_head = q.float(), by_head.float()
    for flip, signs in enumerate(sign.float()):
        moments.flip_product[flip] += ((q * signs[:, None]).mT @ by_head).sum(0)


def _add_shuffles(
    moments: Moments, q: Tensor, shuffled: Float64[Tensor, "shuffle slot kv_head example d_head"], weight: Tensor
) -> None:
    """Copies with the sides of each example dealt anew."""
    moments.shuffle_difference.add_((shuffled * weight[:, None]).sum(3))
    kv, left, right = list(moments.kv_index), q.float().mT, shuffled.float()
    for shuffle in range(N_SHUFFLES):
        moments.shuffle_product[shuffle] += (left @ right[shuffle][:, kv]).sum(0)


def group_weights(groups: Sequence[int], weight: Float[Tensor, " example"]) -> Float64[Tensor, " example"]:
    """The weight of all examples of each example's group; a group goes by the number of its first example.

    >>> group_weights([0, 1, 0], torch.tensor([1.0, 1.0, 2.0])).tolist()
    [3.0, 1.0, 3.0]
    """
    number = torch.tensor(groups, dtype=torch.long)
    total = torch.zeros(len(number), dtype=torch.float64)
    return total.index_add_(0, number, weight.double())[number]


def assign_folds(groups: Sequence[str | int], seed: int = 0) -> list[int]:
    """A fold for each example; a group is never split, folds are as even as that allows.

    >>> assign_folds(["a", "b", "a"])[0] == assign_folds(["a", "b", "a"])[2]
    True
    """
    names = list(dict.fromkeys(groups))
    sizes = dict.fromkeys(names, 0)
    for name in groups:
        sizes[name] += 1
    shuffled = [names[i] for i in np.random.default_rng((seed, len(names))).permutation(len(names))]
    shuffled.sort(key=lambda name: -sizes[name])
    load = [0] * N_FOLDS
    chosen: dict[str | int, int] = {}
    for name in shuffled:
        fold = min(range(N_FOLDS), key=lambda f: (load[f], f))
        chosen[name] = fold
        load[fold] += sizes[name]
    return [chosen[name] for name in groups]
