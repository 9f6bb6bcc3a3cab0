"""`intervene`: edit keys in the subspaces of features and see where the attention goes (paper, sections 4 and 5).

One forward pass serves all heads, features, combinations and controls, and several sets of features: the attention row
after an edit follows from the query, the edited keys and the row's other logits (`core/rows.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, overload

import torch
from torch import Tensor

from qkprism.capture.model_source import versions
from qkprism.capture.readers import read_together
from qkprism.capture.rows import read_logits
from qkprism.capture.source import Site, sites_of
from qkprism.contrasts import Contrast, Example
from qkprism.core.edits import Edit, EditKind
from qkprism.core.effect_sums import EffectSums, Table
from qkprism.core.rows import MEASURES, Places
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.models.batches import Batch
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import EncodedExample
from qkprism.options import OUTCOMES, Frame, by_name, checked_seed, choice, names_in, whole_number
from qkprism.results.effects import Effects
from qkprism.results.features import Features
from qkprism.subspaces.conditions import DRAWS, Conditions, Groups, Method, layer_conditions, left_out, methods_of
from qkprism.subspaces.intervention import EditRows, measure_edits
from qkprism.verbs.aims import Aims, all_aims, things_of
from qkprism.verbs.inputs import (
    AnySource,
    Examples,
    Heads,
    KeptExamples,
    encode_like,
    examples_of,
    heads_with_features,
    model_for,
    noted,
    sets_of,
    unfinished,
    without_texts,
)
from qkprism.verbs.outcomes import outcome_effects


@overload
def intervene(
    source: AnySource,
    examples: Examples,
    features: Features,
    *,
    heads: Heads = None,
    edit: Edit | EditKind = "swap",
    outcome: Literal["attention", "logits"] = "attention",
    together: bool = True,
    rows: Literal["query", "all"] = "query",
    methods: Sequence[str] | None = None,
    draws: int = DRAWS,
    groups: Groups | None = None,
    labels: Mapping[str, str] | None = None,
    item: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Effects: ...
@overload
def intervene(
    source: AnySource,
    examples: Examples,
    features: Mapping[str, Features],
    *,
    heads: Heads = None,
    edit: Edit | EditKind = "swap",
    outcome: Literal["attention", "logits"] = "attention",
    together: bool = True,
    rows: Literal["query", "all"] = "query",
    methods: Sequence[str] | None = None,
    draws: int = DRAWS,
    groups: Groups | None = None,
    labels: Mapping[str, str] | None = None,
    item: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> dict[str, Effects]: ...
def intervene(
    source: AnySource,
    examples: Examples,
    features: Features | Mapping[str, Features],
    *,
    heads: Heads = None,
    edit: Edit | EditKind = "swap",
    outcome: Literal["attention", "logits"] = "attention",
    together: bool = True,
    rows: Literal["query", "all"] = "query",
    methods: Sequence[str] | None = None,
    draws: int = DRAWS,
    groups: Groups | None = None,
    labels: Mapping[str, str] | None = None,
    item: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Effects | dict[str, Effects]:
    """What editing the features of some heads does, beside all controls.

    >>> effects = qk.intervene(model, test, features, draws=2, progress=False)
    >>> effects.value("shift", head="L0H1", feature="order")[0] > 0
    True

    source       the model of the features; or a `VectorSource`, whose attention is that among the marked keys
    examples     held-out examples with a negative key in the text: a contrast, a path, a list; of a `VectorSource` the
                 name of a contrast. The positive key is edited, and the target is the key marked so or a negative one
    features     what `decompose` gave; several sets by name give effects by name, on the attention from one pass
    heads        some of the heads that have features; all by default
    edit         `swap` (default) exchanges two keys in the feature's subspace; or an `Edit`
    outcome      `attention` (default) is exact without a new pass; `logits` runs the edited model and tells the effect
                 on its prediction, which takes a pass an edit. An answer is the key's token, or its label `answer`
    together     with logits: edit all heads at once (default), or one by one
    rows         with logits: edit only the rows of marked `query` tokens (default), or `all`
    methods      by which features are edited: some of "conditional" (of a swap), "contrast", "raw oblique" and "raw";
                 by default all they have but "raw oblique"
    draws        of every random control; default 10. Fewer are quicker, more give steadier comparisons
    groups       features that are moved together, `{"both": ["order", "lexical"]}`; by default each alone, all
                 together, and up to four in every combination
    labels       which key label a contrast is about, where the names differ; targets that differ in that label alone
                 are then reported too
    item         key label that tells what a key is. Where examples edit the same few things again and again, errors
                 then allow for it: they are those of a mean over other things too. By default examples count as
                 independent
    batch_size   texts that are run at once; None (default) goes by tokens, and halves where memory runs out
    seed         of random targets and controls; default 0
    checkpoint   a folder in which a pass that was killed goes on where it was, to the identical result; None (default)
                 keeps nothing
    progress     whether a bar is shown after two seconds; default True
    """
    choice(outcome, OUTCOMES, "an outcome")
    edit = edit if isinstance(edit, Edit) else Edit(edit)
    options = EditOptions(heads, edit, methods, draws, groups, labels, item, seed)
    texts = examples_of(examples, source)
    sets = sets_of(features)
    if outcome == "attention":
        readers = effects_readers(source, texts, sets, options)
        job = {name: reader.plan.provenance for name, reader in readers.items()}
        kept = unfinished(checkpoint, source, sets, job)
        read_together(source, [*readers.values()], batch_size=batch_size, kept=kept, progress=progress)
        found = {name: reader.result() for name, reader in readers.items()}
    else:
        found = {
            name: _outcome(source, texts, one, options, together, rows, batch_size, checkpoint, progress)
            for name, one in sets.items()
        }
    without = {name: left_out(one, methods) if edit.kind == "swap" else [] for name, one in sets.items()}
    told = {name: replace(one, notes=(*one.notes, *without[name])) for name, one in found.items()}
    effects = {name: noted(told[name], sets[name], texts) for name in sets}
    return effects[""] if isinstance(features, Features) else effects


def _outcome(
    model: AnySource,
    examples: Contrast | list[Example] | KeptExamples,
    features: Features,
    options: EditOptions,
    together: bool,
    rows: Literal["query", "all"],
    batch_size: int | None,
    checkpoint: str | os.PathLike[str] | None,
    progress: bool,
) -> Effects:
    """What the edits of one set of features do to the prediction."""
    model = model_for(model, "The effect on the prediction is that of texts")
    plan = _EditPlan.of(model, examples, features, options, outcome="logits", together=together, rows=rows)
    kept = unfinished(checkpoint, model, {"": features}, plan.provenance)
    return outcome_effects(
        model, plan.encoded, plan.aims, plan.conditions, plan.edit,
        together=together, rows=rows, features=features, batch_size=batch_size, kept=kept,
        provenance=plan.provenance, progress=progress,
    )  # fmt: skip


def effects_readers(
    model: AnySource, examples: Examples | KeptExamples, sets: Mapping[str, Features], options: EditOptions
) -> dict[str, EffectsReader]:
    """The readers of `intervene` on the attention, to share a pass with others."""
    if not isinstance(examples, KeptExamples):
        examples = examples_of(examples, model)
    return {name: EffectsReader.of(_EditPlan.of(model, examples, one, options)) for name, one in sets.items()}


@dataclass(frozen=True)
class EditOptions:
    """What is the same for all sets of features, as `intervene` takes it."""

    heads: Heads = None
    edit: Edit = Edit()  # noqa: RUF009  (it is frozen)
    methods: Sequence[str] | None = None
    draws: int = DRAWS
    groups: Groups | None = None
    labels: Mapping[str, str] | None = None
    item: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        checked_seed(self.seed)
        whole_number(self.draws, "draws", 1)
        if self.methods is not None:
            names_in(self.methods, "methods")
        for group in by_name(self.groups or {}, "groups").values():
            names_in(group, "groups")
        names_in(by_name(self.labels or {}, "labels").values(), "labels")


@dataclass(frozen=True)
class _EditPlan:
    """The edits of one set of features, and the texts they are made in."""

    encoded: Sequence[EncodedExample]
    aims: Mapping[str, Aims]
    sites: Mapping[int, Site]
    conditions: Mapping[Head, Conditions]
    edit: Edit
    rope: Frame
    provenance: Mapping[str, object]

    @classmethod
    def of(
        cls,
        model: AnySource,
        examples: Contrast | list[Example] | KeptExamples,
        features: Features,
        options: EditOptions,
        *,
        outcome: str = "attention",
        together: bool = True,
        rows: str = "query",
    ) -> _EditPlan:
        chosen, edit = heads_with_features(model, features, options.heads), options.edit
        _check_edit(edit, features, chosen)
        encoded = encode_like(model, examples, features, chosen)
        sites = sites_of(model, chosen)
        methods = methods_of(features, options.methods, swaps=edit.kind == "swap")
        conditions = conditions_of(
            features, sites, methods, options.draws, options.seed,
            whole=not edit.follows_subspace,  # the whole key has no direction of its own
            groups=options.groups,
        )  # fmt: skip
        settings = {
            "outcome": outcome,
            "together": together,
            "rows": rows,
            "draws": options.draws,
            "labels": options.labels,
            "item": options.item,
            "seed": options.seed,
            "groups": options.groups,
            "heads": list(map(str, chosen)),
        }
        return cls(
            encoded=encoded,
            aims=all_aims(encoded, features, options.labels, options.seed, options.item),
            sites=sites,
            conditions=conditions,
            edit=edit,
            rope=features.encoding.rope,
            provenance=_provenance(model, examples, features, edit, settings),
        )


@dataclass(frozen=True)
class EffectsReader:
    """Reads what all edits of one set of features do to the attention."""

    plan: _EditPlan
    probe: Probe

    @classmethod
    def of(cls, plan: _EditPlan) -> EffectsReader:
        return cls(plan, Probe(plan.sites, plan.conditions, plan.edit, plan.aims))

    @property
    def examples(self) -> Sequence[EncodedExample]:
        return self.plan.encoded

    @property
    def layers(self) -> Sequence[int]:
        return sorted(self.plan.sites)

    @property
    def rope(self) -> Frame:
        return self.plan.rope

    @property
    def current(self) -> dict[tuple[str, int], Tensor]:
        return self.probe.current

    def visit(self, call: AttentionCall, batch: Batch) -> None:
        self.probe.visit(call, batch)

    def keep(self, batch: Batch) -> None:
        self.probe.keep(batch)

    def result(self) -> Effects:
        return self.probe.effects(self.plan.provenance)


def conditions_of(
    features: Features,
    sites: Mapping[int, Site],
    methods: Sequence[Method],
    draws: int,
    seed: int,
    *,
    whole: bool = True,
    groups: Groups | None = None,
) -> dict[Head, Conditions]:
    """The conditions of every chosen head, in one order for all of them."""
    found: dict[Head, Conditions] = {}
    for number, site in sites.items():
        of_layer = layer_conditions(
            features, number, methods, heads=site.heads, draws=draws, seed=seed, whole=whole, groups=groups
        )
        found |= {head: of_layer[head] for head in site.heads}
    return found


def _check_edit(edit: Edit, features: Features, heads: Sequence[Head]) -> None:
    """The direction and the vectors of an edit must exist in every head."""
    for feature in (features[name, head] for name in features.contrasts for head in heads):
        if edit.follows_subspace and edit.direction >= feature.rank:
            raise QKPrismError(
                f"direction={edit.direction} is not in {feature.contrast!r} of {feature.head} (rank {feature.rank})."
            )
        vector = edit.vector_of(feature.head)
        if vector is not None and vector.shape != (feature.d_head,):
            raise QKPrismError(
                f"The vector of the edit has {len(vector)} numbers; {feature.head} needs {feature.d_head}."
            )


@dataclass
class Probe:
    """Measures every condition in every batch and adds the measures up, once the batch is complete."""

    sites: Mapping[int, Site]
    conditions: Mapping[Head, Conditions]
    edit: Edit
    aims: Mapping[str, Aims]

    def __post_init__(self) -> None:
        table = Table(next(iter(self.conditions.values())).names)
        self.current: dict[tuple[str, int], Tensor] = {}
        self.sums = {
            (target, layer): EffectSums.zeros(table, MEASURES, "shift", len(site.heads))
            for target in self.aims
            for layer, site in self.sites.items()
        }

    def visit(self, call: AttentionCall, batch: Batch) -> None:
        site = self.sites[call.layer]
        conditions = {head: self.conditions[head] for head in site.heads}
        read = read_logits(call, site, batch.query)
        for target, aims in self.aims.items():
            self.current.pop((target, call.layer), None)  # of a batch that failed
            rows = [i for i, example in enumerate(batch.examples) if example.index in aims]
            if rows:
                places = places_of(batch, rows, aims).to(read.query.device)
                found = [aims[batch.examples[row].index] for row in rows]
                labels = [(aim.original.labels, aim.target.labels) for aim in found]
                scene = EditRows(read.logits.pick(rows), places, read.query[rows], read.key[rows], read.scaling, labels)
                self.current[target, call.layer] = measure_edits(scene, conditions, self.edit).cpu()

    def keep(self, batch: Batch) -> None:
        for (target, layer), values in self.current.items():
            aims = self.aims[target]
            examples = [example for example in batch.examples if example.index in aims]
            weight, things = torch.tensor([e.weight for e in examples]), things_of([aims[e.index] for e in examples])
            self.sums[target, layer].add(values, weight, things)
        self.current.clear()

    def effects(self, provenance: Mapping[str, object]) -> Effects:
        notes = [note for condition in self.conditions.values() for note in condition.notes]
        parts = {
            target: [(site.heads, self.sums[target, layer], self._ranks(site)) for layer, site in self.sites.items()]
            for target in self.aims
        }
        return Effects.read_all(parts, edit=self.edit, notes=notes, provenance=provenance)

    def _ranks(self, site: Site) -> Tensor:
        return torch.tensor([self.conditions[head].ranks for head in site.heads])


def places_of(batch: Batch, rows: Sequence[int], aims: Aims) -> Places:
    """Where the marked keys of some examples are."""
    marked = torch.zeros(len(rows), batch.input_ids.shape[1], dtype=torch.bool)
    for i, row in enumerate(rows):
        marked[i, [key.position for key in batch.examples[row].text.keys]] = True
    chosen = [aims[batch.examples[row].index] for row in rows]
    original, target = (torch.tensor([getattr(a, side).position for a in chosen]) for side in ("original", "target"))
    return Places(original, target, marked)


def _provenance(
    model: AnySource, examples: object, features: Features, edit: Edit, options: Mapping[str, object]
) -> dict[str, object]:
    return {
        "model": model.name,
        "revision": model.revision,
        "contrast": examples.name if isinstance(examples, Contrast) else None,
        "choices": vars(features.choices),
        "encoding": asdict(features.encoding),
        "features": without_texts(features.provenance),
        "edit": {"kind": edit.kind, "side": edit.side, "amount": edit.amount, "direction": edit.direction},
        **options,
        "versions": versions(),
    }
