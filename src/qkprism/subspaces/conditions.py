"""The subspaces that are edited in one head: of its features, of several together, and of the controls beside them.

A method says what moves a feature. Of a projector it says how the subspace becomes one:

    contrast      joint oblique projectors in the contrast metric: moves one feature and leaves the others
    raw oblique   the same in the raw metric
    raw           the orthogonal projector on each feature's own key directions: the paper's
    conditional   no projector: keys are exchanged within the values of a label that modulates (`core/conditional.py`)

Controls (`controls.py` has the table of them) have the same metric and rank as the feature that they stand beside:

    permuted      the same pipeline on sides that were dealt anew among the marked keys, or turned around at random; of
                  the conditional edit on values of the label dealt anew, and on twins compared at a key which their
                  contrast does not change
    keys          subspaces drawn from the covariance of the marked keys
    gaussian      Gaussian subspaces
    pca           the leading principal directions of the marked keys
    full, none    the whole key, and nothing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from qkprism.controls import ControlName
from qkprism.core.conditional import ConditionalSwap
from qkprism.core.covariance import flipped_covariances, is_centred, shuffled_covariances
from qkprism.core.effect_sums import Condition
from qkprism.core.metrics import MetricRoot, factor, identity_like, key_covariance
from qkprism.core.moments import Moments
from qkprism.core.projectors import Columns, Subspace, oblique, orthogonal, span, stretch_notes
from qkprism.heads import Head
from qkprism.results.features import Features
from qkprism.subspaces.comparison import CONDITIONAL, DRAWS, Groups, Method, groups_of
from qkprism.subspaces.modulation import Modulation, has_dealt_values, head_modulation, modulation_of


@dataclass(frozen=True)
class Conditions:
    """The subspaces of all conditions in one head, their factors side by side, so that one product serves all.

    Columns that several subspaces have, such as those of a feature moved alone and with others, are there once. The
    last conditions are no subspaces but conditional exchanges, by the label of `modulation`.
    """

    names: tuple[Condition, ...]
    ranks: tuple[int, ...]
    basis: Float64[Tensor, "d_head column"]
    dual: Float64[Tensor, "column d_head"]
    columns: Int[Tensor, " place"]  # of one condition after another
    notes: tuple[str, ...] = ()
    swaps: tuple[ConditionalSwap, ...] = ()
    modulation: Modulation | None = None

    @classmethod
    def of(cls, subspaces: Mapping[Condition, Subspace], notes: Sequence[str] = ()) -> Conditions:
        """Put subspaces side by side."""
        every, ranks = Subspace.joined([*subspaces.values()]), tuple(subspace.rank for subspace in subspaces.values())
        pairs = [pair.tobytes() for pair in torch.cat([every.basis.mT, every.dual], 1).numpy(force=True)]
        first: dict[bytes, int] = {}
        for place, pair in enumerate(pairs):
            first.setdefault(pair, place)
        number, kept = {pair: i for i, pair in enumerate(first)}, [*first.values()]
        columns = torch.tensor([number[pair] for pair in pairs], dtype=torch.long)
        return cls(tuple(subspaces), ranks, every.basis[:, kept], every.dual[kept], columns, tuple(notes))

    def with_swaps(
        self, swaps: Mapping[Condition, tuple[ConditionalSwap, int]], modulation: Modulation | None
    ) -> Conditions:
        """The same with conditional exchanges, each with the rank of what it moves."""
        return replace(
            self,
            names=(*self.names, *swaps),
            ranks=(*self.ranks, *(rank for _, rank in swaps.values())),
            swaps=tuple(swap for swap, _ in swaps.values()),
            modulation=modulation,
        )

    @property
    def n_subspaces(self) -> int:
        """How many of the conditions are subspaces: the first ones."""
        return len(self.names) - len(self.swaps)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The ranks of the subspaces."""
        return self.ranks[: self.n_subspaces]

    def subspace(self, index: int) -> Subspace:
        """The subspace of one condition."""
        columns = self.columns.split(self.sizes)[index]
        return Subspace(self.basis[:, columns], self.dual[columns])

    def swap(self, index: int) -> ConditionalSwap | None:
        """The conditional exchange of one condition; None if it is a subspace."""
        return self.swaps[index - self.n_subspaces] if index >= self.n_subspaces else None

    def moved_by(self, index: int) -> tuple[int, ...]:
        """What one condition moves: conditions of which this is the same are one edit under several names."""
        return (-1, index) if self.swap(index) else tuple(self.columns.split(self.sizes)[index].tolist())

    def pick(self, wanted: Callable[[Condition], bool]) -> Conditions:
        """Only some of the conditions."""
        kept = {name: self.subspace(i) for i, name in enumerate(self.names[: self.n_subspaces]) if wanted(name)}
        last = zip(self.names, self.ranks, strict=True)
        swaps = dict(zip([*last][self.n_subspaces :], self.swaps, strict=True))
        chosen = {name: (swap, rank) for (name, rank), swap in swaps.items() if wanted(name)}
        return Conditions.of(kept, self.notes).with_swaps(chosen, self.modulation)

    @property
    def mT(self) -> Conditions:
        """The same on the other side: projectors on queries."""
        return Conditions(self.names, self.ranks, self.dual.mT, self.basis.mT, self.columns, self.notes)

    def exchange(
        self, query: Float[Tensor, "row d_head"], keys: tuple[Tensor, Tensor], values: tuple[Tensor, Tensor]
    ) -> tuple[Float64[Tensor, "row swap"], Float64[Tensor, "row swap"]]:
        """q^T (change of the original key) and of the target under every conditional exchange."""
        met = [[(query.double() * change).sum(-1) for change in swap.changes(*keys, values)] for swap in self.swaps]
        return tuple(torch.stack([each[side] for each in met], -1) for side in (0, 1))  # type: ignore[return-value]

    def meet(
        self, query: Float[Tensor, "*#row d_head"], key: Float[Tensor, "*#row d_head"]
    ) -> Float64[Tensor, "... condition"]:
        """q^T P k for the projector of every condition; the rows of queries and keys are broadcast."""
        terms = (query.double() @ self.basis.to(query.device)) * (key.double() @ self.dual.to(key.device).mT)
        return self._gather(terms[..., self.columns.to(terms.device)])

    def meet_each(
        self, query: Float[Tensor, "*row d_head"], key: Float[Tensor, "condition d_head"]
    ) -> Float64[Tensor, "*row condition"]:
        """q^T P k with a key of every condition's own."""
        within = (self.dual[self.columns] * key.to(self.dual)[self._owner]).sum(-1).to(query.device)
        return self._gather((query.double() @ self.basis.to(query.device))[..., self.columns] * within)

    def leads(self, direction: int) -> Float64[Tensor, "condition d_head"]:
        """One direction of every subspace; zeros where it has fewer."""
        places = [
            int(columns[direction]) if len(columns) > direction else -1 for columns in self.columns.split(self.sizes)
        ]
        return torch.cat([self.basis, torch.zeros_like(self.basis[:, :1])], 1)[:, places].mT

    @property
    def _owner(self) -> Int[Tensor, " place"]:
        return torch.arange(self.n_subspaces).repeat_interleave(torch.tensor(self.sizes))

    def _gather(self, terms: Float64[Tensor, "*row place"]) -> Float64[Tensor, "*row condition"]:
        """The sum of the terms of every condition."""
        found = terms.new_zeros(*terms.shape[:-1], self.n_subspaces)
        return found.index_add_(-1, self._owner.to(terms.device), terms)


