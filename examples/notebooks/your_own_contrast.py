# %% [markdown]
# # A contrast of your own
#
# A template is one small file. It says what a prompt looks like, which word is the right key, and where words come from.

# %%
from pathlib import Path
from tempfile import mkdtemp

import qkprism as qk

template = Path(mkdtemp()) / "cups.toml"
template.write_text("""
question = "Whose cup is it?"
places   = 2
exchange = ["colour"]
prompt   = "Look: the {{ colour[0] }} cup is for {{ key(0, person[0]) }}, the {{ colour[1] }} cup is for {{ key(1, person[1]) }}. The {{ colour[asked] }} cup is for"

[words]
colours = ["red", "blue", "green", "white", "black", "yellow", "brown", "pink", "gray", "orange"]
people  = "male_names + female_names"

[draw]
colour = "sample(colours, places)"
person = "sample(people, places)"
""")

# %% [markdown]
# `qkprism check cups.toml` shows prompts with their marks, and whether something simple gives the right key away.

# %%
model = qk.load("smollm2", quiet=True)
task = qk.task(template, tokenizer=model.tokenizer, n_train=64, n_search=24, n_test=16)
for example in list(task.search)[:3]:
    print(example.text.text, "->", [example.text.text[key.start : key.end] for key in example.text.positive])

# %%
heads = qk.find_heads(model, task.search, progress=False)
heads.to_frame()[["head", "accuracy", "q", "attention_positive", "attention_negative"]].head(4)

# %%
features = qk.decompose(model, task.contrasts, heads=heads.top(2), progress=False)
features.to_frame()[["head", "rank", "rank_heldout", "logit_gap", "q"]]

# %% [markdown]
# `exchange` makes the strongest test possible: prompts in which two colours really changed places.

# %%
pairs = task.counterfactuals("colour")
qk.validate(model, {task.contrast.name: pairs}, features, progress=False).summary()
