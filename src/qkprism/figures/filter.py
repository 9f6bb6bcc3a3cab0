"""All figures of a categories study by name, from its results alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from qkprism.figures.categories import keys_and_queries_figure, keys_figure
from qkprism.figures.category_ranks import category_ranks_figure
from qkprism.figures.crossing import crossing_figure
from qkprism.figures.separation import separation_figure
from qkprism.figures.words import facts

if TYPE_CHECKING:
    from collections.abc import Callable

    import plotly.graph_objects as go

    from qkprism.studies.categories import Scope
    from qkprism.studies.filter import FilterStudy

BOTH = ("five", "all")


def filter_drawings(study: FilterStudy) -> dict[str, Callable[[], go.Figure]]:
    """Every figure of a study, to be drawn: the counterparts of the paper's, and the proofs beside them."""
    heads, five, every = study.heads, study.scopes["five"], study.scopes["all"]
    names = [str(head) for head in heads]
    found: dict[str, Callable[[], go.Figure]] = {
        "heads": partial(study.scores.plot, "ratio"),
        "ranks": partial(category_ranks_figure, every, heads),
        "spectrum": every.features["pooled", heads[0]].plot,
        "keys_and_queries": partial(keys_and_queries_figure, five, heads),
        "keys": partial(keys_figure, every, heads),
    }
    for name in BOTH:
        found[f"separation_{name}"] = partial(separation_figure, study.scopes[name].separation, names)
        found[f"effects_{name}"] = study.scopes[name].effects.plot
        found[f"crossing_{name}"] = partial(_crossing, study, study.scopes[name])
    return found


def _crossing(study: FilterStudy, scope: Scope) -> go.Figure:
    """The best head in both subspaces."""
    best = max(study.heads, key=lambda head: scope.gain(head, "pooled")[0])
    maps = [(group, scope.crossing(group, best)) for group in scope.groups]
    lists = scope.test.n
    return crossing_figure(maps, scope.categories, lists, subtitle=facts(scope.test.provenance, f"{lists} lists"))
