"""What `validate` reads of a pair of texts in one layer, and how edits and attributions of it are tallied.

A pair is a base text and the text in which a factor was exchanged. Of both the logits over the keys are kept, and what
every edit and the sequential attribution make of the base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from qkprism.capture.readers import QueryRows, read_logits
from qkprism.capture.source import Site
from qkprism.core.conditional import ConditionalParts
from qkprism.core.edits import Edit
from qkprism.core.effect_sums import Condition
from qkprism.core.metrics import factor, identity_like
from qkprism.core.rows import Logits, after_key_edit, read_row
from qkprism.core.splitting import parts_of, sequential
from qkprism.core.variation import N_NEARNESS, MarkedRows, nearness
from qkprism.heads import Head
from qkprism.models.batches import Batch
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import EncodedKey
from qkprism.results.features import Features
from qkprism.results.validation import TruthCheck, TruthTally
from qkprism.subspaces.comparison import CONDITIONAL, Method
from qkprism.subspaces.conditions import Conditions, layer_conditions
from qkprism.subspaces.intervention import EditRows, key_changes, values_of
from qkprism.subspaces.modulation import head_modulation
from qkprism.verbs.aims import places_of
from qkprism.verbs.counterfactuals import keys_of

SEQUENTIAL = "raw sequential"  # the paper's attribution; it has no edit
WHOLE = "whole key"
PERMUTED = "conditional, permuted"  # values of the label dealt anew, and twins compared at a key that does not change
DRAWN = "conditional, key draws"  # the whole difference in a subspace drawn from the keys, of the feature's rank
_RIVALS = {"permuted": PERMUTED, "keys": DRAWN}


@dataclass(frozen=True)
class JudgedEdits:
    """The edits of one head, and the forms of the sequential attribution in the raw metric."""

    conditions: Conditions
    names: tuple[str, ...]
    forms: Float64[Tensor, "feature d_head d_head"]
    split: ConditionalParts | None = None


def judged_conditions(
    features: Features, sites: Mapping[int, Site], methods: Sequence[Method]
) -> dict[Head, JudgedEdits]:
    """The conditions that are compared with the truth, in every head."""
    found = {}
    for number, site in sites.items():
        for head, conditions in layer_conditions(features, number, methods, heads=site.heads, draws=1).items():
            ordered = sorted((features[name, head] for name in features.contrasts), key=lambda f: f.rank)
            columns = [torch.linalg.svd(f.covariance)[0][:, : f.rank] for f in ordered]
            forms = sequential(factor(identity_like(ordered[0].metric)), columns)
            judged = conditions.pick(partial(_is_judged, features.contrasts))
            split = None
            if (modulation := conditions.modulation) is not None:
                split = head_modulation(features, head, modulation).parts(features.contrasts, modulation.movers)
            found[head] = JudgedEdits(judged, tuple(f.contrast for f in ordered), forms, split)
    return found


def _is_judged(contrasts: Sequence[str], condition: Condition) -> bool:
    """The whole key, every feature alone, and two controls of the conditional exchange."""
    rival = condition.control in _RIVALS and condition.method == CONDITIONAL
    return condition.control == "full" or ((condition.control == "feature" or rival) and condition.feature in contrasts)


def _method(condition: Condition) -> str:
    return _RIVALS.get(condition.control, condition.method or WHOLE)


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
class BasePairs:
    """The pairs of one base text: the factor of each, and what was read of it in each layer."""

    factors: Sequence[str]
    reads: dict[tuple[int, int], _Read] = field(default_factory=dict)

    def of(self, factor: str, layer: int) -> list[_Read]:
        return [self.reads[pair, layer] for pair, name in enumerate(self.factors) if name == factor]


def read_pairs(
    call: AttentionCall,
    batch: Batch,
    tallies: Tallies,
    changes: Sequence[Sequence[str]],
    current: dict[int, BasePairs],
    *,
    of_base: bool,
) -> None:
    """Read the pairs of a batch in one layer; `of_base` gives the changed keys the base text's query.

    A pass that failed may have left texts that are run again: they are read over what it left.
    """
    site, first = tallies.sites[call.layer], _first_rows(batch)
    base = read_logits(call, site, batch.query)
    true = read_logits(_with_queries(call, batch, first), site, batch.query) if of_base else base
    for row, (place, which) in enumerate(batch.rows):
        example = batch.examples[place]
        if which == 0:
            edits = _edits(tallies.conditions, base, row, keys_of(example.text, example.source), site)
            continue
        keys = [keys_of(text, example.source) for text in (example.text, example.texts[which])]
        sides = zip((base, true), (first[row], row), keys, strict=True)
        over = [_over_keys(read.logits.pick([at]), keys) for read, at, keys in sides]
        marked, rest, gap = (torch.stack(values) for values in zip(*over, strict=True))
        base_of = current.setdefault(example.index, BasePairs(changes[example.index]))
        base_of.reads[which - 1, call.layer] = _Read(marked, rest, gap, *edits)


def _edits(
    sets: Mapping[str, Mapping[Head, JudgedEdits]], base: QueryRows, row: int, keys: Sequence[EncodedKey], site: Site
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What all edits make of a base text, and its sequential parts."""
    logits = base.logits.pick([row])
    labels = [(keys[0].labels, keys[1].labels)]
    places = places_of([(keys[0], keys[1])], [keys], logits.final.shape[-1]).to(logits.final.device)
    scene = EditRows(logits, places, base.query[[row]], base.key[[row]], base.scaling, labels)
    before = read_row(logits.final, scene.places, logits.sink)
    edited, parts = {}, {}
    for name, one in sets.items():
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


def _put_parts(part: Float64[Tensor, " condition"], one: JudgedEdits, scene: EditRows, head: int) -> None:
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


@dataclass(frozen=True)
class Tallies:
    """The sums of every factor, set of features and method in every head."""

    sites: Mapping[int, Site]
    conditions: Mapping[str, Mapping[Head, JudgedEdits]]
    contrasts: Mapping[str, Sequence[str]]
    factors: tuple[str, ...]
    found: dict[tuple[str, str, Head, str], TruthTally] = field(default_factory=dict)

    def add(self, bases: Sequence[BasePairs]) -> None:
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
