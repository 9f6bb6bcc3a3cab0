"""What if this head did not see that? Two keys of one text are edited, and the model is run on from there.

The edits are those of `intervene` (`core/edits.py`), in the subspace of features, or in a part of the logit:

    features   k_o += P delta                                          P of `subspaces/conditions.py`
    a part     k_o += delta q / (scaling |q|^2), so that l_o += delta   delta made of the part's values of the two keys

A swap takes as much from the target. A conditional one goes by the values of a label (`core/conditional.py`), here of
the nearest mean. A steer adds `amount` times what the target has more. To ablate gives the original key what the mean
token after the first has, from which parts are counted: a product with zero is no attention less. Beside the edit
stand the same edit of the whole key, and with permuted labels; a part has none: its values are dealt anew among tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from qkprism.controls import ControlName
from qkprism.core.conditional import UNKNOWN, ConditionalSwap
from qkprism.core.edits import Edit
from qkprism.core.projectors import Subspace
from qkprism.errors import QKPrismError
from qkprism.explorer.answers import FORMAT, number, numbers
from qkprism.explorer.library import why_not_exchanged
from qkprism.heads import Head
from qkprism.models.calls import AttentionCall
from qkprism.models.continuation import Continuation, cache_is_exact
from qkprism.models.devices import float64_device
from qkprism.models.encoding import EncodedExample, EncodedKey, EncodedText
from qkprism.models.model import Model
from qkprism.options import Frame, choice, finite
from qkprism.results.features import Features
from qkprism.subspaces.comparison import CONDITIONAL, Method
from qkprism.subspaces.conditions import layer_conditions

Kind = Literal["swap", "conditional", "ablate", "steer"]
KINDS: tuple[Kind, ...] = ("swap", "conditional", "ablate", "steer")
PLAIN: tuple[ControlName, ...] = ("none", "feature", "full")
DRAWS = 8  # of permuted labels
FARTHEST = 10.0  # times what the target has more
Told = Callable[[int], str]  # a token of the vocabulary as text
SAID = 6  # tokens that the model is most likely to say, before and after


@dataclass(frozen=True)
class Wish:
    """Which edit, of which two keys: `amount` is a steer's alone."""

    head: Head
    query: int
    original: int
    target: int
    kind: Kind = "swap"
    amount: float = 1.0

    def __post_init__(self) -> None:
        choice(self.kind, KINDS, "a kind of edit")
        finite(self.amount, "amount")
        if abs(self.amount) > FARTHEST:
            raise QKPrismError(f"amount={self.amount:g} is too far. Give one from {-FARTHEST:g} to {FARTHEST:g}.")
        if self.original == self.target:
            raise QKPrismError("The two keys are one token. Choose another second key.")

    def edit(self, original: Float64[Tensor, " d"], target: Float64[Tensor, " d"], mean: Float64[Tensor, " d"]) -> Edit:
        """The edit of two vectors, or of two values, among others of this mean."""
        if self.kind == "ablate":
            return Edit("replace", vector=mean)
        kind = "swap" if self.kind == "conditional" else self.kind
        return Edit(kind, amount=self.amount, vector=target - original if self.kind == "steer" else None)


@dataclass(frozen=True)
class Meeting:
    """The query and the two keys of one head, as they meet; `mean` is that of the keys after the first token."""

    query: Float64[Tensor, " d_head"]
    original: Float64[Tensor, " d_head"]
    target: Float64[Tensor, " d_head"]
    mean: Float64[Tensor, " d_head"]
    scaling: float


Changes = tuple[Float64[Tensor, " d_head"], Float64[Tensor, " d_head"]]
Change = Callable[[Head, Meeting], Changes]  # of the original key and of the target


@dataclass(frozen=True)
class Variant:
    """The edit itself or one of its controls; None changes nothing."""

    control: ControlName
    change: Change | None


@dataclass(frozen=True)
class VariantOutcome:
    """What the head attends to, and what the model says next; None for a model that says nothing."""

    control: ControlName
    attention: Float64[Tensor, " token"]
    prediction: Float64[Tensor, " vocabulary"] | None


