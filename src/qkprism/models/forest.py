"""Texts that begin alike as one row of tokens: what they share is computed once.

    text    The hat is in box O, the jam is in box Z. The jam is in box
    twin    The hat is in box O, the pen is in box Z. The pen is in box
    row     The hat is in box O, the jam is in box Z. The jam is in box | pen is in box Z. The pen is in box

The tokens of a row are the nodes of a tree: each stands behind the token before it in its text. It sees the nodes on
its way from the root and no others, and its position is their number, so every text is computed as if it were alone.
A text that stands in a row twice costs nothing more. `benchmarks/tokens.py` counts what that saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor

from qkprism.errors import QKPrismError
from qkprism.models.calls import AttentionCall

Ids = Sequence[int]


def tree_size(texts: Sequence[Ids]) -> int:
    """How many tokens texts have when each beginning that they share counts once."""
    return len(_tree(texts)[0])


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
