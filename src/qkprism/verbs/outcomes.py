"""What an edit does to the model's output: the edited model is run, with only that query head's copy of the keys
changed, for every condition (paper, section 5, carried on to the prediction).

    logit_change   of logit(target answer) - logit(original answer), at the last token
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from qkprism.capture.batching import Batches
from qkprism.capture.readers import of_texts
from qkprism.core.effect_sums import EffectSums, Table
from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.memory import give_back
from qkprism.models.calls import AttentionCall
from qkprism.models.continuation import Continuation, cache_is_exact, first_of, skips_are_exact
from qkprism.models.devices import float64_device
from qkprism.models.encoding import EncodedExample, EncodedKey
from qkprism.models.model import Model
from qkprism.progress import Progress, bar
from qkprism.ranks import out_of_memory
from qkprism.ranks import ranks as this_rank
from qkprism.results.effects import Edited, Effects
from qkprism.runs.store import Unfinished
from qkprism.verbs.aims import ANSWER, Aim, things_of
from qkprism.verbs.plan import EditPlan

MEASURES = ("logit_change", "probability_original", "probability_target", "predicts_original", "predicts_target")
TOKEN_BUDGET = {"cpu": 3072, "cuda": 32768}
TRIAL = 8
HARDLY = 0.05  # the probability below which a model hardly gives an answer
NAMED = 3  # heads edited together that are still named one by one
_Measured = tuple[str, Tensor, Tensor, list[tuple[Hashable, ...]] | None]
"""A target, the measures of some examples, their weights, and what they may share with others."""


def outcome_effects(
    model: Model, plan: EditPlan, batch_size: int | None, kept: Unfinished | None, progress: bool
) -> Effects:
    """The effect of every condition on the model's prediction, for heads edited together or one by one."""
    if not model.is_causal or model.hf.get_output_embeddings() is None:
        raise QKPrismError(f"{model.name} predicts no next token: outcome='logits' needs a causal language model.")
    conditions, rope = plan.conditions, plan.encoding.rope
    sets = [tuple(conditions)] if plan.outcome.together else [(head,) for head in conditions]
    answers = {
        (target, index): _answers(model, plan.encoded[index], aim)
        for target, aims_of in plan.aims.items()
        for index, aim in aims_of.items()
    }
    cached, skips = _cacheable(model, plan, sets)
    runner = _Runner(model, plan, sets, answers, cached, skips)
    names = next(iter(conditions.values())).names
    sums = {target: EffectSums.zeros(Table(names), MEASURES, "logit_change", len(sets)) for target in plan.aims}
    batches, here = Batches(model, (), rope, batch_size, TOKEN_BUDGET), this_rank()
    pieces = batches.split(plan.encoded)
    work = of_texts(kept, [plan.encoded], list(map(len, pieces)))
    each, told, reached = len(sets) * len(names), [0], 0
    with bar(sum(map(len, plan.aims.values())) * each, "edited texts", progress) as tick:

        def count(texts: int) -> None:
            told[0] += texts
            tick(texts)

        def measure(part: Sequence[EncodedExample]) -> list[list[_Measured]]:
            return [*batches.each(part, lambda batch: runner.measure(batch, lambda texts: count(texts * here.count)))]

        found = chain.from_iterable(work.in_turn(pieces, measure))
        for target, values, weight, things in chain.from_iterable(found):
            sums[target].add(values, weight, things)
            reached += len(weight) * each
            count(max(0, reached - told[0]))  # of what a former process had measured
    labels = [_name(edited) for edited in sets]
    ranks = torch.stack([torch.tensor([conditions[head].ranks for head in edited]).sum(0) for edited in sets])
    parts = {target: [(labels, total, ranks)] for target, total in sums.items()}
    effects = Effects.read_all(parts, edit=plan.edit, notes=plan.notes, provenance=plan.provenance)
    return replace(effects, notes=(*effects.notes, *_hardly_given(effects)))


