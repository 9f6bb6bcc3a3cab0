"""The features of planted vectors in one head: `decompose(VectorSource(...))` in short."""

import torch

from qkprism import Recipe, Vectors, VectorSource, decompose
from qkprism.core.moments import Marks
from qkprism.heads import Head


def decompose_vector_sets(vectors, *, head="L0H0", scaling=None, seed=0, **choices):
    """The features of several contrasts in one head, by what a recipe chooses."""
    source = VectorSource({name: {Head.parse(head): one} for name, one in vectors.items()}, scaling)
    return decompose(source, recipe=Recipe(**choices), seed=seed, progress=False)


def decompose_vectors(
    query, positive, negative, *, name="contrast", twin_query=None, weight=None, group=None, **options
):
    """The feature of one contrast in one head."""
    vectors = Vectors(query, positive, negative, twin_query, weight, group)
    return next(iter(decompose_vector_sets({name: vectors}, **options).values()))


def marks_of(side, group, *, weight=None, fold=None):
    """Marks of texts without twins and labels, where each example is a group of its own."""
    weight = torch.ones(len(side)) if weight is None else weight
    fold = torch.zeros(len(side), dtype=torch.long) if fold is None else fold
    nothing = torch.full((*side.shape, 0), -1)
    return Marks(side, torch.zeros_like(side), torch.full_like(side, -1), weight, weight, fold, tuple(group), nothing)
