"""What every verb does with its inputs: contrasts, heads, encoding, provenance, a progress bar."""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from qkprism.capture.model_source import checked, encoder_for, versions
from qkprism.capture.vector_batches import encoded_vectors
from qkprism.capture.vector_source import VectorSource
from qkprism.contrasts import Contrast, Example, check_name, text_digest
from qkprism.core.row_split import PARTS, REST
from qkprism.encoding import Encoding
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike, all_heads, check_heads
from qkprism.models.encoding import EncodedExample
from qkprism.models.model import Model
from qkprism.options import by_name, show
from qkprism.results.features import Features
from qkprism.results.scores import HeadScores
from qkprism.runs.store import Unfinished

AnySource = Model | VectorSource
Place = str | os.PathLike[str]  # of a contrast's file
Contrasts = Contrast | Place | Sequence[Contrast | Place] | Mapping[str, Contrast | Place]
Examples = Contrast | Place | Iterable[Example] | Example
RESERVED = {"residual", "soft cap", "position bias", "logit", "attention", "token", "mark", "given", *PARTS, REST}
Noted = TypeVar("Noted", bound=Any)  # a frozen dataclass with notes
Heads = Iterable[HeadLike] | HeadLike | HeadScores | None


def named_contrasts(contrasts: Contrasts) -> dict[str, Contrast]:
    """Contrasts by name, in whatever form they were given; files are read."""
    if isinstance(contrasts, Contrast | str | os.PathLike):
        contrasts = [contrasts]
    if not isinstance(contrasts, Iterable):
        raise QKPrismError(_NO_CONTRAST.format(show(contrasts)))
    if isinstance(contrasts, Mapping):
        found = [(name, _contrast(contrast)) for name, contrast in contrasts.items()]
    else:
        found = [(contrast.name, contrast) for contrast in map(_contrast, contrasts)]
    named = dict(found)
    if len(named) < len(found):
        raise QKPrismError("Two contrasts have the same name. Rename one, or give them as {name: contrast}.")
    if not named:
        raise QKPrismError("No contrast was given.")
    for name in named:
        check_name(name)
    if taken := RESERVED & set(named):
        raise QKPrismError(f"{sorted(taken)[0]!r} is a word of the results and not a name for a contrast. Rename it.")
    return named


_NO_CONTRAST = "{} is not a contrast. Give the path of a file, or Contrast(name, examples)."


def _contrast(contrast: Any) -> Contrast:
    """A contrast, read from its file if that was given."""
    if isinstance(contrast, str | os.PathLike):
        return Contrast.read(contrast)
    if not isinstance(contrast, Contrast):
        raise QKPrismError(_NO_CONTRAST.format(show(contrast)))
    return contrast


@dataclass(frozen=True)
class KeptExamples:
    """The examples of one contrast of a `VectorSource`."""

    contrast: str


def examples_of(examples: Examples, source: AnySource | None = None) -> Contrast | list[Example] | KeptExamples:
    """Examples in whatever form they were given; a file is read. Those of vectors are named by their contrast."""
    if isinstance(source, VectorSource):
        if not isinstance(examples, str) or examples not in source.contrasts:
            names = ", ".join(source.contrasts)
            raise QKPrismError(f"{show(examples)} is not a contrast of these vectors. There are: {names}.")
        return KeptExamples(examples)
    if isinstance(examples, Contrast | str | os.PathLike):
        return _contrast(examples)
    if isinstance(examples, Example):
        return [examples]
    if not isinstance(examples, Iterable):
        raise QKPrismError(f"{show(examples)} is not a list of examples. Give a contrast, or the path of its file.")
    return list(examples)


def model_for(source: AnySource, what: str) -> Model:
    """The model, where texts must be run: vectors are refused."""
    if isinstance(source, VectorSource):
        raise QKPrismError(f"{what}, and a VectorSource has none to run. Give a model that qkprism.load returned.")
    return source


def heads_of(model: AnySource, heads: Heads) -> tuple[Head, ...]:
    """The heads that are wanted (all of the model)."""
    if isinstance(model, VectorSource):
        return model.pick(heads.heads if isinstance(heads, HeadScores) else heads).heads
    if not isinstance(model, Model):
        raise QKPrismError(f"Give a model that qkprism.load returned, not {type(model).__name__}.")
    if heads is None:
        return all_heads(model.heads_per_layer)
    return check_heads(heads.heads if isinstance(heads, HeadScores) else heads, model.heads_per_layer, model.name)


def heads_with_features(model: AnySource, features: Features, heads: Heads) -> tuple[Head, ...]:
    """The heads asked for (all that have features), after it is clear that the features are of this model."""
    if not isinstance(features, Features):
        raise QKPrismError(f"Give features that qkprism.decompose returned, not {type(features).__name__}.")
    chosen = heads_of(model, features.heads if heads is None else heads)
    if isinstance(model, VectorSource):
        sizes = {head: model.layers[head.layer].d_head for head in chosen if head in features.heads}
        if wrong := [head for head, size in sizes.items() if features[features.contrasts[0], head].d_head != size]:
            raise QKPrismError(f"The vectors of {wrong[0]} have d_head {sizes[wrong[0]]}, and its features another.")
    else:
        check_features(model, features.provenance)
    missing = [str(head) for head in chosen if head not in features.heads]
    if missing:
        raise QKPrismError(
            f"There is no feature for head {missing[0]}. There are: {', '.join(map(str, features.heads))}."
        )
    return chosen


