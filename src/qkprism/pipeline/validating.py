"""`validate`: rerun texts in which one factor was really exchanged between two keys, and compare edits with them.

An edit of keys leaves the query as it is, but in a changed text the query changes too: it finds its entity elsewhere.
So the truth of an edit is the base text's query with the changed text's keys (`truth="keys"`); the changed text by
itself (`truth="rerun"`) shows what the exchange does to the model as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.capture import Batches, Site, sites_of
from qkprism.contrasts import Contrast, Example
from qkprism.core.conditions import METHODS, Condition, Conditions, layer_conditions, methods_of
from qkprism.core.edits import Edit
from qkprism.core.feature_set import Features
from qkprism.core.intervention import Scene, key_changes
from qkprism.core.metrics import factor, identity_like
from qkprism.core.rows import Logits, Places, after_key_edit, read_row
from qkprism.core.splitting import parts_of, sequential
from qkprism.core.validation import Check, Rows, Validation, mean_and_error, ratio_of_means, slopes, total_variation
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import Batch, EncodedKey
from qkprism.models.model import Model
from qkprism.pipeline.counterfactuals import Cases, Pair, Pairs, keys_of
from qkprism.pipeline.inputs import Heads, bar, check_encoded_alike, heads_with_features, versions
from qkprism.pipeline.reading import Reading, read_logits

SEQUENTIAL = "raw sequential"  # the paper's attribution; it has no edit
WHOLE = "whole key"
Truth = Literal["keys", "rerun"]


def validate(
    model: Model,
    pairs: Pairs | Sequence[Pair] | Contrast,
    features: Features | Mapping[str, Features],
    *,
    heads: Heads = None,
    truth: Truth = "keys",
    methods: Sequence[str] | None = None,
    batch_size: int | None = None,
    progress: bool = True,
) -> Validation:
    """Compare the edits and attributions of features with true counterfactuals.

    >>> validate(model, {"order": task.counterfactuals("order")}, features).summary()   # doctest: +SKIP

    `pairs` has for each factor (the name of a contrast) pairs of a text and the text in which that factor was
    exchanged between two keys, the one positive key and the one marked `target`; a contrast of texts and such twins
    will do. In the changed text the positive key is the one that corresponds to the first text's positive key,
    `target` likewise, other keys in the order of the text. The truth is what the first text's query would give the
    changed keys, or with `truth="rerun"` what the changed text's own query gives them. Several sets of features, by
    name, share the runs.
    """
    if truth not in ("keys", "rerun"):
        raise QKPrismError(f"truth={truth!r} is not known. Use 'keys' or 'rerun'.")
    sets = {"": features} if isinstance(features, Features) else dict(features)
    named, chosen = _checked(model, pairs, sets, heads)
    first = next(iter(sets.values()))
    cases = Cases.of(model, named, first, chosen)
    if truth == "keys" and first.provenance["options"]["rope"] == "post":
        _check_places(model, cases)
    sites = sites_of(model, chosen)
    every = {name: _conditions(own, sites, methods) for name, own in sets.items()}
    reader = _Reader(sites, every, truth, cases.changes)
    batches = Batches(model, sorted(sites), first.provenance["options"]["rope"], batch_size)
    with bar(len(cases.encoded), "texts", progress) as tick:
        for batch in batches.run(cases.encoded, reader.visit):
            reader.keep()
            tick(len(batch.examples))
    found = {name: _Factor(name, reader, bases) for name, bases in cases.bases.items()}
    checks = [check for head in chosen for check in _checks(head, found, sets, every)]
    notes = [note for own in every.values() for head in own.values() for note in head.conditions.notes]
    provenance = {"model": model.name, "revision": model.revision, "truth": truth, "versions": versions()}
    return Validation(tuple(checks), tuple(dict.fromkeys(notes)), provenance)


def _checked(
    model: Model, pairs: Pairs | Sequence[Pair] | Contrast, sets: Mapping[str, Features], heads: Heads
) -> tuple[Pairs, tuple[Head, ...]]:
    """The pairs by factor and the heads, after it is clear that they fit the features."""
    check_encoded_alike(sets.values())
    first = next(iter(sets.values()))
    chosen = heads_with_features(model, first, heads)
    for own in [*sets.values()][1:]:
        heads_with_features(model, own, chosen)
    if not isinstance(pairs, Mapping):
        if len(first.contrasts) > 1:
            raise QKPrismError(f"Say which factor was exchanged: {{{first.contrasts[0]!r}: pairs, ...}}.")
        pairs = {first.contrasts[0]: pairs}
    if not any(name in own.contrasts for name in pairs for own in sets.values()):
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


def _conditions(
    features: Features, sites: Mapping[int, Site], methods: Sequence[str] | None
) -> dict[Head, _HeadConditions]:
    known = METHODS if features.choices.metric == "contrast" else METHODS[1:]
    known = known if len(features.contrasts) > 1 else ("raw",)
    wanted = [name for name in methods_of_any(methods) if name in known] if methods is not None else known
    chosen = methods_of(features, wanted or known)
    found = {}
    for number, site in sites.items():
        for head, own in layer_conditions(features, number, chosen, heads=site.heads, draws=1).items():
            ordered = sorted((features[name, head] for name in features.contrasts), key=lambda f: f.rank)
            columns = [torch.linalg.svd(f.covariance)[0][:, : f.rank] for f in ordered]
            forms = sequential(factor(identity_like(ordered[0].metric)), columns)
            found[head] = _HeadConditions(own, tuple(f.contrast for f in ordered), forms)
    return found


def methods_of_any(methods: Sequence[str]) -> list[str]:
    """The methods asked for; sets of features that do not have one are judged by the others."""
    asked = [methods] if isinstance(methods, str) else list(methods)
    if unknown := [name for name in asked if name not in METHODS]:
        raise QKPrismError(f"{unknown[0]!r} is not a method of editing. Use one of {', '.join(METHODS)}.")
    return asked


_EDITED = ("logit of the original", "logit of the target", "part")


@dataclass(frozen=True)
class _Read:
    """What was read of one pair in the heads of one layer: base and truth over the keys, and all edits of the base."""

    marked: Float64[Tensor, "side head key"]
    rest: Float64[Tensor, "side head"]
    gap: Float64[Tensor, "side head"]
    edited: Mapping[str, Float64[Tensor, "value condition head"]]  # of `_EDITED`
    sequential: Mapping[str, Float64[Tensor, "feature head"]]


@dataclass
class _Reader:
    """Reads every pair of every factor."""

    sites: Mapping[int, Site]
    sets: Mapping[str, Mapping[Head, _HeadConditions]]
    truth: Truth
    changes: Sequence[Sequence[tuple[str, int]]]
    pairs: dict[tuple[str, int, int], _Read] = field(default_factory=dict)
    current: dict[tuple[str, int, int], _Read] = field(default_factory=dict)

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
            over = [_over_keys(read.logits.pick([at]), own) for read, at, own in sides]
            marked, rest, gap = (torch.stack(values) for values in zip(*over, strict=True))
            change = self.changes[example.index][which - 1]
            self.current[(*change, call.layer)] = _Read(marked, rest, gap, *edits)

    def keep(self) -> None:
        self.pairs |= self.current
        self.current.clear()

    def _edits(
        self, base: Reading, row: int, keys: Sequence[EncodedKey], site: Site
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What all edits make of a base text, and its sequential parts."""
        logits = base.logits.pick([row])
        scene = Scene(logits, _places(keys, logits), base.query[[row]], base.key[[row]], base.scaling)
        before = read_row(logits.final, scene.places, logits.sink)
        edited, parts = {}, {}
        for name, own in self.sets.items():
            change = key_changes(scene, {head: own[head].conditions for head in site.heads}, Edit()) * scene.scaling
            after = after_key_edit(logits, scene.places, before, (change, -change))
            edited[name] = torch.stack([after.original, after.target, -change])[:, :, 0].cpu()
            parts[name] = torch.stack([_gap_parts(own[h].forms, scene, i) for i, h in enumerate(site.heads)], 1)
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


