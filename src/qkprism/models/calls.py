"""One attention call as the tap sees it: queries, keys, mask, and the logits and attention that follow from them.

    logits    = softcap(scaling * q.k) + position bias, -inf where the mask forbids
    attention = softmax(logits), with the sink of the head, where there is one, as one more logit

The formula is rebuilt here from what is passed to the attention function, so it holds for every implementation
(sdpa, eager, flash) whatever the form of its mask; `models/probe.py` checks it against the model's own output.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qkprism.errors import QKPrismError

RowChoice = Int[Tensor, " batch"] | slice | None
"""Which query rows: one index per batch element, a slice, or None for all."""


@dataclass(frozen=True)
class CacheState:
    """Where a call stands in the text: how many tokens came before it, and whether its keys are of another text."""

    query_offset: int | Tensor = 0
    crosses: bool = False

    @classmethod
    def read(cls, module: nn.Module, arguments: Mapping[str, Any]) -> CacheState:
        """Read the cache that an attention module is about to extend, from its named arguments."""
        crosses = arguments.get("key_value_states", arguments.get("encoder_hidden_states")) is not None
        cache, layer = arguments.get("past_key_values"), getattr(module, "layer_idx", None)
        if cache is None or layer is None:
            return cls(0, crosses)
        shares = getattr(module, "is_kv_shared_layer", False)
        # transformers before 5.14 has the length only; some later caches for drafting tokens are ahead of it.
        count = getattr(cache, "get_query_offset", cache.get_seq_length)
        offset = count(0 if shares else layer)
        if crosses or shares:
            # The keys are not this module's own, and the module whose cache is read has counted this pass already.
            return cls(offset - arguments["hidden_states"].shape[1], crosses)
        # A static cache counts in a tensor and changes it in place.
        return cls(offset.clone() if isinstance(offset, Tensor) else offset)


def named_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What a module is called with, by the names of its arguments."""
    return dict(zip(_argument_names(type(module).forward), args, strict=False)) | dict(kwargs)


@functools.cache
def _argument_names(forward: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(forward).parameters)[1:]


@dataclass(frozen=True)
class HeadEdit:
    """Queries or keys that one query head uses instead of its own, in some of its rows."""

    head: int
    query: Float[Tensor, "batch token d_head"] | None
    key: Float[Tensor, "batch key_token d_head"] | None
    rows: RowChoice


