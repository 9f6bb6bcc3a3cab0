"""Features from vectors that TransformerLens captured: its cache holds queries and keys after the rotation.

python examples/transformerlens_vectors.py [folder of a model]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from marked_vectors import Marks, main
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoTokenizer

import qkprism as qk


@torch.no_grad()
def capture(folder: str, contrast: qk.Contrast, layers: Sequence[int]) -> qk.VectorSource:
    """Vectors by layer at the marks of a contrast, from an `ActivationCache`.

    hook_rot_q [example, token, head, d_head]    hook_rot_k [example, token, key head, d_head]

    A model without rotary positions has neither: there `hook_q` and `hook_k` are what attention uses.
    """
    model = TransformerBridge.boot_transformers(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)  # that of the bridge puts a <s> in front, so positions differ
    marks = Marks.of(tokenizer, contrast)
    _, cache = model.run_with_cache(marks.ids, names_filter=lambda name: name.endswith(("hook_rot_q", "hook_rot_k")))
    return qk.VectorSource.from_transformerlens(cache, contrast.name, **marks.places, layers=layers)


if __name__ == "__main__":
    main(capture)