def _gap_parts(forms: Tensor, scene: Scene, head: int) -> Float64[Tensor, " feature"]:
    pair = torch.cat([scene.places.original, scene.places.target])
    parts = parts_of(forms, scene.query[:, head], scene.key[:, head, pair], scene.scaling)[:, 0]
    return (parts[:, 0] - parts[:, 1]).cpu()


def _places(keys: Sequence[EncodedKey], logits: Logits) -> Places:
    marked = torch.zeros(1, logits.final.shape[-1], dtype=torch.bool)
    marked[0, [key.position for key in keys]] = True
    places = Places(torch.tensor([keys[0].position]), torch.tensor([keys[1].position]), marked)
    return places.to(logits.final.device)


@dataclass(frozen=True)
class _Factor:
    """All pairs of one factor, as they were read, and the texts they start from."""

    name: str
    reader: _Reader
    bases: Sequence[Example]

    def of(self, head: Head) -> list[_Read]:
        return [self.reader.pairs[self.name, index, head.layer] for index in range(len(self.bases))]

    def true_parts(self, head: Head) -> Float64[Tensor, " pair"]:
        """Half of what the gap really lost."""
        place = self.reader.sites[head.layer].heads.index(head)
        return torch.stack([(read.gap[0] - read.gap[1])[place] / 2 for read in self.of(head)])