def feature_variants(wish: Wish, features: Features, names: Sequence[str], heads: Sequence[Head]) -> list[Variant]:
    """Edits in the subspace of some features of one run, in some heads at once."""
    projecting: Method = "contrast" if features.choices.metric == "contrast" else "raw oblique"
    method = CONDITIONAL if wish.kind == CONDITIONAL else projecting
    if method == CONDITIONAL and (reason := why_not_exchanged(features)) is not None:
        raise QKPrismError(reason[0].upper() + reason[1:])
    groups = {"+".join(names): list(names)}
    spaces = {
        head: layer_conditions(features, head.layer, [method], heads=[head], draws=1, groups=groups)[head]
        for head in heads
    }
    controls = [condition.control for condition in spaces[heads[0]].names]  # the same in all heads
    permuted = [place for place, control in enumerate(controls) if control == "permuted"]
    chosen = [*(controls.index(control) for control in PLAIN), *permuted[:DRAWS]]
    by_head = {
        place: {head: each.swap(place) or each.subspace(place) for head, each in spaces.items()} for place in chosen
    }
    return [
        Variant(controls[place], None if controls[place] == "none" else partial(_within, wish, by_head[place]))
        for place in chosen
    ]


def _within(wish: Wish, moved: Mapping[Head, Subspace | ConditionalSwap], head: Head, met: Meeting) -> Changes:
    one = moved[head]
    if isinstance(one, ConditionalSwap):
        unknown = torch.tensor(UNKNOWN, device=met.original.device)
        return one.changes(met.original, met.target, (unknown, unknown))
    edit = wish.edit(met.original, met.target, met.mean)
    change = edit.change(met.original, head, one, partner=met.target)
    return change, edit.of_target(change)


def part_variants(wish: Wish, values: Float64[Tensor, " token"], seen: Sequence[int]) -> list[Variant]:
    """Edits of one part of the logits; in controls its values are dealt anew among the tokens after the first."""
    if wish.kind == CONDITIONAL:
        raise QKPrismError("A part of a logit has no conditional exchange: choose features of a run, or kind='swap'.")
    generator, later = torch.Generator().manual_seed(0), torch.tensor([place for place in seen if place > 0])
    mean = values[later].mean().view(1)
    dealt = []
    for _ in range(DRAWS):
        drawn = values.clone()
        drawn[later] = values[later[torch.randperm(len(later), generator=generator)]]
        dealt.append(drawn)
    return [
        Variant("none", None),
        Variant("feature", partial(_of_part, wish, values, mean)),
        *(Variant("permuted", partial(_of_part, wish, drawn, mean)) for drawn in dealt),
    ]


def _of_part(
    wish: Wish, values: Float64[Tensor, " token"], mean: Float64[Tensor, " one"], head: Head, met: Meeting
) -> Changes:
    original, target = values[wish.original].view(1), values[wish.target].view(1)
    edit = wish.edit(original, target, mean)
    delta = edit.delta(original, head, partner=target).to(met.query)
    change = delta * met.query / (met.scaling * met.query.square().sum())
    return change, edit.of_target(change)


def begin(model: Model, ids: Sequence[int], wish: Wish, rope: Frame) -> Continuation:
    """The text run up to its query, if the model's cache gives the same logits."""
    for place in (wish.query, wish.original, wish.target):
        if not 0 <= place < len(ids):
            raise QKPrismError(f"There is no token {place}: the text has {len(ids)} tokens, 0 to {len(ids) - 1}.")
    keys = (EncodedKey(wish.original, True, {}, False), EncodedKey(wish.target, False, {}, True))
    example = EncodedExample(0, EncodedText(tuple(ids), wish.query, keys), None, 1.0, None, "the text")
    cached = wish.query > 0 and _predicts(model) and cache_is_exact(model, [example], rope)
    return Continuation.start(model, [example], rope=rope, cached=cached)


def outcomes(
    begun: Continuation, wish: Wish, heads: Sequence[Head], variants: Sequence[Variant]
) -> list[VariantOutcome]:
    """The model run on under every variant: one pass each, from the query on."""
    return [_Run(begun, wish, tuple(heads), variant).outcome() for variant in variants]


