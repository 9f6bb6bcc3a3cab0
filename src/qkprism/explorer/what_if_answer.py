"""What the page is told of an edit: attention and predictions before and after, beside controls, and one sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from qkprism.explorer.answers import FORMAT, number, numbers

if TYPE_CHECKING:
    from qkprism.explorer.what_if import Outcome, Wish

SAID = 6  # tokens that the model is most likely to say, before and after

Told = Callable[[int], str]  # a token of the vocabulary as text


def what_if_answer(
    wish: Wish, what: str, outcomes: Sequence[Outcome], tokens: Sequence[str], ids: Sequence[int], told: Told
) -> dict[str, Any]:
    """Rows of attention (a number a token), the tokens the model may say next, and what it comes to."""
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
        return "its values dealt anew among the tokens"
    return "twins compared where they agree" if wish.kind == "conditional" else "permuted labels"


def _by_control(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.control, []).append(outcome)
    return found


def _said(by_control: dict[str, list[Outcome]], keys: Sequence[int], told: Told) -> list[dict[str, Any]]:
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


def _moved(by_control: dict[str, list[Outcome]]) -> dict[str, Any]:
    """Total variation between predictions before and after: 0 is none, 1 all."""
    before = by_control["none"][0].prediction

    def distance(outcome: Outcome) -> float | None:
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
    by_control: dict[str, list[Outcome]],
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
