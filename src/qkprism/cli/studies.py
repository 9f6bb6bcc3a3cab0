"""The studies of language models: binding, compare, filter."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkprism.cli.app import BatchOption, JsonOption, app
from qkprism.cli.inputs import Loading
from qkprism.cli.printing import print_item, print_json, print_table
from qkprism.cli.reports import keep_and_write
from qkprism.cli.settings import SETTINGS
from qkprism.errors import QKPrismError
from qkprism.options import checked_seed

if TYPE_CHECKING:
    from qkprism.models.model import Model
    from qkprism.results.features import Features
    from qkprism.studies.presets import StudyPreset

PresetOption = Annotated[
    str, typer.Option(help="Model, dtype, phrasing and size at once: smollm2, llama3.1-8b or qwen3-4b.")
]
StudyModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="The model: a hub name, a folder, a .gguf file, or smollm2.")
]
PhrasingOption = Annotated[str | None, typer.Option(help="How the prompts ask; as the preset says if not given.")]
SizeOption = Annotated[
    str | None, typer.Option(help="How much to run: quick or paper; as the preset says if not given.")
]
SeedOption = Annotated[int, typer.Option(help="The random seed of prompts, held-out words and controls.")]
StudyFolderOption = Annotated[Path, typer.Option(help="The study's folder; what is in it is not computed again.")]


@app.command(
    epilog="Examples:  qkprism binding --pairs 5 --schema drinks --save runs/drinks   "
    "qkprism binding --preset qwen3-4b --device cuda"
)
def binding(
    loading: Annotated[Loading, StudyModelOption],
    preset: PresetOption = "smollm2",
    pairs: Annotated[int, typer.Option(help="How many entities a prompt has, each with its label.", min=2)] = 9,
    schema: Annotated[
        str, typer.Option(help="What prompts are about: boxes, cities, drinks, or a template of your own (.toml).")
    ] = "boxes",
    phrasing: PhrasingOption = None,
    size: SizeOption = None,
    seed: SeedOption = 0,
    entities: Annotated[
        str | None,
        typer.Option(help="Also find ranks with these numbers of entities, such as 10,18,34; size paper has some."),
    ] = None,
    umap: Annotated[
        bool, typer.Option("--umap", help="Draw UMAP alongside principal components (needs umap-learn).")
    ] = False,
    save: StudyFolderOption = Path("runs/binding"),
    batch_size: BatchOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the binding study: which heads know what belongs to what, by which features, with proofs and a report."""
    numbers = _numbers(entities)
    checked_seed(seed)
    from qkprism.results.projections import require_umap
    from qkprism.studies import study_binding
    from qkprism.studies.binding import check_options
    from qkprism.studies.binding_claims import comparison, told
    from qkprism.studies.binding_figures import drawings

    if umap:
        require_umap()
    chosen = _preset(preset, phrasing, size)
    check_options(save, schema, chosen.phrasing, chosen.size)
    options: dict[str, Any] = {"phrasing": chosen.phrasing, "size": chosen.size, "seed": seed, "entities": numbers}
    SETTINGS.hold(save)
    loaded = _load(loading, chosen)
    study = study_binding(loaded, save, n_pairs=pairs, schema=schema, batch_size=batch_size, **options)
    figures = {name: draw() for name, draw in drawings(study, umap=umap).items()}
    frame = study.summary()
    found = {
        "heads": frame.to_dict("records"),
        "comparison": [claim._asdict() for claim in comparison(study)],
        "validation": study.validation.summary().to_dict("records"),
    }
    title = f"Binding in {study.about.model}: {pairs} pairs, {schema}, {chosen.phrasing}"
    judged = study.validation.pick(("ours", "contrast"), ("paper", "raw"), ("paper", "raw sequential"))
    details = [*study.notes, *study.outcome.verdict(), "Against prompts that really changed:", *judged.verdict()]
    features = [f"{name}_{what}" for name in ("order", "lexical") for what in ("rank", "gap", "shift")]
    shown = frame[["head", "works_by", "accuracy", "accuracy_all", *features, "both_shift"]]
    why = _why(loaded, study.about.example, study.about.answer, study.features)
    words = [*(finding.sentence for finding in told(study)), *why]
    _show_study(_Shown(shown, title, words, details, found), save, figures, loaded, as_json)


