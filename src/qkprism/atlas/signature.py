"""What the queries and keys of a head hold: the token itself, the token before it, or the place in the text.

Of some tokens of plain text the match coordinates of a head are kept (x of queries, y of keys, the first directions,
whitened), and told from a label by class means. Means are learned on half of the documents and tried on the other half,
and the other way round:

    guess of a class with n tokens = n / (n + k) times its mean,   k = variance within classes / variance between them
    R2 = 1 - sum |y - guess|^2 / sum |y - mean|^2

That both sides hold something does not say that they meet in it. So the means of classes are put together as a head
puts queries and keys together, queries from one half and keys from the other, and tokens with more of both count more:

    lift = mean over tokens a of  match(mean query of a, mean key of a),   in logits above the mean key

Once the key of a is one whose own token is a (its copy), and once one whose token before is a (what followed its copy).
A head is induction-like by as much as the second lift exceeds the first (or 0, where copies are not lifted); from
`LIKE` logits on it is called so. It is a score alongside the attention that was measured, not a verdict. A head at
rest, which gives the first token `AT_REST` of its attention or more, has none: what its queries ask for they hardly
ever get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from qkprism.atlas.atlas import HeadMeans
from qkprism.atlas.sums import KINDS
from qkprism.atlas.windows import WindowBatch, Windows
from qkprism.heads import Head
from qkprism.memory import give_back
from qkprism.models.calls import AttentionCall
from qkprism.models.model import Model
from qkprism.models.rotation import Rotation

DIRECTIONS = 16  # of the match, whose coordinates are kept
AT_ONCE = 4  # windows of a pass
TOKENS = 4096  # that are kept, at most
LABELS = ("the token", "the token before", "the position")
AT_REST = 0.95  # mean attention on the first token
LIKE = 1.25  # logits; fixed on two texts, and tried on others (benchmarks/atlas.py)
LIFTS = ("its copy", "what followed its copy")
PLACES = 2.0  # bins of the position by octave
SIDES = ("queries", "keys")


def signature(
    model: Model, windows: Windows, layers: Mapping[int, HeadMeans], *, most: int = TOKENS
) -> dict[str, dict[Head, float]]:
    """What queries and keys of every head hold, on windows that the means were not learned from; one pass.

    >>> signature(model, windows, atlas.layers)["signature: induction-like"]   # doctest: +SKIP

    `most` tokens are kept, spread evenly over the windows: memory does not grow with the text. A pass that reads the
    windows anyway shows them to a `Reservoir`.
    """
    reservoir = Reservoir.of(windows, layers, most)
    run_windows(model, windows, reservoir.add)
    return reservoir.scores()


def run_windows(
    model: Model,
    windows: Windows,
    visit: Callable[[AttentionCall, Rotation | None, int], None],
    layers: Sequence[int] | None = None,
) -> None:
    """Show the layers of every window with their rotation and the number of the batch's first window."""
    slices = model.rotated_slices
    for start in range(0, len(windows), AT_ONCE):
        batch = WindowBatch.of(windows.ids[start : start + AT_ONCE])

        def show(call: AttentionCall, start: int = start) -> None:
            visit(call, Rotation.of(call, slices[call.layer]), start)

        model.run(batch.input_ids, batch.there.long(), show, layers=layers)
        give_back(collect=False)


