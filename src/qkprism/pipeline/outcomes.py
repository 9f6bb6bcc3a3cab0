"""What an edit does to the model's output: the edited model is run, with only that query head's copy of the keys
changed, for every condition (paper, section 5, carried on to the prediction).

    logit_change   of logit(target answer) - logit(original answer), at the last token
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from qkprism.core.conditions import Conditions
from qkprism.core.edits import Edit, swap
from qkprism.core.effect_sums import EffectSums, Table
from qkprism.core.effects import Effects
from qkprism.core.feature_set import Features
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.memory import give_back
from qkprism.models.batches import bucket
from qkprism.models.calls import AttentionCall
from qkprism.models.continuation import Continuation, cache_is_exact, first_of, skips_are_exact
from qkprism.models.devices import float64_device
from qkprism.models.encoding import EncodedExample, EncodedKey
from qkprism.models.model import Model
from qkprism.pipeline.aims import ANSWER, Aim, Aims
from qkprism.pipeline.inputs import bar

MEASURES = ("logit_change", "probability_original", "probability_target", "predicts_original", "predicts_target")
TOKEN_BUDGET = {"cpu": 3072, "cuda": 32768}
TRIAL = 8
Rows = Literal["query", "all"]
NAMED = 3  # heads edited together that are still named one by one


def outcome_effects(
    model: Model,
    encoded: Sequence[EncodedExample],
    aims: Mapping[str, Aims],
    conditions: Mapping[Head, Conditions],
    edit: Edit,
    *,
    together: bool,
    rows: Rows,
    features: Features,
    batch_size: int | None,
    provenance: Mapping[str, Any],
    progress: bool,
) -> Effects:
    """The effect of every condition on the model's prediction, for heads edited together or one by one."""
    if rows not in ("query", "all"):
        raise QKPrismError(f"rows={rows!r} is not known. Use 'query' or 'all'.")
    if not model.is_causal or model.hf.get_output_embeddings() is None:
        raise QKPrismError(f"{model.name} predicts no next token: outcome='logits' needs a causal language model.")
    heads = tuple(conditions)
    sets = [heads] if together else [(head,) for head in heads]
    answers = {
        (target, index): _answers(model, encoded[index], aim)
        for target, own in aims.items()
        for index, aim in own.items()
    }
    rope, chat = (features.provenance["options"][name] for name in ("rope", "chat"))
    runs = _batches(model, encoded, batch_size)
    trial = _trial(runs)
    cached = rows == "query" and cache_is_exact(model, trial, rope)
    first = {first_of(model, (head.layer for head in own)) for own in sets}
    skips = first if cached and skips_are_exact(model, trial, rope, first) else ()
    names = next(iter(conditions.values())).names
    sums = {target: EffectSums.zeros(Table(names), MEASURES, "logit_change", len(sets)) for target in aims}
    with bar(sum(map(len, aims.values())) * len(sets) * len(names), "edited texts", progress) as tick:
        for batch in runs:
            for target, own in aims.items():
                if not (chosen := [example for example in batch if example.index in own]):
                    continue
                give_back()
                found = _Editor(
                    Continuation.start(model, chosen, rope=rope, cached=cached, skips=skips, chat=bool(chat)),
                    [own[example.index] for example in chosen],
                    conditions,
                    edit,
                    rows,
                    torch.tensor([answers[target, example.index] for example in chosen]),
                ).measure(sets, tick)  # not kept: the cache of one batch at a time
                sums[target].add(found, torch.tensor([example.weight for example in chosen]))
    labels = [_name(own) for own in sets]
    ranks = torch.stack([torch.tensor([conditions[head].ranks for head in own]).sum(0) for own in sets])
    notes = [note for own in conditions.values() for note in own.notes]
    parts = {target: [(labels, own, ranks)] for target, own in sums.items()}
    return Effects.read_all(parts, edit=str(edit), notes=notes, provenance=provenance)


def _name(heads: Sequence[Head]) -> str:
    return "+".join(map(str, heads)) if len(heads) <= NAMED else f"{len(heads)} heads together"


def _batches(model: Model, encoded: Sequence[EncodedExample], batch_size: int | None) -> list[list[EncodedExample]]:
    if batch_size is not None:
        return bucket(encoded, batch_size=batch_size)
    return bucket(encoded, token_budget=TOKEN_BUDGET.get(model.device.type, TOKEN_BUDGET["cpu"]))