def _checks(
    head: Head,
    factors: Mapping[str, _Factor],
    sets: Mapping[str, Features],
    conditions: Mapping[str, Mapping[Head, _HeadConditions]],
) -> list[Check]:
    """Every factor, set of features and method in one head."""
    true = {name: own.true_parts(head) for name, own in factors.items()}
    found = []
    for set_name, features in sets.items():
        own = conditions[set_name][head]
        for name in [name for name in factors if name in features.contrasts]:
            pairs, place = factors[name].of(head), factors[name].reader.sites[head.layer].heads.index(head)
            before, truth = (_rows(pairs, side, place) for side in (0, 1))
            none = total_variation(before, truth)
            for at, condition in enumerate(own.conditions.names):
                if condition.control == "full" or condition == Condition("feature", name, condition.method):
                    moved = torch.stack([read.edited[set_name][:, at, place] for read in pairs], 1)
                    after = total_variation(before.with_pair(moved[0], moved[1]), truth)
                    where = (set_name, name, str(head), condition.method or WHOLE)
                    check = _check(where, ratio_of_means(after, none), moved[2], true, factors)
                    found.append(check._replace(distance=float(after.mean()), distance_unedited=float(none.mean())))
            parts = torch.stack([read.sequential[set_name][own.names.index(name), place] for read in pairs])
            where = (set_name, name, str(head), SEQUENTIAL)
            found.append(_check(where, (torch.nan, torch.nan), parts, true, factors))
    return found


def _check(
    where: tuple[str, str, str, str],
    tv: tuple[float, float],
    part: Float64[Tensor, " pair"],
    true: Mapping[str, Float64[Tensor, " pair"]],
    factors: Mapping[str, _Factor],
) -> Check:
    truth = true[where[1]]
    own, other = _slopes(where[1], part, true, factors)
    means = (float(part.mean()), float(truth.mean()))
    off = part - truth
    rms = float(off.square().mean().sqrt())
    return Check(*where, *tv, *means, *mean_and_error(off), *own, *other, len(part), part_rms=rms)


def _slopes(
    name: str, part: Tensor, true: Mapping[str, Tensor], factors: Mapping[str, _Factor]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Of the own factor and the largest of the others, over the base texts that all factors change."""
    place = {g: {base: i for i, base in enumerate(own.bases)} for g, own in factors.items()}
    shared = [base for base in place[name] if all(base in own for own in place.values())]
    rows = {g: torch.tensor([own[base] for base in shared], dtype=torch.long) for g, own in place.items()}
    value, error = slopes(part[rows[name]], torch.stack([true[g][rows[g]] for g in true], 1))
    at = [*true].index(name)
    others = [i for i in range(len(true)) if i != at]
    own = (float(value[at]), float(error[at]))
    if not others:
        return own, (torch.nan, torch.nan)
    largest = max(others, key=lambda i: abs(float(value[i])))
    return own, (float(value[largest]), float(error[largest]))


def _rows(pairs: Sequence[_Read], side: int, head: int) -> Rows:
    """The rows of many texts, padded to the most keys."""
    width = max(read.marked.shape[-1] for read in pairs)
    marked = torch.full((len(pairs), width), -torch.inf, dtype=torch.float64)
    for i, read in enumerate(pairs):
        marked[i, : read.marked.shape[-1]] = read.marked[side, head]
    return Rows(marked, torch.stack([read.rest[side, head] for read in pairs]))