def layer_conditions(
    features: Features,
    number: int,
    methods: Sequence[Method],
    *,
    heads: Sequence[Head] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    whole: bool = True,
    groups: Groups | None = None,
) -> dict[Head, Conditions]:
    """The conditions of some heads (all that have features) of one layer; `whole` for the whole key among them.

    `groups` says which features are moved together; by default those of `combined`.
    """
    layer = features.layers[number]
    together = groups_of(features, groups)
    centers = {name: features[name, layer.heads[0]].choices.center for name in layer.moments}
    shuffled = {
        name: _permuted(of_contrast, is_centred(centers[name], of_contrast))
        for name, of_contrast in layer.moments.items()
    }
    within = key_covariance([*layer.moments.values()])
    kv = next(iter(layer.moments.values())).kv_index
    modulation = modulation_of(features) if CONDITIONAL in methods else None
    return {
        head: _head_conditions(
            features,
            head,
            within[kv[i]],
            {name: draws_of[:, i] for name, draws_of in shuffled.items()},
            methods,
            together,
            draws,
            seed,
            whole,
            modulation,
        )
        for i, head in enumerate(layer.heads)
        if heads is None or head in heads
    }


def _head_conditions(
    features: Features,
    head: Head,
    within: Float64[Tensor, "d_head d_head"],
    shuffled: Mapping[str, Float64[Tensor, "shuffle d_head d_head"]],
    methods: Sequence[Method],
    groups: Groups,
    draws: int,
    seed: int,
    whole: bool,
    modulation: Modulation | None,
) -> Conditions:
    ranks = {name: features[name, head].rank for name in features.contrasts}
    eye, notes = identity_like(within), []
    found = {Condition("none"): Subspace(eye[:, :0], eye[:0])}
    if whole:
        found[Condition("full")] = Subspace(eye, eye)
    for method in methods:
        if method == CONDITIONAL:  # its random controls move the whole difference of two keys in a subspace
            shared, sums = factor(features[features.contrasts[0], head].metric), _summed(ranks, groups)
            found |= _drawn(shared, within, sums, method, draws, (seed, head))
            continue
        shared = factor(features[features.contrasts[0], head].metric if method == "contrast" else eye)
        directions = {name: _directions(shared, features[name, head].covariance, ranks[name]) for name in ranks}
        real, separable = _subspaces(shared, directions, method, groups)
        if not separable:
            notes.append(f"{head}: {method} has no joint projectors, so each feature is moved by its own projector.")
        if method != "raw" and len(ranks) > 1:
            notes += stretch_notes(head, {name: space.projector for name, space in real.items() if name in ranks})
        found |= {Condition("feature", name, method): space for name, space in real.items()}
        for draw in range(len(next(iter(shuffled.values())))):
            dealt = {name: _directions(shared, shuffled[name][draw], ranks[name]) for name in ranks}
            null = _subspaces(shared, dealt, method, groups)[0]
            found |= {Condition("permuted", name, method, draw): space for name, space in null.items()}
        found |= _drawn(shared, within, {name: space.rank for name, space in real.items()}, method, draws, (seed, head))
    if modulation is None:
        return Conditions.of(found, notes)
    swaps, told = _exchanges(features, head, modulation, groups, _summed(ranks, groups))
    return Conditions.of(found, [*notes, *told]).with_swaps(swaps, modulation)


