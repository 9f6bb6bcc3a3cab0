"""`survey`: the atlas of a model, from plain text in one pass, tested on text that was held out."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from qkprism.atlas.atlas import Atlas, HeadMeans, StrongRow
from qkprism.atlas.coverage import CoverageSums, add_rows
from qkprism.atlas.signature import signature
from qkprism.atlas.spans import FeatureRuns, NamedSpans, listed, named_spans, read_run_of
from qkprism.atlas.sums import Kinds, LayerSums, add_call, by_layer, empty_sums
from qkprism.atlas.windows import SHORTEST, WindowBatch, Windows, cut, documents_of, written_by
from qkprism.capture.model_source import versions
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.memory import give_back
from qkprism.models.calls import AttentionCall
from qkprism.models.devices import float64_device
from qkprism.models.model import Model
from qkprism.models.rotation import Rotation, Slices
from qkprism.options import checked_seed, finite, whole_number
from qkprism.progress import bar
from qkprism.ranks import added, exchanged, failing_together, of_first, ranks
from qkprism.runs.files import path_of
from qkprism.runs.store import Unfinished

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
    features: FeatureRuns = None,
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
    features    named features, or their run folders: how much of the rows they rebuild, beside permuted labels
    checkpoint  a folder; a survey that was killed goes on where it was, to the identical result
    progress    whether a bar is shown
    """
    windows, seed = whole_number(windows, "windows", 4), checked_seed(seed)
    length = _length(model, whole_number(length, "length", SHORTEST))
    if not 0 < finite(held_out, "held_out") < 1:
        raise QKPrismError(f"held_out={held_out} is not a share of the text. Give a number between 0 and 1.")
    runs = [read_run_of(run, model) for run in listed(features)]
    job = {"survey": 1, "model_digest": model.digest, "texts": _told(texts), "windows": windows}
    job |= {"length": length, "held_out": held_out, "seed": seed, "features": [_told(run.provenance) for run in runs]}
    work = Unfinished(None if checkpoint is None else path_of(checkpoint), job)
    done, files = work.read()
    if not done:
        windows_read = of_first(lambda: _stored(windows_for(model, texts, length, windows, seed, progress)))
        done, files = {"learned": 0, "tested": 0}, {"windows": windows_read}
        work.write(done, files)
    read = _windows_of(of_first(lambda: files["windows"]))
    learned, tested = read.split(held_out, seed)
    if not len(learned):
        raise QKPrismError(f"{len(read)} windows of text are too few to hold some out. Give more text.")
    named = named_spans(model, runs) if runs else {}
    run = _SurveyPass(model, model.rotated_slices, work, done, {"windows": _stored(read)}, named)
    with work.stoppable():
        sums = run.learn(learned, files.get("learned", {}), progress)
        layers = {layer: HeadMeans(one, model.layers[layer].scaling) for layer, one in sums.items()}
        coverage = run.test(tested, layers, files.get("tested", {}), progress)
    scores: dict[str, dict[Head, float]] = {}
    for layer, one in coverage.items():
        for name, values in one.scores(layer).items():
            scores.setdefault(name, {}).update(values)
    if named:
        every = {Head(layer, i): float(rank) for layer in coverage for i, rank in enumerate(named[layer].rank)}
        scores["named: rank"] = every
    scores |= signature(model, tested, layers)
    strongest = strongest_rows(model, coverage, tested)
    about = _provenance(model, learned, tested, length, seed) | {"features": [repr(one) for one in runs]}
    about["text"]["held_out_rows"] = int(next(iter(coverage.values())).rows)
    return Atlas(layers, scores, strongest, about)


def _told(texts: Any) -> str:
    """A digest of texts, as they were given or in tokens."""
    return "" if texts is None else hashlib.sha256(repr(texts).encode()).hexdigest()[:16]


def _length(model: Model, length: int) -> int:
    longest = model.max_positions
    return length if longest is None else min(length, longest)


def windows_for(model: Model, texts: Any, length: int, most: int, seed: int, progress: bool) -> Windows:
    """Pieces of what was given as texts, or of what the model writes."""
    if texts is None:
        with bar(most, "texts written", progress) as tick:
            return written_by(model, length, most, seed, tick)
    if model.tokenizer is None:
        raise QKPrismError(f"{model.name} has no tokenizer. Load it as (model, tokenizer).")
    documents, origin = documents_of(texts)
    return cut(model.tokenizer, documents, length, most, origin)


def _stored(windows: Windows) -> dict[str, Tensor]:
    return {
        "ids": torch.tensor([token for one in windows.ids for token in one]),
        "lengths": torch.tensor([len(one) for one in windows.ids]),
        "document": torch.tensor(windows.document),
        "origin": torch.frombuffer(bytearray(windows.origin.encode()), dtype=torch.uint8),
    }


def _windows_of(stored: Mapping[str, Tensor]) -> Windows:
    pieces = stored["ids"].split(stored["lengths"].tolist())
    ids = tuple(tuple(piece.tolist()) for piece in pieces)
    return Windows(ids, tuple(stored["document"].tolist()), bytes(stored["origin"].tolist()).decode())


