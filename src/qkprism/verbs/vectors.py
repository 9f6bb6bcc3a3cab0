"""The features of plain vectors of one head, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from torch import Tensor

from qkprism.capture.vectors import Vectors, VectorSource
from qkprism.core.feature import Feature
from qkprism.heads import Head, HeadLike
from qkprism.options import Center, Metric, Rank, Reading
from qkprism.results.features import Features
from qkprism.verbs.decompose import decompose


def decompose_vector_sets(
    vectors: Mapping[str, Vectors],
    *,
    center: Center = "query",
    reading: Reading | None = None,
    metric: Metric | None = None,
    rank: Rank = "own",
    scaling: float | None = None,
    head: HeadLike = "L0H0",
    seed: int = 0,
) -> Features:
    """The features of several contrasts in one head, from its vectors: short for `decompose(VectorSource(...))`.

    >>> query, positive, negative = torch.randn(3, 60, 4).unbind()
    >>> sets = {"z1": qk.Vectors(query, positive, negative), "z2": qk.Vectors(query, negative, positive)}
    >>> qk.decompose_vector_sets(sets, head="L3H1").contrasts
    ('z1', 'z2')

    vectors    by the name of their contrast
    center     as `decompose` has it, like `reading`, `metric`, `rank` and `seed`
    reading    of twins
    metric     raw or contrast
    rank       a number or a rule
    scaling    by which the head multiplies q.k; 1/sqrt(d_head) by default
    head       what the head is called; L0H0 by default
    seed       of folds and nulls; default 0
    """
    place = Head.parse(head)
    by_head = {name: {place: vector} for name, vector in vectors.items()} if isinstance(vectors, Mapping) else vectors
    source = VectorSource(by_head, scaling)  # type: ignore[arg-type]  # what is no mapping is refused
    return decompose(source, center=center, reading=reading, metric=metric, rank=rank, seed=seed, progress=False)


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
    """The feature of one contrast in one head, from its vectors.

    >>> query, positive, negative = torch.randn(3, 60, 4).unbind()
    >>> qk.decompose_vectors(query, positive, negative).d_head
    4

    query, positive, negative, twin_query, weight, group    as `Vectors` has them
    name                                                    what the contrast is called
    center, reading, rank, scaling, seed                    as `decompose_vector_sets` has them
    """
    vectors = Vectors(query, positive, negative, twin_query, weight, group)
    options = {"center": center, "reading": reading, "rank": rank, "scaling": scaling, "seed": seed}
    return next(iter(decompose_vector_sets({name: vectors}, **options).values()))  # type: ignore[arg-type]
