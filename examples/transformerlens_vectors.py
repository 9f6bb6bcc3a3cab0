"""Features from vectors that TransformerLens captured: its cache holds queries and keys after the rotation.

python examples/transformerlens_vectors.py [folder of a model]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from marked_vectors import LayerVectors, Marks, main
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoTokenizer

import qkprism as qk


@torch.no_grad()
def capture(folder: str, contrast: qk.Contrast, layers: Sequence[int]) -> dict[int, LayerVectors]:
    """Vectors by layer at the marks of a contrast, from an `ActivationCache`.

    hook_rot_q [example, token, head, d_head]    hook_rot_k [example, token, key head, d_head]

    A model without rotary positions has neither: there `hook_q` and `hook_k` are what attention uses.
    """
    model = TransformerBridge.boot_transformers(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)  # that of the bridge puts a <s> in front, so positions differ
    marks = Marks.of(tokenizer, contrast)
    _, cache = model.run_with_cache(marks.ids, names_filter=lambda name: name.endswith(("hook_rot_q", "hook_rot_k")))
    sides = {layer: [cache[f"blocks.{layer}.attn.hook_rot_{side}"] for side in "qk"] for layer in layers}
    return {layer: LayerVectors.at(marks, query, key) for layer, (query, key) in sides.items()}


if __name__ == "__main__":
    main(capture)
