"""`attribute`: split the attention logits of query tokens into features (paper, section 5.3)."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.capture.model_source import check_ids, check_length
from qkprism.capture.readers import QueryRows, read_logits, read_together
from qkprism.capture.source import Site, sites_of
from qkprism.capture.vector_source import VectorSource
from qkprism.contrasts import Contrast, Example, Text
from qkprism.core.projectors import stretch_notes
from qkprism.core.splitting import CONDITIONAL, Split, split_of
from qkprism.core.terms import AttributionSums, term_names, terms_of, variance_shares
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike
from qkprism.models.batches import Batch
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import EncodedExample, EncodedText, encode_text
from qkprism.models.model import Model
from qkprism.options import Frame, names_in
from qkprism.results.attribution import STRONG, Attribution, Attributions
from qkprism.results.features import Features
from qkprism.subspaces.modulation import Modulation, head_modulation, modulation_of
from qkprism.verbs.inputs import (
    AnySource,
    Heads,
    KeptExamples,
    encode_like,
    examples_of,
    heads_with_features,
    model_for,
    noted,
    provenance_of_run,
)


@overload
def attribute(
    source: AnySource,
    text: str | Text | Example,
    features: Features,
    head: HeadLike | None = None,
    *,
    method: str | None = None,
    order: Sequence[str] | None = None,
    contrasts: Sequence[str] | None = None,
) -> Attribution: ...
@overload
def attribute(
    source: AnySource,
    text: Contrast | Iterable[Example],
    features: Features,
    head: Heads = None,
    *,
    method: str | None = None,
    order: Sequence[str] | None = None,
    contrasts: Sequence[str] | None = None,
    batch_size: int | None = None,
    progress: bool = True,
) -> Attributions: ...
def attribute(
    source: AnySource,
    text: str | Text | Example | Contrast | Iterable[Example],
    features: Features,
    head: Heads = None,
    *,
    method: str | None = None,
    order: Sequence[str] | None = None,
    contrasts: Sequence[str] | None = None,
    batch_size: int | None = None,
    progress: bool = True,
) -> Attribution | Attributions:
    """Split the logits of a query token into one part a feature and a residual, exactly.

    >>> why = qk.attribute(model, "the hat in A, the jam in B. The jam in box", features, "L0H1")
    >>> why.terms
    ('order', 'lexical', 'residual')

    source       the model of the features; or a `VectorSource`, for means over the examples of a contrast
    text         a text gives an `Attribution`: every token that its query (the last token unless marked) sees, in one
                 head. A string may have marks, so a literal `[-`, `[+` or `[?` is written `[[-` and so on (or give a
                 `Text`). Many examples, or the name of a contrast of vectors, give `Attributions`: means over examples
    features     what `decompose` gave
    head         of a text one head, which may be left out where features have one; of many examples all by default
    method       oblique (default with the contrast metric), sequential (the paper's), shapley, both, or conditional,
                 whose parts of a single text are nearer to the truth where factors do not add up
    order        for sequential: what is projected out first; by rank by default
    contrasts    some of the features; all by default
    batch_size   texts that are run at once; None (default) goes by tokens, and halves where memory runs out
    progress     whether a bar is shown after two seconds; default True
    """
    if not isinstance(text, str | Text | Example) or (isinstance(source, VectorSource) and isinstance(text, str)):
        examples = examples_of(text, source)
        reader = attributions_reader(source, examples, features, head, method=method, order=order, contrasts=contrasts)
        read_together(source, [reader], batch_size=batch_size, progress=progress)
        return noted(reader.result(), features, examples)
    splits = _splits(source, features, head, method, order, contrasts)
    if len(splits) > 1:
        raise QKPrismError(f"Name one head for a text. There are: {', '.join(map(str, splits))}.")
    found = model_for(source, "The logits of one text are read as it runs")
    return _attribute_text(found, _text(text), features, *next(iter(splits.items())))


def attributions_reader(
    model: AnySource,
    examples: Contrast | Iterable[Example] | KeptExamples,
    features: Features,
    heads: Heads = None,
    *,
    method: str | None = None,
    order: Sequence[str] | None = None,
    contrasts: Sequence[str] | None = None,
) -> AttributionsReader:
    """The reader of `attribute` for many examples, to share a pass with others."""
    splits = _splits(model, features, heads, method, order, contrasts)
    encoded = encode_like(model, examples, features, [*splits])
    if alone := [example.source for example in encoded if not example.text.negative]:
        raise QKPrismError(f"{alone[0]}: means over examples need a negative key in the text: they are about the gap.")
    return AttributionsReader.of(model, encoded, features, splits)


def _splits(
    model: AnySource,
    features: Features,
    heads: Heads,
    method: str | None,
    order: Sequence[str] | None,
    contrasts: Sequence[str] | None,
) -> dict[Head, Split]:
    """How the logits of each head are split."""
    chosen, names = heads_with_features(model, features, heads), _names(features, contrasts)
    if method != CONDITIONAL:
        return {one: split_of([features[name, one] for name in names], method, order) for one in chosen}
    if order is not None:
        raise QKPrismError("The conditional method has no order: give `order` with method='sequential' only.")
    modulation = modulation_of(features)
    return {one: _conditional(features, one, names, modulation) for one in chosen}


def _conditional(features: Features, head: Head, names: Sequence[str], modulation: Modulation) -> Split:
    """The split that goes by the value of a label: angles and condition are those of the oblique one."""
    oblique = split_of([features[name, head] for name in names], "oblique")
    parts = head_modulation(features, head, modulation).parts(names, modulation.movers)
    return replace(oblique, method=CONDITIONAL, conditional=parts)


def _names(features: Features, contrasts: Sequence[str] | None) -> Sequence[str]:
    names = features.contrasts if contrasts is None else names_in(contrasts, "contrasts")
    if len(set(names)) < len(names):
        raise QKPrismError(f"A contrast is named twice: {', '.join(names)}.")
    if unknown := [name for name in names if name not in features.contrasts]:
        raise QKPrismError(f"There is no contrast {unknown[0]!r}. There are: {', '.join(features.contrasts)}.")
    return names


def _text(text: str | Text | Example) -> Text:
    if isinstance(text, Example):
        return text.text
    return Text.parse(text) if isinstance(text, str) else text


def _attribute_text(model: Model, text: Text, features: Features, head: Head, split: Split) -> Attribution:
    encoded = _encode_one(model, text, features)
    site, rows = sites_of(model, [head])[head.layer], torch.tensor([encoded.query])
    found: list[tuple[QueryRows, Tensor]] = []

    def visit(call: AttentionCall) -> None:
        found.append((read_logits(call, site, rows), call.attention([head.index], rows)[0, 0, 0].cpu().double()))

    rope = features.encoding.rope
    model.run(torch.tensor([encoded.ids]), None, visit, layers=[head.layer], rope=rope, query_positions=rows)
    read, attention = found[0]
    query, key, seen = read.query[:, 0], read.key[:, 0], read.logits.seen[0, 0].cpu()
    order = _order_spread(split, query, key, read.logits.seen[:, 0], read.scaling)
    spread = None if order is None else float(order.amax())
    places = seen.nonzero()[:, 0].tolist()
    return Attribution(
        head=head,
        tokens=tuple(_shown(model, encoded.ids[at]) for at in places),
        positions=tuple(places),
        query=encoded.query,
        terms=term_names(split, read.logits),
        values=terms_of(split, read.logits, 0, query, key, read.scaling)[:, 0].cpu()[:, seen],
        logits=read.logits.final[0, 0].cpu()[seen],
        attention=attention[seen],
        method=split.method,
        marks={key.position: "positive" if key.positive else "negative" for key in encoded.keys},
        angles={f"{a} & {b}": angles for (a, b), angles in split.angles.items()},
        condition=split.condition,
        order_spread=spread,
        notes=_split_notes(head, split, spread),
        provenance=provenance_of_run(model, features),
    )


def _shown(model: Model, token: int) -> str:
    assert model.tokenizer is not None  # the text was encoded with it
    return str(model.tokenizer.decode([token]))


def _encode_one(model: Model, text: Text, features: Features) -> EncodedText:
    if model.tokenizer is None:
        raise QKPrismError(f"{model.name} has no tokenizer. Load it as (model, tokenizer).")
    encoded = encode_text(model.tokenizer, text, features.encoding, causal=model.is_causal)
    check_length(model, len(encoded.ids), "the text")
    check_ids(model, encoded.ids, "the text")
    return encoded


def _order_spread(
    split: Split, query: Tensor, key: Tensor, seen: Tensor, scaling: float
) -> Float64[Tensor, "example feature"] | None:
    """Of each example and feature, how much of the spread of the logits over seen tokens depends on the order alone."""
    spread = split.order_spread(query, key, scaling)
    if spread is None:
        return None
    logits = torch.einsum("ed,etd->et", query.double(), key.double()) * scaling
    return (_deviation(spread, seen) / _deviation(logits, seen).clamp(min=1e-12)).mT


def _deviation(values: Tensor, seen: Tensor) -> Tensor:
    """The standard deviation over the tokens that are seen."""
    weight = seen / seen.sum(-1, keepdim=True).clamp(min=1)
    mean = (values * weight).sum(-1, keepdim=True)
    return ((values - mean).square() * weight).sum(-1).sqrt()


def _split_notes(head: Head, split: Split, spread: float | None) -> tuple[str, ...]:
    """What to be careful about: an order that matters, or projectors that are badly conditioned."""
    oblique = dict(zip(split.names, split.forms, strict=True)) if split.method == "oblique" else {}
    return (*_order_notes(head, split, spread), *stretch_notes(head, oblique))


def _order_notes(head: Head, split: Split, spread: float | None) -> tuple[str, ...]:
    if spread is None or spread < STRONG or len(split.names) < 2:
        return ()
    note = (
        f"{head}: the sequential split depends on its order ({', then '.join(split.names)}): coming first or last "
        f"moves a part by {spread:.0%} of the spread of the logits. method='oblique' or 'shapley' has no order."
    )
    warnings.warn(note, stacklevel=6)
    return (note,)


_TermsRead = tuple[tuple[str, ...], tuple[Tensor, Tensor, Tensor, Tensor | None]]  # names of terms, and their values


@dataclass
class _TermTally:
    """Adds up the terms of one layer's heads."""

    site: Site
    splits: Mapping[Head, Split]
    sums: AttributionSums | None = None
    names: tuple[str, ...] = ()

    def read(self, call: AttentionCall, batch: Batch) -> _TermsRead:
        """The terms of a batch."""
        read = read_logits(call, self.site, batch.query)
        moved = batch.to(read.query.device)
        every, orders = [], []
        for i, head in enumerate(self.site.heads):
            split = self.splits[head]
            terms = terms_of(split, read.logits, i, read.query[:, i], read.key[:, i], read.scaling)
            every.append(terms)
            names = term_names(split, read.logits)
            order = _order_spread(split, read.query[:, i], read.key[:, i], read.logits.seen[:, i], read.scaling)
            orders += [] if order is None else [order]
        terms = torch.stack(every, 2)  # term example head token
        at_keys = terms[:, moved.key_row, :, moved.key_column]  # key term head
        gap = torch.einsum("ek,kth->eht", (moved.positive_mean - moved.negative_mean).double(), at_keys)
        marked = torch.zeros_like(read.logits.seen[:, 0])
        marked[moved.key_row, moved.key_column] = True
        shares, shares_marked = (
            variance_shares(terms, chosen).movedim(0, -1).cpu()
            for chosen in (read.logits.seen, marked[:, None].expand_as(read.logits.seen))
        )
        return names, (gap.cpu(), shares, shares_marked, torch.stack(orders, 1).cpu() if orders else None)

    def add(self, found: _TermsRead, weight: Tensor) -> None:
        """Add what was read of a batch."""
        self.names, values = found
        if self.sums is None:
            n_heads, n_terms = values[0].shape[1:]
            self.sums = AttributionSums.zeros(n_heads, n_terms, len(next(iter(self.splits.values())).names))
        self.sums.add(*values, weight)


@dataclass
class AttributionsReader:
    """Adds up the terms of all heads."""

    examples: Sequence[EncodedExample]
    splits: Mapping[Head, Split]
    tallies: Mapping[int, _TermTally]
    rope: Frame
    provenance: Mapping[str, Any]
    current: dict[int, _TermsRead] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: AnySource, examples: Sequence[EncodedExample], features: Features, splits: Mapping[Head, Split]
    ) -> AttributionsReader:
        # The default order of a sequential split goes by rank and differs from head to head; a table has one order.
        names = [name for name in features.contrasts if name in next(iter(splits.values())).names]
        told = {head: split.in_order(names) for head, split in splits.items()}
        tallies = {layer: _TermTally(site, told) for layer, site in sites_of(model, [*splits]).items()}
        rope = features.encoding.rope
        return cls(examples, splits, tallies, rope, provenance_of_run(model, features))

    @property
    def layers(self) -> Sequence[int]:
        return sorted(self.tallies)

    def visit(self, call: AttentionCall, batch: Batch) -> None:
        self.current[call.layer] = self.tallies[call.layer].read(call, batch)

    def keep(self, batch: Batch) -> None:
        for layer, found in self.current.items():
            self.tallies[layer].add(found, batch.weight)
        self.current.clear()

    def result(self) -> Attributions:
        splits, n = self.splits, len(self.examples)
        heads = [head for tally in self.tallies.values() for head in tally.site.heads]
        sums = [tally.sums for tally in self.tallies.values() if tally.sums is not None]
        parts: dict[str, list[tuple[Tensor, Tensor]]] = {
            "gap": [(total.gap.mean()[:, :-1], total.gap.error()[:, :-1]) for total in sums],
            "gap_share": [total.gap_share() for total in sums],
            "variance": [(total.variance.mean(), total.variance.error()) for total in sums],
            "variance_marked": [(total.variance_marked.mean(), total.variance_marked.error()) for total in sums],
        }
        spread = dict(zip(heads, [value for total in sums for value in total.order_spread()], strict=True))
        notes = [note for head in heads for note in _split_notes(head, splits[head], spread[head])]
        return Attributions(
            heads=tuple(heads),
            terms=next(iter(self.tallies.values())).names,
            values={name: torch.cat([value for value, _ in part]) for name, part in parts.items()},
            errors={name: torch.cat([error for _, error in part]) for name, part in parts.items()},
            n=n,
            method={head: splits[head].method for head in heads},
            condition={head: splits[head].condition for head in heads},
            order_spread=spread,
            angles={h: {f"{a} & {b}": t for (a, b), t in splits[h].angles.items()} for h in heads},
            notes=tuple(notes),
            provenance=self.provenance,
        )
