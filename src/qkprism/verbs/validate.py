"""`validate`: rerun texts in which one factor was really exchanged between two keys, and compare edits with them.

An edit of keys leaves the query as it is, but in a changed text the query changes too: it finds its entity elsewhere.
So the truth of an edit is the base text's query with the changed text's keys (`truth="keys"`); the changed text by
itself (`truth="rerun"`) shows what the exchange does to the model as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from qkprism.capture.model_source import versions
from qkprism.capture.readers import read_together
from qkprism.capture.rows import QueryRows, read_logits
from qkprism.capture.source import Site, sites_of
from qkprism.contrasts import Contrast
from qkprism.core.conditional import ConditionalParts
from qkprism.core.edits import Edit
from qkprism.core.effect_sums import Condition
from qkprism.core.metrics import factor, identity_like
from qkprism.core.rows import Logits, Places, after_key_edit, read_row
from qkprism.core.splitting import parts_of, sequential
from qkprism.core.variation import N_NEARNESS, MarkedRows, nearness
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.models.batches import Batch
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import EncodedExample, EncodedKey
from qkprism.models.model import Model
from qkprism.options import Frame
from qkprism.results.features import Features
from qkprism.results.validation import TruthCheck, TruthTally, Validation
from qkprism.subspaces.comparison import CONDITIONAL, METHODS, Method, left_out, named_methods, why_not
from qkprism.subspaces.conditions import Conditions, layer_conditions
from qkprism.subspaces.intervention import EditRows, key_changes, values_of
from qkprism.subspaces.modulation import head_modulation
from qkprism.verbs.counterfactuals import Cases, Pair, Pairs, keys_of
from qkprism.verbs.inputs import AnySource, Heads, heads_with_features, model_for, noted, sets_of, unfinished

SEQUENTIAL = "raw sequential"  # the paper's attribution; it has no edit
WHOLE = "whole key"
PERMUTED = "conditional, permuted"  # values of the label dealt anew, and twins compared at a key that does not change
DRAWN = "conditional, key draws"  # the whole difference in a subspace drawn from the keys, of the feature's rank
_RIVALS = {"permuted": PERMUTED, "keys": DRAWN}
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
    sets = reader.pairs.sets
    edits = [[f"{head}", one.conditions.names] for of_set in sets.values() for head, one in of_set.items()]
    job = {**reader.provenance, "edits": edits, "changes": reader.pairs.changes}
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
    every = {name: _conditions(one, sites, edited[name]) for name, one in sets.items()}
    pair_reader = _PairReader(sites, every, truth, cases.changes)
    tallies = _Tallies(sites, every, {name: one.contrasts for name, one in sets.items()}, cases.factors)
    provenance = {"model": model.name, "revision": model.revision, "truth": truth, "versions": versions()}
    notes = _lacking(sets, edited, methods)
    return ValidationReader(cases.encoded, chosen, rope, pair_reader, tallies, notes, provenance)


@dataclass(frozen=True)
class ValidationReader:
    """Reads pairs of texts and adds up, some of them at a time, how edits and attributions compare with the truth."""

    examples: Sequence[EncodedExample]
    heads: tuple[Head, ...]
    rope: Frame
    pairs: _PairReader
    tallies: _Tallies
    notes: Sequence[str]
    provenance: Mapping[str, object]

    @property
    def layers(self) -> Sequence[int]:
        return sorted(self.tallies.sites)

    @property
    def current(self) -> dict[int, _Base]:
        return self.pairs.current

    def visit(self, call: AttentionCall, batch: Batch) -> None:
        self.pairs.visit(call, batch)

    def keep(self, batch: Batch) -> None:
        self.pairs.keep(batch)
        if len(self.pairs.kept) >= CHUNK:
            self.tallies.add(self.pairs.take())

    def result(self) -> Validation:
        self.tallies.add(self.pairs.take())
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
            f"No factor ({', '.join(pairs)}) is a contrast of the features ({', '.join(first.contrasts)})."
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


@dataclass(frozen=True)
class _HeadConditions:
    """The edits of one head, and the forms of the sequential attribution in the raw metric."""

    conditions: Conditions
    names: tuple[str, ...]
    forms: Float64[Tensor, "feature d_head d_head"]
    split: ConditionalParts | None = None


def _conditions(
    features: Features, sites: Mapping[int, Site], methods: Sequence[Method]
) -> dict[Head, _HeadConditions]:
    found = {}
    for number, site in sites.items():
        for head, conditions in layer_conditions(features, number, methods, heads=site.heads, draws=1).items():
            ordered = sorted((features[name, head] for name in features.contrasts), key=lambda f: f.rank)
            columns = [torch.linalg.svd(f.covariance)[0][:, : f.rank] for f in ordered]
            forms = sequential(factor(identity_like(ordered[0].metric)), columns)
            judged = conditions.pick(partial(_is_judged, features.contrasts))
            split = None
            if (modulation := conditions.modulation) is not None:
                made = head_modulation(features, head, modulation)
                assert made is not None  # only dealt values can be missing
                split = made.parts(features.contrasts, modulation.movers)
            found[head] = _HeadConditions(judged, tuple(f.contrast for f in ordered), forms, split)
    return found


def _is_judged(contrasts: Sequence[str], condition: Condition) -> bool:
    """The whole key, every feature alone, and two controls of the conditional exchange."""
    rival = condition.control in _RIVALS and condition.method == CONDITIONAL
    return condition.control == "full" or ((condition.control == "feature" or rival) and condition.feature in contrasts)


def _method(condition: Condition) -> str:
    return _RIVALS.get(condition.control, condition.method or WHOLE)


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


@dataclass(frozen=True)
class _Read:
    """What was read of one pair in the heads of one layer: base and truth over the keys, and all edits of the base."""

    marked: Float64[Tensor, "side head key"]
    rest: Float64[Tensor, "side head"]
    gap: Float64[Tensor, "side head"]
    edited: Mapping[str, Float64[Tensor, "value condition head"]]  # logits of original and target, part, moved
    sequential: Mapping[str, Float64[Tensor, "feature head"]]

    @property
    def true_part(self) -> Float64[Tensor, " head"]:
        """Half of what the gap really lost."""
        return (self.gap[0] - self.gap[1]) / 2


@dataclass
class _Base:
    """The pairs of one base text: the factor of each, and what was read of it in each layer."""

    factors: Sequence[str]
    reads: dict[tuple[int, int], _Read] = field(default_factory=dict)

    def of(self, factor: str, layer: int) -> list[_Read]:
        return [self.reads[pair, layer] for pair, name in enumerate(self.factors) if name == factor]


@dataclass
class _PairReader:
    """Reads the pairs of base texts, and keeps them until they are taken."""

    sites: Mapping[int, Site]
    sets: Mapping[str, Mapping[Head, _HeadConditions]]
    truth: Truth
    changes: Sequence[Sequence[str]]
    kept: list[_Base] = field(default_factory=list)
    current: dict[int, _Base] = field(default_factory=dict)

    def visit(self, call: AttentionCall, batch: Batch) -> None:
        site = self.sites[call.layer]
        first = _first_rows(batch)
        base = read_logits(call, site, batch.query)
        true = base if self.truth == "rerun" else read_logits(_with_queries(call, batch, first), site, batch.query)
        for row, (place, which) in enumerate(batch.rows):
            example = batch.examples[place]
            if which == 0:
                edits = self._edits(base, row, keys_of(example.text, example.source), site)
                continue
            keys = [keys_of(text, example.source) for text in (example.text, example.texts[which])]
            sides = zip((base, true), (first[row], row), keys, strict=True)
            over = [_over_keys(read.logits.pick([at]), keys) for read, at, keys in sides]
            marked, rest, gap = (torch.stack(values) for values in zip(*over, strict=True))
            base_of = self.current.setdefault(example.index, _Base(self.changes[example.index]))
            base_of.reads[which - 1, call.layer] = _Read(marked, rest, gap, *edits)

    def keep(self, batch: Batch) -> None:
        """Keep what a complete pass has read; a pass that failed may have left texts that are run again."""
        self.kept.extend(self.current[example.index] for example in batch.examples)
        self.current.clear()

    def take(self) -> list[_Base]:
        """What was kept, which is then no longer."""
        taken, self.kept = self.kept, []
        return taken

    def _edits(
        self, base: QueryRows, row: int, keys: Sequence[EncodedKey], site: Site
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What all edits make of a base text, and its sequential parts."""
        logits = base.logits.pick([row])
        labels = [(keys[0].labels, keys[1].labels)]
        scene = EditRows(logits, _places(keys, logits), base.query[[row]], base.key[[row]], base.scaling, labels)
        before = read_row(logits.final, scene.places, logits.sink)
        edited, parts = {}, {}
        for name, one in self.sets.items():
            made = key_changes(scene, {head: one[head].conditions for head in site.heads}, Edit())
            original, target = (change * scene.scaling for change in made)
            after = after_key_edit(logits, scene.places, before, (original, target))
            moved = (target - original) / 2  # of the gap, as a part: the exchange turns it around
            part = moved.clone()
            for i, head in enumerate(site.heads):
                _put_parts(part[:, 0, i], one[head], scene, i)
            edited[name] = torch.stack([after.original, after.target, part, moved])[:, :, 0].cpu()
            parts[name] = torch.stack([_gap_parts(one[h].forms, scene, i) for i, h in enumerate(site.heads)], 1)
        return edited, parts


