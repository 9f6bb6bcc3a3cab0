"""Two passes a contrast of the shelf: one for scores and moments of every head, one for the proofs in the best heads.

first    the contrast's texts with their twins: how every head attends to the keys, and the moments of every head
second   texts of the same words (to choose a head and a feature) and of held-out words (to report): edits beside all
         controls, true counterfactuals, and the scores of every head

The metric is the contrast metric also where a template gives one contrast. In the raw one, permuted labels find the
directions in which keys differ most, which are the feature's too, and no feature is clearly above them: coreference in
L15H6 of SmolLM2-135M-Instruct by 1.6 errors in the raw metric and by 8.5 in this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from operator import itemgetter

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.capture.batching import Batches, Visit
from qkprism.capture.model_source import ModelSource, versions
from qkprism.capture.readers import Reader, read_together
from qkprism.capture.source import Checkpoint, ContrastReading, moments_of, provenance_of
from qkprism.capture.texts import Texts
from qkprism.contrasts.tasks import Task
from qkprism.core.decomposition import Space, shared_space
from qkprism.core.evidence import leading_p
from qkprism.core.feature import Choices
from qkprism.core.rank import heldout_test
from qkprism.encoding import Encoding
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.models.batches import Batch, collate
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import EncodedExample
from qkprism.models.model import Model
from qkprism.options import Reading
from qkprism.progress import bar
from qkprism.ranks import exchanged
from qkprism.results.effects import Effects
from qkprism.results.features import Features, LayerMoments
from qkprism.results.scores import HeadScores
from qkprism.results.validation import Validation
from qkprism.runs.store import Unfinished
from qkprism.subspaces.comparison import Comparison
from qkprism.subspaces.spaces import Spaces
from qkprism.verbs.decompose import layer_moments
from qkprism.verbs.find_heads import ScoresReader
from qkprism.verbs.inputs import encode_like, heads_of
from qkprism.verbs.intervene import effects_readers
from qkprism.verbs.validate import validation_reader

DRAWS = 5  # of the random controls; permuted labels are dealt with the moments


@dataclass(frozen=True)
class Sums:
    """What the first pass gives: the scores of every head, and its moments for every feature."""

    scores: HeadScores
    layers: Mapping[int, LayerMoments]
    choices: Choices
    encoding: Encoding
    provenance: Mapping[str, object]

    def p_values(self) -> dict[str, Float64[Tensor, " head"]]:
        """Of every feature the p of the held-out test in every head, in the order of the heads in the model."""
        found: dict[str, list[Tensor]] = {}
        for layer in self.layers.values():
            space = self._space(layer)
            for name, moments in layer.moments.items():
                test = heldout_test(moments, space.factor)
                none = torch.full((len(layer.heads),), torch.nan, dtype=torch.float64)
                found.setdefault(name, []).append(none if test is None else leading_p(test.t[:, 0]))
        return {name: torch.cat(parts) for name, parts in found.items()}

    def _space(self, layer: LayerMoments) -> Space:
        """The metric of a layer; the raw one where a few words as keys do not span the space, as in the first layer."""
        try:
            return shared_space(layer.moments, self.choices)
        except QKPrismError:
            return shared_space(layer.moments, replace(self.choices, metric="raw"))

    def features(self, heads: Sequence[Head], names: Sequence[str]) -> Features:
        """The features of some contrasts, decomposed together, in some heads."""
        layers = {}
        for number, layer in self.layers.items():
            places = [place for place, head in enumerate(layer.heads) if head in heads]
            if places:
                picked = {name: layer.moments[name].pick(places) for name in names}
                layers[number] = LayerMoments(tuple(layer.heads[place] for place in places), layer.scaling, picked)
        return self._decompose(layers)

    def spaces(self) -> Spaces:
        """The key directions of every contrast in every head, beside those of permuted labels, layer by layer."""
        found = [Spaces.of(self._decompose({number: layer})) for number, layer in self.layers.items()]
        return reduce(Spaces.joined, found)

    def _decompose(self, layers: Mapping[int, LayerMoments]) -> Features:
        """In the contrast metric; where a layer among them does not span its space, in the raw one."""
        return Features.from_moments(layers, self.choices, self.provenance, encoding=self.encoding, else_raw=True)


def first_pass(
    model: Model, task: Task, *, seed: int = 0, kept: Unfinished | None = None, progress: bool = True
) -> Sums:
    """The scores and the moments of every head, from one pass through a task's contrasts."""
    heads, contrasts = heads_of(model, None), task.contrasts
    encoding = Encoding(chat=task.chat, rope=task.frame)
    reading: Reading = "symmetric" if task.template.twins else "plain"
    source = ModelSource(model, contrasts, heads, encoding)
    outlines = source.outlines([*contrasts], progress=False)
    readings = {name: ContrastReading(name, reading) for name in contrasts}
    stream = source.stream([*readings.values()], seed)
    (group,) = stream.passes
    first = group.marked[0]
    in_order = enumerate(first.examples(slice(None)))
    alone = [EncodedExample(i, e.text, None, e.weight, e.group, e.source) for i, e in in_order]
    scored = ScoresReader.of(model, alone, heads, [first.group[number] for number in first.order])
    batches = _Watched(model, sorted(source.layers), task.frame)
    batches.reader = scored
    checkpoint = Checkpoint.of(kept, stream) if kept else None
    batches.seen = checkpoint.seen if checkpoint else []
    with bar(len(stream), "examples", progress) as tick, kept.stoppable() if kept else nullcontext():
        sums = moments_of(replace(stream, batches=batches), seed=seed, kept=checkpoint, progress=tick)
    batches.keep()
    notes = {name: outlines[name].notes(name) for name in contrasts}
    provenance = provenance_of(source, readings, outlines, notes)
    choices = Choices(center=task.center, metric="contrast", seed=seed)
    scores = scored.result(_about(model, task, "contrast"))
    return Sums(scores, layer_moments(source.layers, readings, sums), choices, encoding, provenance)


