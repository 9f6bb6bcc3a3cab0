"""Components of the match of a head, as a listing. Experimental: what is listed is seen again, not understood.

The match is a sum over directions, match = sum_i strength_i x_i y_i (`core/row_split.py`), or over independent
directions of the keys: with the unmixing matrix W of y, match = (W^-T S x) . (W y). They are found three times, in two
halves of one corpus and in another corpus, and listed only where both others have one that goes with it:

    agreement = min(|corr of x|, |corr of y|)  on common tokens, of the best of the other's directions

Most single directions fail this, and that is the finding: in heads that compare tokens no axis is preferred, only the
space as a whole is. On the toy, where keys have bits and room for them, independent directions are the bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from qkprism.atlas.atlas import HeadMeans
from qkprism.atlas.independent import independent_directions
from qkprism.atlas.signature import Kept, at_places, run_windows
from qkprism.atlas.windows import Windows
from qkprism.core.row_split import MatchDirections
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike, check_heads
from qkprism.models.calls import AttentionCall
from qkprism.models.model import Model
from qkprism.models.rotation import Rotation

if TYPE_CHECKING:
    import pandas as pd

Method = Literal["svd", "ica"]
AGREES = 0.9
LISTED = 16  # directions that are looked at
SHOWN = 5  # tokens at each end


@dataclass(frozen=True)
class Forms:
    """Directions as linear forms: x = query @ dq and y = key @ dk, whose products add up to the match."""

    query: Float64[Tensor, "direction d_head"]
    key: Float64[Tensor, "direction d_head"]

    @classmethod
    def strongest(cls, directions: MatchDirections, most: int) -> Forms:
        """The first directions of one head, the strength put into the queries."""
        return cls(directions.query[:most] * directions.strength[:most, None], directions.key[:most])

    def independent(self, keys: Float64[Tensor, "token d_head"]) -> Forms:
        """The same sum along independent directions of keys."""
        unmixing = independent_directions(keys @ self.key.mT)
        return Forms(torch.linalg.solve(unmixing.mT, self.query), unmixing @ self.key)


@dataclass(frozen=True)
class Part:
    """One of the texts in which components must be found: what a survey learned from it, and windows of it."""

    layers: Mapping[int, HeadMeans]
    windows: Windows


@dataclass(frozen=True)
class Sample:
    """Queries and keys of one head at some tokens, without rotation and less their means, and its directions there."""

    directions: MatchDirections
    query: Float64[Tensor, "query d_head"]
    key: Float64[Tensor, "token d_head"]
    token: Int64[Tensor, " token"]

    def forms(self, method: Method, most: int = LISTED) -> Forms:
        """The directions by a method."""
        forms = Forms.strongest(self.directions, most)
        return forms if method == "svd" else forms.independent(self.key)


@dataclass(frozen=True)
class Component:
    """A direction of the match that was found again. Queries and keys at one end go with those at the same end."""

    head: Head
    number: int
    spread: float  # standard deviation of its part of the logits, of queries and keys drawn apart
    halves: float  # agreement with the other half of the corpus
    corpora: float  # agreement with the other corpus
    high: tuple[tuple[str, str], ...]  # query and key tokens, the furthest first
    low: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Components:
    """The components that were found again, and how many there were to begin with, by head."""

    found: tuple[Component, ...]
    tried: Mapping[Head, int]

    def __iter__(self) -> Any:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def to_frame(self) -> pd.DataFrame:
        """A row a component."""
        import pandas as pd

        columns = ["head", "number", "spread", "halves", "corpora", "high", "low"]
        return pd.DataFrame([vars(one) | {"head": str(one.head)} for one in self.found], columns=columns)


def components(
    model: Model,
    first: Part,
    second: Part,
    other: Part,
    *,
    heads: HeadLike | Iterable[HeadLike],
    method: Method = "svd",
    agrees: float = AGREES,
) -> Components:
    """Directions of the match that two halves of a corpus and another corpus agree on. Experimental.

    >>> components(model, half, other_half, other_corpus, heads="L18H6").to_frame()   # doctest: +SKIP

    first, second  halves of one corpus, each surveyed by itself; tokens at the ends are of the first
    other          another corpus, surveyed by itself
    heads          those to look at
    method         "svd": the strongest directions for logits; "ica": independent directions of keys within them
    agrees         the least agreement, on both sides, with each of the others
    """
    if method not in get_args(Method):
        raise QKPrismError(f"method={method!r} is not known. Use {' or '.join(map(repr, get_args(Method)))}.")
    wanted = check_heads(heads, model.heads_per_layer, model.name)
    samples = [read_sample(model, part, wanted) for part in (first, second, other)]
    found: list[Component] = []
    tried = {}
    for head in wanted:
        ours, *others = (sample[head] for sample in samples)
        forms = ours.forms(method)
        tried[head] = len(forms.query)
        halves, corpora = (agreement(forms, one.forms(method), ours.query, ours.key) for one in others)
        for number in ((halves >= agrees) & (corpora >= agrees)).nonzero()[:, 0].tolist():
            values = float(halves[number]), float(corpora[number])
            found.append(_component(model, head, number, forms, ours, values))
    return Components(tuple(found), tried)


def agreement(
    ours: Forms, theirs: Forms, query: Float64[Tensor, "query d_head"], key: Float64[Tensor, "token d_head"]
) -> Float64[Tensor, " direction"]:
    """For each of our directions how well the best of theirs goes with it, on both sides and with one sign."""
    x = _correlations(query @ ours.query.mT, query @ theirs.query.mT)
    y = _correlations(key @ ours.key.mT, key @ theirs.key.mT)
    return torch.where(x * y > 0, torch.minimum(x.abs(), y.abs()), 0.0).amax(1)


def _correlations(
    one: Float64[Tensor, "token ours"], other: Float64[Tensor, "token theirs"]
) -> Float64[Tensor, "ours theirs"]:
    one, other = (values - values.mean(0) for values in (one, other))
    one, other = (values / values.norm(dim=0).clamp(min=1e-30) for values in (one, other))
    return one.mT @ other


def read_sample(model: Model, part: Part, heads: Sequence[Head]) -> dict[Head, Sample]:
    """Queries and keys of some heads at tokens spread over the windows; one pass."""
    kept = Kept.of(part.windows)
    found: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def visit(call: AttentionCall, rotation: Rotation | None, start: int) -> None:
        places = kept.at(call, start)
        pair = at_places(call.query, rotation, places), at_places(call.key, rotation, places)
        found.setdefault(call.layer, []).append((pair[0].cpu(), pair[1].cpu()))

    run_windows(model, part.windows, visit, layers=sorted({head.layer for head in heads}))
    samples = {}
    for head in heads:
        means, (queries, keys) = part.layers[head.layer], zip(*found[head.layer], strict=True)
        kv_head, directions = means.key_head[head.index], means.directions
        samples[head] = Sample(
            MatchDirections(*(value[head.index] for value in vars(directions).values())),
            torch.cat(queries, 1)[head.index].double() - means.mean_query[head.index],
            torch.cat(keys, 1)[kv_head].double() - means.mean_key[kv_head],
            kept.labels[0],
        )
    return samples


def _component(
    model: Model, head: Head, number: int, forms: Forms, sample: Sample, agreements: tuple[float, float]
) -> Component:
    x, y = sample.query @ forms.query[number], sample.key @ forms.key[number]
    high, low = (
        tuple(zip(*(_furthest(model, sign * side, sample.token) for side in (x, y)), strict=False)) for sign in (1, -1)
    )
    return Component(head, number, float(x.std() * y.std()), *agreements, high=high, low=low)


def _furthest(model: Model, values: Float[Tensor, " token"], tokens: Int64[Tensor, " token"]) -> list[str]:
    """The tokens whose mean is highest; those that were seen once count half."""
    assert model.tokenizer is not None
    names, classes = tokens.unique(return_inverse=True)
    n = torch.bincount(classes)
    mean = torch.zeros(len(names), dtype=values.dtype).index_add_(0, classes, values - values.mean()) / (n + 1)
    return [str(model.tokenizer.decode([int(names[i])])) for i in mean.topk(min(SHOWN, len(names))).indices]
