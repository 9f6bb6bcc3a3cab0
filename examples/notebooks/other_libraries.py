# %% [markdown]
# # Vectors of TransformerLens and nnsight
#
# If you have activations already, qkprism takes them as they are. Here both libraries read a tiny Llama of random weights, so nothing is
# downloaded; for a model of yours give its folder. `examples/transformerlens_vectors.py` and `nnsight_vectors.py` have the few lines.

# %%
import sys
from pathlib import Path
from tempfile import mkdtemp

sys.path.insert(0, str(Path("examples").resolve()))

import nnsight_vectors
import transformerlens_vectors
from marked_vectors import BOXES, tiny_llama

import qkprism as qk

contrast = qk.Contrast.read(BOXES)[:64]
folder = str(tiny_llama(Path(mkdtemp()), contrast))

# %%
lens = qk.decompose(transformerlens_vectors.capture(folder, contrast, [1, 2]), progress=False)
sight = qk.decompose(nnsight_vectors.capture(folder, contrast, [1, 2]), progress=False)
own = qk.decompose(qk.load(folder, quiet=True, device="cpu", dtype="float32"), contrast, progress=False)

# %% [markdown]
# The three agree, head by head.

# %%
for name, head in lens:
    found = [features[name, head].logit_gap.total for features in (lens, sight, own)]
    print(head, *(f"{gap:.4f}" for gap in found))
    assert max(found) - min(found) < 1e-3
