"""What an edit is compared with: the one table of controls, for sums, verdicts, figures, pages and studies.

The feature itself is the first row. Its rivals are the same edit in another subspace of the same rank and metric; a
feature is proved as far as it moves more than they do. No edit and the whole key are the two ends: they belong to no
feature, so all features share them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

ControlName = Literal["feature", "permuted", "keys", "gaussian", "pca", "none", "full"]
Strength = Literal["strong", "fair", "weak"]


@dataclass(frozen=True)
class Control:
    """One row: how a control is called, what it is worth, and how it is drawn."""

    name: ControlName
    title: str
    meaning: str
    mark: str  # the symbol of a mark, or the dash of a line where it is shared
    color: str = "#1A1A1A"  # of marks and lines: darker, the harder a rival is to beat
    shade: str = "#1A1A1A"  # of bars
    strength: Strength | None = None  # of a rival; the feature and the ends are none
    shared: bool = False  # by all features: it belongs to none
    drawn: bool = False  # at random, several times

    @property
    def is_rival(self) -> bool:
        """Whether a feature is compared with it."""
        return self.strength is not None

    @property
    def is_evidence(self) -> bool:
        """Whether to beat it says anything: noise beats weak ones too."""
        return self.strength in ("strong", "fair")


CONTROLS = (
    Control(
        "feature",
        title="feature",
        meaning="the edit in the feature's own subspace",
        mark="circle",
    ),
    Control(
        "permuted",
        title="permuted labels",
        meaning="the same pipeline on reshuffled sides; conditional: on twins compared where they agree",
        drawn=True,
        strength="strong",
        mark="diamond-open",
        color="#404040",
        shade="#8C8C8C",
    ),
    Control(
        "keys",
        title="key draws",
        meaning="subspaces drawn from the covariance of the keys",
        drawn=True,
        strength="fair",
        mark="triangle-up-open",
        color="#6E6E6E",
        shade="#A6A6A6",
    ),
    Control(
        "gaussian",
        title="Gaussian draws",
        meaning="Gaussian subspaces, the paper's control: most directions of the key space are hardly used",
        drawn=True,
        strength="weak",
        mark="x-thin-open",
        color="#8C8C8C",
        shade="#C4C4C4",
    ),
    Control(
        "pca",
        title="key PCA",
        meaning="the leading principal directions of the keys",
        strength="strong",
        mark="square-open",
        color="#404040",
        shade="#6E6E6E",
    ),
    Control(
        "none",
        title="no edit",
        meaning="the text as it is",
        shared=True,
        mark="dot",
    ),
    Control(
        "full",
        title="whole key",
        meaning="everything is moved",
        shared=True,
        mark="dash",
    ),
)
BY_NAME: Mapping[str, Control] = MappingProxyType({control.name: control for control in CONTROLS})
RIVALS = tuple(control for control in CONTROLS if control.is_rival)
EVIDENCE = tuple(control for control in RIVALS if control.is_evidence)
WEAK = tuple(control for control in RIVALS if not control.is_evidence)
SHARED = tuple(control for control in CONTROLS if control.shared)


def listed(controls: Sequence[Control]) -> str:
    """
    >>> listed(EVIDENCE)
    'permuted labels, key draws and key PCA'
    """
    *most, last = (control.title for control in controls)
    return f"{', '.join(most)} and {last}" if most else last
