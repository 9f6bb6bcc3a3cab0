"""How the logits of a head are split into features: every method is one bilinear form a feature (paper, section 5.3).

part_f(q, k) = scaling q^T F_f k,      residual = logit - sum of the parts: always exactly additive

oblique      F_f = P_f, the joint oblique projectors on keys: the order of the features does not matter
sequential   the paper's, query side: project q onto the first feature's query directions, what is left onto the
             next, and so on: what features share counts for the first
shapley      query side: the mean over all orders of what a feature adds to the joint span of those before it
both         F_f = Q_f^T P_f, oblique in query and in key space; cross terms are in the residual
conditional  no form: keys are standardised within the values of a label (`core/conditional.py`); as additive
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from qkprism.core.conditional import ConditionalParts
from qkprism.core.feature import Feature
from qkprism.core.metrics import MetricRoot
from qkprism.core.projectors import (
    Columns,
    joint_projectors,
    orthogonal,
    principal_angles,
    query_columns,
    shared_factor,
    span,
)
from qkprism.errors import QKPrismError
from qkprism.options import SPLITS, choice, names_in
from qkprism.options import SplitMethod as Method

MOST_SHAPLEY = 8
CONDITIONAL: Method = "conditional"
METHODS = tuple(method for method in SPLITS if method != CONDITIONAL)  # by forms

Form = Float64[Tensor, "d_head d_head"]


@dataclass(frozen=True)
class Split:
    """The forms of all features of one head, with how far the features overlap.

    `angles` are the principal angles of each pair in degrees, of keys or queries as the method projects; `condition`
    is the condition number of all directions together. `first` and `last` are the forms that a sequential split gives
    a feature when it comes first or last: what lies between them depends on the order alone.
    """

    names: tuple[str, ...]
    forms: Float64[Tensor, "feature d_head d_head"]
    method: Method
    angles: Mapping[tuple[str, str], tuple[float, ...]]
    condition: float
    first: Float64[Tensor, "feature d_head d_head"] | None = None
    last: Float64[Tensor, "feature d_head d_head"] | None = None
    conditional: ConditionalParts | None = None

    def parts(
        self, query: Float[Tensor, "*row d_head"], key: Float[Tensor, "*row token d_head"], scaling: float
    ) -> Float64[Tensor, "feature *row token"]:
        """The part of each feature in the logit of each key."""
        if self.conditional is not None:
            return self.conditional.parts(query, key, scaling)
        return parts_of(self.forms, query, key, scaling)

    def in_order(self, names: Sequence[str]) -> Split:
        """The same split with its features told in another order: that of projecting out is in the forms."""
        at = [self.names.index(name) for name in names]
        first, last = (None if forms is None else forms[at] for forms in (self.first, self.last))
        told = self.conditional and replace(self.conditional, names=tuple(names))
        return replace(self, names=tuple(names), forms=self.forms[at], first=first, last=last, conditional=told)

    def order_spread(
        self, query: Float[Tensor, "*row d_head"], key: Float[Tensor, "*row token d_head"], scaling: float
    ) -> Float64[Tensor, "feature *row token"] | None:
        """How much a part changes between coming first and coming last; None where there is no order."""
        if self.first is None or self.last is None:
            return None
        return parts_of(self.first - self.last, query, key, scaling)


def parts_of(
    forms: Float64[Tensor, "feature d_head d_head"], query: Tensor, key: Tensor, scaling: float
) -> Float64[Tensor, "feature *row token"]:
    """scaling q^T F k for every form."""
    forms = forms.to(query.device)
    turned = torch.einsum("...d,fde->f...e", query.double(), forms)
    return torch.einsum("f...e,...te->f...t", turned, key.double()) * scaling


def split_of(features: Sequence[Feature], method: str | None = None, order: Sequence[str] | None = None) -> Split:
    """How a head's logits are split into some features of it; `order` is for the sequential method."""
    if not features:
        raise QKPrismError("There is no feature to split logits into.")
    method = method or default_method(features)
    method = choice(method, METHODS, "a method of attribution")
    if order is not None and method != "sequential":
        raise QKPrismError(f"The {method} method has no order: give `order` with method='sequential' only.")
    features = _ordered(features, order) if method == "sequential" else list(features)
    queries = method in ("sequential", "shapley")
    forms = {"oblique": _oblique, "sequential": _sequential_of, "shapley": _shapley_of, "both": _both}[method](features)
    first = last = None
    if method == "sequential":
        first, last = _extremes(features)
    return Split(
        names=tuple(f.contrast for f in features),
        forms=forms,
        method=method,
        angles={
            (a.contrast, b.contrast): tuple(principal_angles(a, b, queries=queries).tolist())
            for a, b in combinations(features, 2)
        },
        condition=joint_projectors(features, queries=queries).condition,
        first=first,
        last=last,
    )


