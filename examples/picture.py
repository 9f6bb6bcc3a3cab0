"""Draws the picture of the README: why L15H7 attends from "he" to "David", in a sentence unlike those it learned from.

python examples/picture.py docs/_static/why.png        # a minute or two; the image needs kaleido and a browser
"""

import sys

import qkprism as qk

PROMPT = "Last week my sister Emma called David about the house because he"


def picture(path: str) -> None:
    """Find what the head goes by on prompts of the shelf, explain another prompt with it, draw the parts."""
    model = qk.load("smollm2", quiet=True)
    task = qk.task("coreference", tokenizer=model.tokenizer)
    features = qk.decompose(model, task.contrasts, heads=["L15H7"])
    why = qk.explain(model, PROMPT, key=" David", head="L15H7", features=features)
    print(why)
    why.plot().write_image(path, scale=2)


if __name__ == "__main__":
    picture(sys.argv[1])
