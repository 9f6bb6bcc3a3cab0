"""`Interactions`: how strong features are at each value of the label that modulates (GAUGE.md, "When factors
interact").

    gamma_v     the amplitude of a feature at value v, beside its mean over values: 1 everywhere if factors add up
    error       from two halves of the examples: the mean squared relative difference of their amplitudes, over values
    F           sum_v ((gamma_v - 1) / error)^2 / (V - 1), about 1 if amplitudes are all alike; its chance is that of
                Fisher's F with V - 1 and V degrees of freedom
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from qkprism.core.evidence import f_tail
from qkprism.heads import Head
from qkprism.results.stored import Result

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

LEVEL = 0.001  # of chance, up to which amplitudes are said to differ


class FeatureAmplitudes(NamedTuple):
    """The amplitudes of one feature in one head, at all values of a label."""

    head: Head
    feature: str
    label: str
    values: tuple[Hashable, ...]
    amplitude: tuple[float, ...]
    error: tuple[float, ...]
    statistic: float

    @property
    def chance(self) -> float:
        """How often amplitudes that are all alike differ as much."""
        return f_tail(self.statistic, len(self.values) - 1, len(self.values))

    @property
    def differs(self) -> bool:
        """Whether the amplitudes are not all 1."""
        return self.chance <= LEVEL

    @property
    def ratio(self) -> float:
        """The largest amplitude over the smallest."""
        return max(self.amplitude) / min(self.amplitude)

    def told(self) -> str:
        """Where the feature is strongest and weakest, or that it is alike everywhere."""
        if not self.differs:
            return f"{self.feature} is as strong at every {self.label}, as far as can be told"
        ends = [self.amplitude.index(end(self.amplitude)) for end in (max, min)]
        high, low = (f"{self.label} {self.values[at]}" for at in ends)
        return f"{self.feature} is {self.ratio:.1f} times as strong at {high} as at {low}"

    def sentence(self) -> str:
        """
        >>> FeatureAmplitudes(Head(1, 2), "lexical", "order", (0, 1), (0.6, 1.26), (0.01, 0.02), 9000.0).sentence()
        'L1H2: lexical is 2.1 times as strong at order 1 as at order 0.'
        """
        return f"{self.head}: {self.told()}."


@dataclass(frozen=True)
class Interactions(Result, kind="interactions"):
    """The amplitudes of all features in all heads: a row a head, feature and value in `to_frame`."""

    found: tuple[FeatureAmplitudes, ...]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """A row a head, feature and value."""
        import pandas as pd

        columns = ("head", "feature", "label", "value", "amplitude", "error", "statistic", "chance")
        rows = [
            (str(one.head), one.feature, one.label, *at, one.statistic, one.chance)
            for one in self.found
            for at in zip(one.values, one.amplitude, one.error, strict=True)
        ]
        return pd.DataFrame(rows, columns=columns)

    def verdict(self) -> list[str]:
        """A sentence for each head and feature."""
        return [one.sentence() for one in self.found]

    def in_words(self) -> list[str]:
        """In how many heads a feature is not as strong everywhere, and where the most."""
        label = self.found[0].label if self.found else ""
        if not (differ := [one for one in self.found if one.differs]):
            return [f"As far as can be told, features are as strong at every {label}."] if label else []
        heads, every = (len({one.head for one in some}) for some in (differ, self.found))
        most = max(differ, key=lambda one: one.ratio)
        return [f"In {heads} of {every} heads a feature is not as strong at every {label}, most in {most.sentence()}"]

    def plot(self) -> go.Figure:
        """Amplitudes against the values of the label, a panel a feature, a line a head."""
        from qkprism.figures.lines import interaction_figure

        return interaction_figure(self)
