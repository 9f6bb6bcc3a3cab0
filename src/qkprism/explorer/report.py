"""`report`: runs as one page with its data inside, the same that the explorer serves; for a file and for a notebook."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from qkprism.atlas.atlas import KIND as ATLAS_KIND
from qkprism.atlas.atlas import Atlas
from qkprism.atlas.explanation import FRAME
from qkprism.errors import QKPrismError
from qkprism.explorer.library import ATLAS, COVERAGE, STORED, Library
from qkprism.explorer.mail import KeptAnswer, mailed_page
from qkprism.explorer.opening import OpenRun, open_run, opened, short_name
from qkprism.models.places import atlas_folder
from qkprism.results.features import Features
from qkprism.runs.files import write_text
from qkprism.runs.folder import MANIFEST, is_run, read_manifest

CLOUDS = 3  # of each set of features
Run = str | os.PathLike[str] | Any  # a folder, or a result


@dataclass(frozen=True, repr=False)
class Report:
    """A page: a file when it is saved, a frame in a notebook."""

    title: str
    html: str

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, which needs no server and no network."""
        return write_text(Path(path), self.html)

    def __repr__(self) -> str:
        return f"Report({self.title!r}, {len(self.html):,} characters)"

    def _repr_html_(self) -> str:
        return f'<iframe sandbox="allow-scripts" title="qkprism" style="{FRAME}" srcdoc="{escape(self.html)}"></iframe>'


def report(*runs: Run) -> Report:
    """Runs, studies or results as one page: what was found, heads, why, tables and figures.

    runs    folders of runs, or results such as Features, Effects and an Atlas; an atlas of the same model that is in
            the cache is used where none is given

    >>> report("runs/induction").save("page.html")   # doctest: +SKIP
    """
    if not runs:
        raise QKPrismError("Give a run folder, or a result: report('runs/mine').")
    library = library_of(*runs)
    names = ", ".join(library.runs) or f"the atlas of {library.model}"
    return Report(names, mailed_page(names, list(_kept(library))))


def library_of(*runs: Run) -> Library:
    """The runs, open under short names, with the atlas among them or the one in the cache."""
    open_: dict[str, OpenRun] = {}
    atlas: Atlas | None = None
    for number, run in enumerate(runs):
        if isinstance(run, Atlas) or _is_atlas(run):
            atlas = run if isinstance(run, Atlas) else Atlas.load(run)
            continue
        found = _open(run, open_, number)
        open_[found.name] = found
    library = Library(open_, atlas)
    if atlas is None:
        library.atlas = _cached(open_)
    return library


def _open(run: Run, open_: dict[str, OpenRun], number: int) -> OpenRun:
    if isinstance(run, str | os.PathLike):
        folder = Path(run)
        return open_run(folder, short_name(folder, open_))
    name = type(run).__name__
    return opened(f"{name} {number + 1}" if name in open_ else name, run)


def _is_atlas(run: Run) -> bool:
    place = Path(run) if isinstance(run, str | os.PathLike) else None
    return place is not None and (place / MANIFEST).is_file() and read_manifest(place)["kind"] == ATLAS_KIND


def _cached(runs: dict[str, OpenRun]) -> Atlas | None:
    """The atlas of the runs' model, if it was made before."""
    for run in runs.values():
        place = atlas_folder(str(run.provenance.get("model_digest", "none")))
        if is_run(place):
            return Atlas.load(place)
    return None


def _kept(library: Library) -> Iterator[KeptAnswer]:
    """Every question that the page can ask without a model, with its answer; and those that runs have kept."""
    answers = library.answers()
    seen = [one for run in library.runs.values() for one in run.kept]
    clear = _clearest(library)
    for ask, words in _questions(library):
        answer = answers[ask](words)
        if ask == "evidence":
            there = [_stored(words["head"], row["run"], row["name"]) for row in answer["features"]]
            held = [one for one in there if tuple(one.values()) in clear and STORED in answer["texts"][one["run"]]]
            seen += [KeptAnswer("seen", one, answers["seen"](one)) for one in held]
            answer |= {"texts": _texts(words["head"], answer["texts"], seen), "umap": False}
        yield KeptAnswer(ask, words, answer)
    yield from seen


def _clearest(library: Library) -> set[tuple[str, ...]]:
    """The features of each set with the strongest evidence, whose keys and queries the page holds."""
    found = {name: one.by_evidence()[:CLOUDS] for name, one in library.naming.items() if isinstance(one, Features)}
    return {tuple(_stored(str(f.head), name, f.contrast).values()) for name, best in found.items() for f in best}


def _stored(head: str, run: str, feature: str) -> dict[str, str]:
    return {"head": head, "run": run, "feature": feature, "texts": STORED}


def _texts(head: str, texts: Iterable[str], seen: Sequence[KeptAnswer]) -> dict[str, list[str]]:
    """Of each set of features the texts whose keys and queries the page holds."""
    held = [one.words for one in seen if one.ask == "seen" and one.words["head"] == head]
    return {run: list(dict.fromkeys(words["texts"] for words in held if words["run"] == run)) for run in texts}


def _questions(library: Library) -> Iterator[tuple[str, dict[str, str]]]:
    yield from (("start", {}), ("heads", {}), ("runs", {}))
    for head in library.heads:
        yield "head", {"head": str(head)}
        yield "evidence", {"head": str(head)}
    if library.atlas is not None:
        yield from (("table", {"run": ATLAS, "table": table}) for table in ("atlas", COVERAGE))
    for name, run in library.runs.items():
        yield from (("table", {"run": name, "table": table}) for table in run.tables)
        yield from (("figure", {"run": name, "figure": figure}) for figure in run.figures)
