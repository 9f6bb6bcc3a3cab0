"""`validate`: rerun texts in which one factor was really exchanged between two keys, and compare edits with them.

An edit of keys leaves the query as it is, but in a changed text the query changes too: it finds its entity elsewhere.
So the truth of an edit is the base text's query with the changed text's keys (`truth="keys"`); the changed text by
itself (`truth="rerun"`) shows what the exchange does to the model as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from qkprism.capture.readers import read_together
from qkprism.capture.source import sites_of
from qkprism.contrasts import Contrast
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.models.batches import Batch
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import EncodedExample
from qkprism.models.model import Model
from qkprism.options import Frame
from qkprism.results.features import Features
from qkprism.results.validation import Validation
from qkprism.subspaces.comparison import METHODS, Method, left_out, named_methods, why_not
from qkprism.verbs.counterfactuals import Cases, Pair, Pairs
from qkprism.verbs.inputs import (
    AnySource,
    Heads,
    heads_with_features,
    model_for,
    noted,
    provenance_of_run,
    sets_of,
    unfinished,
)
from qkprism.verbs.truths import BasePairs, Tallies, judged_conditions, read_pairs

Truth = Literal["keys", "rerun"]
CHUNK = 64  # base texts, or a few more, that are added up at once


def validate(
    source: AnySource,
    pairs: Pairs | Sequence[Pair] | Contrast,
    features: Features | Mapping[str, Features],
    *,
    heads: Heads = None,
    truth: Truth = "keys",
    methods: Sequence[str] | None = None,
    batch_size: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Validation:
    """Compare the edits and attributions of features with true counterfactuals.

    >>> checked = qk.validate(model, {"order": pairs}, features, progress=False)
    >>> checked.factors
    ('order',)

    source       the model of the features: texts are run, so vectors will not do
    pairs        for each factor (the name of a contrast) pairs of a text and the text in which that factor was
                 exchanged between two keys, the one positive key and the one marked `target`; a contrast of texts and
                 such twins will do. In the changed text the positive key is the one that corresponds to the first
                 text's positive key, `target` likewise, other keys in the order of the text
    features     what `decompose` gave; several sets by name share the runs
    heads        some of the heads that have features; all by default
    truth        `keys` (default) is what the first text's query would give the changed keys; `rerun` what the changed
                 text's own query gives them
    methods      by which features are edited: some of "conditional", "contrast", "raw oblique" and "raw"; by default
                 all that a set has. A set that lacks one is judged by the others, and a note says so; the whole key
                 and the paper's attribution are always there, and so are the permuted control and key draws beside
                 "conditional"
    batch_size   texts that are run at once; None (default) goes by tokens, and halves where memory runs out
    checkpoint   a folder in which a pass that was killed goes on where it was, to the identical result; None (default)
                 keeps nothing
    progress     whether a bar is shown after two seconds; default True
    """
    source = model_for(source, "A true counterfactual is a text in which a factor was exchanged")
    reader = validation_reader(source, pairs, features, heads=heads, truth=truth, methods=methods)
    every = reader.tallies.conditions.values()
    edits = [[f"{head}", one.conditions.names] for of_set in every for head, one in of_set.items()]
    job = {**reader.provenance, "edits": edits, "changes": reader.cases.changes}
    kept = unfinished(checkpoint, source, sets_of(features), job)
    read_together(source, [reader], batch_size=batch_size, kept=kept, unit="texts", progress=progress)
    return noted(reader.result(), features, pairs)


def validation_reader(
    model: Model,
    pairs: Pairs | Sequence[Pair] | Contrast,
    features: Features | Mapping[str, Features],
    *,
    heads: Heads = None,
    truth: Truth = "keys",
    methods: Sequence[str] | None = None,
) -> ValidationReader:
    """The reader of `validate`, to share a pass with others."""
    if truth not in ("keys", "rerun"):
        raise QKPrismError(f"truth={truth!r} is not known. Use 'keys' or 'rerun'.")
    sets = sets_of(features)
    named, chosen = _checked(model, pairs, sets, heads)
    edited = methods_of_sets(sets, methods)
    first = next(iter(sets.values()))
    cases = Cases.of(model, named, first, chosen)
    rope = first.encoding.rope
    if truth == "keys" and rope == "post":
        _check_places(model, cases)
    sites = sites_of(model, chosen)
    every = {name: judged_conditions(one, sites, edited[name]) for name, one in sets.items()}
    tallies = Tallies(sites, every, {name: one.contrasts for name, one in sets.items()}, cases.factors)
    provenance = {**provenance_of_run(model), "truth": truth}
    notes = _lacking(sets, edited, methods)
    return ValidationReader(cases, chosen, rope, truth, tallies, notes, provenance)


@dataclass
class ValidationReader:
    """Reads pairs of texts and adds up, some of them at a time, how edits and attributions compare with the truth."""

    cases: Cases
    heads: tuple[Head, ...]
    rope: Frame
    truth: Truth
    tallies: Tallies
    notes: Sequence[str]
    provenance: Mapping[str, object]
    kept: list[BasePairs] = field(default_factory=list)
    current: dict[int, BasePairs] = field(default_factory=dict)

    @property
    def examples(self) -> Sequence[EncodedExample]:
        return self.cases.encoded

    @property
    def layers(self) -> Sequence[int]:
        return sorted(self.tallies.sites)

    def visit(self, call: AttentionCall, batch: Batch) -> None:
        read_pairs(call, batch, self.tallies, self.cases.changes, self.current, of_base=self.truth == "keys")

    def keep(self, batch: Batch) -> None:
        self.kept.extend(self.current[example.index] for example in batch.examples)
        self.current.clear()
        if len(self.kept) >= CHUNK:
            self._add()

    def _add(self) -> None:
        self.tallies.add(self.kept)
        self.kept.clear()

    def result(self) -> Validation:
        self._add()
        checks = [check for head in self.heads for check in self.tallies.checks(head)]
        notes = [
            f"{name}: {note}" if name else note
            for name, conditions in self.tallies.conditions.items()
            for head in conditions.values()
            for note in head.conditions.notes
        ]
        return Validation(tuple(checks), (*self.notes, *notes), self.provenance)


def _checked(
    model: Model, pairs: Pairs | Sequence[Pair] | Contrast, sets: Mapping[str, Features], heads: Heads
) -> tuple[Pairs, tuple[Head, ...]]:
    """The pairs by factor and the heads, after it is clear that they fit the features."""
    first = next(iter(sets.values()))
    chosen = heads_with_features(model, first, heads)
    for one in [*sets.values()][1:]:
        heads_with_features(model, one, chosen)
    if not isinstance(pairs, Mapping):
        if len(first.contrasts) > 1:
            raise QKPrismError(f"Say which factor was exchanged: {{{first.contrasts[0]!r}: pairs, ...}}.")
        pairs = {first.contrasts[0]: pairs}
    if not any(name in one.contrasts for name in pairs for one in sets.values()):
        raise QKPrismError(
            f"The pairs are named {', '.join(pairs)}, and these features are of {', '.join(first.contrasts)}. Name "
            "pairs as the contrast that they test"
            + (", or give the pairs alone." if len(first.contrasts) == 1 else ".")
        )
    return pairs, chosen


def _check_places(model: Model, cases: Cases) -> None:
    """The base's query is given the changed keys: they must be rotated as if they were of one text."""
    for example in cases.encoded:
        for changed in example.more:
            if model.rotates and example.text.query != changed.query:
                raise QKPrismError(
                    f"{example.source}: the query is token {example.text.query} of the text and token {changed.query} "
                    "of the changed one, so it cannot meet the changed keys. Write texts of equal length, or use "
                    "truth='rerun'."
                )


