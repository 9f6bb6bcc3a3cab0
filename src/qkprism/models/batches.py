"""Batches: encoded texts of similar length, padded, with the places of their queries and keys as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from qkprism.errors import QKPrismError
from qkprism.models.encoding import EncodedExample


@dataclass(frozen=True)
class Batch:
    """Texts padded to one length, with the places of their queries and keys as tensors.

    `key[key_row, :, key_column]` gathers the marked keys, and `positive_mean @ keys` averages those of each row:

        d = (batch.positive_mean - batch.negative_mean) @ keys               # without a twin
    """

    examples: tuple[EncodedExample, ...]
    rows: tuple[tuple[int, int], ...]  # (place in `examples`, 0 for the text, 1 for the twin or the next)
    input_ids: Int64[Tensor, "row token"]
    attention_mask: Int64[Tensor, "row token"]
    query: Int64[Tensor, " row"]  # columns of `input_ids`, whatever the padding side
    weight: Float[Tensor, " row"]
    key_row: Int64[Tensor, " key"]
    key_column: Int64[Tensor, " key"]
    key_positive: Bool[Tensor, " key"]
    positive_mean: Float[Tensor, "row key"]
    negative_mean: Float[Tensor, "row key"]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its tensors on a device."""
        values: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        values |= {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
        return Batch(**values)


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id to pad with: masked, so any will do when the tokenizer names none."""
    return 0 if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)


def bucket(
    encoded: Iterable[EncodedExample],
    *,
    batch_size: int | None = None,
    token_budget: int | None = None,
    in_rows: bool = False,
) -> list[list[EncodedExample]]:
    """Group examples of similar length, longest first; a text and its twin stay together.

    `batch_size` bounds the texts of a batch and `token_budget` its rows times its longest row; a batch has at least
    one example even if that alone exceeds them. Every text is a row, or with `in_rows` every example (`Forest`).
    """
    for name, bound in (("batch_size", batch_size), ("token_budget", token_budget)):
        if bound is not None and bound < 1:
            raise QKPrismError(f"{name}={bound} is too small; give at least 1.")
    sized = [(example.tree_size if in_rows else example.length, example) for example in encoded]
    batches: list[list[EncodedExample]] = []
    texts = rows = longest = 0
    for size, example in sorted(sized, key=lambda pair: (-pair[0], pair[1].index)):
        texts += len(example.texts)
        rows += 1 if in_rows else len(example.texts)
        full = (batch_size and texts > batch_size) or (token_budget and rows * longest > token_budget)
        if full or not batches:
            batches.append([])
            texts, longest = len(example.texts), size
            rows = 1 if in_rows else texts
        batches[-1].append(example)
    return batches


def collate(
    examples: Sequence[EncodedExample], pad_id: int = 0, padding_side: Literal["right", "left"] = "right"
) -> Batch:
    """Pad examples to one batch; to halve a batch, collate each half."""
    rows = [(place, which) for place, example in enumerate(examples) for which in range(len(example.texts))]
    texts = [text for example in examples for text in example.texts]
    width = max(len(text.ids) for text in texts)
    shifts = [width - len(text.ids) if padding_side == "left" else 0 for text in texts]
    shifted = list(zip(texts, shifts, strict=True))
    mask = torch.tensor([_padded([1] * len(text.ids), width, shift, 0) for text, shift in shifted])
    keys = [(row, shift + key.position, key.positive) for row, (text, shift) in enumerate(shifted) for key in text.keys]
    key_row, key_column, key_positive = (torch.tensor(column) for column in zip(*keys, strict=True))
    return Batch(
        examples=tuple(examples),
        rows=tuple(rows),
        input_ids=torch.tensor([_padded(text.ids, width, shift, pad_id) for text, shift in shifted]),
        attention_mask=mask,
        query=torch.tensor([text.query + shift for text, shift in shifted]),
        weight=torch.tensor([examples[place].weight for place, _ in rows]),
        key_row=key_row,
        key_column=key_column,
        key_positive=key_positive,
        positive_mean=_means(key_row, key_positive, len(rows)),
        negative_mean=_means(key_row, ~key_positive, len(rows)),
    )


def _padded(ids: Sequence[int], width: int, shift: int, filler: int) -> list[int]:
    return [filler] * shift + list(ids) + [filler] * (width - shift - len(ids))


def _means(key_row: Int64[Tensor, " key"], side: Bool[Tensor, " key"], rows: int) -> Float[Tensor, "row key"]:
    """The matrix that takes keys to their mean in each row; a row without keys of this side gets zero."""
    member = (key_row == torch.arange(rows)[:, None]) & side
    return member / member.sum(1, keepdim=True).clamp(min=1)
