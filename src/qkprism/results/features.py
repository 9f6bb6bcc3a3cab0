"""`Features`: a mapping of (contrast name, head) to `Feature`, with the moments they were computed from.

Because the moments are kept, rank, metric and centring can be changed without the model, and a run folder holds all
that later steps need.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkprism.core.decomposition import decompose_layer
from qkprism.core.evidence import LEVEL, Count, count_found, q_values
from qkprism.core.feature import Choices, Feature, Gap, Spectrum
from qkprism.core.metrics import UnspannedError
from qkprism.core.moments import Moments, pack, unpack
from qkprism.core.projectors import Joint, joint_projectors, overlap, stretch_notes, stretch_of
from qkprism.encoding import Encoding
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike
from qkprism.options import METRICS, Center, Rank, choice
from qkprism.runs.folder import of_another_version, read_run, write_run

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    import plotly.graph_objects as go

KIND = "features"
_TENSORS = ("query_basis", "strengths", "key_basis", "metric")


@dataclass(frozen=True)
class LayerMoments:
    """The moments of the chosen heads of one layer, for every contrast."""

    heads: tuple[Head, ...]
    scaling: float
    moments: Mapping[str, Moments] = field(repr=False)


@dataclass(frozen=True, repr=False)
class Features(Mapping[tuple[str, Head], Feature]):
    """All features of some contrasts in some heads: `features["order", "L21H7"]`.

    `encoding` is how the texts became tokens; later texts are encoded likewise.
    """

    features: Mapping[tuple[str, Head], Feature]
    layers: Mapping[int, LayerMoments]
    choices: Choices
    provenance: Mapping[str, Any]
    encoding: Encoding = Encoding()  # noqa: RUF009  (it is frozen)

    @classmethod
    def from_moments(
        cls,
        layers: Mapping[int, LayerMoments],
        choices: Choices,
        provenance: Mapping[str, Any] | None = None,
        *,
        encoding: Encoding = Encoding(),  # noqa: B008  (it is frozen)
        else_raw: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> Features:
        """Decompose moments; `progress` is told the number of heads done.

        What the provenance notes of a contrast's examples stands in its features too. With `else_raw` all is in the
        raw metric, and a note says so, where the keys of some layer do not span its space.
        """
        try:
            return cls._decomposed(layers, choices, provenance or {}, encoding, progress)
        except UnspannedError as error:
            if not else_raw:
                raise
            raw = cls._decomposed(layers, replace(choices, metric="raw"), provenance or {}, encoding, progress)
            return raw.noted(f"{error} So the metric is raw, in which permuted labels move nearly as much.")

    @classmethod
    def _decomposed(
        cls,
        layers: Mapping[int, LayerMoments],
        choices: Choices,
        provenance: Mapping[str, Any],
        encoding: Encoding,
        progress: Callable[[int], None] | None,
    ) -> Features:
        found: list[Feature] = []
        for layer in layers.values():
            found.extend(decompose_layer(layer.moments, layer.heads, layer.scaling, choices, provenance))
            if progress:
                progress(len(layer.heads))
        noted = {name: _noted(provenance, name) for name in _names(layers)}
        found = [replace(f, notes=(*f.notes, *noted[f.contrast])) for f in found]
        ordered = {(f.contrast, f.head): f for name in noted for f in found if f.contrast == name}
        return cls(ordered, layers, choices, provenance, encoding)

    def noted(self, note: str) -> Features:
        """The same features, each with one more note."""
        return replace(self, features={key: replace(f, notes=(*f.notes, note)) for key, f in self.features.items()})

    def __getitem__(self, key: tuple[str, HeadLike] | HeadLike) -> Feature:
        name, head = self._key(key)
        if (name, head) not in self.features:
            what = "head" if name in self.contrasts else "contrast"
            there = ", ".join(map(str, self.heads if what == "head" else self.contrasts))
            raise QKPrismError(
                f"There is no feature for {what} {head if what == 'head' else name}. There are: {there}."
            )
        return self.features[name, head]

    def _key(self, key: tuple[str, HeadLike] | HeadLike) -> tuple[str, Head]:
        if isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str):
            return key[0], Head.parse(key[1])
        if len(self.contrasts) == 1:
            return self.contrasts[0], Head.parse(key)
        raise QKPrismError(f"Name the contrast and the head, such as features[{self.contrasts[0]!r}, 'L18H6'].")

    def __contains__(self, key: object) -> bool:
        try:
            return self._key(key) in self.features  # type: ignore[arg-type]
        except (QKPrismError, TypeError, ValueError):
            return False

    def get(self, key: Any, default: Any = None) -> Any:
        """The feature of a contrast and head, or the default."""
        return self[key] if key in self else default  # noqa: SIM401

    def __iter__(self) -> Iterator[tuple[str, Head]]:
        return iter(self.features)

    def __len__(self) -> int:
        return len(self.features)

    @property
    def contrasts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name, _ in self.features))

    @property
    def heads(self) -> tuple[Head, ...]:
        return tuple(dict.fromkeys(head for _, head in self.features))

    @property
    def notes(self) -> tuple[str, ...]:
        """What to be careful about in any of the features, or in their joint projectors, each once."""
        several = self.heads if len(self.contrasts) > 1 else ()
        joint = [note for head in several for note in stretch_notes(head, self.joint(head).projectors)]
        return tuple(dict.fromkeys([*(note for feature in self.values() for note in feature.notes), *joint]))

    def joint(self, head: HeadLike) -> Joint:
        """The joint oblique projectors of all contrasts in a head."""
        return joint_projectors([self[name, head] for name in self.contrasts])

    def overlaps(self) -> pd.DataFrame:
        """A row a head and pair of contrasts: how far their subspaces overlap (mean squared cosine)."""
        import pandas as pd

        rows = []
        for head in self.heads:
            for first, second in combinations([self[name, head] for name in self.contrasts], 2):
                row = {"head": str(head), "feature": first.contrast, "other": second.contrast}
                shared = {side: overlap(first, second, queries=side == "queries") for side in ("keys", "queries")}
                rows.append({**row, **shared})
        return pd.DataFrame(rows)

    def with_rank(self, rank: Rank | Mapping[str, Rank]) -> Features:
        """The same features cut at another rank: a number, a rule, or one of these for each contrast."""
        ranks = rank if isinstance(rank, Mapping) else dict.fromkeys(self.contrasts, rank)
        self._check_known(ranks)
        cut = {key: f.with_rank(ranks[key[0]]) if key[0] in ranks else f for key, f in self.features.items()}
        choices = self.choices if isinstance(rank, Mapping) else replace(self.choices, rank=rank)
        return replace(self, features=cut, choices=choices)

    def _check_known(self, contrasts: Iterable[str]) -> None:
        if unknown := set(contrasts) - set(self.contrasts):
            first = min(unknown, key=str)
            raise QKPrismError(f"There is no contrast {first!r}. There are: {', '.join(self.contrasts)}.")

    def with_metric(self, metric: str) -> Features:
        """The same contrasts decomposed in another metric."""
        return self._again(replace(self.choices, metric=choice(metric, METRICS, "a metric")))

    def with_center(self, center: Center | Mapping[str, Center]) -> Features:
        """The same contrasts with or without centring: one choice for all, or one for each contrast."""
        if not isinstance(center, Mapping):
            return self._again(replace(self.choices, center=center))
        self._check_known(center)
        again = {chosen: self.with_center(chosen) for chosen in set(center.values())}
        return replace(
            self, features={key: again[center[key[0]]][key] if key[0] in center else f for key, f in self.items()}
        )

    def _again(self, choices: Choices) -> Features:
        return type(self).from_moments(self.layers, choices, self.provenance, encoding=self.encoding)

    def q_values(self) -> dict[tuple[str, Head], float]:
        """Of each feature Benjamini and Hochberg's q, over all heads that its contrast was looked for in."""
        found = {name: q_values(self._p(name)).tolist() for name in self.contrasts}
        left = {name: iter(values) for name, values in found.items()}
        return {(name, head): next(left[name]) for name, head in self.features}

    def count_found(self, level: float = LEVEL) -> dict[str, Count]:
        """For each contrast how many heads have a q up to a level, and how many chance alone would show."""
        return {name: count_found(self._p(name), level) for name in self.contrasts}

    def _p(self, contrast: str) -> Tensor:
        return torch.tensor([f.p for (name, _), f in self.features.items() if name == contrast], dtype=torch.float64)

    def by_evidence(self) -> list[Feature]:
        """The features, the smallest q first; of equal ones the largest t."""
        q = self.q_values()
        return sorted(
            self.values(), key=lambda f: (_last(q[f.contrast, f.head]), -float(f.spectrum.t[0].nan_to_num(-torch.inf)))
        )

    def to_frame(self) -> pd.DataFrame:
        """A row a feature; `q` is over the heads of its contrast.

        `stretch` is by how much its joint projector can lengthen a key: 1 at least, badly conditioned from 10 on.
        """
        import pandas as pd

        joint = {head: self.joint(head).projectors for head in self.heads}
        rows = []
        for (name, head), feature in self.items():
            stretch = stretch_of(joint[head][name]) if joint[head] else math.nan
            rows.append(feature.summary() | {"stretch": stretch})
        frame = pd.DataFrame(rows)
        frame.insert(list(frame.columns).index("p") + 1, "q", list(self.q_values().values()))
        return frame

    def plot(self) -> go.Figure:
        """Held-out ranks of all heads, a panel a contrast."""
        from qkprism.figures.ranks import rank_figure

        return rank_figure(self)

    def __repr__(self) -> str:
        return f"Features({', '.join(self.contrasts)}; {len(self.heads)} heads; {self.choices})"

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html(index=False, max_rows=20, float_format="{:.3g}".format, escape=True))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write a run folder, from which `Features.load` gives the same features."""
        moments: dict[str, Tensor] = {}
        results: dict[str, Tensor] = {}
        for i, name in enumerate(self.contrasts):
            for number, layer in self.layers.items():
                of_layer = [self.features[name, head] for head in layer.heads]
                moments |= pack({f"{i}/{number}": layer.moments[name]})
                results |= {f"{i}/{number}/{key}": t for key, t in _stacked(of_layer).items()}
        manifest = {
            "contrasts": self.contrasts,
            "choices": asdict(self.choices),
            "encoding": asdict(self.encoding),
            "provenance": self.provenance,
            "layers": [_layer_state(number, layer, self.contrasts[0]) for number, layer in self.layers.items()],
            "readings": [next(iter(self.layers.values())).moments[name].reading for name in self.contrasts],
            "features": [_scalars(feature) for feature in self.values()],
        }
        return write_run(folder, KIND, manifest, {"moments": moments, "features": results})

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Features:
        """Read a run folder that `save` wrote; a foreign or damaged one is refused."""
        with torch.inference_mode():  # tensors of results are read only
            manifest, files = read_run(folder, KIND)
        try:
            return _restored(manifest, files["moments"], files["features"])
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise of_another_version(folder, repr(error)) from error


def _last(value: float) -> float:
    """A key for sorting by which what is not known comes last."""
    return math.inf if math.isnan(value) else value


def _names(layers: Mapping[int, LayerMoments]) -> tuple[str, ...]:
    return tuple(next(iter(layers.values())).moments) if layers else ()


def _noted(provenance: Mapping[str, Any], contrast: str) -> tuple[str, ...]:
    return tuple(provenance.get("contrasts", {}).get(contrast, {}).get("notes", ()))


def _layer_state(number: int, layer: LayerMoments, contrast: str) -> dict[str, Any]:
    return {
        "layer": number,
        "heads": [str(head) for head in layer.heads],
        "scaling": layer.scaling,
        "kv_index": layer.moments[contrast].kv_index,
    }


def _stacked(features: list[Feature]) -> dict[str, Tensor]:
    named = {key: [getattr(f, key) for f in features] for key in _TENSORS}
    named |= {f"spectrum.{s.name}": [getattr(f.spectrum, s.name) for f in features] for s in fields(Spectrum)}
    return {key: torch.stack(values) for key, values in named.items()}


def _scalars(feature: Feature) -> dict[str, Any]:
    skipped = {*_TENSORS, "spectrum", "provenance", "head", "choices", "logit_gap"}
    plain = {f.name: getattr(feature, f.name) for f in fields(Feature) if f.name not in skipped}
    gap = asdict(feature.logit_gap) if feature.logit_gap else None
    return plain | {"head": str(feature.head), "choices": asdict(feature.choices), "logit_gap": gap}


def _restored(manifest: Mapping[str, Any], moments: Mapping[str, Tensor], results: Mapping[str, Tensor]) -> Features:
    names, layers = manifest["contrasts"], {}
    tensors: dict[tuple[str, str], dict[str, Tensor]] = {}
    for state in manifest["layers"]:
        number, heads = state["layer"], tuple(map(Head.parse, state["heads"]))
        of_contrast = {}
        for i, name in enumerate(names):
            prefix = f"{i}/{number}/"
            of_contrast[name] = unpack(moments, prefix[:-1], manifest["readings"][i], state["kv_index"])
            of_layer = {key.removeprefix(prefix): t for key, t in results.items() if key.startswith(prefix)}
            tensors |= {(name, str(h)): {key: t[j] for key, t in of_layer.items()} for j, h in enumerate(heads)}
        layers[number] = LayerMoments(heads, state["scaling"], of_contrast)
    provenance = dict(manifest["provenance"])
    if not manifest["features"]:
        raise ValueError("no features")
    found = [_feature(row, tensors[row["contrast"], row["head"]], provenance) for row in manifest["features"]]
    choices, encoding = Choices(**manifest["choices"]), Encoding(**manifest["encoding"])
    return Features({(f.contrast, f.head): f for f in found}, layers, choices, provenance, encoding)


def _feature(row: Mapping[str, Any], tensors: Mapping[str, Tensor], provenance: Mapping[str, Any]) -> Feature:
    scalars = dict(row)
    gap = scalars.pop("logit_gap")
    for name in ("salience_energy", "salience_t", "uncovered"):  # JSON has no NaN
        scalars[name] = float("nan") if scalars[name] is None else scalars[name]
    scalars |= {key: tensors[key] for key in _TENSORS}
    scalars |= {
        "head": Head.parse(scalars["head"]),
        "choices": Choices(**scalars["choices"]),
        "notes": tuple(scalars["notes"]),
        "logit_gap": None if gap is None else Gap(**{k: float("nan") if v is None else v for k, v in gap.items()}),
        "spectrum": Spectrum(**{s.name: tensors[f"spectrum.{s.name}"] for s in fields(Spectrum)}),
    }
    return Feature(**scalars, provenance=provenance)
