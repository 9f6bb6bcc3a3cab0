"""Features from vectors that nnsight saved: the queries and keys with which a layer calls attention.

python examples/nnsight_vectors.py [folder of a model]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from marked_vectors import Marks, main
from nnsight import TransformersModel

import qkprism as qk


@torch.no_grad()
def capture(folder: str, contrast: qk.Contrast, layers: Sequence[int]) -> qk.VectorSource:
    """Vectors by layer at the marks of a contrast, from the inputs of the attention function.

    query [example, head, token, d_head]    key [example, key head, token, d_head]

    `print(model.model.layers[0].self_attn.source)` shows the lines of the attention module and their names. The outputs
    of `q_proj` and `k_proj` are not what attention uses: they come before the rotation.
    """
    model = TransformersModel(folder, task="text-generation", dispatch=True)
    marks = Marks.of(model.tokenizer, contrast)
    with model.trace(marks.ids):
        called = {}
        for layer in layers:
            called[layer] = model.model.layers[layer].self_attn.source.attention_interface_1.inputs
        called.save()
    saved = {layer: inputs[1:3] for layer, (inputs, _) in called.items()}
    return qk.VectorSource.from_nnsight(saved, contrast.name, **marks.places)


if __name__ == "__main__":
    main(capture)