def _hardly_given(effects: Effects) -> list[str]:
    """A note if the model hardly gives the answers whose logits are compared."""
    original, target = (
        effects.value(f"probability_{side}", head=effects.heads[0], control="none")[0]
        for side in ("original", "target")
    )
    if original >= HARDLY:
        return []
    return [
        f"Without an edit the model gives the original answers a probability of {original:.2g} and the targets "
        f"{target:.2g} on average: it hardly gives these answers, so the change of their logits says little about what "
        "it answers. Check the prompts, or name other answers with the label `answer`."
    ]


@dataclass(frozen=True)
class _Runner:
    """Runs batches of texts under every condition, each with as much of it cached as gives the same logits."""

    model: Model
    plan: EditPlan
    sets: Sequence[Sequence[Head]]
    answers: Mapping[tuple[str, int], tuple[int, int]]
    cached: bool
    skips: frozenset[int]

    def measure(self, batch: Sequence[EncodedExample], tick: Progress) -> list[_Measured]:
        """The measures and weights of a batch towards every target; if it fails, it counts as if never begun."""
        done: list[int] = []

        def count(texts: int) -> None:
            done.append(texts)
            tick(texts)

        try:
            return [
                self._towards(target, chosen, count)
                for target, aims in self.plan.aims.items()
                if (chosen := [example for example in batch if example.index in aims])
            ]
        except RuntimeError:
            tick(-sum(done))
            raise

    def _towards(self, target: str, chosen: list[EncodedExample], tick: Progress) -> _Measured:
        give_back()
        aims = [self.plan.aims[target][example.index] for example in chosen]
        encoding, answers = self.plan.encoding, [self.answers[target, example.index] for example in chosen]
        begun = Continuation.start(
            self.model,
            chosen,
            rope=encoding.rope,
            cached=self.cached,
            skips=self.skips,
            chat=encoding.chat is not None,
        )
        # not kept: the cache of one batch at a time
        values = _Editor(begun, aims, self.plan, torch.tensor(answers)).measure(self.sets, tick)
        return target, values, torch.tensor([example.weight for example in chosen]), things_of(aims)


def _name(heads: Sequence[Head]) -> Edited:
    if len(heads) == 1:
        return heads[0]
    return "+".join(map(str, heads)) if len(heads) <= NAMED else f"{len(heads)} heads together"


def _cacheable(model: Model, plan: EditPlan, sets: Sequence[Sequence[Head]]) -> tuple[bool, frozenset[int]]:
    """Whether texts up to their queries can be cached, and the layers up to which blocks can; tried on some texts."""
    trial, rope = _trial(plan.encoded), plan.encoding.rope
    cached = plan.outcome.rows == "query" and _tried(trial, lambda texts: cache_is_exact(model, texts, rope))
    first = {first_of(model, (head.layer for head in heads)) for heads in sets}
    return cached, frozenset(first if cached and skips_are_exact(model, trial, rope, first) else ())


