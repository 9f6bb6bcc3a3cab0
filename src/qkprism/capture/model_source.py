"""`ModelSource`: contrasts of marked texts, and the model that gives them their vectors."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from importlib.metadata import version
from typing import Any

from qkprism.capture.batching import Batches
from qkprism.capture.source import ContrastReading, Outline, Site, sites_of
from qkprism.capture.streaming import MarkedContrast, ModelStream, passes_of
from qkprism.capture.texts import Census
from qkprism.contrasts import Contrast
from qkprism.encoding import Encoding
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.models.encoding import EncodedExample, Encoder, Encodings, check_reach
from qkprism.models.model import Model
from qkprism.progress import Progress, bar

REMEMBERED = 20_000  # examples of a contrast whose texts features remember


@dataclass(frozen=True)
class ModelSource:
    """Contrasts that a model runs, in some of its heads."""

    model: Model
    named: Mapping[str, Contrast]
    heads: tuple[Head, ...]
    encoding: Encoding = Encoding()  # noqa: RUF009  (it is frozen)
    batch_size: int | None = None
    _encoded: dict[str, Encodings] = field(default_factory=dict, repr=False)
    _census: dict[str, Census] = field(default_factory=dict, repr=False)

    @property
    def contrasts(self) -> tuple[str, ...]:
        return tuple(self.named)

    @cached_property
    def layers(self) -> dict[int, Site]:
        return sites_of(self.model, self.heads)

    @cached_property
    def batches(self) -> Batches:
        return Batches(self.model, sorted(self.layers), self.encoding.rope, self.batch_size)

    def twins(self, contrast: str) -> set[bool]:
        """Whether examples of a contrast have twins: all, none, or some."""
        return {example.twin is not None for example in self.named[contrast]}

    def outlines(self, contrasts: Sequence[str], *, progress: bool) -> dict[str, Outline]:
        """What the texts of contrasts say before they are run; each is encoded once to see that it can be."""
        encoder = encoder_for(self.model, self.encoding)
        self._encoded.update({name: Encodings(self.named[name].examples, encoder) for name in contrasts})
        with bar(sum(map(len, self._encoded.values())), "examples encoded", progress) as tick:
            for name, encoded in self._encoded.items():
                contrast, tokens = self.named[name], checked(self.model, encoded, self.heads, tick)
                self._census[name] = Census.of(tokens, contrast, drawn=contrast.drawn)
        return {name: self._outline(name) for name in contrasts}

    def _outline(self, name: str) -> Outline:
        contrast, census = self.named[name], self._census[name]
        provenance = {"digest": contrast.digest, "n": len(contrast), "texts": _remembered(contrast)}
        provenance["values"] = {label: list(numbers) for label, numbers in census.values.items()}
        notes = partial(census.texts.notes, token=self.encoding.token)
        return Outline(census.texts.grouping, census.freedom, notes, provenance)

    def stream(self, readings: Sequence[ContrastReading], seed: int) -> ModelStream:
        """The chunks of contrasts whose `outlines` were told."""
        marked = [
            MarkedContrast.of(one.name, self._encoded[one.contrast], self._census[one.contrast], one.reading, seed)
            for one in readings
        ]
        return ModelStream(self.batches, self.layers, passes_of(marked))

    def provenance(self) -> dict[str, Any]:
        """Of which model, and by which versions."""
        return {
            "model": self.model.name,
            "revision": self.model.revision,
            "model_digest": self.model.digest,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "versions": versions(),
        }

    def job(self) -> dict[str, Any]:
        """What else tells one pass from another: two that differ in it cannot go on with each other's sums."""
        return {"encoding": asdict(self.encoding), "batch_size": self.batches.batch_size}


def _remembered(contrast: Contrast) -> str:
    """The texts of a contrast as short digests in one string; empty of very many."""
    return b64encode(b"".join(sorted(contrast.text_digests))).decode() if len(contrast) <= REMEMBERED else ""


def encoder_for(model: Model, encoding: Encoding) -> Encoder:
    """How texts are encoded for a model that can take them."""
    if model.tokenizer is None:
        raise QKPrismError(f"{model.name} has no tokenizer. Load it as (model, tokenizer).")
    if model.hf.config.is_encoder_decoder:
        raise QKPrismError(f"{model.name} is an encoder-decoder: texts can be given to encoders and decoders only.")
    return Encoder.of(model.tokenizer, encoding, causal=model.is_causal)


def checked(
    model: Model, encoded: Iterable[EncodedExample], heads: Sequence[Head], progress: Progress | None = None
) -> Iterator[EncodedExample]:
    """Examples as they come, each after it is clear that the heads see all its keys; none at all is an error."""
    windows = {model.layers[head.layer].window for head in heads}
    found = False
    for example in encoded:
        found = True
        for window in windows:
            check_reach([example], window, causal=model.is_causal)
        check_length(model, example.length, example.source)
        for text in example.texts:
            check_ids(model, text.ids, example.source)
        if progress:
            progress(1)
        yield example
    if not found:
        raise QKPrismError("There are no examples.")


def check_length(model: Model, tokens: int, source: str) -> None:
    """Refuse a text that is longer than the model is made for."""
    if model.max_positions is not None and tokens > model.max_positions:
        raise QKPrismError(
            f"{source}: {tokens} tokens are more than the {model.max_positions} positions of {model.name}."
        )


def check_ids(model: Model, ids: Sequence[int], source: str) -> None:
    """Refuse tokens that the model has no embedding for."""
    if (most := model.vocabulary) is not None and max(ids) >= most:
        raise QKPrismError(
            f"{source}: a token has the number {max(ids)}, and {model.name} has {most} embeddings. "
            "The tokenizer is not this model's."
        )


def versions() -> dict[str, str]:
    """Of the packages that results depend on."""
    return {package: version(package) for package in ("qkprism", "torch", "transformers")}