@dataclass(frozen=True)
class _Run:
    begun: Continuation
    wish: Wish
    heads: tuple[Head, ...]
    variant: Variant

    def outcome(self) -> VariantOutcome:
        attention: list[Tensor] = []
        layers = sorted({head.layer for head in (self.wish.head, *self.heads)})
        visit = partial(self._visit, attention)
        logits = None
        if _predicts(self.begun.model):
            logits = self.begun.logits(visit, layers)[0].to(float64_device(self.begun.model.device)).double()
        else:
            batch, rope = self.begun.batch, self.begun.rope
            self.begun.model.run(
                batch.input_ids, batch.attention_mask, visit, layers=layers, rope=rope, query_positions=batch.query
            )
        return VariantOutcome(
            self.variant.control, attention[0].cpu(), None if logits is None else logits.softmax(-1).cpu()
        )

    def _visit(self, attention: list[Tensor], call: AttentionCall) -> None:
        rows = self.begun.rows.to(call.key.device)
        for head in dict.fromkeys((self.wish.head, *self.heads)):
            if head.layer != call.layer:
                continue
            key = self._keys(call, head, rows)
            if head in self.heads and self.variant.change is not None:
                call.edit_head(head.index, key=key[None].to(call.key), rows=rows)
            if head == self.wish.head:
                attention.append(_attention(call, head.index, key, rows, len(self.begun.batch.examples[0].text.ids)))

    def _keys(self, call: AttentionCall, head: Head, rows: Int[Tensor, " example"]) -> Float64[Tensor, "token d_head"]:
        home = float64_device(call.key.device)
        key = call.key[0, call.kv_head(head.index)].to(home).to(torch.float64, copy=True)
        if self.variant.change is None or head not in self.heads:
            return key
        query = call.query[0, head.index, rows[0]].to(home).double()
        original, target = (self._column(call, place) for place in (self.wish.original, self.wish.target))
        later = [
            self._column(call, place)
            for place in range(1, 1 + max(self.wish.query, self.wish.original, self.wish.target))
        ]
        met = Meeting(query, key[original].clone(), key[target].clone(), key[later].mean(0), float(call.scaling))
        for place, change in zip((original, target), self.variant.change(head, met), strict=True):
            key[place] += change
        return key

    def _column(self, call: AttentionCall, place: int) -> int:
        return int(self.begun.columns(call, [place])[0])


def _attention(
    call: AttentionCall, head: int, key: Float[Tensor, "key_token d_head"], rows: Int[Tensor, " example"], tokens: int
) -> Float64[Tensor, " token"]:
    """The row of attention with these keys, a number a token of the text."""
    query = call.query[:, head, rows].to(key).squeeze(0)  # one row
    product = (query @ key.mT * float(call.scaling))[None, None].to(call.query.device)
    row = call.softmax(call.finish(product, [head], rows), [head])[0, 0, 0].cpu().double()
    places = call.key_positions.cpu()
    found = torch.zeros(tokens, dtype=torch.float64)
    inside = (places >= 0) & (places < tokens)
    found[places[inside]] = row[inside]
    return found


def _predicts(model: Model) -> bool:
    return model.is_causal and model.hf.get_output_embeddings() is not None


# What the page is told


def what_if_answer(
    wish: Wish,
    what: str,
    outcomes: Sequence[VariantOutcome],
    tokens: Sequence[str],
    ids: Sequence[int],
    told: Told,
) -> dict[str, Any]:
    """Rows of attention (a number a token), the tokens the model may say next, and what it comes to in a sentence.

    what    is edited, in words
    """
    by_control = _by_control(outcomes)
    before, after = by_control["none"][0], by_control["feature"][0]
    permuted = [outcome.attention.tolist() for outcome in by_control["permuted"]]
    said = [] if before.prediction is None else _said(by_control, [ids[wish.original], ids[wish.target]], told)
    return {
        "format": FORMAT,
        "head": str(wish.head),
        "query": wish.query,
        "original": wish.original,
        "target": wish.target,
        "attention": {
            "before": numbers(before.attention.tolist()),
            "after": numbers(after.attention.tolist()),
            "low": numbers(map(min, zip(*permuted, strict=True))),
            "high": numbers(map(max, zip(*permuted, strict=True))),
            "full": numbers(by_control["full"][0].attention.tolist()) if "full" in by_control else None,
        },
        "draws": len(permuted),
        "control": _control(wish, of_features="full" in by_control),
        "predictions": said,
        "moved": None if before.prediction is None else _moved(by_control),
        "sentence": sentence(wish, what, by_control, tokens, said),
    }