def _summed(ranks: Mapping[str, int], groups: Groups) -> dict[str, int]:
    return {title: sum(ranks[name] for name in group) for title, group in groups.items()}


def _exchanges(
    features: Features, head: Head, modulation: Modulation, groups: Groups, ranks: Mapping[str, int]
) -> tuple[dict[Condition, tuple[ConditionalSwap, int]], list[str]]:
    """The conditional exchanges of every group of features, with those of dealt values and twins beside them."""
    real = head_modulation(features, head, modulation)
    dealt = head_modulation(features, head, modulation, dealt=True) if has_dealt_values(features, head) else None
    found, notes = {}, [*real.notes]
    if dealt is None:
        notes.append(
            f"{head}: twins without a negative key have none that stays, so {CONDITIONAL} has no permuted control."
        )
    for title, group in groups.items():
        found[Condition("feature", title, CONDITIONAL)] = (real.swap(group, modulation.movers), ranks[title])
        if dealt is not None:
            found[Condition("permuted", title, CONDITIONAL)] = (dealt.swap(group, modulation.movers), ranks[title])
    return found, notes


def _permuted(moments: Moments, centred: bool) -> Float64[Tensor, "shuffle head d_head d_head"]:
    """dC of permuted labels, as the training pass has drawn them: sides dealt anew, and sides turned around."""
    return torch.cat([shuffled_covariances(moments, centred=centred), flipped_covariances(moments, centred=centred)])


def _directions(shared: MetricRoot, covariance: Float64[Tensor, "d_head d_head"], rank: int) -> Columns:
    """The leading whitened key directions of dC."""
    return torch.linalg.svd(shared.whiten(covariance))[2].mT[:, :rank]


def _subspaces(
    shared: MetricRoot, columns: Mapping[str, Columns], method: Method, groups: Groups
) -> tuple[dict[str, Subspace], bool]:
    """The subspace of every group of features, and whether they could be told apart."""
    parts = None if method == "raw" else oblique(shared, [*columns.values()])[0]
    apart = None if parts is None else dict(zip(columns, parts, strict=True))
    found = {}
    for title, group in groups.items():
        if apart is not None:
            found[title] = Subspace.joined([apart[name] for name in group])
        else:
            found[title] = span(shared, [columns[name] for name in group])
    return found, apart is not None or method == "raw"


def _drawn(
    shared: MetricRoot,
    within: Float64[Tensor, "d_head d_head"],
    ranks: Mapping[str, int],
    method: Method,
    draws: int,
    seed: tuple[int, Head],
) -> dict[Condition, Subspace]:
    """Controls that know nothing of the features but their rank; the first r of many columns span r dimensions."""
    most = max(ranks.values(), default=0)
    generator = torch.Generator().manual_seed((seed[0] * 4096 + seed[1].layer) * 4096 + seed[1].index)
    normal = torch.randn(draws, len(within), most, generator=generator, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(within)
    root = vectors * values.clamp(min=0).sqrt()
    drawn: dict[ControlName, Tensor] = {
        "keys": torch.linalg.qr(shared.inverse @ root @ normal)[0],
        "gaussian": torch.linalg.qr(shared.inverse @ normal)[0],
        "pca": torch.linalg.eigh(shared.inverse @ within @ shared.inverse.mT)[1].flip(-1)[None, :, :most],
    }
    whole = {control: [orthogonal(shared, columns) for columns in every] for control, every in drawn.items()}
    return {
        Condition(control, name, method, draw): Subspace(space.basis[:, :rank], space.dual[:rank])
        for control, every in whole.items()
        for name, rank in ranks.items()
        for draw, space in enumerate(every)
    }
