"""The payload retrieval task (paper, section 2): attend to the token that the selector names, and tell its payload.

    x_i = A1 z1_i + A2 z2_i + Ay e(y_i) + sigma eps_i        T payload embeddings
    x_q = B1 z1_i* + B2 z2_i* + sigma eps_q                  the selector, which names token i*

Latents are sign vectors (discrete) or standard Gaussian vectors (continuous). The preset `paper` takes the text at
its word: entries of all maps and of the noise are standard Gaussian. `calibrated` has entries of variance 1/r in the
maps of a latent of rank r and 1/d in the payload map, and noise 0.01: the accuracies that the paper reports are out
of reach in the noise of `paper`. Each of these scales can be given instead.

    Task("discrete", 3, 4, noise=0.1)
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qkprism.errors import QKPrismError

Variant = Literal["discrete", "continuous"]
NoisePreset = Literal["paper", "calibrated"]
NOISE: dict[NoisePreset, float] = {"paper": 1.0, "calibrated": 0.01}
DEFAULT: NoisePreset = "calibrated"
SCALES = ("noise", "latent_scale", "payload_scale")


def stream(*key: int | str) -> torch.Generator:
    """Random numbers of their own for each key."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))


@dataclass(frozen=True, repr=False)
class ToyTask:
    """One setting of the task: variant and ranks of the latents, and the sizes that the paper keeps fixed.

    `noise`, `latent_scale` and `payload_scale` are standard deviations: of the noise, and of the entries of the maps
    of latents and of payloads. None is what the preset says.
    """

    variant: Variant
    r1: int
    r2: int
    preset: NoisePreset = DEFAULT
    tokens: int = 16
    payloads: int = 10
    width: int = 32
    noise: float | None = None
    latent_scale: float | None = None
    payload_scale: float | None = None

    def __post_init__(self) -> None:
        for name, allowed in (("variant", get_args(Variant)), ("preset", get_args(NoisePreset))):
            if getattr(self, name) not in allowed:
                raise QKPrismError(f"{name}={getattr(self, name)!r} is not known. Use {' or '.join(allowed)}.")
        if min(self.r1, self.r2, self.width) < 1 or self.tokens < 2 or self.payloads < 2:
            raise QKPrismError(f"{self} is not a task: ranks and width start at 1, tokens and payloads at 2.")
        for name, value in self.given.items():
            if not (math.isfinite(value) and (value > 0 or (name == "noise" and value == 0))):
                raise QKPrismError(f"{name}={value} is not a scale. Use a number above 0, or None for the preset's.")

    def __repr__(self) -> str:
        """Scales of the preset are left out: random streams are keyed by this text."""
        names = [one.name for one in fields(self) if one.name not in SCALES or one.name in self.given]
        return f"Task({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    @property
    def ranks(self) -> tuple[int, int]:
        return self.r1, self.r2

    @property
    def given(self) -> dict[str, float]:
        """The scales that are not the preset's."""
        return {name: getattr(self, name) for name in SCALES if getattr(self, name) is not None}

    @property
    def setting(self) -> str:
        """The preset and what was given instead of its scales; nothing by default."""
        changed = [f"{name}={value:g}" for name, value in self.given.items()]
        return " ".join([self.preset, *changed] if changed or self.preset != DEFAULT else [])

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise."""
        return NOISE[self.preset] if self.noise is None else self.noise

    def latent_deviation(self, rank: int) -> float:
        """The standard deviation of the entries of the map of a latent of this rank."""
        return self._deviation(self.latent_scale, 1 / rank)

    @property
    def payload_deviation(self) -> float:
        """The standard deviation of the entries of the payload map."""
        return self._deviation(self.payload_scale, 1 / self.width)

    def _deviation(self, scale: float | None, calibrated: float) -> float:
        return scale if scale is not None else 1.0 if self.preset == "paper" else calibrated**0.5


@dataclass(frozen=True)
class Maps:
    """The embedding maps of one task, drawn once and stored with the head that was trained on them."""

    key_1: Float[Tensor, "width r1"]
    key_2: Float[Tensor, "width r2"]
    payload: Float[Tensor, "width payload"]
    query_1: Float[Tensor, "width r1"]
    query_2: Float[Tensor, "width r2"]
    noise: float

    @classmethod
    def draw(cls, task: ToyTask, seed: int) -> Maps:
        """The maps of a task and a seed."""
        random = stream("maps", repr(task), seed)

        def gaussian(columns: int, deviation: float) -> Tensor:
            return deviation * torch.randn(task.width, columns, generator=random)

        key_1, key_2 = (gaussian(r, task.latent_deviation(r)) for r in task.ranks)
        payload = gaussian(task.payloads, task.payload_deviation)
        query_1, query_2 = (gaussian(r, task.latent_deviation(r)) for r in task.ranks)
        return cls(key_1, key_2, payload, query_1, query_2, task.sigma)

    @property
    def key(self) -> Float[Tensor, "width latent"]:
        """A = [A1 A2]."""
        return torch.cat([self.key_1, self.key_2], 1)

    @property
    def query(self) -> Float[Tensor, "width latent"]:
        """B = [B1 B2]."""
        return torch.cat([self.query_1, self.query_2], 1)


@dataclass(frozen=True)
class Samples:
    """Samples of the task: all that their embeddings are made of, so that one thing in them can be changed.

    The selector has the latents of token `original`; `target` is another token, to which an edit may move attention.
    """

    z1: Float[Tensor, "sample token r1"]
    z2: Float[Tensor, "sample token r2"]
    payload: Int[Tensor, "sample token"]
    noise: Float[Tensor, "sample token width"]
    query_z1: Float[Tensor, "sample r1"]
    query_z2: Float[Tensor, "sample r2"]
    query_noise: Float[Tensor, "sample width"]
    original: Int[Tensor, " sample"]
    target: Int[Tensor, " sample"]

    @property
    def answer(self) -> Int[Tensor, " sample"]:
        """The payload of the token that the selector names."""
        return self.payload.gather(1, self.original[:, None])[:, 0]


def embed_payloads(maps: Maps, samples: Samples) -> Float[Tensor, "sample token width"]:
    """x_i of every token."""
    named = samples.z1 @ maps.key_1.mT + samples.z2 @ maps.key_2.mT
    return named + maps.payload.mT[samples.payload] + maps.noise * samples.noise


def embed_selector(maps: Maps, samples: Samples) -> Float[Tensor, "sample width"]:
    """x_q."""
    named = samples.query_z1 @ maps.query_1.mT + samples.query_z2 @ maps.query_2.mT
    return named + maps.noise * samples.query_noise
