"""What every verb does with its inputs: contrasts, heads, encoding, provenance, a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from tqdm import tqdm

from qkprism.capture import Progress
from qkprism.contrasts import Contrast, Example
from qkprism.core.feature_set import Features
from qkprism.core.moments import Reading
from qkprism.core.scores import HeadScores
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike, all_heads, check_heads
from qkprism.models.chat import Chat
from qkprism.models.digest import model_digest
from qkprism.models.encoding import EncodedExample, Encoder, TokenChoice, check_reach
from qkprism.models.model import Model
from qkprism.notes import Note

Contrasts = Contrast | Sequence[Contrast] | Mapping[str, Contrast]
RESERVED = {"residual", "soft cap", "position bias", "logit", "attention", "position", "token", "mark", "given"}
Heads = Iterable[HeadLike] | HeadLike | HeadScores | None


def named_contrasts(contrasts: Contrasts) -> dict[str, Contrast]:
    """Contrasts by name, in whatever form they were given."""
    if isinstance(contrasts, Contrast):
        return {contrasts.name: contrasts}
    given = list(contrasts.values()) if isinstance(contrasts, Mapping) else list(contrasts)
    if not all(isinstance(contrast, Contrast) for contrast in given):
        raise QKPrismError("Give contrasts: Contrast.read(path), or Contrast(name, examples).")
    named = dict(contrasts) if isinstance(contrasts, Mapping) else {contrast.name: contrast for contrast in given}
    if len(named) < len(given):
        raise QKPrismError("Two contrasts have the same name. Rename one, or give them as {name: contrast}.")
    if not named:
        raise QKPrismError("No contrast was given.")
    if taken := RESERVED & set(named):
        raise QKPrismError(f"{sorted(taken)[0]!r} is a word of the results and not a name for a contrast. Rename it.")
    return named


def heads_of(model: Model, heads: Heads) -> tuple[Head, ...]:
    """The heads asked for (all of the model)."""
    if not isinstance(model, Model):
        raise QKPrismError(f"Give a model that qkprism.load returned, not {type(model).__name__}.")
    if heads is None:
        return all_heads(model.heads_per_layer)
    return check_heads(heads.heads if isinstance(heads, HeadScores) else heads, model.heads_per_layer, model.name)


def heads_with_features(model: Model, features: Features, heads: Heads) -> tuple[Head, ...]:
    """The heads asked for (all that have features), after it is clear that the features are of this model."""
    if not isinstance(features, Features):
        raise QKPrismError(f"Give features that qkprism.decompose returned, not {type(features).__name__}.")
    known = features.provenance.get("model_digest")
    chosen = heads_of(model, features.heads if heads is None else heads)
    if known is None:
        raise QKPrismError("These features were made from plain vectors, not from a model.")
    if known != model_digest(model.hf):
        raise QKPrismError(
            f"These features are of {features.provenance.get('model')}, and the weights of {model.name} are others. "
            "Decompose again with this model."
        )
    missing = [str(head) for head in chosen if head not in features.heads]
    if missing:
        raise QKPrismError(
            f"There is no feature for head {missing[0]}. There are: {', '.join(map(str, features.heads))}."
        )
    return chosen


def check_encoded_alike(sets: Iterable[Features]) -> None:
    """Sets of features that share runs must be of texts encoded in one way."""
    sets = list(sets)
    if wrong := [own for own in sets if not isinstance(own, Features)]:
        raise QKPrismError(f"{wrong[0]!r} is not a set of features. Read a run folder with Features.load.")
    options = [own.provenance.get("options") for own in sets]
    if not options:
        raise QKPrismError("Give at least one set of features.")
    if any(own != options[0] for own in options):
        raise QKPrismError("These sets of features were encoded differently: token, chat and rope must be equal.")


def encode_like(
    model: Model, examples: Iterable[Example], features: Features, heads: Sequence[Head]
) -> list[EncodedExample]:
    """Encode the texts of examples (not their twins) as those of the features were."""
    options = features.provenance["options"]
    encoded = encode_for(model, examples, heads, options["token"], options["chat"], options["max_length"])
    return [EncodedExample(e.index, e.text, None, e.weight, e.group, e.source) for e in encoded]


def encode_for(
    model: Model,
    examples: Iterable[Example],
    heads: Sequence[Head],
    token: TokenChoice,
    chat: bool | Chat | None,
    max_length: int | None,
) -> list[EncodedExample]:
    """The tokens of examples, after it is clear that the heads see all their keys."""
    encoder = encoder_for(model, token, chat, max_length)
    return list(checked(model, encoder.encode(enumerate(examples)), heads))


def encoder_for(model: Model, token: TokenChoice, chat: bool | Chat | None, max_length: int | None) -> Encoder:
    """How texts are encoded for a model that can take them."""
    if model.tokenizer is None:
        raise QKPrismError(f"{model.name} has no tokenizer. Load it as (model, tokenizer).")
    if model.hf.config.is_encoder_decoder:
        raise QKPrismError(f"{model.name} is an encoder-decoder: texts can be given to encoders and decoders only.")
    return Encoder.of(model.tokenizer, token=token, chat=chat, max_length=max_length, causal=model.is_causal)


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


def provenance_of(
    model: Model,
    contrasts: Mapping[str, Contrast],
    readings: Mapping[str, Reading],
    notes: Mapping[str, Sequence[Note]],
    **options: Any,
) -> dict[str, Any]:
    """Of which model, contrasts and options features are, and what is to be said of the contrasts' texts."""
    return {
        "model": model.name,
        "revision": model.revision,
        "model_digest": model_digest(model.hf),
        "dtype": str(model.dtype).removeprefix("torch."),
        "contrasts": {
            name: {
                "digest": contrast.digest,
                "n": len(contrast),
                "reading": readings[name],
                "notes": [note.text for note in notes[name]],
            }
            for name, contrast in contrasts.items()
        },
        "options": options,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of the packages that results depend on."""
    return {package: version(package) for package in ("qkprism", "torch", "transformers")}


@contextmanager
def bar(total: int, unit: str, shown: bool) -> Iterator[Progress]:
    """A progress bar that appears after two seconds."""
    with tqdm(total=total, unit=f" {unit}", disable=not shown, delay=2.0, file=sys.stderr, leave=False) as bar:
        yield lambda n: bar.update(n) and None