def _trial(runs: Sequence[Sequence[EncodedExample]]) -> list[EncodedExample]:
    """Texts to try the cache on, the longest and the shortest: they are padded wherever any batch is."""
    ordered = [example for batch in runs for example in batch]
    return ordered if len(ordered) <= TRIAL else [*ordered[: TRIAL // 2], *ordered[-TRIAL // 2 :]]


def _answers(model: Model, example: EncodedExample, aim: Aim) -> tuple[int, int]:
    """The token ids of the original and of the target answer."""
    found = tuple(_answer(model, example, key) for key in (aim.original, aim.target))
    if found[0] == found[1]:
        raise QKPrismError(f"{example.source}: original and target have the same answer, so nothing can change.")
    return found  # type: ignore[return-value]


def _answer(model: Model, example: EncodedExample, key: EncodedKey) -> int:
    if ANSWER not in key.labels:
        return example.text.ids[key.position]
    answer = str(key.labels[ANSWER])
    assert model.tokenizer is not None  # the examples were encoded with it
    ids = model.tokenizer(answer, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise QKPrismError(
            f"{example.source}: the answer {answer!r} is {len(ids)} tokens, not one; mind the space in front of a word."
        )
    return int(ids[0])


@dataclass(frozen=True)
class _Editor:
    """Runs one batch under every condition."""

    begun: Continuation
    aims: Sequence[Aim]
    conditions: Mapping[Head, Conditions]
    edit: Edit
    rows: Rows
    answers: Int[Tensor, "example 2"]

    def measure(self, sets: Sequence[Sequence[Head]], tick: Any) -> Float[Tensor, "measure example head condition"]:
        give_back()  # what the whole texts took: the edits need little
        unedited = self._read(self.begun.logits())
        names = next(iter(self.conditions.values())).names
        found = []
        for heads in sets:
            columns = []
            for condition, name in enumerate(names):
                after = unedited if name.control == "none" else self._read(self._run(heads, condition))
                columns.append(torch.cat([after[:1] - unedited[:1], after[1:]]))
                give_back(collect=False)
                tick(len(self.aims))
            found.append(torch.stack(columns, -1))
        return torch.stack(found, -2)

    def _run(self, heads: Sequence[Head], condition: int) -> Tensor:
        layers = sorted({head.layer for head in heads})
        return self.begun.logits(partial(self._visit, heads, condition), layers)

    def _visit(self, heads: Sequence[Head], condition: int, call: AttentionCall) -> None:
        for head in heads:
            if head.layer == call.layer:
                self._edit_head(call, head, condition)

    def _edit_head(self, call: AttentionCall, head: Head, condition: int) -> None:
        space = self.conditions[head].subspace(condition)
        home = float64_device(call.key.device)
        each, rows = torch.arange(len(self.aims), device=home), self.begun.rows.to(call.key.device)
        if space.rank == 0:
            return
        if self.edit.side == "query":
            lead = space.dual[min(self.edit.direction, space.rank - 1)]  # only a steer uses it, and it has been checked
            query = call.query[:, head.index].to(home).double()
            new = self.edit.changed(query, space.projector.mT, head, lead)
            call.edit_head(head.index, query=new.to(call.query), rows=rows if self.rows == "query" else None)
            return
        key = call.key[:, call.kv_head(head.index)].to(home).to(torch.float64, copy=True)
        original, target = (
            self.begun.columns(call, [getattr(aim, side).position for aim in self.aims]).to(home)
            for side in ("original", "target")
        )
        if self.edit.kind == "swap":
            key[each, original], key[each, target] = swap(key[each, original], key[each, target], space.projector)
        else:
            lead = space.basis[:, min(self.edit.direction, space.rank - 1)]
            key[each, original] = self.edit.changed(key[each, original], space.projector, head, lead)
        call.edit_head(head.index, key=key.to(call.key), rows=rows if self.rows == "query" else None)

    def _read(self, logits: Float[Tensor, "example vocabulary"]) -> Float64[Tensor, "measure example"]:
        """The gap between the answers' logits (target less original), then the other measures."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        answers = self.answers.to(logits.device)
        own = logits.gather(1, answers)
        probability = (own - logits.logsumexp(-1, keepdim=True)).exp()
        predicted = logits.argmax(-1, keepdim=True) == answers
        own, probability, predicted = (values.cpu().double() for values in (own, probability, predicted))
        return torch.stack([own[:, 1] - own[:, 0], *probability.T, *predicted.T])
