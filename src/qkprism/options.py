"""What options can be: the allowed values in one place, and their checks.

Nothing heavy is imported here, so a mistake is told before a library or a model is loaded, and before a pass is spent.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from qkprism.errors import QKPrismError

Center = Literal["query", "none"]
Metric = Literal["raw", "contrast"]
Reading = Literal["plain", "paired", "symmetric", "matched"]
TokenChoice = Literal["last", "first", "every"]
Frame = Literal["post", "relative"]
OutcomeKind = Literal["attention", "logits"]
WhichRows = Literal["query", "all"]
SplitMethod = Literal["oblique", "sequential", "shapley", "both", "conditional"]
Rank = int | str  # a number or a rule
Preset = Literal["paper", "paper-code"]

CENTERS: tuple[Center, ...] = get_args(Center)
METRICS: tuple[Metric, ...] = get_args(Metric)
READINGS: tuple[Reading, ...] = get_args(Reading)
TOKENS: tuple[TokenChoice, ...] = get_args(TokenChoice)
FRAMES: tuple[Frame, ...] = get_args(Frame)
OUTCOMES: tuple[OutcomeKind, ...] = get_args(OutcomeKind)
PRESETS: tuple[Preset, ...] = get_args(Preset)
RULES = ("balanced", "energy", "heldout", "own")
HEAD_MEASURES = ("accuracy", "accuracy_all", "attention_positive", "attention_negative", "ratio", "logit_gap")
SPLITS: tuple[SplitMethod, ...] = get_args(SplitMethod)
DTYPES = ("float32", "bfloat16", "float16", "float64", "auto")
SHORT_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
MAX_SEED = 2**32 - 1

Value = TypeVar("Value")


def choice(value: Any, allowed: Sequence[Value], what: str) -> Value:
    """One of the allowed values: `choice("raw", METRICS, "a metric")`."""
    if not isinstance(value, str) or value not in allowed:
        raise QKPrismError(f"{show(value)} is not {what}. Use {either(allowed)}.")
    return allowed[list(allowed).index(value)]  # type: ignore[arg-type]  # a plain string, whatever kind was given


def either(values: Sequence[Any]) -> str:
    """Values as a sentence has them: a, b or c."""
    *others, last = map(str, values)
    return f"{', '.join(others)} or {last}" if others else last


def whole_number(value: Any, name: str, least: int = 0, most: int | None = None) -> int:
    """A whole number, also one of numpy's; True, 3.0 and "3" are none."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or (most is not None and number > most):
        limits = f"{least} or more" if most is None else f"from {least} to {most}"
        raise QKPrismError(f"{name}={show(value)} is not possible. Give a whole number, {limits}.")
    return number


def checked_seed(value: Any) -> int:
    """A seed."""
    return whole_number(value, "seed", 0, MAX_SEED)


def checked_rank(value: Any) -> Rank:
    """A rank: a number or the name of a rule."""
    if isinstance(value, str) and value in RULES:
        return choice(value, RULES, "a rule for the rank")
    try:
        return whole_number(value, "rank")
    except QKPrismError:
        told = f"{show(value)} is not a rule for the rank. Use a whole number, 0 or more, or {either(RULES)}."
        raise QKPrismError(told) from None


def finite(value: Any, name: str) -> float:
    """A finite number, also one of numpy's."""
    number = as_float(value)
    if not math.isfinite(number):
        raise QKPrismError(f"{name}={show(value)} is not a finite number.")
    return number


def names_in(value: Any, name: str) -> list[str]:
    """Names: one by itself or a list of them."""
    names: list[Any] = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [None]
    if not all(isinstance(one, str) for one in names):
        raise QKPrismError(f"{name}={show(value)} is not a list of names. Write it as ['a', 'b'].")
    return names


@dataclass(frozen=True)
class Outcome:
    """Where the effect of an edit is looked for: `intervene(..., outcome=Outcome("logits", together=False))`.

    kind       `attention` (default) is exact without a new pass; `logits` runs the edited model and tells the effect on
               its prediction, which takes a pass an edit. An answer is the key's token, or its label `answer`
    together   with logits: edit all heads at once (default), or one by one
    rows       with logits: edit only the rows of marked `query` tokens (default), or `all`
    """

    kind: OutcomeKind = "attention"
    together: bool = True
    rows: WhichRows = "query"

    def __post_init__(self) -> None:
        choice(self.kind, OUTCOMES, "an outcome")
        if self.rows not in ("query", "all"):
            raise QKPrismError(f"rows={show(self.rows)} is not known. Use 'query' or 'all'.")
        if not isinstance(self.together, bool):
            raise QKPrismError(f"together={show(self.together)} is neither True nor False.")
        if self.kind == "attention" and (self.rows, self.together) != ("query", True):
            raise QKPrismError(
                "Editing heads one by one, or in all rows, is of the outcome `logits`: attention is told of every head "
                "by itself, at the query."
            )


def by_name(value: Any, name: str) -> Mapping[str, Any]:
    """What is given by name."""
    if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value):
        raise QKPrismError(f"{name}={show(value)} has no names. Write it as {{'a': ...}}.")
    return value


def as_float(value: Any) -> float:
    """A number as a float; what is no number is NaN."""
    try:
        return math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan


def checked_dtype(value: Any) -> str:
    """The name of a dtype, written out."""
    return choice(SHORT_DTYPES.get(value, value) if isinstance(value, str) else value, DTYPES, "a dtype")


def check_one_place(device: Any, device_map: Any) -> None:
    """Refuse a device beside a map of devices."""
    if device is not None and device_map is not None:
        raise QKPrismError("Give device or device_map, not both.")


def show(value: Any, limit: int = 60) -> str:
    """A value on one line, short enough for a message."""
    try:
        shown = " ".join(repr(value).split())
    except Exception:  # an integer of too many digits, or an object that cannot say what it is
        shown = f"a value of type {type(value).__name__}"
    return shown if len(shown) <= limit else f"{shown[:limit]}..."
