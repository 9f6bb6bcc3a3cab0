"""The features of planted vectors in one head: `decompose(VectorSource(...))` in short."""

from qkprism import Recipe, Vectors, VectorSource, decompose
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