def default_method(features: Sequence[Feature]) -> Method:
    """The paper's method for features made by the paper's choices, else the oblique one."""
    choices = features[0].choices
    return "sequential" if (choices.center, choices.metric) == ("none", "raw") else "oblique"


def _ordered(features: Sequence[Feature], order: Sequence[str] | None) -> list[Feature]:
    """In the order asked for; by default the lowest rank comes first, as in the paper."""
    if order is None:
        return sorted(features, key=lambda feature: feature.rank)
    named, order = {feature.contrast: feature for feature in features}, names_in(order, "order")
    if sorted(order) != sorted(named):
        raise QKPrismError(f"The order {', '.join(order)} must name each feature once: {', '.join(named)}.")
    return [named[name] for name in order]


def _oblique(features: Sequence[Feature]) -> Float64[Tensor, "feature d_head d_head"]:
    joint = joint_projectors(features)
    return torch.stack([joint[f.contrast] for f in features])


def _both(features: Sequence[Feature]) -> Float64[Tensor, "feature d_head d_head"]:
    keys, queries = joint_projectors(features), joint_projectors(features, queries=True)
    return torch.stack([queries[f.contrast].mT @ keys[f.contrast] for f in features])


def _query_spans(features: Sequence[Feature]) -> tuple[MetricRoot, list[Columns]]:
    shared = shared_factor(features)
    return shared.dual, [query_columns(f, shared) for f in features]


def _sequential_of(features: Sequence[Feature]) -> Float64[Tensor, "feature d_head d_head"]:
    return sequential(*_query_spans(features))


def sequential(shared: MetricRoot, columns: Sequence[Columns]) -> Float64[Tensor, "feature d_head d_head"]:
    """The forms of the paper's attribution, from whitened query directions in the order they are projected out."""
    left = torch.eye(len(columns[0]), dtype=torch.float64)
    forms = []
    for column in columns:
        taken = orthogonal(shared, column).projector @ left
        forms.append(taken.mT)
        left = left - taken
    return torch.stack(forms)


def _extremes(features: Sequence[Feature]) -> tuple[Tensor, Tensor]:
    """The form of each feature when it comes first, and when it comes last."""
    shared, columns = _query_spans(features)
    first = torch.stack([orthogonal(shared, column).projector.mT for column in columns])
    last = [sequential(shared, [*columns[:i], *columns[i + 1 :], column])[-1] for i, column in enumerate(columns)]
    return first, torch.stack(last)


def _shapley_of(features: Sequence[Feature]) -> Float64[Tensor, "feature d_head d_head"]:
    if len(features) > MOST_SHAPLEY:
        raise QKPrismError(f"The Shapley method is exact for up to {MOST_SHAPLEY} features, not {len(features)}.")
    shared, columns = _query_spans(features)
    return shapley(lambda group: span(shared, [columns[i] for i in group]).projector.mT, len(columns), len(columns[0]))


def shapley(value: Callable[[tuple[int, ...]], Form], n: int, d_head: int) -> Float64[Tensor, "feature d_head d_head"]:
    """The mean over all orders of what each of n players adds to the value of those before it."""
    groups = [group for size in range(n + 1) for group in combinations(range(n), size)]
    values = {group: value(group) if group else torch.zeros(d_head, d_head, dtype=torch.float64) for group in groups}
    forms = torch.zeros(n, d_head, d_head, dtype=torch.float64)
    for player in range(n):
        for group in groups:
            if player not in group:
                weight = 1 / (n * math.comb(n - 1, len(group)))
                forms[player] += weight * (values[tuple(sorted((*group, player)))] - values[group])
    return forms
