"""The proof at load: a short batch shows which layers can be read, and that what is read is what the model uses.

Three things must hold on the probe. The model calls the attention interface; softmax(scaling q.k ...) V, rebuilt from
what was captured, equals what its attention function returned; and the tapped model computes what the untapped one
does. A model that fails is refused in one sentence, before anything is measured on it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from qkprism.errors import QKPrismError
from qkprism.models.calls import AttentionCall
from qkprism.models.tap import Tap, share

_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True)
class AttentionLayer:
    """One attention layer: the module that computes it and the shape of its heads."""

    name: str
    n_heads: int
    n_kv_heads: int
    d_head: int
    scaling: float
    softcap: float | None
    causal: bool
    window: int | None
    """A key is seen from fewer than this many tokens away; None where there is no such limit."""


def survey(hf: PreTrainedModel, probe: Mapping[str, Tensor] | None = None) -> dict[int, AttentionLayer]:
    """The attention layers of a model in the order it calls them, each proved readable."""
    if not hf._can_set_attn_implementation():
        raise QKPrismError(_bypass(hf))
    found: list[tuple[int | None, AttentionLayer]] = []

    def prove(call: AttentionCall, output: Tensor) -> None:
        _prove(hf, call, output)
        found.append((getattr(call.module, "layer_idx", None), _layer(call)))

    with evaluating(hf), torch.no_grad():
        inputs, plain = _first_that_runs(hf, probe_inputs(hf) if probe is None else [probe])
        with _submodels(hf) as ran, Tap(hf, lambda _: None, visit_output=prove):
            tapped = _first_tensor(hf.base_model(**inputs))
    for submodel in ran:
        if not submodel._can_set_attn_implementation():
            raise QKPrismError(_bypass(submodel))
    if distance(tapped, plain) > tolerance(hf.dtype):
        raise QKPrismError(
            f"{type(hf).__name__} computes something else while its attention is read, so what is read is not what it "
            "uses; it is not supported."
        )
    return _numbered(found)


def _numbered(found: Sequence[tuple[int | None, AttentionLayer]]) -> dict[int, AttentionLayer]:
    """By the model's own layer index, so that hybrid models keep their numbering; else by the order of the calls."""
    numbered = {index: layer for index, layer in found if index is not None}
    return numbered if len(numbered) == len(found) else {index: layer for index, (_, layer) in enumerate(found)}


def _layer(call: AttentionCall) -> AttentionLayer:
    return AttentionLayer(
        name=call.name,
        n_heads=call.n_heads,
        n_kv_heads=call.n_kv_heads,
        d_head=call.query.shape[-1],
        scaling=float(call.scaling),
        softcap=call.softcap,
        causal=_hides_the_future(call),
        window=call.window,
    )


def _hides_the_future(call: AttentionCall) -> bool:
    logits = call.logits(heads=[0])[0, 0]
    future = torch.ones_like(logits, dtype=torch.bool).triu(1)
    return logits.shape[0] == logits.shape[1] > 1 and bool(logits[future].isneginf().all())


