"""What each of several overlapping features is given of what they span together: three ways, on keys.

oblique      the projectors that annihilate each other: a feature along all the others; none where they depend
shapley      the mean over all orders of what a feature adds to the span of those before it
sequential   what a feature takes of the key that those before it have left, the lowest rank first

All act in coordinates in which the metric is the identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.core.metrics import MetricRoot
from qkprism.core.projectors import oblique as oblique_subspaces
from qkprism.errors import QKPrismError
from qkprism.subspaces.spaces import basis_of

Columns = Sequence[Float64[Tensor, "d _"]]
Share = Callable[[Columns, int], Float64[Tensor, "d d"]]


def shares(
    forms: Float64[Tensor, "feature d d"], null: Float64[Tensor, "feature draw d d"], method: str, metric: MetricRoot
) -> tuple[Float64[Tensor, "feature d d"], Float64[Tensor, "feature draw d d"]]:
    """The share of every feature; those of permuted labels take the place of one feature at a time."""
    share, columns = SHARES[method], [_whitened(form, metric) for form in forms]

    def of(players: Columns, place: int) -> Tensor:
        return metric.root @ share(players, place) @ metric.inverse

    drawn = [
        torch.stack([of([*columns[:place], _whitened(one, metric), *columns[place + 1 :]], place) for one in draws])
        for place, draws in enumerate(null)
    ]
    return torch.stack([of(columns, place) for place in range(len(columns))]), torch.stack(drawn)


def _whitened(form: Float64[Tensor, "d d"], metric: MetricRoot) -> Float64[Tensor, "d _"]:
    return basis_of(metric.inverse @ form @ metric.root)


def shapley(columns: Columns, player: int) -> Float64[Tensor, "d d"]:
    """What one subspace adds to the joint span of those before it, over all orders."""
    others, n = [place for place in range(len(columns)) if place != player], len(columns)
    found = torch.zeros(len(columns[0]), len(columns[0]), dtype=torch.float64)
    for size in range(n):
        for group in combinations(others, size):
            weight = 1 / (n * math.comb(n - 1, size))
            found += weight * (span([columns[i] for i in (*group, player)]) - span([columns[i] for i in group]))
    return found


def sequential(columns: Columns, player: int) -> Float64[Tensor, "d d"]:
    """What one subspace takes of what those before it have left."""
    left = torch.eye(len(columns[0]), dtype=torch.float64)
    for place in sorted(range(len(columns)), key=lambda place: (columns[place].shape[1], place)):
        taken = columns[place] @ (columns[place].mT @ left)
        if place == player:
            return taken
        left = left - taken
    raise IndexError(player)


def oblique(columns: Columns, player: int) -> Float64[Tensor, "d d"]:
    """The projector on one subspace along all the others."""
    eye = torch.eye(len(columns[0]), dtype=torch.float64)
    found, _ = oblique_subspaces(MetricRoot(eye, eye), columns)
    if found is None:
        raise QKPrismError("These features overlap too far to be told apart along each other. Choose shapley.")
    return found[player].projector


SHARES: dict[str, Share] = {"oblique": oblique, "shapley": shapley, "sequential": sequential}


def span(columns: Columns) -> Tensor | float:
    """The orthogonal projector on all columns together."""
    if not columns:
        return 0.0
    basis = basis_of(torch.cat(list(columns), 1))
    return basis @ basis.mT
