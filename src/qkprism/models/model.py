"""`Model`: a Hugging Face model whose attention can be read, and the one way to run it.

Frames: `rope="post"` reads queries and keys as the model rotates them. `rope="relative"` counts positions from each
row's query instead, which leaves every logit as it is (rotations by position only see differences) and takes out of
queries and keys where in the text the query stands. Models without rotation are the same in both.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from qkprism.errors import QKPrismError
from qkprism.heads import Head
from qkprism.models.batches import Forest
from qkprism.models.probe import (
    AttentionLayer,
    accepted,
    distance,
    evaluating,
    input_device,
    probe_text,
    survey,
    tolerance,
    uncached,
)
from qkprism.models.rotation import RotatedSlice, rotated_slices
from qkprism.models.tap import Tap, Visitor
from qkprism.options import FRAMES, Frame, choice

_PROBE_ROWS = torch.tensor([5, 4])
_DIGEST_SAMPLES = 64  # of each weight


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A Hugging Face model and its tokenizer, with the layers whose attention can be read."""

    hf: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    name: str
    revision: str | None
    layers: Mapping[int, AttentionLayer]

    @classmethod
    def wrap(
        cls,
        hf: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        name: str | None = None,
        revision: str | None = None,
        probe: Mapping[str, Tensor] | None = None,
    ) -> Model:
        """Prove on a short batch that the attention of a loaded model can be read, and take down its layers."""
        name = name or hf.config.name_or_path or type(hf).__name__
        revision = revision or getattr(hf.config, "_commit_hash", None)
        return cls(hf, tokenizer, name, revision, survey(hf, probe))

    def __repr__(self) -> str:
        return f"Model({self.in_words().replace(' layers', ' attention layers', 1)})"

    def in_words(self) -> str:
        """The name, the size, and how and where it is loaded."""
        heads = " or ".join(map(str, sorted(set(self.heads_per_layer.values()))))
        size = f"{len(self.layers)} layers x {heads} heads"
        return f"{self.name}: {size}, {str(self.dtype).removeprefix('torch.')} on {self.device}"

    @property
    def device(self) -> torch.device:
        """Where the inputs go; the layers of a model that is spread out may be elsewhere."""
        return input_device(self.hf)

    @property
    def dtype(self) -> torch.dtype:
        return self.hf.dtype

    @property
    def heads_per_layer(self) -> dict[int, int]:
        return {number: layer.n_heads for number, layer in self.layers.items()}

    @property
    def digest(self) -> str:
        """A short fingerprint of the weights, so that features are not used with another model.

        SHA-256 of the names, shapes and a strided sample of all weights. The sample is rounded to bfloat16, so that one
        checkpoint has one digest in whatever dtype it is loaded, and weights that were put away, on the CPU or on disk,
        are read there: wherever it is loaded.
        """
        digest = hashlib.sha256(type(self.hf.config).__name__.encode())
        for name, weight in sorted(self.hf.base_model.named_parameters()):
            digest.update(f"{name}{tuple(weight.shape)}".encode())
            weight = _put_away(self.hf.base_model, name) if weight.is_meta else weight
            if weight is not None:
                weight = weight.full_tensor() if hasattr(weight, "full_tensor") else weight  # split over processes
                flat = weight.detach().reshape(-1)
                sample = flat[:: max(1, flat.numel() // _DIGEST_SAMPLES)].float().to("cpu").to(torch.bfloat16)
                digest.update(sample.view(torch.int16).numpy().tobytes())
        return digest.hexdigest()[:16]

    def kv_head(self, head: Head) -> int:
        """The key head that a query head uses."""
        layer = self.layers[head.layer]
        return head.index // (layer.n_heads // layer.n_kv_heads)

    @property
    def is_causal(self) -> bool:
        return all(layer.causal for layer in self.layers.values())

    @cached_property
    def max_positions(self) -> int | None:
        """The longest text the model is made for, where its config says so."""
        config = self.hf.config.get_text_config()
        longest: int | None = getattr(config, "max_position_embeddings", None)
        # RoBERTa and its kin give the positions up to the padding id to padding.
        if longest is not None and any(hasattr(m, "create_position_ids_from_input_ids") for m in self.hf.modules()):
            return longest - (config.pad_token_id or 0) - 1
        return longest

    @cached_property
    def vocabulary(self) -> int | None:
        """How many tokens have an embedding, where that is known."""
        try:
            embeddings = self.hf.get_input_embeddings()
        except (NotImplementedError, AttributeError):
            return None
        return getattr(embeddings, "num_embeddings", None)

    def tap(self, visit: Visitor, *, layers: Iterable[int] | None = None, stop: bool = False) -> Tap:
        """Show attention calls to `visit` while the `with` block is open, for instance around `hf.generate`.

        With `stop` a forward pass ends inside the last layer asked for. A pass that does not reach a layer named in
        `layers` is an error.
        """
        wanted = self._wanted(layers)
        numbers: dict[str, tuple[int | None, ...]] = {self.layers[number].name: () for number in wanted}
        for number, layer in self.layers.items():
            if layer.name in numbers:
                numbers[layer.name] += (number if number in wanted else None,)
        return Tap(self.hf, visit, layers=numbers, stop_at=wanted[-1] if stop else None, strict=layers is not None)

    def run(
        self,
        input_ids: Int[Tensor, "batch token"] | None = None,
        attention_mask: Int[Tensor, "batch token"]
        | Bool[Tensor, "batch token"]
        | Float[Tensor, "batch 1 token token"]
        | None = None,
        visit: Visitor | None = None,
        *,
        layers: Iterable[int] | None = None,
        position_ids: Int[Tensor, "batch token"] | None = None,
        rope: Frame = "post",
        query_positions: Int[Tensor, " batch"] | None = None,
        logits: bool = False,
        logits_at: Int[Tensor, " position"] | None = None,
        stop: bool = True,
        inputs: Mapping[str, Tensor] | None = None,
    ) -> Float[Tensor, "batch some_token vocabulary"] | None:
        """One forward pass without gradients and cache, its attention shown to `visit`.

        Without `logits` nothing is returned, and with `stop` nothing after the last layer asked for is computed; with
        `logits` those of the vocabulary are returned, with `logits_at` of some tokens only. A mask of four axes is
        added to the attention logits as it is, and goes with `position_ids`. `inputs` are further inputs, such as
        `pixel_values`.
        """
        batch = self._batch(input_ids, attention_mask, inputs or {})
        positions = self._positions(batch, position_ids, rope, query_positions)
        if positions is not None:
            batch["position_ids"] = positions
        with evaluating(self.hf), torch.no_grad():
            runner = self.hf if logits else self.hf.base_model
            at = None if logits_at is None else logits_at.to(self.device)
            fewer = at is not None and "logits_to_keep" in inspect.signature(self.hf.forward).parameters
            if fewer:
                batch["logits_to_keep"] = at
            if visit is None:
                output = runner(**batch)
            else:
                with self.tap(visit, layers=layers, stop=stop and not logits):
                    output = runner(**batch)
        if not logits:
            return None
        return output.logits if fewer or at is None else output.logits[:, at]

    def run_forest(self, forest: Forest, visit: Visitor, *, layers: Iterable[int] | None = None) -> None:
        """One forward pass of texts that share rows; `visit` sees every text as a row of its own."""
        mask = forest.mask(self.dtype)
        unfolded: Visitor = lambda call: visit(forest.unfold(call))  # noqa: E731
        self.run(forest.input_ids, mask, unfolded, layers=layers, position_ids=forest.position_ids)

    def _wanted(self, layers: Iterable[int] | None) -> list[int]:
        """The layers asked for, in the order the model calls them."""
        wanted = set(self.layers if layers is None else layers)
        unknown = sorted(wanted - set(self.layers))
        if unknown or not wanted:
            raise QKPrismError(
                f"{self.name} has no attention layer {', '.join(map(str, unknown)) or 'in an empty list'}. "
                f"Its attention layers are {', '.join(map(str, self.layers))}."
            )
        return [number for number in self.layers if number in wanted]

    def _batch(
        self, input_ids: Tensor | None, attention_mask: Tensor | None, inputs: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        batch = dict(inputs)
        if input_ids is not None:
            batch["input_ids"] = input_ids
            # Always explicit: positions that come without a mask can be mistaken for texts packed into one row.
            batch["attention_mask"] = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return {name: value.to(self.device) for name, value in batch.items()} | uncached(self.hf)

    def _positions(
        self, batch: Mapping[str, Any], position_ids: Tensor | None, rope: str, query_positions: Tensor | None
    ) -> Tensor | None:
        choice(rope, FRAMES, "a frame of positions (rope)")
        mask: Tensor | None = batch.get("attention_mask")
        positions = None if position_ids is None else position_ids.to(self.device)
        if positions is None and mask is not None and not mask[:, 0].all() and self.takes_positions:
            # Most models count padding on the left as text, which rotates every query and key of that row.
            positions = (mask.cumsum(-1) - 1).clamp_min(0)
        if rope == "post" or not self.rotates:
            return positions
        if mask is None or query_positions is None:
            raise QKPrismError('rope="relative" needs text and `query_positions`, the token of the query in each row.')
        self._check_relative(mask.shape[1])
        return _count_from(query_positions, mask, positions)

    @property
    def rotation_varies(self) -> bool:
        """Whether the rotation depends on the length of the text."""
        return _length_of_fixed_rotation(self.hf.config.get_text_config()) is not None

    @cached_property
    def rotates(self) -> bool:
        """Whether queries and keys carry their position as a rotation."""
        return any(name.endswith("inv_freq") for name, _ in self.hf.named_buffers())

    @cached_property
    def rotated_slices(self) -> Mapping[int, RotatedSlice | None]:
        """The dimensions of a head that each layer rotates; None where it rotates none."""
        return rotated_slices(self)

    @cached_property
    def takes_positions(self) -> bool:
        """Whether 0, 1, 2, ... are the positions of a text; RoBERTa starts higher and must be left alone."""
        if "position_ids" not in accepted(self.hf):
            return False
        text = probe_text(self.hf)
        count = torch.arange(text["input_ids"].shape[1], device=self.device).expand_as(text["input_ids"])
        return distance(self._probe_logits(text, count), self._probe_logits(text, None)) <= tolerance(self.dtype)

    @cached_property
    def shares_beginnings(self) -> bool:
        """Whether texts that begin alike can be run as one row, tried on the probe."""
        if not self.is_causal or self.hf.config.is_encoder_decoder or self.rotation_varies:
            return False
        try:
            return self.takes_positions and self._shares_probe()
        except Exception:  # what a model raises on inputs it does not expect has no common type
            return False

    def _shares_probe(self) -> bool:
        first, other = (ids.tolist() for ids in probe_text(self.hf)["input_ids"])
        rows = [[first, first[:3] + other[:4], first[:5] + other[:2]], [other[:5]]]
        texts = [text for row in rows for text in row]
        last, longest = torch.tensor([len(text) - 1 for text in texts]), max(map(len, texts))
        padded = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
        mask = (torch.arange(longest) <= last[:, None]).long()
        apart = _layer_logits(lambda keep: self.run(padded, mask, keep), last)
        together = _layer_logits(lambda keep: self.run_forest(Forest.of(rows), keep), last)
        # Layer by layer, less what the keys of a row have in common: it may be large, and attention does not see it.
        pairs = [(_centred(ours), _centred(theirs)) for ours, theirs in zip(together, apart, strict=True)]
        return all(
            ours.shape == theirs.shape and distance(ours, theirs) <= tolerance(self.dtype) for ours, theirs in pairs
        )

    @cached_property
    def horizon(self) -> int | None:
        """The longest row whose last token sees all others in every layer; None if there is no limit."""
        config = self.hf.config.get_text_config()
        limits = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size", "index_topk")]
        limits += [layer.window for layer in self.layers.values()]
        return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=None)

    def _check_relative(self, tokens: int) -> None:
        if "position_ids" not in accepted(self.hf):
            raise QKPrismError(f'{self.name} rotates keys by positions that cannot be set. Use rope="post".')
        trained = _length_of_fixed_rotation(self.hf.config.get_text_config())
        if trained is not None and tokens > trained:
            raise QKPrismError(
                f"{self.name} changes its rotation beyond {trained} tokens, and the longest text here has {tokens}. "
                'Use rope="post", or shorter texts.'
            )
        if not self._is_relative:
            raise QKPrismError(f'The logits of {self.name} depend on more than distances. Use rope="post".')

    @cached_property
    def _is_relative(self) -> bool:
        """Whether logits stay as they are when positions are counted from the query, tried on the probe."""
        text = probe_text(self.hf)
        relative = _count_from(_PROBE_ROWS, text["attention_mask"], None)
        try:
            return distance(self._probe_logits(text, relative), self._probe_logits(text, None)) <= tolerance(self.dtype)
        except (IndexError, RuntimeError):  # a table of positions has no negative ones; NaN is left out of the logits
            return False

    def _probe_logits(self, text: Mapping[str, Tensor], positions: Tensor | None) -> Tensor:
        """The attention logits of one query of each probe text, all layers and heads in a row."""
        batch = dict(text) | uncached(self.hf) | ({} if positions is None else {"position_ids": positions})

        def run(keep: Visitor) -> None:
            with evaluating(self.hf), torch.no_grad(), self.tap(keep):
                self.hf.base_model(**batch)

        return torch.cat([logits[logits.isfinite()] for logits in _layer_logits(run, _PROBE_ROWS)])


def _layer_logits(run: Callable[[Visitor], object], rows: Tensor) -> list[Tensor]:
    """The attention logits of one token of each text that a pass shows, layer by layer."""
    found: list[Tensor] = []
    run(lambda call: found.append(call.logits(rows=rows).cpu()))
    return found


def _centred(logits: Tensor) -> Tensor:
    """The finite logits, each less the mean over the keys of its row."""
    seen = logits.isfinite()
    finite = logits.masked_fill(~seen, 0.0)
    return (finite - finite.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True))[seen]


def _count_from(query_positions: Tensor, mask: Tensor, positions: Tensor | None) -> Tensor:
    """Positions (0, 1, 2, ... unless given) counted from the query of each row."""
    if positions is None:
        positions = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    return positions - positions.gather(1, query_positions.to(mask.device)[:, None])


def _length_of_fixed_rotation(config: Any) -> int | None:
    """The length beyond which the frequencies of the rotation depend on the text; None if they never do."""
    rope = getattr(config, "rope_parameters", None) or {}
    settings = [rope, *(value for value in rope.values() if isinstance(value, Mapping))]
    lengths = [
        setting.get("original_max_position_embeddings") or config.max_position_embeddings
        for setting in settings
        if any(kind in str(setting.get("rope_type")) for kind in ("dynamic", "longrope"))
    ]
    return min(lengths, default=None)


def _put_away(model: nn.Module, name: str) -> Tensor | None:
    """A weight that accelerate holds elsewhere until its module runs; None if it is nowhere."""
    owner, _, leaf = name.rpartition(".")
    hook = getattr(model.get_submodule(owner), "_hf_hook", None)
    for one in (hook, *getattr(hook, "hooks", ())):
        held = getattr(one, "weights_map", None)
        if held is not None:
            return held[leaf]
    return None
