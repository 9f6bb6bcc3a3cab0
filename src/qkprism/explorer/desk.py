"""`Desk`: a model with its atlas and runs, opened once, that answers what the page asks. Its thread is the worker's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkprism.atlas.atlas import Atlas
from qkprism.atlas.explain import atlas_for, cached_atlas, explain
from qkprism.atlas.explanation import Explanation
from qkprism.contrasts import Text
from qkprism.errors import QKPrismError
from qkprism.explorer.answers import FORMAT, PALETTE, explanation_answer, head_answer, heads_answer, row_answer
from qkprism.heads import Head, check_heads
from qkprism.models.model import Model
from qkprism.progress import listening
from qkprism.results.features import Features
from qkprism.runs import is_run
from qkprism.studies.shelf_result import Shelf

Run = Features | Shelf
HEADS_TOLD, KEYS_TOLD, KEPT = 60, 14, 8
LONGEST = 2048  # tokens


@dataclass
class Desk:
    """What is open, how far opening is, and the last explanations.

    open_model  called once, by `open`
    atlas       a folder of an atlas; None for the one of the cache, which is made where there is none
    runs        features and shelves by the names of their folders
    """

    open_model: Callable[[], Model]
    atlas: Path | None = None
    runs: Mapping[str, Run] = field(default_factory=dict)
    stage: str = "loading"
    step: tuple[str, int, int] | None = None
    failure: str | None = None
    _model: Model | None = None
    _atlas: Atlas | None = None
    _kept: OrderedDict[tuple[str, int | None], Explanation] = field(default_factory=OrderedDict)

    def open(self) -> None:
        """Load the model, then its atlas; what goes wrong is a sentence in the page."""
        try:
            model = self.open_model()
            _check_runs(self.runs, model)
            if self.atlas is None and not is_run(cached_atlas(model)):
                self.stage = "surveying"
            with listening(self._listen):
                self._atlas = atlas_for(model, self.atlas)
            self._model, self.stage, self.step = model, "ready", None
        except QKPrismError as error:
            self.stage, self.failure = "failed", str(error)
        except Exception as error:  # a page that waits for ever would be worse
            self.stage, self.failure = "failed", f"The model could not be opened: {type(error).__name__}: {error}"

    def _listen(self, unit: str, done: int, total: int) -> None:
        self.step = (unit, done, total)

    @property
    def model(self) -> Model:
        """The model, once it is open."""
        if self._model is None:
            raise QKPrismError(self.failure or "The model is not open yet.")
        return self._model

    @property
    def read(self) -> Atlas:
        """The atlas, once it is there."""
        if self._atlas is None:
            raise QKPrismError(self.failure or "The atlas is not there yet.")
        return self._atlas

    @property
    def shelves(self) -> dict[str, Shelf]:
        """The runs that are shelves."""
        return {name: run for name, run in self.runs.items() if isinstance(run, Shelf)}

    def start(self) -> dict[str, Any]:
        """How far opening is, and what is open."""
        told: dict[str, Any] = {"format": FORMAT, "stage": self.stage, "failure": self.failure, "palette": PALETTE}
        if self.step is not None:
            told["step"] = dict(zip(("unit", "done", "total"), self.step, strict=True))
        if self._model is not None and self._atlas is not None:
            text = self._atlas.provenance.get("text", {})
            told["model"] = self._model.name
            told["atlas"] = f"{text.get('tokens')} tokens of {text.get('origin')}"
            told["runs"] = [f"{name}: {run!r}".splitlines()[0] for name, run in self.runs.items()]
        return told

    def explain(self, text: str, query: int | None) -> dict[str, Any]:
        """The heads that attend from a token of a text."""
        return explanation_answer(self._explanation(text, query))

    def row(self, text: str, query: int | None, head: str, key: int | None) -> dict[str, Any]:
        """One row of one head, with sentences for its most attended keys and for the one that is chosen."""
        (wanted,) = check_heads(head, self.model.heads_per_layer, self.model.name)
        found = self._explanation(text, query)
        if self.runs and wanted not in {edge.head for edge in found.edges}:  # features are told in these alone
            found = self._ask(text, found.query, head=wanted)
        chosen = [] if key is None else [_seen(found, wanted, key)]
        return row_answer(found, wanted, [*chosen, *found.most_attended(wanted, KEYS_TOLD)])

    def heads(self) -> dict[str, Any]:
        """Every score of every head."""
        return heads_answer(self.read, self.shelves)

    def head(self, name: str) -> dict[str, Any]:
        """One head."""
        (wanted,) = check_heads(name, self.model.heads_per_layer, self.model.name)
        return head_answer(self.read, wanted, self.shelves)

    def _explanation(self, text: str, query: int | None) -> Explanation:
        if (text, query) not in self._kept:
            found = self._ask(text, query, top=HEADS_TOLD)
            self._kept[text, query] = self._kept[text, found.query] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end((text, query))
        return self._kept[text, query]

    def _ask(self, text: str, query: int | None, **options: Any) -> Explanation:
        model = self.model
        self._check_length(text)
        features: Sequence[Run] | None = list(self.runs.values()) or None
        return explain(model, Text(text), query=query, atlas=self.read, features=features, progress=False, **options)

    def _check_length(self, text: str) -> None:
        tokenizer = self.model.tokenizer
        tokens = 0 if tokenizer is None else len(tokenizer.encode(Text(text).text))
        if tokens > LONGEST:
            raise QKPrismError(f"The text has {tokens} tokens. The explorer reads up to {LONGEST}: shorten it.")


def _seen(explanation: Explanation, head: Head, key: int) -> int:
    if not 0 <= key < len(explanation.tokens) or not bool(explanation.row(head).logits[key].isfinite()):
        raise QKPrismError(f"{head} does not see token {key} from token {explanation.query}.")
    return key


def _check_runs(runs: Mapping[str, Run], model: Model) -> None:
    for name, run in runs.items():
        theirs = run.provenance.get("model")
        if theirs is not None and theirs != model.name:
            raise QKPrismError(f"{name} is a run of {theirs}, not of {model.name}. Open it with --model {theirs}.")
