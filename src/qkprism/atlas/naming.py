"""Named features in the match of a head: what each explains of a row, beside what permuted labels would.

Contrasts that were decomposed together are told apart by their joint projectors, as in `attribute`. Features of
several runs may overlap; then each gets its Shapley share of the joint span of their key directions, which has no
order. Another way can be asked for (`shares.py`). In all cases the parts add up with the rest:

    part_f = scaling dq^T F_f dk           rest = match - sum of the parts

A feature is tried in a head only with the directions that hold there on held-out examples. Of the features of several
runs those are told that move the row more than permuted labels do, whichever feature is permuted (`stands_out`), at
most `MOST`. For an edge a feature is offered only where it moves that edge more than its own permuted labels do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from qkprism.atlas.rows import RotatedRows
from qkprism.atlas.shares import shares
from qkprism.core.metrics import factor, identity_like
from qkprism.heads import Head
from qkprism.results.features import Features
from qkprism.subspaces.spaces import Spaces, head_subspaces, held_features

Naming = Features | Spaces
OBLIQUE, SHAPLEY = "oblique", "shapley"
MOST = 5  # features of several runs in one row: those that move it most


@dataclass(frozen=True)
class NamedForms:
    """The features of one head as bilinear forms on keys that differ from the mean, beside those of permuted labels.

    overlap   how features of several runs share out what they have in common; None for those of one run
    """

    names: tuple[str, ...]
    forms: Float64[Tensor, "feature d_head d_head"]
    permuted: Float64[Tensor, "feature draw d_head d_head"]
    relative: tuple[bool, ...]  # whether a feature's frame counts positions from the query
    overlap: str | None = None
    _kept: dict[tuple[str, ...], NamedForms] = field(default_factory=dict, repr=False)

    def of_row(self, rows: RotatedRows, head: int, attention: Float[Tensor, " token"]) -> NamedForms:
        """Those that are told of a row: of several runs the ones that stand out, which share their joint span."""
        if self.overlap is None:
            return self
        effects, null = (self.effect(parts, attention) for parts in self.parts(rows, head))
        order = effects.masked_fill(~stands_out(effects, null), -1).argsort(descending=True)
        chosen = [place for place in order.tolist() if bool(stands_out(effects, null)[place])][:MOST]
        picked = self._pick(chosen)
        if chosen and picked.names not in self._kept:
            self._kept[picked.names] = picked._shared(self.overlap)
        return self._kept.get(picked.names, picked)

    def _pick(self, places: Sequence[int]) -> NamedForms:
        return replace(
            self,
            names=tuple(self.names[place] for place in places),
            forms=self.forms[[*places]],
            permuted=self.permuted[[*places]],
            relative=tuple(self.relative[place] for place in places),
        )

    def _shared(self, method: str) -> NamedForms:
        """Shares of the joint span; permuted labels take the place of one feature at a time."""
        forms, permuted = shares(self.forms, self.permuted, method, factor(identity_like(self.forms[0])))
        return replace(self, forms=forms, permuted=permuted)

    def parts(
        self, rows: RotatedRows, head: int
    ) -> tuple[Float64[Tensor, "feature token"], Float64[Tensor, "feature draw token"]]:
        """The part of each feature in the logits of one row, and of each permuted one."""
        found = [self._part(rows, head, form, place) for place, form in enumerate(self.forms)]
        nulls = [self._part(rows, head, forms, place) for place, forms in enumerate(self.permuted)]
        return torch.stack(found), torch.stack(nulls)

    def _part(self, rows: RotatedRows, head: int, form: Tensor, place: int) -> Tensor:
        split, rotation = rows.split, rows.rotation if self.relative[place] else None
        query = split.query_change[:1, head : head + 1]
        plain = query if rotation is None else rotation.back(query)
        turned = torch.einsum("d,...de->...e", plain[0, 0, 0].double(), form.to(plain.device))
        if rotation is not None:
            turned = rotation.turn(turned.reshape(1, -1, 1, turned.shape[-1])).reshape(turned.shape)
        group = split.query.shape[1] // split.key.shape[1]
        return (turned @ split.key_change[0, head // group].double().mT * split.scaling).cpu()

    @staticmethod
    def effect(parts: Float64[Tensor, "*part token"], attention: Float[Tensor, " token"]) -> Float64[Tensor, "*part"]:
        """How much a part moves a row: its variance over the tokens after the first, by their attention."""
        weight = attention.double().clone()
        weight[0] = 0.0
        weight = weight / weight.sum().clamp(min=1e-30)
        return (parts - (parts @ weight)[..., None]).square() @ weight


def stands_out(effects: Float64[Tensor, " feature"], null: Float64[Tensor, "feature draw"]) -> Bool[Tensor, " feature"]:
    """Which features do more than permuted labels of any feature do, each measured by the largest of its others.

    With one feature: those above all their draws. With n draws chance alone lets anything pass once in n + 1 rows,
    however many features are tried.
    """
    worlds = torch.cat([effects[:, None], null], 1)
    others = torch.stack([worlds.roll(-place, 1)[:, 1:].amax(1) for place in range(worlds.shape[1])], 1)
    ratio = worlds / others.clamp(min=1e-30)
    return (ratio[:, 0] > 1) & (ratio[:, 0] > ratio[:, 1:].max())


@dataclass(frozen=True)
class NamedHeads:
    """Features of one or more runs by name; what they are in a head does not depend on a text, and is kept.

    method   how they share what they have in common; None for oblique within one run, shapley across several
    """

    sets: Mapping[str, Naming]
    method: str | None = None
    _kept: dict[Head, NamedForms | None] = field(default_factory=dict)

    @property
    def heads(self) -> list[Head]:
        """The heads that any of the runs has features of."""
        return sorted({head for one in self.sets.values() for head in one.heads})

    def forms(self, heads: Sequence[Head]) -> dict[Head, NamedForms]:
        """The features that hold in each of these heads."""
        if new := [head for head in heads if head not in self._kept]:
            self._kept.update(dict.fromkeys(new) | named_forms(self.sets, new, self.method))
        return {head: forms for head in heads if (forms := self._kept[head]) is not None}


def named_forms(sets: Mapping[str, Naming], heads: Sequence[Head], method: str | None = None) -> dict[Head, NamedForms]:
    """The features that hold in each head, from one or more runs by name."""
    only = next(iter(sets.values())) if len(sets) == 1 else None
    if isinstance(only, Features):
        found = {head: _of_one_run(only, head, method or OBLIQUE) for head in heads if head in only.heads}
    else:
        spaces = {run: one if isinstance(one, Spaces) else Spaces.of(one, heads) for run, one in sets.items()}
        found = {head: _of_several(spaces, head, method or SHAPLEY) for head in heads}
    return {head: forms for head, forms in found.items() if forms is not None}


def _told(run: str, contrast: str) -> str:
    """What a feature is called: by its run where that has another name."""
    return contrast if run in ("", contrast) else f"{run}: {contrast}"


def _of_one_run(features: Features, head: Head, method: str) -> NamedForms | None:
    """As in `attribute`: projectors along the others, unless they are to share in another way."""
    found = {name: each for name, each in head_subspaces(held_features(features), head).items() if each[0].rank}
    if not found:
        return None
    forms = torch.stack([torch.stack([space.projector for space in each]) for each in found.values()])
    alone, permuted = forms[:, 0], forms[:, 1:]
    if method != OBLIQUE:
        alone, permuted = shares(alone, permuted, method, factor(features[next(iter(found)), head].metric))
    relative = (features.encoding.rope == "relative",) * len(found)
    return NamedForms(tuple(found), alone, permuted, relative)


def _of_several(spaces: Mapping[str, Spaces], head: Head, method: str) -> NamedForms | None:
    """The orthogonal projectors on every feature's own directions."""
    found = [
        (_told(run, contrast), torch.stack([basis @ basis.mT for basis in bases]), each.relative)
        for run, each in spaces.items()
        for contrast, bases in each.of_head(head)
    ]
    if not found:
        return None
    names, forms, relative = zip(*found, strict=True)
    stacked = torch.stack(forms)
    return NamedForms(names, stacked[:, 0], stacked[:, 1:], relative, overlap=method)