def _about(model: Model, task: Task, part: str) -> dict[str, object]:
    about = {"model": model.name, "revision": model.revision, "contrast": task.name, "part": part}
    return {**about, "template": task.template.digest, "seed": task.seed, "versions": versions()}


@dataclass
class _Watched(Batches):
    """Batches whose first texts a reader sees too; it keeps them when all have been run, also by other processes.

    seen    the first example of a chunk, the examples of a batch, and what the reader read of it
    """

    reader: ScoresReader | None = None
    seen: list[tuple[int, list[int], dict[int, Tensor]]] = field(default_factory=list)

    def keep(self) -> None:
        """Let the reader keep all that was read, in the order in which one process reads it."""
        assert self.reader is not None
        for _, examples, current in sorted(chain.from_iterable(exchanged(self.seen)), key=itemgetter(0)):
            self.reader.current.update(current)
            self.reader.keep(collate([self.reader.examples[index] for index in examples]))

    def run(self, examples: Sequence[EncodedExample], visit: Visit, *, in_rows: bool | None = None) -> Iterator[Batch]:
        assert self.reader is not None
        reader = self.reader
        last: dict[int, tuple[Batch, tuple[int, ...]]] = {}

        def first_texts(batch: Batch) -> tuple[Batch, tuple[int, ...]]:
            if id(batch) not in last:
                rows = tuple(row for row, (_, which) in enumerate(batch.rows) if which == 0)
                last.clear()
                last[id(batch)] = collate([reader.examples[e.index] for e in batch.examples]), rows
            return last[id(batch)]

        def both(call: AttentionCall, batch: Batch) -> None:
            visit(call, batch)
            seen_batch, rows = first_texts(batch)
            reader.visit(call.pick(rows, seen_batch.input_ids.shape[1]), seen_batch)

        for batch in super().run(examples, both, in_rows=in_rows):
            self.seen.append((examples[0].index, [e.index for e in batch.examples], dict(reader.current)))
            reader.current.clear()
            yield batch


@dataclass(frozen=True)
class Proof:
    """What the second pass gives: edits on the contrast's own words, and all else on held-out ones."""

    chosen_by: Effects
    effects: Effects
    scores: HeadScores
    validation: Validation | None


def second_pass(
    model: Model,
    task: Task,
    features: Features,
    *,
    n_pairs: int,
    seed: int = 0,
    kept: Unfinished | None = None,
    progress: bool = True,
) -> Proof:
    """The proofs of features in their heads, and how every head does on held-out words, from one pass.

    The first `n_pairs` texts of held-out words are also run with what is exchanged in them.
    """
    alone = {name: (name,) for name in features.contrasts}
    method = features.choices.metric
    compare = Comparison(methods=(method,), draws=DRAWS, groups=alone, seed=seed)
    search, test = (effects_readers(model, part, {"": features}, compare)[""] for part in (task.search, task.test))
    every = heads_of(model, None)
    encoded = encode_like(model, task.test, features, every)
    group = Texts.of(encoded, task.test).grouping.group
    scored = ScoresReader.of(model, encoded, every, group, task.frame)
    pairs = {name: task.counterfactuals(factor)[:n_pairs] for name, factor in factors_of(task).items()}
    truth = validation_reader(model, pairs, features, methods=(method,)) if pairs else None
    readers: list[Reader] = [search, test, scored, *([truth] if truth else [])]
    read_together(model, readers, kept=kept, unit="tests", progress=progress)
    return Proof(
        search.result(), test.result(), scored.result(_about(model, task, "test")), truth.result() if truth else None
    )


def factors_of(task: Task) -> dict[str, str]:
    """Of each feature what a text exchanges to be its true counterfactual: its own variable, else the first."""
    if not task.factors:
        return {}
    return {name: name if name in task.factors else task.factors[0] for name in task.contrasts}
