# %% [markdown]
# # A vision transformer
#
# Patches are tokens. There is no text to mark, so we take queries and keys from the model's pass and hand them over as vectors. Weights are
# random, which is enough to show the way: what such a head finds is what random projections keep.

# %%
import torch
from transformers import ViTConfig, ViTModel

import qkprism as qk

torch.manual_seed(0)
sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
vit = ViTModel(ViTConfig(**sizes, image_size=32, patch_size=8, initializer_range=0.3))
model = qk.load(vit, quiet=True, probe={"pixel_values": torch.randn(1, 3, 32, 32)})
model

# %% [markdown]
# Each image has noise and three coloured patches: the one that asks, one of the same colour, one of another.

# %%
N, SIDE, COLOURS = 200, 4, torch.eye(3)
images = 0.1 * torch.randn(N, 3, 32, 32)
places = torch.stack([torch.randperm(SIDE**2)[:3] for _ in range(N)])  # of query, positive, negative
same, other = torch.randint(3, (N,)), torch.randint(1, 3, (N,))
colours = torch.stack([same, same, (same + other) % 3], 1)
for image, where, colour in zip(images, places, colours, strict=True):
    for place, which in zip(where.tolist(), colour.tolist(), strict=True):
        row, column = 8 * (place // SIDE), 8 * (place % SIDE)
        image[:, row : row + 8, column : column + 8] += COLOURS[which][:, None, None]

# %% [markdown]
# The tap shows every attention call. Token 0 is the class token, so a patch is one further on.

# %%
calls = {}
model.run(inputs={"pixel_values": images}, visit=lambda call: calls.setdefault(call.layer, call))
rows, (asks, right, wrong) = torch.arange(N), (places + 1).T
vectors = {
    f"L{layer}H{head}": qk.Vectors(
        call.query[rows, head, asks],
        call.key[rows, call.kv_head(head), right],
        call.key[rows, call.kv_head(head), wrong],
    )
    for layer, call in calls.items()
    for head in range(4)
}

# %%
features = qk.decompose(qk.VectorSource({"same colour": vectors}), progress=False)
features.to_frame()[["head", "rank", "rank_heldout", "logit_gap", "q"]]

# %%
features["same colour", features.by_evidence()[0].head].plot()