@app.command(epilog="Example:  qkprism compare runs/boxes-0 runs/boxes-1 runs/boxes-2 runs/cities-0")
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders of finished binding studies.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Put binding studies side by side: means and spread over seeds, a column for each schema."""
    from qkprism.results.validation import CLEAR, LEAST
    from qkprism.studies import BindingStudy
    from qkprism.studies import compare as side_by_side

    found = side_by_side([BindingStudy.load(folder) for folder in folders])
    if as_json:
        print_json(found.to_json())
        return
    columns, title = (
        ["what", "whose", *found.kinds],
        f"Binding studies ({len(folders)}): mean ± standard deviation over seeds",
    )
    print_table(found.to_frame(), columns, title, by="group")
    for kind in found.kinds:
        typer.echo(f"Heads in every seed, {kind}: {', '.join(found.heads[kind]) or 'none'}")
    typer.echo(
        f"All studies: {found.common}. Ours, paper: whose features (rank paper: its contrast and its rule). Control: "
        "subspaces that know nothing of the clue. A clue matters in a head if its true part (half of what the logit "
        f"gap loses when it is really exchanged) is more than {CLEAR:g} standard errors and {LEAST:g} logits from 0. "
        "Elsewhere any method looks right. Swap's distance: of attention to the prompt that really changed; below 1 is "
        "nearer than no edit."
    )


@app.command("filter", epilog="Examples:  qkprism filter   qkprism filter --preset llama3.1-8b --device cuda")
def filter_heads(
    loading: Annotated[Loading, StudyModelOption],
    preset: PresetOption = "smollm2",
    phrasing: PhrasingOption = None,
    size: SizeOption = None,
    seed: SeedOption = 0,
    save: StudyFolderOption = Path("runs/filter"),
    batch_size: BatchOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the categories study: which heads find the items asked for, by which subspace, with proofs and a report."""
    checked_seed(seed)
    from qkprism.figures.filter import filter_drawings
    from qkprism.studies import study_filter
    from qkprism.studies.filter import check_options
    from qkprism.studies.filter_claims import comparison, told

    chosen = _preset(preset, phrasing, size)
    check_options(save, chosen.phrasing, chosen.size)
    options: dict[str, Any] = {"phrasing": chosen.phrasing, "size": chosen.size, "seed": seed, "batch_size": batch_size}
    SETTINGS.hold(save)
    loaded = _load(loading, chosen)
    study = study_filter(loaded, save, **options)
    figures = {name: draw() for name, draw in filter_drawings(study).items()}
    frame, claims = study.summary(), [claim._asdict() for claim in comparison(study)]
    found = {"heads": frame.to_dict("records"), "comparison": claims, "notes": study.notes}
    shown = frame[[name for name in frame.columns if not name.endswith(("silhouette", "_rank"))]]
    title = f"Categories in {study.model}: {chosen.phrasing}, {chosen.size}"
    why = _why(loaded, study.about.example, study.about.answer[0], study.scopes["five"].features)
    words = [*(finding.sentence for finding in told(study)), *why]
    _show_study(_Shown(shown, title, words, list(study.notes), found), save, figures, loaded, as_json)


def _preset(name: str, phrasing: str | None, size: str | None) -> StudyPreset:
    """A preset, with what was asked for instead."""
    from qkprism.studies.presets import preset_named

    preset = preset_named(name)
    return replace(preset, phrasing=phrasing or preset.phrasing, size=size or preset.size)


def _load(loading: Loading, preset: StudyPreset) -> Model:
    """The model; for one that was named the preset says nothing but how to ask it."""
    if loading.model is None:
        loading = replace(loading, model=preset.model, dtype=loading.dtype or preset.dtype)
    return loading.load()


@dataclass(frozen=True)
class _Shown:
    """What a study says in the terminal: what was found in words, a table with its title, details; and as JSON."""

    frame: Any
    title: str
    words: list[str]
    details: list[str]
    found: dict[str, Any]


def _show_study(shown: _Shown, save: Path, figures: Any, model: Model, as_json: bool) -> None:
    from qkprism.figures.saving import save_figures

    written = save_figures(figures, save / "figures")
    page = keep_and_write(model, save)
    if as_json:
        print_json({**shown.found, "folder": str(save.resolve()), "report": str(page)})
        return
    typer.echo("What was found")
    for sentence in shown.words:
        print_item("- ", sentence)
    typer.echo()
    print_table(shown.frame, list(shown.frame.columns), shown.title)
    if SETTINGS.wide:
        typer.echo("\n".join(shown.details))
    elif shown.details:
        typer.echo(f"{len(shown.details)} sentences more with --wide: notes, and every edit alongside its controls.")
    typer.echo(written)
    typer.echo(f"Study:  {save.resolve()}\nReport: {page}")


def _why(model: Model, text: str, key: str, features: Features) -> list[str]:
    """Why the study's heads attend to the answer in its first test prompt; where that cannot be told, why not."""
    from qkprism.atlas.explain import explain
    from qkprism.contrasts import Span, Text

    if features.encoding.chat is not None:
        return ["Prompts of a chat are not explained one by one: use a phrasing without a chat template."]
    place = re.search(rf"\b{re.escape(key)}\b", text)
    assert place is not None
    marked = Text(text, None, (Span(*place.span()),))
    try:
        found = explain(model, marked, head=list(features.heads), features=features, top=4)
    except QKPrismError as error:
        return [f"The example prompt is not explained: {error}"]
    return ["Why, in that prompt:", *(edge.sentence for edge in found)]


def _numbers(text: str | None) -> list[int] | None:
    """Numbers between commas."""
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise QKPrismError(f"{text!r} is not a list of numbers such as 10,18,34.") from None
