"""`explain`: why heads attend where they do in any text, exactly, and how much of the answer has a name."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkprism.atlas.atlas import Atlas
from qkprism.atlas.explanation import NAMED, Explanation, HeadRow, edge_of
from qkprism.atlas.naming import NamedForms, NamedHeads, Naming
from qkprism.atlas.rows import STAGES, RotatedRows
from qkprism.atlas.shares import SHARES
from qkprism.atlas.spans import FeatureRuns, listed, read_run_of
from qkprism.atlas.survey import survey
from qkprism.capture.model_source import check_ids, check_length, versions
from qkprism.contrasts import Span, Text
from qkprism.core.row_split import PARTS, REST
from qkprism.core.rows import cap
from qkprism.core.variation import variation_of, without_first
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike, all_heads, check_heads
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import encode_text
from qkprism.models.model import Model
from qkprism.models.places import atlas_folder
from qkprism.models.rotation import Rotation
from qkprism.options import choice, show, whole_number
from qkprism.results.features import Features
from qkprism.runs.files import path_of
from qkprism.runs.folder import MANIFEST, is_run
from qkprism.studies.shelf_result import Shelf

TokenName = int | str
LISTED = 40  # tokens that are named where one is not found
QUICK_WINDOWS, QUICK_LENGTH = 48, 128  # of the atlas that is made where there is none


def explain(
    model: Model,
    text: str | Text,
    *,
    query: TokenName | None = None,
    key: TokenName | None = None,
    head: HeadLike | Sequence[HeadLike] | None = None,
    atlas: Atlas | str | os.PathLike[str] | None = None,
    features: FeatureRuns | NamedHeads = None,
    method: str | None = None,
    top: int = 8,
    progress: bool = True,
) -> Explanation:
    """Why heads attend from one token of a text to others: the strongest edges, in parts that add up.

    >>> explain(model, "The hat is in box O, the jam is in box Z. The jam is in box")   # doctest: +SKIP

    model     what `load` gave
    text      any text; a token marked [?so] is the query, one marked [+so] the key
    query     the token that attends: its number, or its text (the last such token, or the last of a longer word; "3"
              is a number where no token reads so); by default the last token of the text
    key       the token attended to (by its text, the last up to the query); without one the strongest edges at the
              query are told, whatever their key
    head      one head, or some; by default those that have the features given, or all where none are
    atlas     of `survey`, or its folder; without one that of the cache, which is made from the model's own text if
              there is none yet (a minute for the default model)
    features  named features, or their run folders: they are told apart within the match
    method    how features share what they have in common: "oblique", "shapley" or "sequential"; by default oblique
              within one run, shapley across several
    top       how many edges are told
    progress  whether a bar is shown
    """
    top = whole_number(top, "top", 1)
    found_atlas = atlas_for(model, atlas, progress=progress)
    ids, written, marked, wanted = _encode(model, text, named=query is not None)
    tokens = tuple(shown(model, one) for one in ids)
    at = marked if query is None else _place(query, model, written, tokens, tokens, "query")
    to = wanted if key is None else _place(key, model, written, tokens, tokens[: at + 1], "key")
    if model.is_causal and at == 0:
        raise QKPrismError(f"{tokens[0]!r} is the first token and sees no other. Give a longer text, or a later query.")
    if isinstance(features, NamedHeads):  # of the explorer, which lists every head whatever it has opened
        naming, heads = features, _heads(model, head, ())
    else:
        naming = naming_of(features, model, method)
        heads = _heads(model, head, naming.heads)
    rows = read_rows(model, ids, at, found_atlas, heads, {})
    edges = _edges(rows, at, to, tokens, several=head is not None)[:top]
    named = naming.forms(sorted({row.head for row, _ in edges}))
    if named:
        rows |= read_rows(model, ids, at, found_atlas, list(named), named)
    told = [edge_of(rows[row.head], at, place, tokens) for row, place in edges]
    return Explanation(tokens, at, to, tuple(told), rows, _provenance(model, found_atlas))


def read_rows(
    model: Model, ids: Sequence[int], query: int, atlas: Atlas, heads: Sequence[Head], named: Mapping[Head, NamedForms]
) -> dict[Head, HeadRow]:
    """One row of every head, split; one forward pass."""
    found: dict[Head, HeadRow] = {}
    by_layer = {layer: [head for head in heads if head.layer == layer] for layer in sorted({h.layer for h in heads})}

    def visit(call: AttentionCall) -> None:
        rotation = Rotation.of(call, model.rotated_slices[call.layer])
        means = atlas.layers[call.layer]
        rows = RotatedRows.of(call, rotation, means, slice(query, query + 1), torch.float64)
        for row in _split_layer(call, rows, query, by_layer[call.layer], named):
            found[row.head] = row

    model.rotated_slices  # noqa: B018  (proved before the pass, not within it)
    model.run(torch.tensor([list(ids)]), None, visit, layers=sorted(by_layer))
    return found


def _split_layer(
    call: AttentionCall, rows: RotatedRows, query: int, heads: Sequence[Head], named: Mapping[Head, NamedForms]
) -> list[HeadRow]:
    at = slice(query, query + 1)
    parts, products = rows.split.parts(), rows.split.products()
    capped = cap(products, call.softcap)
    final = call.finish(products, rows=at)
    true = call.softmax(final)
    stages = rows.stages(parts)
    rebuilt = torch.stack([call.softmax(call.finish(stage, rows=at)) for stage in stages])
    variation, later = variation_of(rebuilt, true), variation_of(without_first(rebuilt), without_first(true))
    found = []
    for head in heads:
        one = (0, head.index, 0)
        told = named[head].of_row(rows, head.index, true[one]) if head in named else None
        features, null = told.parts(rows, head.index) if told and told.names else (None, None)
        terms = {name: parts[(i, *one)].cpu() for i, name in enumerate(PARTS[:-1])}
        match = parts[(-1, *one)].cpu()
        if told and features is not None:
            terms |= dict(zip(told.names, features, strict=True))
            match = match - features.sum(0)
        terms[REST] = match
        terms |= _beyond(call, products[one], capped[one], final[one])
        variations = {name: float(value) for name, value in zip(STAGES, variation[:, 0, head.index, 0], strict=True)}
        known_later = {name: float(value) for name, value in zip(STAGES, later[:, 0, head.index, 0], strict=True)}
        if features is not None:
            stage = stages[3][:, head.index : head.index + 1].clone()
            stage[0, 0, 0] += features.sum(0).to(stage)
            again = call.softmax(call.finish(stage, [head.index], at), [head.index])[0, 0, 0]
            variations[NAMED] = float(variation_of(again, true[one]))
            known_later[NAMED] = float(variation_of(without_first(again), without_first(true[one])))
        found.append(
            HeadRow(
                head=head,
                attention=true[one].cpu(),
                logits=final[one].cpu(),
                terms=terms,
                null=dict(zip(told.names, null, strict=True)) if told and null is not None else {},
                tried=named[head].names if head in named else (),
                variation=variations,
                variation_later=known_later,
                sink=max(0.0, 1 - float(true[one].sum())),
            )
        )
    return found


def _beyond(call: AttentionCall, product: Tensor, capped: Tensor, final: Tensor) -> dict[str, Tensor]:
    """What the model does to a product: a soft cap, a position bias."""
    seen = final.isfinite()
    found = {}
    if call.softcap is not None:
        found["soft cap"] = (capped - product).cpu()
    bias = torch.where(seen, final - capped, 0.0)
    if bool(bias.abs().amax() > 0):
        found["position bias"] = bias.cpu()
    return found


def _edges(
    rows: Mapping[Head, HeadRow], query: int, key: int | None, tokens: Sequence[str], *, several: bool
) -> list[tuple[HeadRow, int]]:
    """The edges that are told, most attention first; without a key the first token is left out, where heads rest."""
    if key is not None:
        pairs = [(row, key) for row in rows.values() if row.logits[key].isfinite()]
        if not pairs:
            raise QKPrismError(
                f"{tokens[query]!r} (token {query}) does not see {tokens[key]!r} (token {key}): a key comes before its "
                "query, within the window of the head."
            )
    else:
        pairs = [(row, place) for row in rows.values() for place in _best_keys(row, 5 if several else 1)]
    return sorted(pairs, key=lambda pair: -float(pair[0].attention[pair[1]]))


def _best_keys(row: HeadRow, most: int) -> list[int]:
    """The most attended tokens but the first."""
    attention = row.attention.masked_fill(~row.logits.isfinite(), -1.0)
    attention[0] = -1.0
    shares, places = attention.topk(min(most, len(attention)))
    order = [place for place, share in zip(places.tolist(), shares.tolist(), strict=True) if share >= 0]
    return order or [0]


def _encode(model: Model, text: str | Text, *, named: bool) -> tuple[tuple[int, ...], str, int, int | None]:
    """Tokens, the text without marks, the query's place, and the marked key's if there is one."""
    if model.tokenizer is None:
        raise QKPrismError(f"{model.name} has no tokenizer. Load it as (model, tokenizer).")
    if not isinstance(text, str | Text):
        raise QKPrismError(f"{show(text)} is not a text.")
    marked = Text.parse(text) if isinstance(text, str) else text
    encoded = encode_text(model.tokenizer, marked, causal=model.is_causal or named)  # an encoder's has no last one
    check_length(model, len(encoded.ids), "the text")
    check_ids(model, encoded.ids, "the text")
    keys = [key.position for key in encoded.keys]
    return tuple(encoded.ids), marked.text, encoded.query, keys[0] if keys else None


def _place(name: TokenName, model: Model, written: str, tokens: Sequence[str], first: Sequence[str], what: str) -> int:
    """The place of a token: a number (from the end if negative), or its text.

    Of several tokens it is the last of `first`, or else the last of all; of a word of several tokens, their last.
    """
    if isinstance(name, int) and not isinstance(name, bool):
        if -len(tokens) <= name < len(tokens):
            return name % len(tokens)
        raise QKPrismError(f"{what}={name}: the text has {len(tokens)} tokens, 0 to {len(tokens) - 1}.")
    if not isinstance(name, str):
        raise QKPrismError(f"{show(name)} is not a token. Give its number or its text.")
    for test in (lambda token: token == name, lambda token: token.strip() == name.strip()):
        for among in (first, tokens):
            if places := [place for place, token in enumerate(among) if test(token)]:
                return places[-1]
    if name.strip() and (found := _ends(name, model, written)):
        return max((place for place in found if place < len(first)), default=found[-1])
    if name.removeprefix("-").isdecimal():
        return _place(int(name), model, written, tokens, first, what)
    some = " ".join(f"{place}:{token!r}" for place, token in enumerate(tokens[:LISTED]))
    more = f" and {len(tokens) - LISTED} more" if len(tokens) > LISTED else ""
    raise QKPrismError(f"{what}={name!r} is not in the text. Its tokens are {some}{more}.")


def _ends(name: str, model: Model, written: str) -> list[int]:
    """The last tokens of the words that are written so."""
    spans = tuple(Span(*found.span()) for found in re.finditer(re.escape(name.strip()), written))
    marked = Text(written, None, spans)
    return sorted(key.position for key in encode_text(model.tokenizer, marked, causal=model.is_causal).keys)


def shown(model: Model, token: int) -> str:
    """A token as text."""
    assert model.tokenizer is not None
    return str(model.tokenizer.decode([token]))


def _heads(model: Model, head: Any, featured: Sequence[Head]) -> tuple[Head, ...]:
    if head is None:
        return tuple(featured) or all_heads(model.heads_per_layer)
    return check_heads(head, model.heads_per_layer, model.name)


def atlas_for(model: Model, atlas: Any, *, progress: bool = True) -> Atlas:
    """The atlas of a model: as given, from its folder, from the cache, or made now and kept there."""
    if isinstance(atlas, Atlas):
        return _fitting(atlas, model)
    if atlas is not None:
        return _fitting(_loaded(path_of(atlas)), model)
    place = cached_atlas(model)
    if is_run(place):
        return _fitting(_loaded(place), model)
    made = survey(model, windows=QUICK_WINDOWS, length=QUICK_LENGTH, progress=progress)
    made.save(place)
    return made


def _loaded(place: Path) -> Atlas:
    """The atlas of a folder; the last one is kept with its directions, for the next text."""
    manifest = place / MANIFEST
    return _read(place.resolve(), manifest.stat().st_mtime_ns if manifest.is_file() else 0)


@lru_cache(maxsize=1)
def _read(place: Path, written: int) -> Atlas:  # noqa: ARG001  (another writing is another atlas)
    return Atlas.load(place)


def cached_atlas(model: Model) -> Path:
    """Where the atlas of a model is kept."""
    return atlas_folder(model.digest)


def _fitting(atlas: Atlas, model: Model) -> Atlas:
    if atlas.provenance.get("model_digest") != model.digest:
        raise QKPrismError(
            f"This atlas is of {atlas.provenance.get('model')}, and the weights of {model.name} are others. "
            "Make one of this model: qkprism atlas, or survey(model)."
        )
    return atlas


def naming_of(
    features: FeatureRuns | Mapping[str, Features | Shelf], model: Model, method: str | None = None
) -> NamedHeads:
    """Features that name parts, by the names of their runs where those are given."""
    return NamedHeads(
        _feature_sets(features, model), None if method is None else choice(method, tuple(SHARES), "a method")
    )


def _feature_sets(features: Any, model: Model) -> dict[str, Naming]:
    """Runs of features by name, each its own; those of the shelf by the names of their contrasts.

    A run that is alone needs no name.
    """
    found: dict[str, Naming] = {}
    for name, one in _by_name(features).items():
        run = read_run_of(one, model)
        sets: dict[str, Naming] = {name: run} if isinstance(run, Features) else {}
        if isinstance(run, Shelf):
            sets = {contrast: run.spaces(contrast) for contrast in run.contrasts}
        for told, loaded in sets.items():
            found[_free(told, found)] = loaded
    return found


def _by_name(features: Any) -> dict[str, Any]:
    """Runs by the names that were given, or by those of their folders."""
    if isinstance(features, Mapping) and not isinstance(features, Features):
        return dict(features)
    found: dict[str, Any] = {}
    runs = listed(features)
    for one in runs:
        folder = "run" if isinstance(one, Features | Shelf) else path_of(one).resolve().name
        found[_free(folder if len(runs) > 1 else "", found)] = one
    return found


def _free(name: str, taken: Container[str]) -> str:
    """The name, with a number where it is taken."""
    return next(one for one in chain([name], (f"{name} {n}" for n in count(2))) if one not in taken)


def _provenance(model: Model, atlas: Atlas) -> dict[str, Any]:
    return {
        "model": model.name,
        "revision": model.revision,
        "atlas": dict(atlas.provenance),
        "versions": versions(),
    }