def check_features(model: Model, provenance: Mapping[str, Any]) -> None:
    """Refuse features of another model."""
    digest = provenance.get("model_digest")
    if digest is None:
        raise QKPrismError("These features were made from plain vectors, not from a model.")
    if digest != model.digest:
        raise QKPrismError(
            f"These features are of {provenance.get('model')}, and the weights of {model.name} are others. "
            "Decompose again with this model."
        )


def sets_of(features: Features | Mapping[str, Features]) -> Mapping[str, Features]:
    """Sets of features by name (a single set has none), of texts encoded in one way, so that they can share runs."""
    if not isinstance(features, Mapping):
        raise QKPrismError(f"Give features that qkprism.decompose returned, not {type(features).__name__}.")
    sets = {"": features} if isinstance(features, Features) else by_name(features, "features")
    if wrong := [one for one in sets.values() if not isinstance(one, Features)]:
        raise QKPrismError(f"{wrong[0]!r} is not a set of features. Read a run folder with Features.load.")
    if not sets:
        raise QKPrismError("Give at least one set of features.")
    encodings = [one.encoding for one in sets.values()]
    if any(one != encodings[0] for one in encodings):
        raise QKPrismError("These sets of features were encoded differently: token, chat and rope must be equal.")
    return sets


def unfinished(
    checkpoint: str | os.PathLike[str] | None, source: AnySource, sets: Mapping[str, Features], job: Mapping[str, Any]
) -> Unfinished | None:
    """The work of a pass that reads features, kept in a folder; None without one."""
    if checkpoint is None:
        return None
    model_for(source, "A checkpoint is of a pass through a model")
    found = {
        name: [vars(one.choices), [feature.rank for feature in one.values()], without_texts(one.provenance)]
        for name, one in sets.items()
    }
    return Unfinished(Path(checkpoint), {**job, "features": found})


def encode_like(
    model: AnySource, examples: Examples | KeptExamples, features: Features, heads: Sequence[Head]
) -> list[EncodedExample]:
    """Encode the texts of examples (not their twins) as those of the features were."""
    return encode_single(model, examples, heads, features.encoding)


def encode_single(
    model: AnySource, examples: Examples | KeptExamples, heads: Sequence[Head], encoding: Encoding
) -> list[EncodedExample]:
    """The tokens of examples without their twins, after it is clear that the heads see all their keys."""
    if isinstance(model, VectorSource):
        named = examples if isinstance(examples, KeptExamples) else examples_of(examples, model)
        assert isinstance(named, KeptExamples)
        return encoded_vectors(model, named.contrast)
    encoded = checked(model, encoder_for(model, encoding).encode(enumerate(examples_of(examples))), heads)  # type: ignore[arg-type]
    return [EncodedExample(e.index, e.text, None, e.weight, e.group, e.source) for e in encoded]


def provenance_of_run(model: AnySource, features: Features | None = None) -> dict[str, Any]:
    """What read the texts, and with which features."""
    about: dict[str, Any] = {"model": model.name, "revision": model.revision}
    if features is not None:
        about |= {"choices": vars(features.choices), "encoding": asdict(features.encoding)}
        about["features"] = without_texts(features.provenance)
    return about | {"versions": versions()}


def without_texts(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What results repeat of where their features are from: all but the digests of their texts."""
    contrasts = provenance.get("contrasts", {})
    told = {name: {key: contrast[key] for key in contrast if key != "texts"} for name, contrast in contrasts.items()}
    return {**provenance, "contrasts": told} if told else dict(provenance)


def noted(result: Noted, features: Features | Mapping[str, Features], examples: object) -> Noted:
    """A result with a note if it was measured on texts that the features were found on."""
    sets = [features] if isinstance(features, Features) else [*features.values()]
    found_on = {digest for one in sets for digest in _texts_behind(one)}
    texts = [text_digest(text) for text in texts_in(examples)]
    seen = sum(digest in found_on for digest in texts)
    if not seen:
        return result
    note = (
        f"{seen} of {len(texts)} texts are among those that the features were found on, and what is measured on them "
        "flatters the features. Use held-out texts."
    )
    return replace(result, notes=(*result.notes, note))


def _texts_behind(features: Features) -> Iterator[bytes]:
    """The digests of the texts that features were found on, as far as they are remembered."""
    size = len(text_digest(""))
    for contrast in features.provenance.get("contrasts", {}).values():
        digests = b64decode(contrast.get("texts", ""))
        yield from (digests[at : at + size] for at in range(0, len(digests), size))


def texts_in(examples: object) -> Iterator[str]:
    """The texts of examples in whatever form: one, a contrast, a list, pairs, or such by name; vectors have none."""
    if isinstance(examples, KeptExamples):
        return
    if isinstance(examples, Example):
        yield examples.text.text
        return
    several = examples.values() if isinstance(examples, Mapping) else examples
    assert isinstance(several, Iterable)
    for one in several:
        yield from texts_in(one)
