"""`survey`: the atlas of a model, from plain text in one pass, tested on text that was held out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkprism.atlas.atlas import Atlas, HeadMeans
from qkprism.atlas.coverage import CoverageSums, add_rows
from qkprism.atlas.sums import Kinds, LayerSums, add_call, empty_sums
from qkprism.atlas.windows import WindowBatch, Windows, cut, documents_of, written_by
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.memory import give_back
from qkprism.models.calls import AttentionCall
from qkprism.models.digest import model_digest
from qkprism.models.model import Model
from qkprism.models.rotation import Rotation
from qkprism.options import checked_seed, whole_number
from qkprism.pipeline.inputs import bar, versions

TOKENS_AT_ONCE = {"cpu": 1024, "cuda": 16384}
WARM = 4  # windows from which the centre of the covariances is taken


def survey(
    model: Model,
    texts: Any = None,
    *,
    windows: int = 128,
    length: int = 256,
    held_out: float = 0.25,
    seed: int = 0,
    progress: bool = True,
) -> Atlas:
    """What is known of every head from plain text: the means of the exact split, scores, and what they explain.

    >>> atlas = survey(model, "corpus.txt"); atlas.to_frame()   # doctest: +SKIP

    `texts` are strings or files; without any a causal model writes its own. They are cut into `windows` windows of
    `length` tokens. A share of them, `held_out`, of other documents where there are several, is not learned from: how
    well parts of the split rebuild rows of attention is measured there.
    """
    windows, seed = whole_number(windows, "windows", 2), checked_seed(seed)
    length = _length(model, whole_number(length, "length", 16))
    if not 0 < held_out < 1:
        raise QKPrismError(f"held_out={held_out} is not a share of the text. Give a number between 0 and 1.")
    slices = model.rotated_slices
    found = _windows(model, texts, length, windows, seed, progress)
    learned, tested = found.split(held_out, seed)
    if not len(learned):
        raise QKPrismError(f"{len(found)} windows of text are too few to hold some out. Give more text.")
    run = _Pass(model, slices)
    centre = _centres(run, learned)
    sums = _learn(run, learned, centre, progress)
    layers = {layer: HeadMeans.of(one, model.layers[layer].scaling) for layer, one in sums.items()}
    coverage = _test(run, tested, layers, progress)
    scores: dict[str, dict[Head, float]] = {}
    for layer, one in coverage.items():
        for name, values in one.scores(layer).items():
            scores.setdefault(name, {}).update(values)
    return Atlas(layers, scores, _provenance(model, found, learned, tested, length, seed))


def _length(model: Model, length: int) -> int:
    longest = model.max_positions
    return length if longest is None else min(length, longest)


def _windows(model: Model, texts: Any, length: int, most: int, seed: int, progress: bool) -> Windows:
    if texts is None:
        with bar(most, "texts written", progress) as tick:
            return written_by(model, length, most, seed, tick)
    if model.tokenizer is None:
        raise QKPrismError(f"{model.name} has no tokenizer. Load it as (model, tokenizer).")
    documents, origin = documents_of(texts)
    return cut(model.tokenizer, documents, length, most, origin)


@dataclass(frozen=True)
class _Pass:
    """Runs windows through a model in batches of a fixed plan."""

    model: Model
    slices: Any

    def batches(self, windows: Windows) -> Iterator[tuple[int, WindowBatch]]:
        """Windows in their order, as many at once as tokens allow; each batch with the number of its first window."""
        budget = TOKENS_AT_ONCE.get(self.model.device.type, TOKENS_AT_ONCE["cpu"])
        start = 0
        while start < len(windows):
            stop, width = start, 0
            while stop < len(windows):
                width = max(width, len(windows.ids[stop]))
                if stop > start and width * (stop - start + 1) > budget:
                    break
                stop += 1
            yield start, WindowBatch.of(windows.ids[start:stop])
            start = stop

    def show(self, batch: WindowBatch, visit: Callable[[AttentionCall, Rotation | None], None]) -> None:
        """Run a batch and show every layer with its rotation."""
        self.model.run(
            batch.input_ids,
            batch.there.long(),
            lambda call: visit(call, Rotation.of(call, self.slices[call.layer])),
        )
        give_back(collect=False)


def _centres(run: _Pass, windows: Windows) -> dict[int, Tensor]:
    """Mean keys of a few windows, about which covariances are taken."""
    sums: dict[int, LayerSums] = {}
    for _, batch in run.batches(Windows(windows.ids[:WARM], windows.document[:WARM], "")):
        _add(run, sums, batch, 0, None)
    return {layer: one.key / one.tokens for layer, one in sums.items()}


def _learn(run: _Pass, windows: Windows, centre: dict[int, Tensor], progress: bool) -> dict[int, LayerSums]:
    sums: dict[int, LayerSums] = {}
    with bar(len(windows), "windows read", progress) as tick:
        for start, batch in run.batches(windows):
            _add(run, sums, batch, start, centre)
            tick(len(batch.input_ids))
    return sums


def _add(
    run: _Pass, sums: dict[int, LayerSums], batch: WindowBatch, start: int, centre: dict[int, Tensor] | None
) -> None:
    kinds = Kinds.of(batch, start, run.model.device)

    def visit(call: AttentionCall, rotation: Rotation | None) -> None:
        if call.layer not in sums:
            sums[call.layer] = empty_sums(call)
        add_call(sums[call.layer], call, rotation, batch, kinds, None if centre is None else centre[call.layer])

    run.show(batch, visit)


def _test(run: _Pass, windows: Windows, layers: dict[int, HeadMeans], progress: bool) -> dict[int, CoverageSums]:
    sums = {layer: CoverageSums.zeros(len(means.mean_query)) for layer, means in layers.items()}
    with bar(len(windows), "windows tested", progress) as tick:
        for start, batch in run.batches(windows):
            kinds = Kinds.of(batch, start, run.model.device)

            def visit(call: AttentionCall, rotation: Rotation | None, kinds: Kinds = kinds) -> None:
                add_rows(sums[call.layer], call, rotation, layers[call.layer], kinds)

            run.show(batch, visit)
            tick(len(batch.input_ids))
    return sums


def _provenance(
    model: Model, found: Windows, learned: Windows, tested: Windows, length: int, seed: int
) -> dict[str, Any]:
    text = {"origin": found.origin, "tokens": learned.tokens, "windows": len(learned), "length": length, "seed": seed}
    text |= {"held_out_tokens": tested.tokens, "held_out_windows": len(tested)}
    return {
        "model": model.name,
        "revision": model.revision,
        "model_digest": model_digest(model.hf),
        "text": text,
        "versions": versions(),
    }