def _control(wish: Wish, *, of_features: bool) -> str:
    """What the edit is compared with."""
    if not of_features:
        return "its values reshuffled among the tokens"
    return "twins compared where they agree" if wish.kind == "conditional" else "permuted labels"


def _by_control(outcomes: Sequence[VariantOutcome]) -> dict[str, list[VariantOutcome]]:
    found: dict[str, list[VariantOutcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.control, []).append(outcome)
    return found


def _said(by_control: dict[str, list[VariantOutcome]], keys: Sequence[int], told: Told) -> list[dict[str, Any]]:
    """The likeliest next tokens before and after, and those of the two keys."""
    rows = {name: [one.prediction for one in each] for name, each in by_control.items()}
    before, after = rows["none"][0], rows["feature"][0]
    assert before is not None
    assert after is not None
    chosen = [*before.topk(SAID).indices.tolist(), *after.topk(SAID).indices.tolist(), *keys]
    return [
        {
            "token": told(one),
            "key": dict(zip(keys, ("first", "second"), strict=True)).get(one, ""),
            "before": number(float(before[one]), 6),
            "after": number(float(after[one]), 6),
            "permuted": [number(float(row[one]), 6) for row in rows["permuted"] if row is not None],
        }
        for one in sorted(dict.fromkeys(chosen), key=lambda one: -float(before[one]))
    ]


def _moved(by_control: dict[str, list[VariantOutcome]]) -> dict[str, Any]:
    """Total variation between predictions before and after: 0 is none, 1 all."""
    before = by_control["none"][0].prediction

    def distance(outcome: VariantOutcome) -> float | None:
        assert before is not None
        assert outcome.prediction is not None
        return number(float((outcome.prediction - before).abs().sum() / 2), 6)

    return {
        "after": distance(by_control["feature"][0]),
        "permuted": [distance(outcome) for outcome in by_control["permuted"]],
        "full": distance(by_control["full"][0]) if "full" in by_control else None,
    }


def sentence(
    wish: Wish,
    what: str,
    by_control: dict[str, list[VariantOutcome]],
    tokens: Sequence[str],
    said: Sequence[dict[str, Any]],
) -> str:
    """What the edit does to the attention on the first key and to the likeliest next token, beside the controls."""
    original, target = (f"{tokens[place]!r} (token {place})" for place in (wish.original, wish.target))
    done = {
        "swap": f"Exchanging {what} between {original} and {target}",
        "conditional": f"Exchanging {what} between {original} and {target}, each as strong as its place has it,",
        "ablate": f"Giving {original} no more {what} than the mean token has",
        "steer": f"Moving {original} by {wish.amount:g} of the way to {target} in {what}",
    }[wish.kind]
    before, after = (float(by_control[name][0].attention[wish.original]) for name in ("none", "feature"))
    controls = [float(one.attention[wish.original]) for one in by_control["permuted"]]
    rivals = "controls take it to" if len(controls) > 1 else "its control takes it to"
    words = (
        f"{done} takes the attention of {wish.head} on {tokens[wish.original]!r} from {before:.2f} to {after:.2f}; "
        f"{rivals} {_range(controls, 2)}."
    )
    if said:
        first = said[0]
        words += (
            f" The likeliest next token, {first['token']!r}, goes from {first['before']:.3f} to {first['after']:.3f}; "
            f"under {'controls' if len(controls) > 1 else 'the control'} {_range(first['permuted'], 3)}."
        )
    return words


def _range(values: Sequence[float], digits: int) -> str:
    low, high = (f"{end(values):.{digits}f}" for end in (min, max))
    return low if len(values) == 1 else f"{low} up to {high}"