def _prove(hf: PreTrainedModel, call: AttentionCall, output: Tensor) -> None:
    if not output.isfinite().all():
        raise QKPrismError(
            f"{type(hf).__name__} computes NaN or infinity in {call.name} ({output.dtype}): its weights are damaged or "
            "too large for this dtype. Check the files, or load it in float32."
        )
    if call.is_causal and not call.cache.crosses and call.key.shape[2] != call.query.shape[2]:
        raise QKPrismError(
            f"{type(hf).__name__} has {call.key.shape[2]} keys for {call.query.shape[2]} tokens in {call.name}: keys "
            "that stand for several tokens have no place in the text; it is not supported."
        )
    attention = call.attention()
    value = call.value.to(attention.dtype).repeat_interleave(call.n_heads // call.n_kv_heads, dim=1)
    rebuilt = (attention @ value).transpose(1, 2)
    # Rows that may see no key (padding) are arbitrary: eager functions average there, others give zero.
    sees = (attention.sum(-1) > 0).transpose(1, 2).unsqueeze(-1)
    if output.shape != rebuilt.shape or distance(rebuilt * sees, output * sees) > tolerance(output.dtype):
        raise QKPrismError(
            f"{type(hf).__name__} does more in {call.name} than softmax attention over the queries and keys it shows, "
            "so its logits cannot be rebuilt; it is not supported."
        )


def distance(rebuilt: Tensor, expected: Tensor) -> float:
    """The norm of the difference, relative to what is expected."""
    rebuilt, expected = rebuilt.cpu().double(), expected.cpu().double()  # not every device has float64
    return float((rebuilt - expected).norm() / expected.norm().clamp_min(1e-12))


def tolerance(dtype: torch.dtype) -> float:
    """How far two computations of the same thing may be apart; wrong ones (no mask, no cap) are off by tens of percent.

    Not tighter in float32, because matrix products on GPUs may use TF32.
    """
    return _TOLERANCE.get(dtype, 1e-3)


def _bypass(model: PreTrainedModel) -> str:
    return (
        f"{type(model).__name__} ({model.config.model_type}) computes its attention outside the attention interface of "
        "transformers, so its queries and keys cannot be read. Choose another architecture, such as Llama or Qwen."
    )


@contextmanager
def evaluating(hf: PreTrainedModel) -> Iterator[None]:
    """Dropout and the like off; every module's own training flag comes back when the last thread is done."""
    release = share((id(hf), "evaluating"), partial(_stop_training, hf))
    try:
        yield
    finally:
        release()


def _stop_training(hf: PreTrainedModel) -> Callable[[], None]:
    """Set the training flags and return what sets them back."""
    training = [module for module in hf.modules() if module.training]

    def mark(flag: bool) -> None:
        for module in training:
            module.training = flag

    mark(False)
    return partial(mark, True)


@contextmanager
def _submodels(hf: PreTrainedModel) -> Iterator[list[PreTrainedModel]]:
    """Collects the submodels that run while the block is open."""
    ran: list[PreTrainedModel] = []
    note: Callable[..., None] = lambda module, *_: ran.append(module)  # noqa: E731
    hooks = [module.register_forward_hook(note) for module in hf.modules() if isinstance(module, PreTrainedModel)]
    try:
        yield ran
    finally:
        for hook in hooks:
            hook.remove()


def accepted(hf: PreTrainedModel) -> Mapping[str, Any]:
    """The named arguments that the forward of the base model takes."""
    return inspect.signature(type(hf.base_model).forward).parameters


def uncached(hf: PreTrainedModel) -> dict[str, Any]:
    """Key columns are token positions only without a cache."""
    return {"use_cache": False} if "use_cache" in accepted(hf) else {}


def probe_inputs(hf: PreTrainedModel) -> list[dict[str, Tensor]]:
    """Small batches to try in turn: text, text and image, or image."""
    takes = accepted(hf)
    texts = [probe_text(hf)] if "input_ids" in takes else []
    if "pixel_values" not in takes:
        return texts
    image = {"pixel_values": _probe_image(hf)}
    return [*texts, *(text | image for text in texts)] or [image]


def probe_text(hf: PreTrainedModel) -> dict[str, Tensor]:
    """Two rows of eight and five tokens, padded on the right."""
    config = hf.config.get_text_config()
    pad = getattr(config, "pad_token_id", None)
    ids = 3 + (torch.arange(16) * 7 + 2).remainder(max(config.vocab_size - 3, 1)).view(2, 8)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    text = {"input_ids": ids.masked_fill(mask == 0, pad if isinstance(pad, int) else 0), "attention_mask": mask}
    if "decoder_input_ids" in accepted(hf):
        text["decoder_input_ids"] = ids[:, :6]
    return {name: tensor.to(input_device(hf)) for name, tensor in text.items()}


def _probe_image(hf: PreTrainedModel) -> Tensor:
    config = getattr(hf.config, "vision_config", hf.config)
    size = getattr(config, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    shape = (2, getattr(config, "num_channels", 3), height, width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(input_device(hf), hf.dtype)


def _first_that_runs(hf: PreTrainedModel, candidates: Sequence[Mapping[str, Tensor]]) -> tuple[dict[str, Any], Tensor]:
    reason: Exception | str = "it takes neither input_ids nor pixel_values"
    for candidate in candidates:
        inputs = dict(candidate) | uncached(hf)
        try:
            return inputs, _first_tensor(hf.base_model(**inputs))
        except Exception as error:  # what a model raises on inputs it does not expect has no common type
            reason = error
    raise QKPrismError(
        f"No probe batch runs on {type(hf).__name__}: {' '.join(str(reason).split())}. "
        "Pass a small batch of its inputs as `probe`."
    ) from (reason if isinstance(reason, Exception) else None)


def _first_tensor(output: Any) -> Tensor:
    values = output.values() if isinstance(output, Mapping) else output
    return next(value for value in values if isinstance(value, Tensor))


def input_device(hf: PreTrainedModel) -> torch.device:
    """Where the inputs go: the device of the input embeddings, also when the model is spread over several."""
    try:
        embeddings = hf.get_input_embeddings()
    except NotImplementedError:
        embeddings = hf
    device: torch.device = next(embeddings.parameters()).device
    # Offloaded weights stay on the meta device until their module runs; its hook knows where that will be.
    return torch.device(embeddings._hf_hook.execution_device) if device.type == "meta" else device