@dataclass
class AttentionCall:
    """One call of the attention function.

    Assign `query` or `key` to edit them for all heads that use them (assign a new tensor: under a cache the old one is
    the cache's own memory), or call `edit_head` for one head alone.
    """

    module: nn.Module
    implementation: str
    query: Float[Tensor, "batch head token d_head"]
    key: Float[Tensor, "batch kv_head key_token d_head"]
    value: Float[Tensor, "batch kv_head key_token d_value"]
    mask: Any
    scaling: float | Tensor
    softcap: float | None = None
    sinks: Float[Tensor, " head"] | None = None
    position_bias: Float[Tensor, "_ _ token key_token"] | None = None
    window: int | None = None
    is_causal: bool = False
    layer: int = -1
    name: str = ""
    cache: CacheState = CacheState()
    angles: tuple[Tensor, Tensor] | None = None  # cos and sin that the module is handed to rotate by
    head_edits: list[HeadEdit] = field(default_factory=list)

    @classmethod
    def read(
        cls,
        implementation: str,
        module: nn.Module,
        tensors: tuple[Tensor, Tensor, Tensor],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> AttentionCall:
        """Read the arguments of an attention function."""
        query, key, value = tensors
        scaling, causal = kwargs.get("scaling"), kwargs.get("is_causal")
        return cls(
            module=module,
            implementation=implementation,
            query=query,
            key=key,
            value=value,
            mask=args[0] if args else kwargs.get("attention_mask"),
            scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
            softcap=kwargs.get("softcap"),
            sinks=kwargs.get("s_aux"),
            position_bias=kwargs.get("position_bias"),
            window=kwargs.get("sliding_window"),
            is_causal=bool(getattr(module, "is_causal", True) if causal is None else causal),
        )

    @property
    def n_heads(self) -> int:
        return self.query.shape[1]

    @property
    def n_kv_heads(self) -> int:
        return self.key.shape[1]

    def kv_head(self, head: int) -> int:
        """The key head that a query head uses."""
        return head // (self.n_heads // self.n_kv_heads)

    @property
    def query_positions(self) -> Int[Tensor, " token"]:
        """The token of each query row, counted from the start of the text with its padding."""
        return torch.arange(self.query.shape[2], device=self.query.device) + self.cache.query_offset

    @property
    def key_positions(self) -> Int[Tensor, " key_token"]:
        """The token of each key column.

        A cache that keeps a window drops the oldest tokens, so its last column is the last query; the empty columns at
        the end of a static cache come out as tokens after every query, which no mask lets through.
        """
        columns = torch.arange(self.key.shape[2], device=self.key.device)
        if self.cache.crosses:
            return columns
        dropped = self.cache.query_offset + self.query.shape[2] - self.key.shape[2]
        return columns + (dropped.clamp_min(0) if isinstance(dropped, Tensor) else max(dropped, 0))

    def pick(self, texts: Sequence[int], tokens: int) -> AttentionCall:
        """The call of some texts of the batch alone, and of their first tokens. It is to be read, not edited."""
        query, key, value = (x[list(texts), :, :tokens] for x in (self.query, self.key, self.value))
        mask, bias = (_pick_texts(x, texts, tokens) for x in (self.mask, self.position_bias))
        read = {"query": query, "key": key, "value": value, "mask": mask, "position_bias": bias, "angles": None}
        return replace(self, **read, head_edits=[])

    def logits(
        self, heads: Sequence[int] | None = None, rows: RowChoice = None
    ) -> Float[Tensor, "batch some_head row key_token"]:
        """The attention logits of some heads (all) in some rows (all), -inf where a key may not be seen."""
        return self.finish(self.products(heads, rows), heads, rows)

    def products(
        self, heads: Sequence[int] | None = None, rows: RowChoice = None
    ) -> Float[Tensor, "batch some_head row key_token"]:
        """scaling * q.k, before cap, bias and mask."""
        query, key = _pick_rows(self.query, rows), self.key
        if heads is not None:
            query, key = query[:, list(heads)], key[:, [self.kv_head(head) for head in heads]]
        return _product(query, key) * self.scaling

    def attention(
        self, heads: Sequence[int] | None = None, rows: RowChoice = None
    ) -> Float[Tensor, "batch some_head row key_token"]:
        """The attention weights; they add up to less than 1 beside a sink, and to 0 where no key may be seen."""
        return self.softmax(self.logits(heads, rows), heads)

    def edit_head(
        self,
        head: int,
        *,
        query: Float[Tensor, "batch token d_head"] | None = None,
        key: Float[Tensor, "batch key_token d_head"] | None = None,
        rows: RowChoice = None,
    ) -> None:
        """Let one query head use other queries or keys (its own copy of them), in some rows only.

        Under grouped-query attention a key head is shared, so the model's own attention runs as ever and this head's
        rows of the output are computed again; everything else stays as it is, to the bit.
        """
        if not 0 <= head < self.n_heads:
            raise QKPrismError(f"{self.name} has no head {head}. Its heads run from 0 to {self.n_heads - 1}.")
        for new, current in ((query, self.query[:, 0]), (key, self.key[:, 0])):
            if new is not None and new.shape != current.shape:
                raise QKPrismError(
                    f"An edit of one head of {self.name} needs shape {tuple(current.shape)} (batch, token, d_head), "
                    f"not {tuple(new.shape)}."
                )
        self.head_edits.append(HeadEdit(head, query, key, rows))

    def settle_edits(self, originals: tuple[Tensor, Tensor, Tensor]) -> None:
        """Refuse assigned tensors of another shape, and bring the others to the model's dtype and device."""
        for name, original in zip(("query", "key", "value"), originals, strict=True):
            edited = getattr(self, name)
            if edited.shape != original.shape:
                raise QKPrismError(
                    f"The {name} assigned in {self.name} has shape {tuple(edited.shape)}; it must stay "
                    f"{tuple(original.shape)}."
                )
            setattr(self, name, edited.to(original))

    def apply_head_edits(self, output: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Put the rows of edited heads into what the attention function returned."""
        if not self.head_edits:
            return output, weights
        output = output.clone()
        weights = None if weights is None else weights.clone()
        for edit in self.head_edits:
            attention = self._edited_attention(edit)
            value = self.value[:, self.kv_head(edit.head)].to(attention.dtype)
            _put_rows(output[:, :, edit.head], edit.rows, attention @ value)
            if weights is not None:
                _put_rows(weights[:, edit.head], edit.rows, attention)
        return output, weights

    def _edited_attention(self, edit: HeadEdit) -> Float[Tensor, "batch row key_token"]:
        query = self.query[:, edit.head] if edit.query is None else edit.query.to(self.query)
        key = self.key[:, self.kv_head(edit.head)] if edit.key is None else edit.key.to(self.key)
        product = _product(_pick_rows(query[:, None], edit.rows), key[:, None])
        return self.softmax(self.finish(product * self.scaling, [edit.head], edit.rows), [edit.head])[:, 0]

    def finish(self, product: Tensor, heads: Sequence[int] | None = None, rows: RowChoice = None) -> Tensor:
        """From products to logits: cap, position bias and mask."""
        logits = product
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        if self.position_bias is not None:
            logits = logits + _pick_rows(_pick_heads(self.position_bias, heads), rows)
        mask = self._mask(heads, rows)
        if mask is None:
            return logits
        if mask.dtype == torch.bool:
            return logits.masked_fill(~mask, -torch.inf)
        # An additive mask forbids with the lowest number of its dtype, sometimes with a bias on top.
        return (logits + mask).masked_fill(mask <= torch.finfo(mask.dtype).min / 2, -torch.inf)

    def _mask(self, heads: Sequence[int] | None, rows: RowChoice) -> Tensor | None:
        """What each row may see: the mask as passed, a padding mask with a rule, or the rule alone."""
        if self.mask is None:
            return self._rule(rows)
        if not isinstance(self.mask, Tensor) or self.mask.ndim not in (2, 4):
            raise QKPrismError(
                f"The mask that the {self.implementation} attention of {self.name} uses cannot be read. "
                'Load the model with attn_implementation="sdpa".'
            )
        if self.mask.ndim == 4:
            return _pick_rows(_pick_heads(self.mask, heads), rows)[..., : self.key.shape[2]]
        padding, rule = self.mask[:, None, None, -self.key.shape[2] :].bool(), self._rule(rows)
        return padding if rule is None else padding & rule

    def _rule(self, rows: RowChoice) -> Bool[Tensor, "batch 1 row key_token"] | None:
        """The pattern that an attention function applies by itself when it is given no full mask."""
        # Eager functions apply none: without a mask every key is seen, whatever `is_causal` says. sdpa knows no window.
        window = None if self.implementation == "sdpa" else self.window
        if self.implementation == "eager" or not (self.is_causal or window):
            return None
        query = self.query_positions.view(1, 1, -1, 1).expand(self.query.shape[0], 1, -1, 1)
        distance = _pick_rows(query, rows) - self.key_positions
        seen = distance >= 0 if self.is_causal else torch.ones_like(distance, dtype=torch.bool)
        return seen & (distance.abs() < window) if window else seen

    def softmax(self, logits: Tensor, heads: Sequence[int] | None = None) -> Tensor:
        """Attention from final logits, with the sink of each head where there is one."""
        if self.sinks is None:
            blind = logits.amax(-1, keepdim=True) == -torch.inf
            return torch.softmax(logits, -1).masked_fill(blind, 0.0)
        sinks = self.sinks if heads is None else self.sinks[list(heads)]
        column = sinks.to(logits).view(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
        return torch.softmax(torch.cat([logits, column], -1), -1)[..., :-1]


def _product(query: Tensor, key: Tensor) -> Tensor:
    """q.k in float32 at least, for query heads in groups that share a key head, without a copy of the keys."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    batch, heads, rows, width = query.shape
    groups = query.to(dtype).reshape(batch, key.shape[1], -1, width)
    return (groups @ key.to(dtype).transpose(-1, -2)).view(batch, heads, rows, -1)


def _pick_texts(mask: Any, texts: Sequence[int], tokens: int) -> Any:
    """Rows of what has one for each text, for texts of so many tokens; what is no tensor stays as it is."""
    if not isinstance(mask, Tensor):
        return mask
    mask = mask if len(mask) == 1 else mask[list(texts)]
    return mask[..., :tokens] if mask.ndim == 2 else mask[..., :tokens, :tokens]


def _pick_heads(tensor: Tensor, heads: Sequence[int] | None) -> Tensor:
    return tensor if heads is None or tensor.shape[1] == 1 else tensor[:, list(heads)]


def _pick_rows(tensor: Tensor, rows: RowChoice) -> Tensor:
    """Rows along the third axis; one index per batch element leaves an axis of length 1."""
    if not isinstance(rows, Tensor):
        return tensor if rows is None else tensor[:, :, rows]
    rows = rows.to(tensor.device)
    each = torch.arange(len(rows), device=tensor.device)
    return tensor.expand(len(rows), -1, -1, -1)[each, :, rows].unsqueeze(2)


def _put_rows(tensor: Tensor, rows: RowChoice, new: Tensor) -> None:
    """Write rows along the second axis, in place."""
    if isinstance(rows, Tensor):
        rows = rows.to(tensor.device)
        tensor[torch.arange(len(rows), device=tensor.device), rows] = new[:, 0].to(tensor.dtype)
    else:
        tensor[:, slice(None) if rows is None else rows] = new.to(tensor.dtype)
