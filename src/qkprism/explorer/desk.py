"""`Desk`: a model with its atlas and runs, opened once, that answers what the page asks. Its thread is the worker's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.atlas.atlas import Atlas
from qkprism.atlas.explain import atlas_for, cached_atlas, explain, naming_of, shown
from qkprism.atlas.explanation import Explanation
from qkprism.atlas.naming import NamedHeads
from qkprism.atlas.shares import SHARES
from qkprism.contrasts import Contrast, Text
from qkprism.contrasts.shelves import check_on_shelf
from qkprism.contrasts.tasks import task
from qkprism.core.row_split import PARTS, REST
from qkprism.errors import QKPrismError
from qkprism.explorer.answers import FORMAT, MEANINGS, explanation_answer, row_answer, start_of, step_answer
from qkprism.explorer.arcs import arcs_answer
from qkprism.explorer.draft import Draft
from qkprism.explorer.evidence import seen_answer
from qkprism.explorer.jobs import Errand, Errands
from qkprism.explorer.library import OWN, STORED, Library
from qkprism.explorer.opening import OpenRun, open_run
from qkprism.explorer.trial import Trial, place_below
from qkprism.explorer.what_if import (
    Variant,
    Wish,
    begin,
    feature_variants,
    outcomes,
    part_variants,
    what_if_answer,
)
from qkprism.heads import Head, check_heads
from qkprism.models.continuation import Continuation
from qkprism.models.encoding import encode_text
from qkprism.models.model import Model
from qkprism.options import Frame, whole_number
from qkprism.progress import listening
from qkprism.results.features import Features
from qkprism.results.projections import require_umap
from qkprism.runs.folder import is_run
from qkprism.verbs.inputs import heads_with_features

Asked = tuple[str, int | None, str | None]  # a text, its query, how features share
HEADS_TOLD, KEYS_TOLD, KEPT = 60, 14, 8
SEEN, MOST_SEEN = 64, 400  # texts whose keys and queries are seen
MATCH = "match"  # the whole of it, whatever features name within it
EDITABLE = {MATCH: "all that this query and this key do together", **{name: MEANINGS[name] for name in PARTS[:-1]}}
LONGEST = 2048  # tokens


@dataclass
class Desk:
    """What is open, how far opening is, and the last explanations.

    open_model  called once, by `open`
    atlas       a folder of an atlas; None for the one of the cache, which is made where there is none
    runs        what was opened, by the names of folders; features and shelves name parts, and others are shown
    root        the folder below which the page may save runs
    loads_as    what `load` takes to open this model again
    """

    open_model: Callable[[], Model]
    atlas: Path | None = None
    runs: dict[str, OpenRun] = field(default_factory=dict)
    root: Path = field(default_factory=Path.cwd)
    loads_as: str = ""
    jobs: Errands = field(default_factory=Errands)
    stage: str = "loading"
    step: tuple[str, int, int] | None = None
    failure: str | None = None
    _model: Model | None = None
    _kept: OrderedDict[Asked, Explanation] = field(default_factory=OrderedDict)
    _namings: dict[str | None, NamedHeads] = field(default_factory=dict)
    _begun: tuple[tuple[tuple[int, ...], Wish, Frame], Continuation] | None = None

    def __post_init__(self) -> None:
        self.library = Library(self.runs, loads_as=self.loads_as)

    @classmethod
    def ready(cls, model: Model, atlas: Atlas | None, runs: dict[str, OpenRun]) -> Desk:
        """A desk of a model that is loaded; without an atlas it explains nothing."""
        made = cls(lambda: model, runs=runs)
        made._model, made.stage, made.library.atlas = model, "ready", atlas
        return made

    def open(self) -> None:
        """Load the model, then its atlas; what goes wrong is a sentence in the page."""
        try:
            model = self.open_model()
            for run in self.runs.values():
                run.check(model)
            if self.atlas is None and not is_run(cached_atlas(model)):
                self.stage = "surveying"
            with listening(self._listen):
                self.library.atlas = atlas_for(model, self.atlas)
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

    def start(self) -> dict[str, Any]:
        """How far opening is, and what is open."""
        if self.stage == "ready":
            return self.library.start()
        step = {} if self.step is None else {"step": step_answer(self.step)}
        return start_of(self.stage, self.failure) | step

    def explain(self, text: str, query: int | None, method: str | None = None) -> dict[str, Any]:
        """The heads that attend from a token of a text, and the ways in which features can share a match."""
        told = explanation_answer(self._explanation(text, query, method))
        return told | {"methods": list(SHARES) if self.library.naming else []}

    def row(
        self, text: str, query: int | None, head: str, key: int | None, method: str | None = None
    ) -> dict[str, Any]:
        """One row of one head, with sentences for its most attended keys and for the one that is chosen."""
        (wanted,) = check_heads(head, self.model.heads_per_layer, self.model.name)
        found = self._explanation(text, query, method)
        told = {edge.head for edge in found.edges}  # features are told in these alone
        if self.library.naming and wanted not in told:
            found = self._ask(text, found.query, method, head=wanted)
        chosen = [] if key is None else [_seen(found, wanted, key)]
        return row_answer(found, wanted, [*chosen, *found.most_attended(wanted, KEYS_TOLD)])

    def arcs(self, text: str, head: str) -> dict[str, Any]:
        """The strongest arcs of a head from and to every token."""
        (wanted,) = check_heads(head, self.model.heads_per_layer, self.model.name)
        return arcs_answer(self.model, self._ids(text), wanted)

    def trial(self, draft: Draft, place: str, *, n: int, top: int) -> Errand:
        """A contrast that waits to be run, if it can be saved there."""
        trial = Trial(draft, place_below(self.root, place), n, top)
        return self.jobs.add(Errand(f"{draft.name} in {self.model.name}", lambda job: self._run_trial(trial, job)))

    def _run_trial(self, trial: Trial, job: Errand) -> dict[str, Any]:
        """Run a contrast, save it, and open the run beside the others."""
        told = trial.run(self.model, job)
        name = str(trial.place.relative_to(self.root.resolve()))
        self.runs[name] = open_run(trial.place, name)
        self.library.read()
        self._kept.clear()  # what was explained without it
        self._namings.clear()
        return told | {"run": name}

    def seen(
        self, name: str, run: str, feature: str, texts: str, *, n: int = SEEN, umap: bool = False
    ) -> dict[str, Any]:
        """Keys and queries in one feature of a head: of the run's own contrast, one of the shelf, or as kept."""
        (wanted,) = check_heads(name, self.model.heads_per_layer, self.model.name)
        features = self.library.features(run)
        if (feature, wanted) not in features:
            raise QKPrismError(f"{run} has no feature {feature!r} in {wanted}.")
        if umap:
            require_umap()
        if texts == STORED:
            return self.library.stored(wanted, run, feature, umap=umap)
        whole_number(n, "n", 1, MOST_SEEN)
        drawn = self._texts(run, n) if texts == OWN else self._drawn(check_on_shelf(texts), n)
        return seen_answer(self.model, drawn, features, feature, wanted, umap=umap)

    def _texts(self, run: str, n: int) -> Contrast:
        file = self.runs[run].file if run in self.runs else None
        if file is None:
            raise QKPrismError(f"The texts of {run} were not kept. Choose a contrast of the shelf.")
        return self._drawn(file, n) if file.suffix == ".toml" else Contrast.read(file)[:n]

    def _drawn(self, template: str | Path, n: int) -> Contrast:
        """Texts of a template's held-out words."""
        return task(template, 1, self.model.tokenizer, n_train=1, n_search=1, n_test=n).test

    def edits(self, name: str) -> dict[str, Any]:
        """What can be edited in a head: parts of its logits, and the features of the runs that are open."""
        (wanted,) = check_heads(name, self.model.heads_per_layer, self.model.name)
        parts = [{"name": part, "meaning": meaning} for part, meaning in EDITABLE.items()]
        return {"format": FORMAT, "head": str(wanted), "parts": parts, "sets": self.library.sets_of(wanted)}

    def what_if(
        self, text: str, wish: Wish, *, part: str | None, run: str | None, features: Sequence[str], together: bool
    ) -> dict[str, Any]:
        """What an edit of two keys does to a head and to the prediction, beside its controls.

        part       of the logit; or the features of a run
        together   whether all heads of the run are edited at once, or this one alone
        """
        check_heads(wish.head, self.model.heads_per_layer, self.model.name)
        ids = self._ids(text)
        heads, rope, variants = self._variants(text, wish, part, run, features, together)
        found = outcomes(self._continued(ids, wish, rope), wish, heads, variants)
        what = part if part is not None else " and ".join(features)
        tokens = [shown(self.model, one) for one in ids]
        return what_if_answer(wish, what, found, tokens, ids, lambda one: shown(self.model, one))

    def _variants(
        self, text: str, wish: Wish, part: str | None, run: str | None, features: Sequence[str], together: bool
    ) -> tuple[Sequence[Head], Frame, list[Variant]]:
        """The heads that are edited, the frame the model runs in, and the edit beside its controls."""
        if run is None:
            explanation = self._explanation(text, wish.query)
            for key in (wish.original, wish.target):
                _seen(explanation, wish.head, key)
            values = _part(explanation, wish.head, part)
            seen = explanation.row(wish.head).logits.isfinite().nonzero()[:, 0].tolist()
            return [wish.head], "post", part_variants(wish, values, seen)
        found = self.library.features(run)
        if not features or set(features) - set(found.contrasts):
            raise QKPrismError(f"Choose features of {run}. There are: {', '.join(found.contrasts)}.")
        heads = heads_with_features(self.model, found, None if together else wish.head)
        return heads, found.encoding.rope, feature_variants(wish, found, features, heads)

    def _continued(self, ids: tuple[int, ...], wish: Wish, rope: Frame) -> Continuation:
        """The text run up to its query, kept for the next amount of a slider."""
        places = replace(wish, head=Head(0, 0), kind="swap", amount=1.0)
        if self._begun is None or self._begun[0] != (ids, places, rope):
            self._begun = None  # its memory is free before the next one takes some
            self._begun = (ids, places, rope), begin(self.model, ids, wish, rope)
        return self._begun[1]

    def _ids(self, text: str) -> tuple[int, ...]:
        self._check_length(text)
        tokenizer = self.model.tokenizer
        if tokenizer is None:
            raise QKPrismError(f"{self.model.name} has no tokenizer.")
        return tuple(encode_text(tokenizer, Text(text), causal=self.model.is_causal).ids)

    def _explanation(self, text: str, query: int | None, method: str | None = None) -> Explanation:
        wanted = (text, query, method)
        if wanted not in self._kept:
            found = self._ask(text, query, method, top=HEADS_TOLD)
            self._kept[wanted] = self._kept[text, found.query, method] = found
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(wanted)
        return self._kept[wanted]

    def _ask(self, text: str, query: int | None, method: str | None, **options: Any) -> Explanation:
        self._check_length(text)
        atlas, naming = self.library.atlas, self._naming(method)
        if atlas is None:
            raise QKPrismError(self.failure or "The atlas is not there yet.")
        return explain(self.model, Text(text), query=query, atlas=atlas, features=naming, progress=False, **options)

    def _naming(self, method: str | None) -> NamedHeads:
        """The features of all runs; what they are in a head does not depend on the text, and is kept."""
        if method not in self._namings:
            every = self.library.naming.items()
            read = {name: run for name, run in every if isinstance(run, Features) or run.folder is not None}
            runs = {Path(name).name: run for name, run in read.items()}
            self._namings[method] = naming_of(
                runs if len(runs) == len(read) > 1 else list(read.values()), self.model, method
            )
        return self._namings[method]

    def _check_length(self, text: str) -> None:
        tokenizer = self.model.tokenizer
        tokens = 0 if tokenizer is None else len(tokenizer.encode(Text(text).text))
        if tokens > LONGEST:
            raise QKPrismError(f"The text has {tokens} tokens. The explorer reads up to {LONGEST}: shorten it.")


def _seen(explanation: Explanation, head: Head, key: int) -> int:
    if not 0 <= key < len(explanation.tokens) or not bool(explanation.row(head).logits[key].isfinite()):
        raise QKPrismError(f"{head} does not see token {key} from token {explanation.query}.")
    return key


def _part(explanation: Explanation, head: Head, part: str | None) -> Float64[Tensor, " token"]:
    """The values of one part of the logits; the match is what no plain part is."""
    terms = explanation.row(head).terms
    if part == MATCH:
        return torch.stack([values for name, values in terms.items() if name == REST or name not in MEANINGS]).sum(0)
    if part not in EDITABLE or part not in terms:
        raise QKPrismError(f"{part!r} is not a part that can be edited. There are: {', '.join(EDITABLE)}.")
    return terms[part]
