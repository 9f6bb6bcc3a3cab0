"""What a run keeps of the model: prompts explained, and where keys and queries of texts lie, to be shown without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from qkprism.atlas.atlas import Atlas
from qkprism.atlas.explain import cached_atlas, explain
from qkprism.contrasts import Text
from qkprism.errors import QKPrismError
from qkprism.explorer.desk import Desk
from qkprism.explorer.library import OWN
from qkprism.explorer.mail import HEADS, KeptAnswer, explanation_kept, write_kept
from qkprism.explorer.opening import OpenRun, open_run
from qkprism.models.model import Model
from qkprism.progress import say
from qkprism.results.features import Features
from qkprism.runs.catalogue import written_beside
from qkprism.runs.folder import is_run

EDGES = 12  # of a prompt
SEEN = 4  # features


def keep(
    model: Model,
    folder: Path,
    atlas: Atlas | None = None,
    *,
    prompts: Sequence[Text] = (),
    beside: Sequence[str] | None = None,
) -> None:
    """Ask the model what the page of a run will be asked, and write the answers beside the run.

    prompts   explained in place of the run's own
    beside    files that were written there for the page, and go when the run is deleted; else those known before
    """
    run = open_run(folder, "")
    answers = kept_of(model, replace(run, prompts=tuple(prompts) or run.prompts), atlas)
    write_kept(folder, answers, written_beside(folder) if beside is None else beside)


def kept_of(model: Model, run: OpenRun, atlas: Atlas | None = None) -> list[KeptAnswer]:
    """The answers for a run, which is called by the empty name.

    Prompts are explained with the atlas, or the one that was kept of this model; without one they are not.
    """
    place = cached_atlas(model)
    read = atlas if atlas is not None else Atlas.load(place) if is_run(place) else None
    desk = Desk.ready(model, read, {"": replace(run, name="")})
    return list(chain(_seen(desk), () if read is None else _explained(model, read, desk, run.prompts)))


def _explained(model: Model, atlas: Atlas, desk: Desk, prompts: tuple[Text, ...]) -> Iterator[KeptAnswer]:
    """Prompts, in the heads of the run and in those that attend most; those of a chat are not explained one by one."""
    named = desk.runs[""].named
    sets = [one for part, one in desk.library.naming.items() if isinstance(one, Features) and part.endswith(named)]
    if any(one.encoding.chat is not None for one in sets):
        return
    heads = list(dict.fromkeys(head for one in sets for head in one.heads))[:HEADS]
    options: dict[str, Any] = {"atlas": atlas, "features": sets or None, "progress": False}
    for prompt in prompts:
        unmarked = replace(prompt, positive=(), negative=())  # any key, not the one that is marked
        try:
            found = [explain(model, unmarked, top=EDGES, **options)]
            found += [explain(model, unmarked, head=heads, top=len(heads) * EDGES, **options)] if heads else []
        except QKPrismError as error:
            say(f"Note: a prompt is not explained: {error}")
            continue
        yield from explanation_kept(found, prompt.text)


def _seen(desk: Desk) -> Iterator[KeptAnswer]:
    """The features with the strongest evidence, by the texts of the run."""
    if desk.runs[""].file is None:
        return
    for part, features in desk.library.naming.items():
        for feature in features.by_evidence()[:SEEN] if isinstance(features, Features) else ():
            words = {"head": str(feature.head), "run": part, "feature": feature.contrast, "texts": OWN}
            yield KeptAnswer("seen", words, desk.seen(str(feature.head), part, feature.contrast, OWN))