@dataclass(frozen=True)
class Kept:
    """Which tokens of some windows are kept, and what they could be told from: the same for all layers."""

    places: Bool[Tensor, "window token"]
    labels: Int64[Tensor, "label kept"]
    half: Int64[Tensor, " kept"]

    @classmethod
    def of(cls, windows: Windows, most: int = TOKENS) -> Kept:
        """Tokens spread evenly over the windows, at most so many; the first two of a window have no token before."""
        batch = WindowBatch.of(windows.ids)
        there = batch.there.clone()
        there[:, :2] = False
        stride = max(1, -(-int(there.sum()) // most))
        count = there.flatten().cumsum(0).view_as(there)
        places = there & (count % stride == 0)
        window, token = places.nonzero(as_tuple=True)
        position = (PLACES * token.double().log2()).long()
        labels = torch.stack([batch.input_ids[window, token], batch.input_ids[window, token - 1], position])
        return cls(places, labels, _halves(windows)[window])

    def at(self, call: AttentionCall, start: int) -> Bool[Tensor, "window token"]:
        """The kept tokens of a batch whose first window has the number `start`."""
        texts, _, width, _ = call.query.shape
        return self.places[start : start + texts, :width].to(call.query.device)


def _halves(windows: Windows) -> Int64[Tensor, " window"]:
    """Every other document, or where there is one alone its first half and its second."""
    documents = sorted(set(windows.document))
    if len(documents) < 2:
        return (torch.arange(len(windows)) * 2 >= len(windows)).long()
    number = {document: place for place, document in enumerate(documents)}
    return torch.tensor([number[document] % 2 for document in windows.document])


@dataclass
class Reservoir:
    """The match coordinates of the kept tokens, layer by layer: `add` while windows are read, `scores` at the end."""

    layers: Mapping[int, HeadMeans]
    kept: Kept
    found: dict[int, tuple[list[Tensor], list[Tensor]]] = field(default_factory=dict)

    @classmethod
    def of(cls, windows: Windows, layers: Mapping[int, HeadMeans], most: int = TOKENS) -> Reservoir:
        """For the windows of a pass, which come in their order."""
        return cls(layers, Kept.of(windows, most))

    def add(self, call: AttentionCall, rotation: Rotation | None, start: int) -> None:
        """Keep what one layer shows of a batch whose first window has the number `start`."""
        places = self.kept.at(call, start)
        query, key = (at_places(vectors, rotation, places) for vectors in (call.query, call.key))
        means = self.layers[call.layer]
        directions, n = means.directions, DIRECTIONS
        x = torch.einsum("hnd,hid->hni", query - means.mean_query[:, None].to(query), directions.query[:, :n].to(query))
        change = (key - means.mean_key[:, None].to(key))[means.key_head]
        y = torch.einsum("hnd,hid->hni", change, directions.key[:, :n].to(key))
        for side, coordinates in zip(self.found.setdefault(call.layer, ([], [])), (x, y), strict=True):
            side.append(coordinates.half().cpu())

    def scores(self) -> dict[str, dict[Head, float]]:
        """Held-out R2 of queries and of keys from each label, lifts, and `induction-like`, by name and head."""
        scores: dict[str, dict[Head, float]] = {}
        token, before, _ = self.kept.labels
        for layer, sides in self.found.items():
            x, y = (torch.cat(pieces, 1).float() for pieces in sides)
            told = {
                f"signature: {side} hold {label}": told_from(coordinates, classes, self.kept.half)
                for side, coordinates in zip(SIDES, (x, y), strict=True)
                for label, classes in zip(LABELS, self.kept.labels, strict=True)
            }
            strength = self.layers[layer].directions.strength[:, :DIRECTIONS].float().cpu()
            for name, classes in zip(LIFTS, (token, before), strict=True):
                told[f"signature: match lifts {name}"] = lift(x * strength[:, None], y, token, classes, self.kept.half)
            for title, values in told.items():
                of_layer = {Head(layer, head): float(value) for head, value in enumerate(values)}
                scores.setdefault(title, {}).update(of_layer)
        copy, after = (scores[f"signature: match lifts {name}"] for name in LIFTS)
        like = {head: torch.nan if self._at_rest(head) else after[head] - max(copy[head], 0.0) for head in after}
        return scores | {"signature: induction-like": like}

    def _at_rest(self, head: Head) -> bool:
        first = self.layers[head.layer].attention[head.index, KINDS.index("first token")]
        return float(first) >= AT_REST


def at_places(vectors: Tensor, rotation: Rotation | None, places: Tensor) -> Float[Tensor, "head kept d_head"]:
    """Vectors without rotation at some places of a batch."""
    plain = vectors.float() if rotation is None else rotation.back(vectors.float())
    return plain.transpose(1, 2)[places].transpose(0, 1)


def told_from(
    coordinates: Float[Tensor, "head kept direction"], classes: Int64[Tensor, " kept"], half: Int64[Tensor, " kept"]
) -> Float[Tensor, " head"]:
    """Held-out R2 of coordinates from classes: each half is guessed from the other; NaN where one is empty."""
    if len(half.unique()) < 2:
        return torch.full((len(coordinates),), torch.nan)
    missed = total = torch.zeros(())
    _, classes = classes.unique(return_inverse=True)
    for tested in (0, 1):
        learn, test = half != tested, half == tested
        mean = coordinates[:, learn].mean(1, keepdim=True)
        guesses = _class_guesses((coordinates[:, learn] - mean), classes[learn], int(classes.max()) + 1)
        rest = coordinates[:, test] - mean
        missed = missed + (rest - guesses[:, classes[test]]).square().sum((1, 2))
        total = total + rest.square().sum((1, 2))
    return 1 - missed / total


def lift(
    query: Float[Tensor, "head kept direction"],
    key: Float[Tensor, "head kept direction"],
    query_class: Int64[Tensor, " kept"],
    key_class: Int64[Tensor, " kept"],
    half: Int64[Tensor, " kept"],
) -> Float[Tensor, " head"]:
    """The mean match of queries and keys of one class above the mean key, across halves; NaN where none meet."""
    if len(half.unique()) < 2:
        return torch.full((len(query),), torch.nan)
    _, both = torch.cat([query_class, key_class]).unique(return_inverse=True)
    classes, count = both.view(2, -1), int(both.max()) + 1
    total, weights = torch.zeros(len(query)), torch.zeros(())
    for here in (half == 0, half == 1):
        there = ~here
        queries, n = _class_sums(query[:, here], classes[0, here], count)
        keys, m = _class_sums(key[:, there] - key[:, there].mean(1, keepdim=True), classes[1, there], count)
        match = (queries * keys).sum(2) / (n * m).clamp(min=1)
        weight = torch.minimum(n, m)
        total, weights = total + match @ weight, weights + weight.sum()
    return total / weights


def _class_sums(
    coordinates: Float[Tensor, "head kept direction"], classes: Int64[Tensor, " kept"], count: int
) -> tuple[Float[Tensor, "head class direction"], Float[Tensor, " class"]]:
    """The sum of each class, and how many are in it."""
    n = torch.zeros(count).index_add_(0, classes, torch.ones(len(classes)))
    zeros = coordinates.new_zeros(len(coordinates), count, coordinates.shape[2])
    return zeros.index_add_(1, classes, coordinates), n


def _class_guesses(
    coordinates: Float[Tensor, "head kept direction"], classes: Int64[Tensor, " kept"], count: int
) -> Float[Tensor, "head class direction"]:
    """Class means drawn towards 0, the mean of all, as far as variance within classes asks for."""
    sums, n = _class_sums(coordinates, classes, count)
    explained = (sums.square().sum(2) / n.clamp(min=1)).sum(1)  # sum over classes of n |mean|^2
    there, tokens = float((n > 0).sum()), float(n.sum())
    within = (coordinates.square().sum((1, 2)) - explained) / max(tokens - there, 1)
    between = (explained - (there - 1) * within) / max(tokens - float(n.square().sum()) / tokens, 1e-9)
    draw = torch.where(between > 0, within / between.clamp(min=1e-30), torch.inf)[:, None]
    return torch.where(n > 0, n / (n + draw), 0.0)[..., None] * sums / n.clamp(min=1)[:, None]
