"""Named features in the match of a head: what each explains of a row, beside what permuted labels would.

Contrasts that were decomposed together are told apart by their joint projectors, as in `attribute`. Features of
several runs may overlap; then each gets its Shapley share of the joint span of their key directions, which has no
order. In both cases the parts add up with the rest:

    part_f = scaling dq^T F_f dk           rest = match - sum of the parts

A feature is offered for a head only where it is significant there, and for an edge only where it moves the edge's lead
by more than features from permuted labels do, which come out of the same pass and the same projectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from qkprism.atlas.rows import RotatedRows
from qkprism.core.feature import Feature
from qkprism.core.metrics import factor, identity_like
from qkprism.core.projectors import span
from qkprism.core.rank import chance_of
from qkprism.core.splitting import shapley
from qkprism.heads import Head
from qkprism.results.features import Features
from qkprism.subspaces.conditions import Method, layer_conditions

MOST = 5  # features of several runs in one head: the strongest evidence first
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class NamedForms:
    """The features of one head as bilinear forms on keys that differ from the mean, beside those of permuted labels."""

    names: tuple[str, ...]
    forms: Float64[Tensor, "feature d_head d_head"]
    permuted: Float64[Tensor, "feature draw d_head d_head"]
    relative: tuple[bool, ...]  # whether a feature's frame counts positions from the query

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
        asked = torch.einsum("d,...de->...e", plain[0, 0, 0].double(), form.to(plain.device))
        if rotation is not None:
            asked = rotation.turn(asked.reshape(1, -1, 1, asked.shape[-1])).reshape(asked.shape)
        group = split.query.shape[1] // split.key.shape[1]
        return (asked @ split.key_change[0, head // group].double().mT * split.scaling).cpu()


def named_forms(sets: Sequence[Features], heads: Sequence[Head]) -> dict[Head, NamedForms]:
    """The significant features of each head, from one or more runs."""
    found: dict[Head, NamedForms] = {}
    for head in heads:
        offered = [(features, name) for features in sets for name in features.contrasts if _holds(features, name, head)]
        if offered:
            found[head] = _forms(offered, head)
    return found


def _holds(features: Features, name: str, head: Head) -> bool:
    if (name, head) not in features:
        return False
    feature: Feature = features[name, head]
    return feature.rank > 0 and p_value(feature) < SIGNIFICANT


def p_value(feature: Feature) -> float:
    """How often chance shows evidence like this: of the leading direction, held out, or of the logit gap."""
    return float(chance_of(feature.spectrum.t[0])) if feature.rank_heldout is not None else 1.0


def _forms(offered: Sequence[tuple[Features, str]], head: Head) -> NamedForms:
    alone = {id(features) for features, _ in offered}
    if len(alone) == 1:
        return _of_one_run(offered[0][0], [name for _, name in offered], head)
    strongest = sorted(offered, key=lambda pair: -float(pair[0][pair[1], head].spectrum.t[0]))[:MOST]
    return _of_several(strongest, head)


def _of_one_run(features: Features, names: Sequence[str], head: Head) -> NamedForms:
    method: Method = "contrast" if features.choices.metric == "contrast" else "raw oblique"
    groups = {name: [name] for name in names}
    conditions = layer_conditions(features, head.layer, [method], heads=[head], draws=0, groups=groups)[head]
    spaces = {condition: conditions.subspace(i).projector for i, condition in enumerate(conditions.names)}
    real = [next(p for c, p in spaces.items() if (c.control, c.feature) == ("feature", name)) for name in names]
    null = [[p for c, p in spaces.items() if (c.control, c.feature) == ("permuted", name)] for name in names]
    relative = is_relative(features)
    return NamedForms(
        tuple(names), torch.stack(real), torch.stack([torch.stack(own) for own in null]), (relative,) * len(names)
    )


def _of_several(offered: Sequence[tuple[Features, str]], head: Head) -> NamedForms:
    """Shapley shares of the joint span; for permuted labels each feature's own columns are dealt anew."""
    single = [_of_one_run(features, [name], head) for features, name in offered]
    columns = [_columns(one.forms[0]) for one in single]
    eye = factor(identity_like(single[0].forms[0]))
    forms = shapley(lambda group: span(eye, [columns[i] for i in group]).projector, len(columns), len(columns[0]))
    return NamedForms(
        tuple(one.names[0] for one in single),
        forms,
        _stacked([one.permuted[0] for one in single]),
        tuple(one.relative[0] for one in single),
    )


def _columns(projector: Float[Tensor, "d d"]) -> Tensor:
    """An orthonormal basis of what a projector keeps."""
    left, strength, _ = torch.linalg.svd(projector)
    return left[:, strength > 1e-6]


def _stacked(draws: Sequence[Tensor]) -> Tensor:
    fewest = min(map(len, draws))
    return torch.stack([one[:fewest] for one in draws])


def is_relative(features: Features) -> bool:
    """Whether positions were counted from the query when these features were found."""
    return features.encoding.rope == "relative"