def methods_of_sets(sets: Mapping[str, Features], methods: Sequence[str] | None) -> dict[str, tuple[Method, ...]]:
    """Of the methods asked for those that each set of features has; some set must have each.

    By default all, but for one contrast alone `raw oblique`, which is `raw` there.
    """
    having = {
        name: tuple(method for method in METHODS if why_not(features, method, swaps=True) is None)
        for name, features in sets.items()
    }
    if methods is None:
        alone = {name for name, features in sets.items() if len(features.contrasts) == 1}
        return {
            name: tuple(one for one in methods_of if not (one == "raw oblique" and name in alone))
            for name, methods_of in having.items()
        }
    wanted = named_methods(methods)
    for method in wanted:
        if not any(method in methods_of for methods_of in having.values()):
            told = "; ".join(
                f"{name or 'these features'}: {', '.join(methods_of)}" for name, methods_of in having.items()
            )
            raise QKPrismError(f"No set of features can be edited by {method!r}. There are: {told}.")
    return {name: tuple(method for method in methods_of if method in wanted) for name, methods_of in having.items()}


def _lacking(
    sets: Mapping[str, Features], edited: Mapping[str, Sequence[Method]], wanted: Sequence[str] | None
) -> list[str]:
    """Which sets do not have a method that was asked for, or the conditional exchange, and why."""
    if wanted is None:
        every = {name: left_out(features, wanted) for name, features in sets.items()}
        return [f"{name}: {note}" if name else note for name, notes in every.items() for note in notes]
    return [
        f"{name}: cannot be edited by {method}: {why_not(sets[name], method, swaps=True)}"
        for name in sets
        for method in named_methods(wanted)
        if method not in edited[name]
    ]