def _first_rows(batch: Batch) -> list[int]:
    """For each row of a batch the row of its base text."""
    starts = {place: row for row, (place, which) in enumerate(batch.rows) if which == 0}
    return [starts[place] for place, _ in batch.rows]


def _with_queries(call: AttentionCall, batch: Batch, first: Sequence[int]) -> AttentionCall:
    """The call with the query of every base text in the place of its changed texts'."""
    query, at = call.query.clone(), batch.query.to(call.query.device)
    base, every = torch.tensor(first, device=at.device), torch.arange(len(first), device=at.device)
    query[every, :, at] = call.query[base, :, at[base]]
    return replace(call, query=query)


def _over_keys(logits: Logits, keys: Sequence[EncodedKey]) -> tuple[Tensor, Tensor, Tensor]:
    """The logits of the keys, of all other tokens together, and the gap between the first two keys."""
    at = [key.position for key in keys]
    others = logits.final[0].clone()
    others[:, at] = -torch.inf
    rest = others.logsumexp(-1)
    if logits.sink is not None:
        rest = torch.logaddexp(rest, logits.sink)
    product = logits.product[0]
    return logits.final[0][:, at].cpu(), rest.cpu(), (product[:, at[0]] - product[:, at[1]]).cpu()


def _gap_parts(forms: Tensor, scene: EditRows, head: int) -> Float64[Tensor, " feature"]:
    pair = torch.cat([scene.places.original, scene.places.target])
    parts = parts_of(forms, scene.query[:, head], scene.key[:, head, pair], scene.scaling)[:, 0]
    return (parts[:, 0] - parts[:, 1]).cpu()


