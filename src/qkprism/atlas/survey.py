"""`survey`: the atlas of a model, from plain text in one pass, tested on text that was held out."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from qkprism.atlas.atlas import Atlas, HeadMeans, StrongRow
from qkprism.atlas.coverage import CoverageSums, add_rows
from qkprism.atlas.progress import SurveyProgress
from qkprism.atlas.signature import signature
from qkprism.atlas.sums import Kinds, LayerSums, add_call, empty_sums
from qkprism.atlas.windows import SHORTEST, WindowBatch, Windows, cut, documents_of, written_by
from qkprism.capture.model_source import versions
from qkprism.errors import QKPrismError
from qkprism.files import path_of
from qkprism.heads import Head
from qkprism.memory import give_back
from qkprism.models.calls import AttentionCall
from qkprism.models.digest import model_digest
from qkprism.models.model import Model
from qkprism.models.rotation import Rotation, Slices
from qkprism.options import checked_seed, finite, whole_number
from qkprism.progress import bar

TOKENS_AT_ONCE = {"cpu": 1024, "cuda": 16384}
WARM = 4  # windows from which the centre of the covariances is taken
AROUND = 12  # tokens of text in front of the key of a strong row


def survey(
    model: Model,
    texts: Any = None,
    *,
    windows: int = 128,
    length: int = 256,
    held_out: float = 0.25,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Atlas:
    """What is known of every head from plain text: the means of the exact split, scores, and what they explain.

    >>> atlas = survey(model, "corpus.txt")   # doctest: +SKIP
    >>> atlas.to_frame()   # doctest: +SKIP

    model       what `load` gave
    texts       strings, or paths of files and folders of text; without any a causal model writes its own
    windows     how many pieces of text are read
    length      tokens of a piece: long-range heads need long ones
    held_out    the share of the text, of other documents where there are several, that is not learned from: how well
                parts of the split rebuild rows of attention is measured there
    seed        of what is held out, and of the text that a model writes
    checkpoint  a folder; a survey that was killed goes on where it was, to the identical result
    progress    whether a bar is shown
    """
    windows, seed = whole_number(windows, "windows", 4), checked_seed(seed)
    length = _length(model, whole_number(length, "length", SHORTEST))
    if not 0 < finite(held_out, "held_out") < 1:
        raise QKPrismError(f"held_out={held_out} is not a share of the text. Give a number between 0 and 1.")
    run = _SurveyPass(model, model.rotated_slices)
    job = {"model_digest": model_digest(model.hf), "texts": _told(texts), "windows": windows, "length": length}
    job |= {"held_out": held_out, "seed": seed}
    state = SurveyProgress.of(job, None if checkpoint is None else path_of(checkpoint))
    if state.windows is None:
        state.windows = _windows(model, texts, length, windows, seed, progress)
        state.note(now=True)
    learned, tested = state.windows.split(held_out, seed)
    if not len(learned):
        raise QKPrismError(f"{len(state.windows)} windows of text are too few to hold some out. Give more text.")
    _learn(run, learned, state, progress)
    layers = {layer: HeadMeans.of(one, model.layers[layer].scaling) for layer, one in state.learned.items()}
    _test(run, tested, layers, state, progress)
    scores: dict[str, dict[Head, float]] = {}
    for layer, one in state.tested.items():
        for name, values in one.scores(layer).items():
            scores.setdefault(name, {}).update(values)
    scores |= signature(model, tested, layers)
    strongest = strongest_rows(model, state.tested, tested)
    return Atlas(layers, scores, strongest, _provenance(model, learned, tested, length, seed))


def _told(texts: Any) -> str:
    """A digest of what was given as texts."""
    return "" if texts is None else hashlib.sha256(repr(texts).encode()).hexdigest()[:16]


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
class _SurveyPass:
    """Runs windows through a model in batches of a fixed plan."""

    model: Model
    slices: Slices

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


def _centres(run: _SurveyPass, windows: Windows) -> dict[int, Tensor]:
    """Mean keys of a few windows, about which covariances are taken."""
    sums: dict[int, LayerSums] = {}
    for _, batch in run.batches(Windows(windows.ids[:WARM], windows.document[:WARM], "")):
        _add(run, sums, batch, 0, None)
    return {layer: one.key / one.tokens for layer, one in sums.items()}


def _learn(run: _SurveyPass, windows: Windows, state: SurveyProgress, progress: bool) -> None:
    centre = _centres(run, windows) if state.done["learned"] < len(windows) else {}
    with bar(len(windows), "windows read", progress) as tick:
        for start, batch in run.batches(windows):
            count = len(batch.input_ids)
            if start >= state.done["learned"]:
                _add(run, state.learned, batch, start, centre)
                state.done["learned"] = start + count
                state.note()
            tick(count)
    state.note(now=True)


def _add(
    run: _SurveyPass, sums: dict[int, LayerSums], batch: WindowBatch, start: int, centre: dict[int, Tensor] | None
) -> None:
    kinds = Kinds.of(batch, start, run.model.device)

    def visit(call: AttentionCall, rotation: Rotation | None) -> None:
        if call.layer not in sums:
            sums[call.layer] = empty_sums(call)
        add_call(sums[call.layer], call, rotation, batch, kinds, None if centre is None else centre[call.layer])

    run.show(batch, visit)


def _test(
    run: _SurveyPass, windows: Windows, layers: Mapping[int, HeadMeans], state: SurveyProgress, progress: bool
) -> None:
    for layer, means in layers.items():
        state.tested.setdefault(layer, CoverageSums.zeros(len(means.mean_query)))
    with bar(len(windows), "windows tested", progress) as tick:
        for start, batch in run.batches(windows):
            count = len(batch.input_ids)
            if start >= state.done["tested"]:
                _test_batch(run, batch, start, layers, state.tested)
                state.done["tested"] = start + count
                state.note()
            tick(count)


def _test_batch(
    run: _SurveyPass, batch: WindowBatch, start: int, layers: Mapping[int, HeadMeans], sums: Mapping[int, CoverageSums]
) -> None:
    kinds = Kinds.of(batch, start, run.model.device)

    def visit(call: AttentionCall, rotation: Rotation | None) -> None:
        add_rows(sums[call.layer], call, rotation, layers[call.layer], kinds, start)

    run.show(batch, visit)


def strongest_rows(
    model: Model, tested: Mapping[int, CoverageSums], windows: Windows
) -> dict[Head, tuple[StrongRow, ...]]:
    """The strongest rows of every head, as text."""
    if model.tokenizer is None:
        return {}
    text = partial(_text, model.tokenizer)
    found = {}
    for layer, one in tested.items():
        for index, (values, places) in enumerate(zip(one.strongest.tolist(), one.places.tolist(), strict=True)):
            found[Head(layer, index)] = tuple(
                StrongRow(
                    attention=value,
                    distance=query - key,
                    before=text(windows.ids[window][max(0, key - AROUND) : key]),
                    key=text(windows.ids[window][key : key + 1]),
                    between=text(windows.ids[window][key + 1 : query]) if query > key else "",
                    query=text(windows.ids[window][query : query + 1]),
                )
                for value, (window, query, key) in zip(values, places, strict=True)
                if value > 0
            )
    return found


def _text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids)))


def _provenance(model: Model, learned: Windows, tested: Windows, length: int, seed: int) -> dict[str, Any]:
    text = {"origin": learned.origin, "tokens": learned.tokens, "windows": len(learned), "length": length, "seed": seed}
    text |= {"held_out_tokens": tested.tokens, "held_out_windows": len(tested)}
    return {
        "model": model.name,
        "revision": model.revision,
        "model_digest": model_digest(model.hf),
        "text": text,
        "versions": versions(),
    }