@dataclass(frozen=True)
class _SurveyPass:
    """Runs windows through a model in batches of a fixed plan; processes that share the survey take them in turn.

    done    windows that all processes together have learned from and tested on
    kept    what checkpoints hold besides: the windows, and the sums of what is over
    named   what named features span, by layer
    """

    model: Model
    slices: Slices
    work: Unfinished
    done: dict[str, int]
    kept: dict[str, Mapping[str, Tensor]]
    named: Mapping[int, NamedSpans]

    def learn(self, windows: Windows, former: Mapping[str, Tensor], progress: bool) -> dict[int, LayerSums]:
        """The sums of the text that is learned from."""
        home = float64_device(self.model.device)
        sums = {
            number: LayerSums.zeros(layer.n_heads, layer.n_kv_heads, layer.d_head, home)
            for number, layer in self.model.layers.items()
        }
        for layer, tensors in by_layer(former).items():
            sums[layer] = LayerSums(**{name: value.to(home) for name, value in tensors.items()})
        centre = self._centres(windows) if self.done["learned"] < len(windows) else {}
        self._each("learned", windows, partial(self._add, sums, centre=centre), sums, progress)
        found = {layer: LayerSums(**tensors) for layer, tensors in by_layer(self.kept["learned"]).items()}
        return {layer: one for layer, one in found.items() if one.tokens}  # text does not reach those of images

    def test(
        self, windows: Windows, layers: Mapping[int, HeadMeans], former: Mapping[str, Tensor], progress: bool
    ) -> dict[int, CoverageSums]:
        """How well rows of held-out text are rebuilt."""
        sums = {
            layer: CoverageSums.zeros(len(means.mean_query), named=bool(self.named)) for layer, means in layers.items()
        }
        sums |= {layer: CoverageSums(**tensors) for layer, tensors in by_layer(former).items()}
        self._each("tested", windows, partial(self._test_batch, layers, sums), sums, progress)
        return {layer: CoverageSums(**tensors) for layer, tensors in by_layer(self.kept["tested"]).items()}

    def _each(
        self,
        stage: str,
        windows: Windows,
        add: Callable[[WindowBatch, int], None],
        sums: Mapping[int, LayerSums] | Mapping[int, CoverageSums],
        progress: bool,
    ) -> None:
        """Add every batch that is not done, and keep the sums of all processes."""
        here = ranks()
        left = [(start, batch) for start, batch in self.batches(windows) if start >= self.done[stage]]
        with bar(len(windows), f"windows {'read' if stage == 'learned' else stage}", progress) as tick:
            tick(self.done[stage])
            for turn in range(0, len(left), here.count):
                together = left[turn : turn + here.count]
                with failing_together():
                    for start, batch in here.mine(together):
                        add(batch, start)
                count = sum(len(batch.input_ids) for _, batch in together)
                self.done[stage] += count
                self.work.note(self.done, lambda: {**self.kept, stage: over_ranks(sums)}, "The survey so far")
                tick(count)
        self.kept[stage] = over_ranks(sums)

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

    def _centres(self, windows: Windows) -> dict[int, Tensor]:
        """Mean keys of a few windows, about which covariances are taken."""
        sums: dict[int, LayerSums] = {}
        for _, batch in self.batches(Windows(windows.ids[:WARM], windows.document[:WARM], "")):
            self._add(sums, batch, 0, None)
        return {layer: one.key / one.tokens for layer, one in sums.items()}

    def _add(
        self, sums: dict[int, LayerSums], batch: WindowBatch, start: int, centre: Mapping[int, Tensor] | None
    ) -> None:
        kinds = Kinds.of(batch, start, self.model.device)

        def visit(call: AttentionCall, rotation: Rotation | None) -> None:
            if call.layer not in sums:
                sums[call.layer] = empty_sums(call)
            add_call(sums[call.layer], call, rotation, batch, kinds, None if centre is None else centre[call.layer])

        self.show(batch, visit)

    def _test_batch(
        self, layers: Mapping[int, HeadMeans], sums: Mapping[int, CoverageSums], batch: WindowBatch, start: int
    ) -> None:
        kinds = Kinds.of(batch, start, self.model.device)

        def visit(call: AttentionCall, rotation: Rotation | None) -> None:
            add_rows(sums[call.layer], call, rotation, layers[call.layer], kinds, start, self.named.get(call.layer))

        self.show(batch, visit)


def over_ranks(sums: Mapping[int, LayerSums] | Mapping[int, CoverageSums]) -> dict[str, Tensor]:
    """The sums of all processes by layer and name, and of the strongest rows of each the strongest."""
    here = {f"{layer}/{name}": value for layer, one in sums.items() for name, value in vars(one).items()}
    names = [name.removesuffix("/strongest") for name in here if name.endswith("/strongest")]
    kept = {name: (here.pop(f"{name}/strongest"), here.pop(f"{name}/places")) for name in names}
    total = added(here)
    for name, found in _strongest_of(exchanged(kept)).items():
        total[f"{name}/strongest"], total[f"{name}/places"] = found
    return total


def _strongest_of(every: Sequence[Mapping[str, tuple[Tensor, Tensor]]]) -> Mapping[str, tuple[Tensor, Tensor]]:
    if len(every) == 1:
        return every[0]
    found = {}
    for name, (first, _) in every[0].items():
        values, places = (torch.cat(parts, 1) for parts in zip(*(one[name] for one in every), strict=True))
        best, order = values.topk(first.shape[1], 1)
        found[name] = best, places.gather(1, order[..., None].expand(-1, -1, 3))
    return found


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
    text["digest"] = _told((learned.ids, tested.ids))
    return {
        "model": model.name,
        "revision": model.revision,
        "model_digest": model.digest,
        "text": text,
        "versions": versions(),
    }
