"""The example prompt of a study, explained: the split of its logits with the study's own features."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from qkprism.errors import QKPrismError

if TYPE_CHECKING:
    from qkprism.models.model import Model
    from qkprism.results.features import Features

EDGES = 4


def why_example(model: Model, text: str, key: str, features: Features) -> list[str]:
    """Why the study's heads attend to the answer in its first test prompt; where that cannot be told, why not."""
    from qkprism.atlas.explain import explain
    from qkprism.contrasts import Span, Text

    if features.encoding.chat is not None:
        return ["Prompts of a chat are not explained one by one: use a phrasing without a chat template."]
    place = re.search(rf"\b{re.escape(key)}\b", text)
    assert place is not None
    marked = Text(text, None, (Span(*place.span()),))
    try:
        found = explain(model, marked, head=list(features.heads), features=features, top=EDGES)
    except QKPrismError as error:
        return [f"The example prompt is not explained: {error}"]
    return ["Why, in that prompt:", *(edge.sentence for edge in found)]
