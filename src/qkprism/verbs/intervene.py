"""`intervene`: edit keys in the subspaces of features and see where the attention goes (paper, sections 4 and 5).

One forward pass serves all heads, features, combinations and controls, and several sets of features: the attention row
after an edit follows from the query, the edited keys and the row's other logits (`core/rows.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import overload

import torch
from torch import Tensor

from qkprism.capture.readers import read_logits, read_together
from qkprism.core.edits import Edit, EditKind
from qkprism.core.effect_sums import EffectSums, Table
from qkprism.core.rows import MEASURES
from qkprism.models.batches import Batch
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import EncodedExample
from qkprism.options import Frame, Outcome, OutcomeKind
from qkprism.results.effects import Effects
from qkprism.results.features import Features
from qkprism.subspaces.comparison import Comparison, checked_comparison, left_out
from qkprism.subspaces.intervention import EditRows, measure_edits
from qkprism.verbs.aims import places_of, things_of
from qkprism.verbs.inputs import (
    AnySource,
    Examples,
    Heads,
    KeptExamples,
    examples_of,
    model_for,
    noted,
    sets_of,
    unfinished,
)
from qkprism.verbs.outcomes import outcome_effects
from qkprism.verbs.plan import EditPlan


@overload
def intervene(
    source: AnySource,
    examples: Examples,
    features: Features,
    *,
    heads: Heads = None,
    edit: Edit | EditKind = "swap",
    outcome: Outcome | OutcomeKind = "attention",
    compare: Comparison = Comparison(),  # noqa: B008  (it is frozen)
    batch_size: int | None = None,
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
    outcome: Outcome | OutcomeKind = "attention",
    compare: Comparison = Comparison(),  # noqa: B008
    batch_size: int | None = None,
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
    outcome: Outcome | OutcomeKind = "attention",
    compare: Comparison = Comparison(),  # noqa: B008
    batch_size: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Effects | dict[str, Effects]:
    """What editing the features of some heads does, beside all controls.

    >>> effects = qk.intervene(model, test, features, compare=qk.Comparison(draws=2), progress=False)
    >>> effects.value("shift", head="L0H1", feature="order")[0] > 0
    True

    source       the model of the features; or a `VectorSource`, whose attention is that among the marked keys
    examples     held-out examples with a negative key in the text: a contrast, a path, a list; of a `VectorSource` the
                 name of a contrast. The positive key is edited, and the target is the key marked so or a negative one
    features     what `decompose` gave; several sets by name give effects by name, on the attention from one pass
    heads        some of the heads that have features; all by default
    edit         `swap` (default) exchanges two keys in the feature's subspace; or an `Edit`
    outcome      `attention` (default) is exact without a new pass; `logits` runs the edited model and tells the effect
                 on its prediction, which takes a pass an edit; or an `Outcome`, which says more of how
    compare      a `Comparison`: the methods of editing, the draws of controls, which features are moved together, which
                 labels and items keys have, and the seed
    batch_size   texts that are run at once; None (default) goes by tokens, and halves where memory runs out
    checkpoint   a folder in which a pass that was killed goes on where it was, to the identical result; None (default)
                 keeps nothing
    progress     whether a bar is shown after two seconds; default True
    """
    outcome = outcome if isinstance(outcome, Outcome) else Outcome(outcome)
    edit = edit if isinstance(edit, Edit) else Edit(edit)
    compare = checked_comparison(compare)
    texts = examples_of(examples, source)
    sets = sets_of(features)
    if outcome.kind == "attention":
        readers = effects_readers(source, texts, sets, compare, heads=heads, edit=edit)
        job = {name: reader.plan.provenance for name, reader in readers.items()}
        kept = unfinished(checkpoint, source, sets, job)
        read_together(source, [*readers.values()], batch_size=batch_size, kept=kept, progress=progress)
        found = {name: reader.result() for name, reader in readers.items()}
    else:
        model, found = model_for(source, "The effect on the prediction is that of texts"), {}
        for name, one in sets.items():
            plan = EditPlan.of(model, texts, one, compare, heads=heads, edit=edit, outcome=outcome)
            kept = unfinished(checkpoint, model, {"": one}, plan.provenance)
            found[name] = outcome_effects(model, plan, batch_size, kept, progress)
    without = {name: left_out(one, compare.methods) if edit.kind == "swap" else [] for name, one in sets.items()}
    told = {name: replace(one, notes=(*one.notes, *without[name])) for name, one in found.items()}
    effects = {name: noted(told[name], sets[name], texts) for name in sets}
    return effects[""] if isinstance(features, Features) else effects


def effects_readers(
    model: AnySource,
    examples: Examples | KeptExamples,
    sets: Mapping[str, Features],
    compare: Comparison,
    *,
    heads: Heads = None,
    edit: Edit = Edit(),  # noqa: B008  (it is frozen)
) -> dict[str, EffectsReader]:
    """The readers of `intervene` on the attention, to share a pass with others."""
    if not isinstance(examples, KeptExamples):
        examples = examples_of(examples, model)
    plans = {name: EditPlan.of(model, examples, one, compare, heads=heads, edit=edit) for name, one in sets.items()}
    return {name: EffectsReader(plan) for name, plan in plans.items()}


@dataclass
class EffectsReader:
    """Measures what all edits of one set of features do to the attention of every batch, and adds it up."""

    plan: EditPlan

    def __post_init__(self) -> None:
        table = Table(next(iter(self.plan.conditions.values())).names)
        self.current: dict[tuple[str, int], Tensor] = {}
        self.sums = {
            (target, layer): EffectSums.zeros(table, MEASURES, "shift", len(site.heads))
            for target in self.plan.aims
            for layer, site in self.plan.sites.items()
        }

    @property
    def examples(self) -> Sequence[EncodedExample]:
        return self.plan.encoded

    @property
    def layers(self) -> Sequence[int]:
        return sorted(self.plan.sites)

    @property
    def rope(self) -> Frame:
        return self.plan.encoding.rope

    def visit(self, call: AttentionCall, batch: Batch) -> None:
        site = self.plan.sites[call.layer]
        conditions = {head: self.plan.conditions[head] for head in site.heads}
        read = read_logits(call, site, batch.query)
        for target, aims in self.plan.aims.items():
            self.current.pop((target, call.layer), None)  # of a batch that failed
            rows = [i for i, example in enumerate(batch.examples) if example.index in aims]
            if rows:
                found = [aims[batch.examples[row].index] for row in rows]
                keys = [batch.examples[row].text.keys for row in rows]
                pairs = [(aim.original, aim.target) for aim in found]
                places = places_of(pairs, keys, batch.input_ids.shape[1]).to(read.query.device)
                labels = [(original.labels, target.labels) for original, target in pairs]
                scene = EditRows(read.logits.pick(rows), places, read.query[rows], read.key[rows], read.scaling, labels)
                self.current[target, call.layer] = measure_edits(scene, conditions, self.plan.edit).cpu()

    def keep(self, batch: Batch) -> None:
        for (target, layer), values in self.current.items():
            aims = self.plan.aims[target]
            examples = [example for example in batch.examples if example.index in aims]
            weight, things = torch.tensor([e.weight for e in examples]), things_of([aims[e.index] for e in examples])
            self.sums[target, layer].add(values, weight, things)
        self.current.clear()

    def result(self) -> Effects:
        ranks = {
            layer: torch.tensor([self.plan.conditions[head].ranks for head in site.heads])
            for layer, site in self.plan.sites.items()
        }
        parts = {
            target: [(site.heads, self.sums[target, layer], ranks[layer]) for layer, site in self.plan.sites.items()]
            for target in self.plan.aims
        }
        plan = self.plan
        return Effects.read_all(parts, edit=plan.edit, notes=plan.notes, provenance=plan.provenance)
