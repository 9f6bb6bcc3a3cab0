"""docs/models.md, written from the tests: every family of tests/test_architectures.py as the library finds it.

python tests/models_page.py        # writes the page
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import transformers

from qkprism.errors import QKPrismError
from qkprism.models.model import Model
from test_architectures import BYPASSING, CAUSAL, COMPRESSING, EAGER_ONLY, ENCODERS, HYBRIDS, OTHERS
from tiny import SINCE, tiny

ROOT = Path(__file__).parents[1]
PAGE, FAMILIES = ROOT / "docs" / "models.md", ROOT / "src" / "qkprism" / "models" / "families.json"
INTRODUCTION = """# Models

Any Hugging Face model is taken whose attention goes through the attention interface of transformers. `qk.load` proves
it on a short batch: attention rebuilt from the queries and keys it reads must be the model's own. A model that fails is
refused in one sentence.

This page is written by `python tests/models_page.py` from the families of `tests/test_architectures.py`, on tiny random
models. A test fails when it is stale. Other families may work: the proof at load decides.
"""
KINDS = {"Causal": CAUSAL, "Encoders": ENCODERS, "Encoder-decoders and vision": OTHERS}


def page() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *_read(), *_refused()])


def _read() -> Iterator[str]:
    for kind, names in KINDS.items():
        yield f"## {kind}\n"
        yield "| family | tested as | what is read |\n|---|---|---|"
        yield from (f"| `{name}` | `{_class(name)}` | {_what(name)} |" for name in names)
        yield ""


def _refused() -> Iterator[str]:
    yield "## Refused\n"
    yield "| family | why |\n|---|---|"
    for name in [*COMPRESSING, *BYPASSING]:
        try:
            Model.wrap(tiny(name))
        except QKPrismError as error:
            yield f"| `{name}` | {error} |"
        else:
            raise AssertionError(f"{name} is not refused")
    yield ""


def _class(name: str) -> str:
    return type(tiny(name)).__name__


def _what(name: str) -> str:
    model = Model.wrap(tiny(name))
    blocks = model.hf.config.get_text_config().num_hidden_layers if name in HYBRIDS else None
    said = [f"the attention layers: {len(model.layers)} of {blocks} here" if blocks else "all attention layers"]
    blind = hasattr(model.hf.config, "vision_config") and not any("vision" in at.name for at in model.layers.values())
    said += ["of the text, not of images"] if blind else []
    windows = {layer.window for layer in model.layers.values()}
    said += ["sliding windows"] if windows - {None} else []
    said += ["capped logits"] if any(layer.softcap for layer in model.layers.values()) else []
    said += ["eager attention only"] if name in EAGER_ONLY else []
    said += [f"from transformers {SINCE[name][0]}.{SINCE[name][1]}"] if name in SINCE else []
    return "; ".join(said)


def families(text: str) -> str:
    """What the page says of each class, for `qkprism models`; where several families have one, the plainest."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        if len(row) == 3:
            found.setdefault(row[1].strip("`"), {"reads": row[2]})
        else:
            found[row[1].split()[0]] = {"refused": row[1]}
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    PAGE.write_text(page())
    FAMILIES.write_text(families(PAGE.read_text()))
