"""Batches: encoded texts as rows of tokens. Each text is a row, padded (`Batch`), or texts that begin alike share one.

    text    The hat is in box O, the jam is in box Z. The jam is in box
    twin    The hat is in box O, the pen is in box Z. The pen is in box
    row     The hat is in box O, the jam is in box Z. The jam is in box | pen is in box Z. The pen is in box

What texts share in a row is computed once (`Forest`). The tokens of a row are the nodes of a tree: each stands behind
the token before it in its text. It sees the nodes on its way from the root and no others, and its position is their
number, so every text is computed as if it were alone. A text that stands in a row twice costs nothing more.
`benchmarks/tokens.py` counts what that saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from qkprism.errors import QKPrismError
from qkprism.models.calls import AttentionCall
from qkprism.models.encoding import EncodedExample

Ids = Sequence[int]


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
    sized = [(row_size(example) if in_rows else example.length, example) for example in encoded]
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


def tree_size(texts: Sequence[Ids]) -> int:
    """How many tokens texts have when each beginning that they share counts once."""
    return len(_tree(texts)[0])


def row_size(example: EncodedExample) -> int:
    """The tokens of an example whose texts share a row."""
    return tree_size([text.ids for text in example.texts])


@dataclass(frozen=True)
class Forest:
    """Rows of texts: their tokens, and in which columns of its row each text stands."""

    input_ids: Int64[Tensor, "row token"]
    position_ids: Int64[Tensor, "row token"]
    sees: Bool[Tensor, "row 1 token token"]
    text_row: Int64[Tensor, " text"]
    text_column: Int64[Tensor, "text text_token"]  # padded with the text's first token
    text_sees: Bool[Tensor, "text 1 text_token text_token"]

    @classmethod
    def of(cls, rows: Sequence[Sequence[Ids]], pad_id: int = 0) -> Forest:
        """Each row holds some texts; the texts of all rows are counted in this order."""
        trees = [_tree(texts) for texts in rows]
        width = max(len(nodes) for nodes, _ in trees)
        paths = [path for _, paths_of_tree in trees for path in paths_of_tree]
        longest = max(map(len, paths))
        ids, positions = (torch.full((len(rows), width), fill) for fill in (pad_id, 0))
        sees = torch.eye(width, dtype=torch.bool).repeat(len(rows), 1, 1)  # padding sees itself: no row is empty
        for row, (nodes, paths_of_tree) in enumerate(trees):
            ids[row, : len(nodes)] = torch.tensor(nodes)
            for path in map(torch.tensor, paths_of_tree):
                positions[row, path] = torch.arange(len(path))
                sees[row, path[:, None], path] = torch.ones(len(path), len(path), dtype=torch.bool).tril()
        column = torch.tensor([[*path, *path[:1] * (longest - len(path))] for path in paths])
        length = torch.tensor(list(map(len, paths)))
        there = torch.arange(longest) < length[:, None]
        behind = torch.ones(longest, longest, dtype=torch.bool).tril()
        return cls(
            input_ids=ids,
            position_ids=positions,
            sees=sees[:, None],
            text_row=torch.tensor([row for row, (_, paths_of_tree) in enumerate(trees) for _ in paths_of_tree]),
            text_column=column,
            text_sees=(behind & there[:, None, :])[:, None],
        )

    def mask(self, dtype: torch.dtype) -> Float[Tensor, "row 1 token token"]:
        """What is added to the logits: zero where a token sees another, the lowest number where it does not."""
        return torch.zeros(self.sees.shape, dtype=dtype).masked_fill(~self.sees, torch.finfo(dtype).min)

    def unfold(self, call: AttentionCall) -> AttentionCall:
        """The call as if every text had been a row of its own, padded on the right. It is to be read, not edited."""
        if call.position_bias is not None or not isinstance(call.mask, Tensor) or call.mask.ndim != 4:
            raise QKPrismError(f"{call.name} does not use the mask it is given, so texts cannot share a row.")
        row, column = (index.to(call.query.device) for index in (self.text_row[:, None], self.text_column))
        query, key, value = (
            tensor.transpose(1, 2)[row, column].transpose(1, 2) for tensor in (call.query, call.key, call.value)
        )
        mask = self._text_mask(call.mask)
        return replace(call, query=query, key=key, value=value, mask=mask, angles=None, head_edits=[])

    def _text_mask(self, mask: Shaped[Tensor, "_ _ token token"]) -> Shaped[Tensor, "text _ text_token text_token"]:
        """What each text may see by the mask that the model used: it may hide more than this forest does."""
        row, column, sees = (index.to(mask.device) for index in (self.text_row, self.text_column, self.text_sees))
        picked = mask.expand(len(self.input_ids), -1, -1, -1).movedim(1, -1)
        picked = picked[row[:, None, None], column[:, :, None], column[:, None, :]].movedim(-1, 1)
        return picked & sees if mask.dtype == torch.bool else picked.masked_fill(~sees, torch.finfo(mask.dtype).min)


def _tree(texts: Sequence[Ids]) -> tuple[list[int], list[list[int]]]:
    """The tokens of the nodes, and the nodes of each text."""
    nodes: dict[tuple[int, int], int] = {}  # by the node in front, and the token
    paths = []
    for text in texts:
        at, path = -1, []
        for token in text:
            at = nodes.setdefault((at, token), len(nodes))
            path.append(at)
        paths.append(path)
    return [token for _, token in nodes], paths
