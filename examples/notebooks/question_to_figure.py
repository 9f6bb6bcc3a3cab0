# %% [markdown]
# # From a question to a figure
#
# Which heads look at what followed the same word before, and what do they rely on? Ten lines, the default model, a CPU.

# %%
import qkprism as qk

model = qk.load("smollm2", quiet=True)
model

# %% [markdown]
# A task draws prompts: some to find heads and features with, others, with held-out words, to test them on. More examples give more
# evidence; these few are for speed.

# %%
task = qk.task("induction", tokenizer=model.tokenizer, n_train=64, n_search=24, n_test=16)
print(next(iter(task.search)).text.text)

# %%
heads = qk.find_heads(model, task.search, progress=False)
heads.to_frame().head(5)

# %% [markdown]
# What query and key share, in the two best heads: `rank_heldout` counts the directions that hold on examples that did not choose them.

# %%
features = qk.decompose(model, task.contrasts, heads=heads.top(2), progress=False)
features.to_frame()[["head", "rank", "rank_heldout", "logit_gap", "q"]]

# %% [markdown]
# Is it used? Exchange the two keys in each feature, beside controls of the same rank.

# %%
effects = qk.intervene(model, task.test, features, compare=qk.Comparison(draws=3), progress=False)
print(*effects.verdict(), sep="\n")

# %%
effects.plot()