def _put_parts(part: Float64[Tensor, " condition"], one: _HeadConditions, scene: EditRows, head: int) -> None:
    """Put the parts of the conditional split in the place of what its exchange moves."""
    if one.split is None:
        return
    pair = torch.cat([scene.places.original, scene.places.target])
    value = torch.stack(values_of(scene, one.conditions), 1)
    parts = one.split.parts(scene.query[:, head], scene.key[:, head, pair], scene.scaling, value)[:, 0]
    for at, condition in enumerate(one.conditions.names):
        if (condition.control, condition.method) == ("feature", CONDITIONAL):
            of_feature = parts[one.split.names.index(condition.feature)]
            part[at] = of_feature[0] - of_feature[1]


def _places(keys: Sequence[EncodedKey], logits: Logits) -> Places:
    marked = torch.zeros(1, logits.final.shape[-1], dtype=torch.bool)
    marked[0, [key.position for key in keys]] = True
    places = Places(torch.tensor([keys[0].position]), torch.tensor([keys[1].position]), marked)
    return places.to(logits.final.device)


@dataclass(frozen=True)
class _Tallies:
    """The sums of every factor, set of features and method in every head."""

    sites: Mapping[int, Site]
    conditions: Mapping[str, Mapping[Head, _HeadConditions]]
    contrasts: Mapping[str, Sequence[str]]
    factors: tuple[str, ...]
    found: dict[tuple[str, str, Head, str], TruthTally] = field(default_factory=dict)

    def add(self, bases: Sequence[_Base]) -> None:
        """Add all pairs of some base texts."""
        for layer in self.sites:
            pairs = {name: [read for base in bases for read in base.of(name, layer)] for name in self.factors}
            every = [[base.of(name, layer)[-1:] for name in self.factors] for base in bases]
            shared = [[read[0] for read in reads] for reads in every if all(reads)]  # bases that all factors change
            for name, pair in pairs.items():
                if pair:
                    self._add_factor(layer, name, pair, shared)

    def _add_factor(self, layer: int, factor: str, pairs: Sequence[_Read], shared: Sequence[Sequence[_Read]]) -> None:
        """Add the pairs of one factor: rows are made for all heads of a layer at once, tallies are head by head."""
        before, truth = (_rows(pairs, side) for side in (0, 1))
        true = torch.stack([read.true_part for read in pairs])
        trues = [torch.stack([reads[i].true_part for reads in shared]) for i in range(len(self.factors)) if shared]
        for name, one in self.conditions.items():
            if factor not in self.contrasts[name]:
                continue
            moved = torch.stack([read.edited[name] for read in pairs], 2)
            split = torch.stack([read.sequential[name] for read in pairs], 1)
            again = [reads[0] for reads in shared]  # edits and parts are the base's, whatever the change
            for place, head in enumerate(self.sites[layer].heads):
                for at, condition in enumerate(one[head].conditions.names):
                    if condition.control == "full" or condition.feature == factor:
                        original, target, part, _ = moved[:, at, :, place]
                        near = nearness(before.pick(place), truth.pick(place), original, target)
                        same = [read.edited[name][2:, at, place] for read in again]
                        where = (name, factor, head, _method(condition))
                        self._add(where, [*near, part, true[:, place]], trues, same, place)
                at = one[head].names.index(factor)
                same = [read.sequential[name][at, place].expand(2) for read in again]
                no_edit = [torch.full_like(true[:, place], torch.nan)] * N_NEARNESS
                where = (name, factor, head, SEQUENTIAL)
                self._add(where, [*no_edit, split[at, :, place], true[:, place]], trues, same, place)

    def _add(
        self,
        where: tuple[str, str, Head, str],
        values: Sequence[Float64[Tensor, " pair"]],
        trues: Sequence[Float64[Tensor, "base head"]],
        parts: Sequence[Float64[Tensor, "2"]],
        place: int,
    ) -> None:
        tally = self.found.setdefault(where, TruthTally.of(len(self.factors)))
        tally.pairs.add(torch.stack(list(values), 1))
        if parts:
            every = [true[:, place] for true in trues]
            for shared, one in zip((tally.shared, tally.moved), torch.stack(list(parts), 1), strict=True):
                shared.add(torch.stack([*every, one], 1))

    def checks(self, head: Head) -> list[TruthCheck]:
        """In the order of the sets of features, then of their factors."""
        places = {name: i for i, name in enumerate(self.contrasts)}
        of_head = [where for where in self.found if where[2] == head]
        of_head.sort(key=lambda where: (places[where[0]], self.factors.index(where[1])))
        return [self.found[where].check(*where, self.factors.index(where[1])) for where in of_head]


def _rows(pairs: Sequence[_Read], side: int) -> MarkedRows:
    """The rows of many texts in all heads, padded to the most keys."""
    width = max(read.marked.shape[-1] for read in pairs)
    marked = [
        nn.functional.pad(read.marked[side], (0, width - read.marked.shape[-1]), value=-torch.inf) for read in pairs
    ]
    return MarkedRows(torch.stack(marked), torch.stack([read.rest[side] for read in pairs]))
