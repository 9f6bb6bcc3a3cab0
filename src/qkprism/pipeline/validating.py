"""`validate`: rerun texts in which one factor was really exchanged between two keys, and compare edits with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.capture import Batches, Site, sites_of
from qkprism.contrasts import Contrast
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
from qkprism.pipeline.counterfactuals import Pair, Pairs, Texts, keys_of
from qkprism.pipeline.inputs import Heads, bar, encode_like, heads_with_features, versions
from qkprism.pipeline.reading import read_logits

SEQUENTIAL = "raw sequential"  # the paper's attribution; it has no edit
WHOLE = "whole key"


def validate(
    model: Model,
    pairs: Pairs | Sequence[Pair] | Contrast,
    features: Features | Mapping[str, Features],
    *,
    heads: Heads = None,
    methods: Sequence[str] | None = None,
    batch_size: int | None = None,
    progress: bool = True,
) -> Validation:
    """Compare the edits and attributions of features with true counterfactuals.

    >>> validate(model, {"order": task.counterfactuals("order")}, features).summary()   # doctest: +SKIP

    `pairs` has for each factor (the name of a contrast) pairs of a text and the text in which that factor was
    exchanged between two keys, the one positive key and the one marked `target`; a contrast of texts and such twins
    will do. In the changed text the positive key is the one that corresponds to the first text's positive key,
    `target` likewise, other keys in the order of the text. Several sets of features, by name, share the runs.
    """
    sets = {"": features} if isinstance(features, Features) else dict(features)
    if not sets:
        raise QKPrismError("Give at least one set of features to validate.")
    first = next(iter(sets.values()))
    named = dict(pairs) if isinstance(pairs, Mapping) else {_only(first): pairs}
    chosen = heads_with_features(model, first, heads)
    for own in [*sets.values()][1:]:
        heads_with_features(model, own, chosen)
        if own.provenance["options"] != first.provenance["options"]:
            raise QKPrismError(
                "These sets of features were made with other encodings: token, chat, rope must be equal."
            )
    if not any(name in own.contrasts for name in named for own in sets.values()):
        raise QKPrismError(
            f"No factor ({', '.join(named)}) is a contrast of the features ({', '.join(first.contrasts)})."
        )
    texts = Texts.of(named)
    encoded = encode_like(model, texts.examples, first, chosen)
    keys = {example.index: keys_of(example) for example in encoded}
    texts.check(keys, encoded)
    sites = sites_of(model, chosen)
    every = {name: _conditions(own, sites, methods) for name, own in sets.items()}
    reader = _Reader(sites, every, keys, texts.bases)
    batches = Batches(model, sorted(sites), first.provenance["options"]["rope"], batch_size)
    with bar(len(encoded), "texts", progress) as tick:
        for batch in batches.run(encoded, reader.visit):
            reader.keep()
            tick(len(batch.examples))
    checks = [check for head in chosen for check in _checks(head, texts, reader, sets)]
    notes = [note for own in every.values() for head in own.values() for note in head.conditions.notes]
    provenance = {"model": model.name, "revision": model.revision, "versions": versions()}
    return Validation(tuple(checks), tuple(dict.fromkeys(notes)), provenance)


def _only(features: Features) -> str:
    if len(features.contrasts) > 1:
        raise QKPrismError(f"Say which factor was exchanged: {{{features.contrasts[0]!r}: pairs, ...}}.")
    return features.contrasts[0]


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
    chosen = methods_of(features, methods or (known if len(features.contrasts) > 1 else ("raw",)))
    found = {}
    for number, site in sites.items():
        for head, own in layer_conditions(features, number, chosen, heads=site.heads, draws=1).items():
            ordered = sorted((features[name, head] for name in features.contrasts), key=lambda f: f.rank)
            columns = [torch.linalg.svd(f.covariance)[0][:, : f.rank] for f in ordered]
            forms = sequential(factor(identity_like(ordered[0].metric)), columns)
            found[head] = _HeadConditions(own, tuple(f.contrast for f in ordered), forms)
    return found


_EDITED = ("logit of the original", "logit of the target", "part")


@dataclass(frozen=True)
class _Text:
    """What was read of one text in the heads of one layer; the edits only of a base text."""

    marked: Float64[Tensor, "head key"]
    rest: Float64[Tensor, " head"]
    gap: Float64[Tensor, " head"]
    edited: Mapping[str, Float64[Tensor, "value condition head"]] = field(default_factory=dict)  # of `_EDITED`
    sequential: Mapping[str, Float64[Tensor, "feature head"]] = field(default_factory=dict)


@dataclass
class _Reader:
    """Reads every text: the row over its keys, and of base texts all edits and attributions."""

    sites: Mapping[int, Site]
    sets: Mapping[str, Mapping[Head, _HeadConditions]]
    keys: Mapping[int, list[EncodedKey]]
    bases: set[int]
    texts: dict[tuple[int, int], _Text] = field(default_factory=dict)
    current: dict[tuple[int, int], _Text] = field(default_factory=dict)

    def visit(self, call: AttentionCall, batch: Batch) -> None:
        site = self.sites[call.layer]
        read = read_logits(call, site, batch.query)
        for row, example in enumerate(batch.examples):
            own = read.logits.pick([row])
            scene = Scene(own, _places(self.keys[example.index], own), read.query[[row]], read.key[[row]], read.scaling)
            self.current[example.index, call.layer] = self._text(scene, site, example.index)

    def keep(self) -> None:
        self.texts |= self.current
        self.current.clear()

    def _text(self, scene: Scene, site: Site, index: int) -> _Text:
        at = [key.position for key in self.keys[index]]
        row = read_row(scene.logits.final, scene.places, scene.logits.sink)
        others = scene.logits.final[0].clone()
        others[:, at] = -torch.inf
        rest = others.logsumexp(-1)
        if scene.logits.sink is not None:
            rest = torch.logaddexp(rest, scene.logits.sink)
        marked, product = scene.logits.final[0][:, at], scene.logits.product[0]
        gap = product[:, at[0]] - product[:, at[1]]
        text = _Text(marked.cpu(), rest.cpu(), gap.cpu())
        if index not in self.bases:
            return text
        edited, parts = {}, {}
        for name, own in self.sets.items():
            change = key_changes(scene, {head: own[head].conditions for head in site.heads}, Edit()) * scene.scaling
            after = after_key_edit(scene.logits, scene.places, row, (change, -change))
            edited[name] = torch.stack([after.original, after.target, -change])[:, :, 0].cpu()
            parts[name] = torch.stack([_gap_parts(own[h].forms, scene, i) for i, h in enumerate(site.heads)], 1)
        return replace(text, edited=edited, sequential=parts)


def _gap_parts(forms: Tensor, scene: Scene, head: int) -> Float64[Tensor, " feature"]:
    pair = torch.cat([scene.places.original, scene.places.target])
    parts = parts_of(forms, scene.query[:, head], scene.key[:, head, pair], scene.scaling)[:, 0]
    return (parts[:, 0] - parts[:, 1]).cpu()


def _places(keys: Sequence[EncodedKey], logits: Logits) -> Places:
    marked = torch.zeros(1, logits.final.shape[-1], dtype=torch.bool)
    marked[0, [key.position for key in keys]] = True
    places = Places(torch.tensor([keys[0].position]), torch.tensor([keys[1].position]), marked)
    return places.to(logits.final.device)


def _checks(head: Head, texts: Texts, reader: _Reader, sets: Mapping[str, Features]) -> list[Check]:
    """Every factor, set of features and method in one head."""
    place = reader.sites[head.layer].heads.index(head)
    of = {index: text for (index, layer), text in reader.texts.items() if layer == head.layer}
    true = {
        name: torch.stack([(of[base].gap - of[changed].gap)[place] / 2 for base, changed in pairs])
        for name, pairs in texts.pairs.items()
    }
    found = []
    for set_name, features in sets.items():
        conditions = reader.sets[set_name][head]
        for name in [name for name in texts.pairs if name in features.contrasts]:
            bases = [of[base] for base, _ in texts.pairs[name]]
            before, truth = _rows(bases, place), _rows([of[changed] for _, changed in texts.pairs[name]], place)
            none = total_variation(before, truth)
            for at, condition in enumerate(conditions.conditions.names):
                if condition.control == "full" or condition == Condition("feature", name, condition.method):
                    moved = torch.stack([base.edited[set_name][:, at, place] for base in bases], 1)
                    tv = ratio_of_means(total_variation(before.with_pair(moved[0], moved[1]), truth), none)
                    where = (set_name, name, str(head), condition.method or WHOLE)
                    found.append(_check(where, tv, moved[2], true, texts))
            row = conditions.names.index(name)
            parts = torch.stack([base.sequential[set_name][row, place] for base in bases])
            found.append(_check((set_name, name, str(head), SEQUENTIAL), (torch.nan, torch.nan), parts, true, texts))
    return found


def _check(
    where: tuple[str, str, str, str],
    tv: tuple[float, float],
    part: Float64[Tensor, " pair"],
    true: Mapping[str, Float64[Tensor, " pair"]],
    texts: Texts,
) -> Check:
    truth = true[where[1]]
    own, other = _slopes(where[1], part, true, texts)
    means = (float(part.mean()), float(truth.mean()))
    return Check(*where, *tv, *means, *mean_and_error(part - truth), *own, *other, len(part))


def _slopes(
    name: str, part: Tensor, true: Mapping[str, Tensor], texts: Texts
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Of the own factor and the mean of the others, over the base texts that all factors change."""
    shared = texts.shared()
    place = {factor_: {base: i for i, (base, _) in enumerate(pairs)} for factor_, pairs in texts.pairs.items()}
    rows = torch.tensor([place[name][base] for base in shared], dtype=torch.long)
    columns = [true[g][torch.tensor([place[g][base] for base in shared], dtype=torch.long)] for g in true]
    value, error = slopes(part[rows], torch.stack(columns, 1))
    at = [*true].index(name)
    others = [i for i in range(len(true)) if i != at]
    own = (float(value[at]), float(error[at]))
    if not others:
        return own, (torch.nan, torch.nan)
    return own, (float(value[others].mean()), float(error[others].square().mean().sqrt() / len(others) ** 0.5))


def _rows(read: Sequence[_Text], head: int) -> Rows:
    """The rows of many texts, padded to the most keys."""
    width = max(text.marked.shape[1] for text in read)
    marked = torch.full((len(read), width), -torch.inf, dtype=torch.float64)
    for i, text in enumerate(read):
        marked[i, : text.marked.shape[1]] = text.marked[head]
    return Rows(marked, torch.stack([text.rest[head] for text in read]))