def _trial(encoded: Sequence[EncodedExample]) -> list[EncodedExample]:
    """Texts to try the cache on, the longest and the shortest: they are padded wherever any batch is."""
    ordered = sorted(encoded, key=lambda example: (-example.length, example.index))
    return ordered if len(ordered) <= TRIAL else [*ordered[: TRIAL // 2], *ordered[-TRIAL // 2 :]]


def _tried(trial: list[EncodedExample], holds: Callable[[Sequence[EncodedExample]], bool]) -> bool:
    """Whether something holds of texts; of half of them, from both ends, where they do not fit in memory."""
    try:
        return holds(trial)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
    quarter = len(trial) // 4
    return _tried([*trial[:quarter], *trial[-quarter:]], holds) if quarter else False


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
    plan: EditPlan
    answers: Int[Tensor, "example 2"]

    def measure(
        self, sets: Sequence[Sequence[Head]], tick: Progress
    ) -> Float[Tensor, "measure example head condition"]:
        give_back()  # what the whole texts took: the edits need little
        unedited = self._read(self.begun.logits(), edited=False)
        names = next(iter(self.plan.conditions.values())).names
        found = []
        for heads in sets:
            columns: dict[object, Tensor] = {}  # methods share random controls: the same edit is run once
            each = [tuple(self.plan.conditions[head].moved_by(i) for head in heads) for i in range(len(names))]
            for condition, (moved, name) in enumerate(zip(each, names, strict=True)):
                if moved not in columns:
                    after = unedited if name.control == "none" else self._read(self._run(heads, condition), edited=True)
                    columns[moved] = torch.cat([after[:1] - unedited[:1], after[1:]])
                    give_back(collect=False)
                tick(len(self.aims))
            found.append(torch.stack([columns[moved] for moved in each], -1))
        return torch.stack(found, -2)

    def _run(self, heads: Sequence[Head], condition: int) -> Tensor:
        layers = sorted({head.layer for head in heads})
        return self.begun.logits(partial(self._visit, heads, condition), layers)

    def _visit(self, heads: Sequence[Head], condition: int, call: AttentionCall) -> None:
        for head in heads:
            if head.layer == call.layer:
                self._edit_head(call, head, condition)

    def _edit_head(self, call: AttentionCall, head: Head, condition: int) -> None:
        swap = self.plan.conditions[head].swap(condition)
        space = None if swap else self.plan.conditions[head].subspace(condition)
        home = float64_device(call.key.device)
        each, rows = torch.arange(len(self.aims), device=home), self.begun.rows.to(call.key.device)
        if space is not None and space.rank == 0:
            return
        at = rows if self.plan.outcome.rows == "query" else None
        if self.plan.edit.side == "query":
            assert space is not None  # a conditional exchange is of keys
            query = call.query[:, head.index].to(home).double()
            new = query + self.plan.edit.change(query, head, space.mT)
            call.edit_head(head.index, query=new.to(call.query), rows=at)
            return
        key = call.key[:, call.kv_head(head.index)].to(home).to(torch.float64, copy=True)
        original, target = (
            self.begun.columns(call, [getattr(aim, side).position for aim in self.aims]).to(home)
            for side in ("original", "target")
        )
        if space is None:
            assert swap is not None  # a condition is the one or the other
            pair = key[each, original], key[each, target]
            modulation = self.plan.conditions[head].modulation
            assert modulation is not None  # there is a conditional exchange
            labels = [(aim.original.labels, aim.target.labels) for aim in self.aims]
            changes = swap.changes(*pair, modulation.numbers(labels, home))
        else:
            change = self.plan.edit.change(key[each, original], head, space, partner=key[each, target])
            changes = change, self.plan.edit.of_target(change)
        key[each, original] += changes[0]
        key[each, target] += changes[1]
        call.edit_head(head.index, key=key.to(call.key), rows=at)

    def _read(self, logits: Float[Tensor, "example vocabulary"], *, edited: bool) -> Float64[Tensor, "measure example"]:
        """The gap between the answers' logits (target less original), then the other measures."""
        logits = logits if logits.dtype == torch.float64 else logits.float()
        self._refuse_nan(logits, edited)
        answers = self.answers.to(logits.device)
        answered = logits.gather(1, answers)
        probability = (answered - logits.logsumexp(-1, keepdim=True)).exp()
        predicted = logits.argmax(-1, keepdim=True) == answers
        answered, probability, predicted = (values.cpu().double() for values in (answered, probability, predicted))
        return torch.stack([answered[:, 1] - answered[:, 0], *probability.T, *predicted.T])

    def _refuse_nan(self, logits: Float[Tensor, "example vocabulary"], edited: bool) -> None:
        broken = logits.isnan().any(-1) | logits.isposinf().any(-1)
        if not broken.any():
            return
        example, model = self.begun.batch.examples[int(broken.nonzero()[0])], self.begun.model
        name = f"{model.name} ({str(model.dtype).removeprefix('torch.')})"
        if edited:
            raise QKPrismError(
                f"{example.source}: {name} predicts NaN or infinity after the edit "
                f"({self.plan.edit}). Give a smaller amount or vector, or load it in float32."
            )
        raise QKPrismError(
            f"{example.source}: the output layer of {name} gives NaN or infinity: its weights "
            "are damaged or too large for this dtype. Check the files, or load it in float32."
        )
