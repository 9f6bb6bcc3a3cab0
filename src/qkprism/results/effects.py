"""`Effects`: what an intervention did in each head, for every feature, beside every control."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from qkprism.controls import BY_NAME
from qkprism.core.edits import Edit, EditKind
from qkprism.core.effect_sums import EffectSums, spread_over_draws
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike
from qkprism.results.stored import ResultTable

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

GIVEN = "given"  # the target that the example marks, or a random negative
SIGMAS = 2.0  # errors by which a feature must exceed a control to beat it
NO_ERROR = "has no standard error, so it is not compared with controls"
HARDLY = 0.01  # of a head's attention: what moves between keys that have less hardly matters to the head
_MOVES = {  # what a gain is, in words; other measures are called by their name
    "shift": "moves {} of the attention between the two keys",
    "logit_change": "moves the logits by {} towards the target's answer",
}

_WEAK = (("also beats", True, ", which shows nothing: noise does too"), ("does not even beat", False, ""))

Edited = Head | str  # a head, or the name of several that were edited together
HeadSums = tuple[Sequence[Edited], EffectSums, Int[Tensor, "_ condition"]]
"""Some heads, their sums, and the rank of each condition in each of them."""


class Entry(NamedTuple):
    """One row of the result: what was edited, by which method, towards which target."""

    target: str
    feature: str
    method: str
    control: str


@dataclass(frozen=True, repr=False)
class Effects(ResultTable, kind="effects"):
    """The effect of every condition in every head, each mean with its standard error over examples.

    `values` and `errors` are by measure. `gains` is how much more an entry moves `compared` than no edit does, and
    `advantage` of a control's entry how much more the feature does than this control, both paired over examples.
    `spread` is the standard deviation of `compared` over the draws of a control. `edit` is None where nothing was
    edited and subspaces were compared in another way.
    """

    entries: tuple[Entry, ...]
    heads: tuple[Edited, ...]
    measures: tuple[str, ...]
    compared: str
    values: Float64[Tensor, "measure entry head"]
    errors: Float64[Tensor, "measure entry head"]
    spread: Float64[Tensor, "entry head"]
    gains: Float64[Tensor, "entry head"]
    gain_errors: Float64[Tensor, "entry head"]
    advantage: Float64[Tensor, "entry head"]
    advantage_error: Float64[Tensor, "entry head"]
    ranks: Int[Tensor, "entry head"]
    draws: Int[Tensor, " entry"]
    n: Int[Tensor, " entry"]
    edit: EditKind | None = "swap"
    title: str = "swap keys"
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read_all(
        cls,
        parts: Mapping[str, Sequence[HeadSums]],
        *,
        edit: Edit | None,
        title: str = "",
        notes: Sequence[str] = (),
        provenance: Mapping[str, Any] | None = None,
    ) -> Effects:
        """Read out the sums towards every target, in one table; `title` says what was done if it was no edit."""
        alone = [_alone(target) for target, sums in parts.items() if sums[0][1].by_row.n == 1]
        found = reduce(cls.with_target, (cls._read(target, sums) for target, sums in parts.items()))
        return replace(
            found,
            edit=None if edit is None else edit.kind,
            title=title or str(edit),
            notes=tuple(dict.fromkeys([*found._hardly_attended(), *notes, *alone])),
            provenance=provenance or {},
        )

    @classmethod
    def _read(cls, target: str, sums: Sequence[HeadSums]) -> Effects:
        """Read out the sums of heads (with the rank of each condition in each head) towards one target."""
        first = sums[0][1]
        table, heads = first.table, tuple(head for edited, _, _ in sums for head in edited)
        spread = spread_over_draws(table, torch.cat([total.by_draw.mean() for _, total, _ in sums]))
        first_draw = torch.tensor([table.conditions.index(row) for row in table.rows])
        advantage, advantage_error = (
            torch.where(table.is_rival, torch.cat(pair), torch.nan)
            for pair in zip(*((pair.advantage.mean(), pair.advantage.error()) for _, pair, _ in sums), strict=True)
        )
        return cls(
            entries=tuple(Entry(target, c.feature, c.method, c.control) for c in table.rows),
            heads=heads,
            measures=first.measures,
            compared=first.compared,
            values=torch.cat([total.by_row.mean() for _, total, _ in sums], 1).mT,
            errors=torch.cat([total.by_row.error() for _, total, _ in sums], 1).mT,
            spread=spread.mT,
            gains=torch.cat([total.gain.mean() for _, total, _ in sums]).mT,
            gain_errors=torch.cat([total.gain.error() for _, total, _ in sums]).mT,
            advantage=advantage.mT,
            advantage_error=advantage_error.mT,
            ranks=torch.cat([ranks for _, _, ranks in sums])[:, first_draw].mT,
            draws=table.draws,
            n=torch.full((len(table.rows),), first.by_row.n),
        )

    def with_target(self, other: Effects) -> Effects:
        """These effects and those towards another target in one table."""
        joined = {f: torch.cat([getattr(self, f), getattr(other, f)], dim) for f, dim in _ENTRY_AXIS.items()}
        return replace(self, entries=self.entries + other.entries, **joined)  # type: ignore[arg-type]

    @property
    def features(self) -> tuple[str, ...]:
        """The features and their combinations."""
        return tuple(dict.fromkeys(e.feature for e in self.entries if e.feature))

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(e.method for e in self.entries if e.method))

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(e.target for e in self.entries))

    def value(
        self,
        measure: str,
        *,
        head: HeadLike,
        feature: str = "",
        method: str | None = None,
        control: str = "feature",
        target: str = GIVEN,
    ) -> tuple[float, float]:
        """The mean of a measure and its standard error: `effects.value("shift", head="L18H6", feature="order")`."""
        if measure not in self.measures:
            raise QKPrismError(f"{measure!r} was not measured. Use one of {', '.join(self.measures)}.")
        at = self._place(feature, method, control, target)
        return tuple(float(t[self.measures.index(measure), at, self._head(head)]) for t in (self.values, self.errors))  # type: ignore[return-value]

    def rank(self, *, head: HeadLike, feature: str, method: str | None = None, target: str = GIVEN) -> int:
        """How many dimensions were edited in a head."""
        return int(self.ranks[self._place(feature, method, "feature", target), self._head(head)])

    def gain(
        self,
        *,
        head: HeadLike,
        feature: str = "",
        method: str | None = None,
        control: str = "feature",
        target: str = GIVEN,
    ) -> tuple[float, float]:
        """How much more `compared` moves than without an edit, with the standard error of the paired difference."""
        at = self._place(feature, method, control, target), self._head(head)
        return float(self.gains[at]), float(self.gain_errors[at])

    @property
    def alone(self) -> tuple[Head, ...]:
        """The heads that were edited by themselves; several that were edited together are one row of no head."""
        return tuple(head for head in self.heads if isinstance(head, Head))

    def _place(self, feature: str, method: str | None, control: str, target: str) -> int:
        shared = control in BY_NAME and BY_NAME[control].shared
        entry = Entry(target, "" if shared else feature, "" if shared else method or self.methods[0], control)
        if entry not in self.entries:
            raise QKPrismError(
                f"There is no effect of {entry.feature or 'an edit'!r} ({entry.method}, {control}, target {target}). "
                f"Features: {', '.join(self.features)}; methods: {', '.join(self.methods)}."
            )
        return self.entries.index(entry)

    def _head(self, head: HeadLike) -> int:
        wanted = head if head in self.heads else Head.parse(head)
        if wanted not in self.heads:
            raise QKPrismError(f"There is no effect for {wanted}. There are: {', '.join(map(str, self.heads))}.")
        return self.heads.index(wanted)

    def beats(self) -> list[dict[str, Any]]:
        """For each head, feature and control: how much more the feature moves, its error, and whether that is clear.

        A feature is one draw beside the draws of its control, so the error has the spread of a single draw in it. It
        has `beaten` a control if the advantage exceeds the `threshold` of two errors; a steer that moves the other way
        must do so further. `evidence` is False for controls that noise beats too. One example beats nothing.
        """
        found = []
        for i, entry in enumerate(self.entries):
            if not BY_NAME[entry.control].is_rival:
                continue
            feature = self._place(entry.feature, entry.method, "feature", entry.target)
            for j, head in enumerate(self.heads):
                draws = int(self.draws[i])
                noise = float(self.spread[i, j]) ** 2 * (1 + 1 / draws) if draws > 1 else 0.0
                error = (float(self.advantage_error[i, j]) ** 2 + noise) ** 0.5
                advantage = float(self.advantage[i, j])
                sign = -1.0 if self._may_go_either_way and float(self.gains[feature, j]) < 0 else 1.0
                found.append(
                    {"head": str(head), **entry._asdict(), "advantage": advantage, "error": error}
                    | {"threshold": SIGMAS * error, "beaten": sign * advantage > SIGMAS * error}
                    | {"evidence": BY_NAME[entry.control].is_evidence, "draws": draws}
                )
        return found

    def _hardly_attended(self) -> list[str]:
        """A note on heads that hardly attend to the keys that are edited, which any measure of the two conceals."""
        names, none = ("attention_original", "attention_target"), Entry(GIVEN, "", "", "none")
        if none not in self.entries or not {*names} <= {*self.measures}:
            return []
        both = self.values[[self.measures.index(name) for name in names], self.entries.index(none)].sum(0)
        few = [(head, share) for head, share in zip(self.heads, both.tolist(), strict=True) if share < HARDLY]
        if not few:
            return []
        (first, share), *others = few
        shares = "".join(f", {head} {small_share(share)}" for head, share in others)
        return [
            f"{first} gives the two keys {small_share(share)} of its attention{shares}: what the edit moves between "
            f"them hardly matters to the head{'s' if others else ''}."
        ]

    def verdict(self, *, methods: Sequence[str] | None = None) -> list[str]:
        """One plain sentence for each head, feature and method: what it moves and which controls it beats.

        methods   some of those that were compared; all by default
        """
        rows = self.beats()
        sentences = []
        for i, entry in enumerate(self.entries):
            if entry.control != "feature" or (methods is not None and entry.method not in methods):
                continue
            key = (entry.target, entry.feature, entry.method)
            for j, head in enumerate(self.heads):
                compared = [
                    r for r in rows if r["head"] == str(head) and (r["target"], r["feature"], r["method"]) == key
                ]
                sentences.append(self._sentence(i, j, entry, compared))
        return sentences

    def _sentence(self, i: int, j: int, entry: Entry, controls: list[dict[str, Any]]) -> str:
        gain, error = float(self.gains[i, j]), float(self.gain_errors[i, j])
        towards = "" if entry.target == GIVEN else f" towards a target that differs in {entry.target}"
        what = f"{self.heads[j]} {entry.feature} (rank {int(self.ranks[i, j])}, {entry.method}){towards}: "
        if math.isnan(error):
            return f"{what}{told_gain(self.compared, f'{gain:+.3f}')}; one example {NO_ERROR}."
        clauses = [
            f"{what}{told_gain(self.compared, f'{gain:+.3f} ± {error:.3f}')}{self._share(gain, j, entry.target)}"
        ]
        for verb, won in ((f"beats by more than {SIGMAS:g} standard errors", True), ("does not beat", False)):
            named = [_compared(row) for row in controls if row["evidence"] and row["beaten"] == won]
            clauses += [f"{verb} {', '.join(named)}"] if named else []
        weak = [row for row in controls if not row["evidence"]]
        for verb, won, shows in _WEAK:
            named = [_compared(row) for row in weak if row["beaten"] == won]
            clauses += [f"{verb} {', '.join(named)}{shows}"] if named else []
        return "; ".join(clauses) + "."

    def _share(self, gain: float, head: int, target: str) -> str:
        """What a gain is of that of the whole key, where both move attention to the target."""
        whole = Entry(target, "", "", "full")
        if whole not in self.entries:
            return ""
        at = self.entries.index(whole)
        ceiling, error = float(self.gains[at, head]), float(self.gain_errors[at, head])
        clear = gain >= 0 and ceiling > max(SIGMAS * error, 1e-6)
        return f", {gain / ceiling:.0%} of the whole key" if clear else ""

    @property
    def _may_go_either_way(self) -> bool:
        """A steer may; the other edits are meant to move attention to the target."""
        return self.edit == "steer"

    def to_frame(self) -> pd.DataFrame:
        """A row an entry and head."""
        import pandas as pd

        rows = []
        for i, entry in enumerate(self.entries):
            for j, head in enumerate(self.heads):
                row: dict[str, Any] = {"head": str(head), **entry._asdict(), "rank": int(self.ranks[i, j])}
                for k, name in enumerate(self.measures):
                    row |= {name: float(self.values[k, i, j]), f"{name}_error": float(self.errors[k, i, j])}
                row |= {"draws": int(self.draws[i]), "spread": float(self.spread[i, j])}
                row |= {"gain": float(self.gains[i, j]), "gain_error": float(self.gain_errors[i, j])}
                row |= {"advantage": float(self.advantage[i, j]), "advantage_error": float(self.advantage_error[i, j])}
                rows.append(row | {"n": int(self.n[i])})
        return pd.DataFrame(rows)

    def plot(self, measure: str | None = None, *, target: str = GIVEN) -> go.Figure:
        """Every feature beside its controls, a panel a head."""
        from qkprism.figures.effects import effects_figure

        return effects_figure(self, measure or self.compared, target)

    def __repr__(self) -> str:
        return f"Effects({self.title}; {', '.join(self.features)}; {len(self.heads)} heads; {int(self.n[0])} examples)"

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        frame = frame[[not BY_NAME[name].is_rival for name in frame.control]]
        return str(frame.to_html(index=False, max_rows=40, float_format="{:.3g}".format, escape=True))


def told_gain(compared: str, gain: str) -> str:
    """What was gained, as the end of a sentence about an edit.

    >>> told_gain("shift", "+0.50"), told_gain("score", "+0.10")
    ('moves +0.50 of the attention between the two keys', 'moves the score by +0.10')
    """
    return _MOVES.get(compared, f"moves the {compared.replace('_', ' ')} by {{}}").format(gain)


def small_share(value: float) -> str:
    """A small share by its first digit that is not 0.

    >>> small_share(3.6e-06), small_share(0.0), small_share(0.0071)
    ('0.000004', 'less than 0.000001', '0.007')
    """
    return f"{Decimal(f'{value:.1g}'):f}" if value >= 1e-6 else "less than 0.000001"


def _alone(target: str) -> str:
    """A note about a target with one example."""
    where = "" if target == GIVEN else f" with a target that differs in {target}"
    return f"One example{where} {NO_ERROR}. Give more."


def _compared(row: Mapping[str, Any]) -> str:
    return f"{BY_NAME[row['control']].title} (by {row['advantage']:+.3f} ± {row['error']:.3f})"


_ENTRY_AXIS = {
    "values": 1,
    "errors": 1,
    "spread": 0,
    "gains": 0,
    "gain_errors": 0,
    "advantage": 0,
    "advantage_error": 0,
    "ranks": 0,
    "draws": 0,
    "n": 0,
}
