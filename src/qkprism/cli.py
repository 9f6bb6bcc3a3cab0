"""The command line: thin, every command is one or two calls of the library."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from qkprism.errors import QKPrismError

app = typer.Typer(
    name="qkprism",
    help="Why did this attention head attend to that token?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

ModelOption = Annotated[str, typer.Option("--model", "-m", help="Hub name, folder, .gguf file, or smollm2.")]
DtypeOption = Annotated[str | None, typer.Option(help="float32, bfloat16, float16 or auto.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")]
LimitOption = Annotated[int | None, typer.Option(help="Use the first N examples only.", min=1)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
FileArgument = Annotated[Path, typer.Argument(help="A contrast: JSON lines with marked texts.", show_default=False)]
FilesArgument = Annotated[list[Path], typer.Argument(help="One or more contrasts.", show_default=False)]


RunArgument = Annotated[Path, typer.Argument(help="A run folder of features.", show_default=False)]
HeadsOption = Annotated[str | None, typer.Option("--heads", help="Heads such as L18H6,L21H7; all by default.")]


class Outcome(StrEnum):
    """Where the effect of an intervention is measured."""

    attention = "attention"
    logits = "logits"


class Frame(StrEnum):
    """The frame of queries and keys under rotary positions."""

    post = "post"
    relative = "relative"


@app.command(epilog="Example:  qkprism heads examples/boxes.jsonl --top 8")
def heads(
    contrast: FileArgument,
    model: ModelOption = "smollm2",
    top: Annotated[int, typer.Option(help="How many heads to show.", min=1)] = 10,
    by: Annotated[
        str, typer.Option(help="accuracy, accuracy_all, attention_positive, ratio or logit_gap.")
    ] = "accuracy",
    limit: LimitOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score every head by how it attends to the positive keys of a contrast."""
    import qkprism as qk

    examples = _read(contrast, limit, model)
    scores = qk.find_heads(qk.load(model, dtype=dtype, device=device), examples, by=by)
    frame = scores.to_frame().head(top)
    if as_json:
        _print_json({"n": scores.n, "chance": scores.chance, "heads": frame.to_dict("records")})
        return
    shown = ["head", "accuracy", "accuracy_all", "attention_positive", "attention_negative", "ratio", "logit_gap"]
    _print_table(frame, shown, f"{scores.n} examples, {len(scores)} heads; chance accuracy {scores.chance:.2f}")


@app.command(
    epilog="Examples:  qkprism decompose examples/boxes.jsonl --top 8 --save runs/boxes   "
    "qkprism decompose order.jsonl lexical.jsonl --heads L18H6,L21H7"
)
def decompose(
    contrasts: FilesArgument,
    model: ModelOption = "smollm2",
    chosen: HeadsOption = None,
    top: Annotated[int | None, typer.Option(help="Find the best N heads first and use those.", min=1)] = None,
    rank: Annotated[str, typer.Option(help="A number, balanced, energy, heldout, or larger (of the two).")] = "",
    metric: Annotated[str | None, typer.Option(help="raw or contrast (default with two contrasts or more).")] = None,
    reading: Annotated[str | None, typer.Option(help="Of twins: symmetric, paired or matched.")] = None,
    token: Annotated[str, typer.Option(help="Which token of a span: last, first or every.")] = "last",
    chat: Annotated[bool, typer.Option("--chat", help="Put texts into the model's chat template.")] = False,
    batch_size: Annotated[int | None, typer.Option(help="Texts a batch; by itself if not given.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Of folds and nulls.")] = 0,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's choices instead of ours.")] = False,
    rope: Annotated[Frame, typer.Option(help="Positions as they are, or counted from the query.")] = Frame.post,
    limit: LimitOption = None,
    save: Annotated[
        Path | None, typer.Option(help="Write a run folder with a report.html; if killed, it goes on.")
    ] = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the query-key features of contrasts: ranks, evidence, logit gaps."""
    import qkprism as qk
    from qkprism.runs import check_place, write_text

    if chosen and top:
        raise QKPrismError("Give --heads or --top, not both.")
    if save is not None:
        save = check_place(save.resolve(), "features")
    named = {c.name: c for c in (_read(path, limit, model) for path in contrasts)}
    if len(named) < len(contrasts):
        raise QKPrismError("Two of the files hold contrasts of the same name.")
    loaded = qk.load(model, dtype=dtype, device=device)
    scores = qk.find_heads(loaded, next(iter(named.values()))) if top else None
    picked: Any = scores.top(top) if scores and top else chosen.split(",") if chosen else None
    kept = save.with_name(f".{save.name}.checkpoint") if save else None
    options: dict[str, Any] = {"metric": metric, "reading": reading, "token": token, "seed": seed, "chat": chat or None}
    options |= {"rank": int(rank) if rank.isdigit() else rank or None, "batch_size": batch_size, "rope": rope.value}
    features = qk.decompose(loaded, named, heads=picked, preset="paper" if paper else None, checkpoint=kept, **options)
    report = None
    if save is not None and kept is not None:
        from qkprism.page.report import features_report

        report = write_text(features.save(save) / "report.html", features_report(features, scores))
        shutil.rmtree(kept)
    _show(features, as_json)
    if report and not as_json:
        typer.echo(f"Run folder: {save}\nReport:     {report.resolve()}")


@app.command(epilog="Example:  qkprism show runs/boxes")
def show(run: RunArgument, as_json: JsonOption = False) -> None:
    """Show the features of a run folder again, without the model."""
    from qkprism.core.feature_set import Features

    _show(Features.load(run), as_json)


@app.command(
    epilog="Examples:  qkprism intervene runs/boxes test.jsonl   "
    "qkprism intervene runs/boxes test.jsonl --outcome logits --heads L18H6 --save runs/boxes-effects"
)
def intervene(
    run: RunArgument,
    contrast: FileArgument,
    model: ModelOption = "smollm2",
    chosen: HeadsOption = None,
    outcome: Annotated[
        Outcome, typer.Option(help="Where to look: attention, or the model's logits.")
    ] = Outcome.attention,
    each: Annotated[bool, typer.Option("--each", help="With logits: edit the heads one by one, not together.")] = False,
    draws: Annotated[int, typer.Option(help="Of every random control.", min=1)] = 10,
    seed: Annotated[int, typer.Option(help="Of random targets and controls.")] = 0,
    limit: LimitOption = None,
    save: Annotated[Path | None, typer.Option(help="Write a run folder with a report.html.")] = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Swap two keys in the subspaces of features and see what moves, beside all controls."""
    import qkprism as qk
    from qkprism.runs import check_place, write_text

    if save is not None:
        save = check_place(save.resolve(), "effects")
    features, examples = qk.Features.load(run), _read(contrast, limit, model)
    loaded = qk.load(model, dtype=dtype, device=device)
    options: dict[str, Any] = {"outcome": outcome.value, "together": not each, "draws": draws, "seed": seed}
    effects = qk.intervene(loaded, examples, features, heads=chosen.split(",") if chosen else None, **options)
    if as_json:
        _print_json({"effects": effects.to_frame().to_dict("records"), "verdict": effects.verdict()})
    else:
        _show_effects(effects)
    if save is not None:
        from qkprism.page.report import effects_report

        report = write_text(effects.save(save) / "report.html", effects_report(effects))
        if not as_json:
            typer.echo(f"Run folder: {save}\nReport:     {report.resolve()}")


def _show_effects(effects: Any) -> None:
    frame = effects.to_frame()
    shown = ["head", "feature", "method", "control", "rank", *effects.measures]
    title = f"{effects.edit}, {int(effects.n[0])} examples"
    _print_table(frame[frame.target == "given"], shown, title)
    for sentence in effects.verdict():
        typer.echo(sentence)
    for note in effects.notes:
        typer.echo(f"Note: {note}")


@app.command(
    epilog='Example:  qkprism attribute runs/boxes "The hat is in Box O, the jam is in Box Z. The jam is in Box" L18H6'
)
def attribute(
    run: RunArgument,
    text: Annotated[str, typer.Argument(help="A text; its query is the last token unless marked [?so].")],
    head: Annotated[str | None, typer.Argument(help="A head such as L18H6; not needed if the run has one.")] = None,
    model: ModelOption = "smollm2",
    method: Annotated[str | None, typer.Option(help="oblique, sequential (the paper's), shapley or both.")] = None,
    order: Annotated[str | None, typer.Option(help="For sequential: the features, first one first, by commas.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the figure as .html, .png or .svg.")] = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Split the attention logits of a query token into features and a residual."""
    import qkprism as qk
    from qkprism.figures.saving import save_figure

    features = qk.Features.load(run)
    loaded = qk.load(model, dtype=dtype, device=device)
    why = qk.attribute(loaded, text, features, head, method=method, order=order.split(",") if order else None)
    if as_json:
        _print_json({"variance_shares": why.variance_shares(), "tokens": why.to_frame().to_dict("records")})
    else:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in why.variance_shares().items())
        columns = ["position", "token", "mark", *why.terms, "logit", "attention"]
        _print_table(
            why.to_frame(), columns, f"{why.head}, query at token {why.query}, {why.method}; of the variance: {shares}"
        )
    if save is not None:
        typer.echo(f"Figure: {save_figure(why.plot(), save).resolve()}", err=as_json)


PresetOption = Annotated[str, typer.Option(help="smollm2, llama3.1-8b or qwen3-4b: model, dtype, phrasing, size.")]
StudyModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="Hub name, folder, .gguf file, or smollm2.")
]
PhrasingOption = Annotated[str | None, typer.Option(help="How the prompts ask; the preset's if not given.")]
SizeOption = Annotated[str | None, typer.Option(help="quick or paper; the preset's if not given.")]
SeedOption = Annotated[int, typer.Option(help="Of prompts, held-out words and controls.")]
StudyFolderOption = Annotated[Path, typer.Option(help="The study's folder; what is in it is not computed again.")]
BatchOption = Annotated[int | None, typer.Option(help="Texts a batch; by itself if not given.", min=1)]


@app.command(
    epilog="Examples:  qkprism binding --pairs 5 --schema drinks --save runs/drinks   "
    "qkprism binding --preset qwen3-4b --device cuda"
)
def binding(
    preset: PresetOption = "smollm2",
    model: StudyModelOption = None,
    pairs: Annotated[int, typer.Option(help="Entities, each with its label, in a prompt.", min=2)] = 9,
    schema: Annotated[str, typer.Option(help="boxes, cities or drinks.")] = "boxes",
    phrasing: PhrasingOption = None,
    size: SizeOption = None,
    seed: SeedOption = 0,
    entities: Annotated[
        str | None, typer.Option(help="Numbers of entities to find ranks with, such as 10,18,34; size paper has some.")
    ] = None,
    umap: Annotated[bool, typer.Option("--umap", help="UMAP beside principal components (needs umap-learn).")] = False,
    save: StudyFolderOption = Path("runs/binding"),
    batch_size: BatchOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the binding study: which heads know what belongs to what, by which features, with proofs and a report."""
    from qkprism.core.projection import require_umap
    from qkprism.page.binding import binding_figures, binding_report
    from qkprism.page.binding_claims import comparison
    from qkprism.studies import study_binding
    from qkprism.studies.binding import check_options

    if umap:
        require_umap()
    numbers, chosen = _numbers(entities), _Chosen.of(preset, phrasing, size)
    check_options(save, schema, chosen.phrasing, chosen.size)
    options: dict[str, Any] = {"phrasing": chosen.phrasing, "size": chosen.size, "seed": seed, "entities": numbers}
    loaded = chosen.load(model, dtype, device)
    study = study_binding(loaded, save, n_pairs=pairs, schema=schema, batch_size=batch_size, **options)
    figures = binding_figures(study, umap=umap)
    frame = study.summary()
    found = {
        "heads": frame.to_dict("records"),
        "comparison": comparison(study),
        "validation": study.validation.summary().to_dict("records"),
    }
    title = f"Binding in {study.about.model}: {pairs} pairs, {schema}, {chosen.phrasing}"
    lines = [*study.notes, *study.outcome.verdict()]
    features = [f"{name}_{what}" for name in ("order", "lexical") for what in ("rank", "gap", "shift")]
    shown = frame[["head", "works_by", "accuracy", "accuracy_all", *features, "both_shift"]]
    _show_study(_Shown(shown, title, lines, found), save, figures, binding_report(study, figures), as_json)


@app.command(epilog="Example:  qkprism compare runs/boxes-0 runs/boxes-1 runs/boxes-2 runs/cities-0")
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders of finished binding studies.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Put binding studies side by side: means and spread over seeds, a column for each schema."""
    from qkprism.studies import BindingStudy
    from qkprism.studies import compare as side_by_side

    found = side_by_side([BindingStudy.load(folder) for folder in folders])
    if as_json:
        _print_json({"heads": found.heads, "values": found.values})
        return
    frame = found.to_frame()
    _print_table(frame, list(frame.columns), f"{len(folders)} studies: mean ± standard deviation over seeds")


@app.command("filter", epilog="Examples:  qkprism filter   qkprism filter --preset llama3.1-8b --device cuda")
def filter_heads(
    preset: PresetOption = "smollm2",
    model: StudyModelOption = None,
    phrasing: PhrasingOption = None,
    size: SizeOption = None,
    seed: SeedOption = 0,
    save: StudyFolderOption = Path("runs/filter"),
    batch_size: BatchOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the categories study: which heads find the items asked for, by which subspace, with proofs and a report."""
    from qkprism.figures.filter import filter_figures
    from qkprism.page.filter import comparison, filter_report
    from qkprism.studies import study_filter
    from qkprism.studies.filter import check_options

    chosen = _Chosen.of(preset, phrasing, size)
    check_options(save, chosen.phrasing, chosen.size)
    options: dict[str, Any] = {"phrasing": chosen.phrasing, "size": chosen.size, "seed": seed, "batch_size": batch_size}
    study = study_filter(chosen.load(model, dtype, device), save, **options)
    figures = filter_figures(study)
    frame = study.summary()
    found = {"heads": frame.to_dict("records"), "comparison": comparison(study), "notes": study.notes}
    shown = frame[[name for name in frame.columns if not name.endswith(("silhouette", "_rank"))]]
    title = f"Categories in {study.model}: {chosen.phrasing}, {chosen.size}"
    _show_study(_Shown(shown, title, list(study.notes), found), save, figures, filter_report(study, figures), as_json)


@dataclass(frozen=True)
class _Chosen:
    """A preset, and what was asked for instead."""

    preset: Any
    phrasing: str
    size: str

    @classmethod
    def of(cls, name: str, phrasing: str | None, size: str | None) -> _Chosen:
        from qkprism.studies.presets import preset_named

        preset = preset_named(name)
        return cls(preset, phrasing or preset.phrasing, size or preset.size)

    def load(self, model: str | None, dtype: str | None, device: str | None) -> Any:
        """The model; for one that was named the preset says nothing but how to ask it."""
        import qkprism as qk

        chosen = dtype or (self.preset.dtype if model is None else None)
        return qk.load(model or self.preset.model, dtype=chosen, device=device)


@dataclass(frozen=True)
class _Shown:
    """What a study says in the terminal: a table with its title, some lines, and all of it as JSON."""

    frame: Any
    title: str
    lines: list[str]
    found: dict[str, Any]


def _show_study(shown: _Shown, save: Path, figures: Any, report: str, as_json: bool) -> None:
    from qkprism.figures.saving import save_figures
    from qkprism.runs import write_text

    written = save_figures(figures, save / "figures")
    page = write_text(save / "report.html", report).resolve()
    if as_json:
        _print_json({**shown.found, "folder": str(save.resolve()), "report": str(page)})
        return
    _print_table(shown.frame, list(shown.frame.columns), shown.title)
    for line in (*shown.lines, written):
        typer.echo(line)
    typer.echo(f"Study:  {save.resolve()}\nReport: {page}")


def _numbers(text: str | None) -> list[int] | None:
    """Numbers between commas."""
    try:
        return None if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise QKPrismError(f"{text!r} is not a list of numbers such as 10,18,34.") from None


class Protocols(StrEnum):
    """How toy heads are trained."""

    fast = "fast"
    paper = "paper"


class Presets(StrEnum):
    """The scales of the toy task."""

    calibrated = "calibrated"
    paper = "paper"


class NegativeKeys(StrEnum):
    """How the negatives of a toy contrast are drawn."""

    differs = "differs"
    redrawn = "redrawn"


@app.command(epilog="Examples:  qkprism toy --save runs/toy   qkprism toy --quick --save runs/quick")
def toy(
    save: Annotated[Path, typer.Option(help="The run folder; finished parts in it are not computed again.")] = Path(
        "runs/toy"
    ),
    protocol: Annotated[
        Protocols, typer.Option(help="fast: the 212 heads in minutes; paper: the paper's own training, hours.")
    ] = Protocols.fast,
    quick: Annotated[bool, typer.Option("--quick", help="Ten small heads, trained briefly: a first look.")] = False,
    seeds: Annotated[int, typer.Option(help="How many heads of each kind.", min=1)] = 1,
    preset: Annotated[
        Presets, typer.Option(help="calibrated: scales that reach the paper's accuracies; paper: the text at its word.")
    ] = Presets.calibrated,
    negatives: Annotated[
        NegativeKeys, typer.Option(help="Negative keys of a contrast differ from the query, or are drawn anew.")
    ] = NegativeKeys.differs,
    as_json: JsonOption = False,
) -> None:
    """Train the paper's toy heads, find what is known to be in them, and write a page that compares both."""
    import qkprism as qk
    from qkprism.figures.saving import save_figures
    from qkprism.figures.toy import toy_figures
    from qkprism.page.toy import toy_report
    from qkprism.runs import write_text

    if quick and protocol is Protocols.paper:
        raise QKPrismError("Give --quick or --protocol paper, not both.")
    options: dict[str, Any] = {"protocol": "quick" if quick else protocol.value}
    if quick:
        options["cells"] = [cell for seed in range(seeds) for cell in qk.toy.few_cells(seed, preset.value)]
    else:
        options["cells"] = qk.toy.paper_grid(seeds=range(seeds), preset=preset.value)
    options["sampling"] = qk.toy.Sampling(negatives=negatives.value)
    found = qk.toy.study(save, **options, progress=_told_training, say=_told)
    _told("figures")
    figures = toy_figures(found)
    written = save_figures(figures, save / "figures")
    report = write_text(save / "report.html", toy_report(found, figures)).resolve()
    summary = found.summary()
    if as_json:
        _print_json({"summary": summary.to_dict("records"), "folder": str(save), "report": str(report)})
        return
    title = f"{len(found.heads)} heads. Room: r1 + r2 beside d_head. Swap error: of the swap of z1 against the truth."
    _print_table(summary, list(summary.columns), title)
    typer.echo(f"{written}\nReport: {report}")


def _told(what: str) -> None:
    typer.echo(what, err=True)


def _told_training(step: int, left: int) -> None:
    _told(f"step {step:,}: {left} heads in training")


def _show(features: Any, as_json: bool) -> None:
    frame = features.to_frame()
    if as_json:
        _print_json({"provenance": dict(features.provenance), "features": frame.to_dict("records")})
        return
    shown = ["contrast", "head", "rank", "rank_heldout", "rank_energy", "t", "logit_gap", "logit_gap_error"]
    shown += ["salience_energy", "key_agreement", "n"]
    best = frame.sort_values("t", ascending=False)
    title = f"{len(frame)} features in {features.provenance.get('model', 'vectors')}, strongest evidence first"
    _print_table(best.head(30), shown, title)
    for note in dict.fromkeys(note for feature in features.values() for note in feature.notes):
        typer.echo(f"Note: {note}")


def _read(path: Path, limit: int | None, model: str) -> Any:
    """A contrast whose marks are known to fit the model's tokens, before the model itself is loaded."""
    from qkprism.contrasts import Contrast
    from qkprism.models.encoding import encode
    from qkprism.models.loading import load_tokenizer

    contrast = Contrast.read(path)
    contrast = contrast if limit is None else contrast[:limit]
    tokenizer, causal = load_tokenizer(model)
    if tokenizer is not None and causal:
        encode(tokenizer, contrast)
    return contrast


_TEXTS = ("contrast", "head", "feature", "method", "control", "token", "mark", "variant", "room", "works_by", "what")


def _print_table(frame: Any, columns: list[str], title: str) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left", header_style="bold")
    for name in columns:
        table.add_column(escape(name.replace("_", " ")), justify="left" if name in _TEXTS else "right")
    for row in frame[columns].to_dict("records"):
        table.add_row(*(escape(_cell(row[name])) for name in columns))
    width = None if sys.stdout.isatty() else 140  # a pipe has no width of its own
    Console(width=width).print(table)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _print_json(body: dict[str, Any]) -> None:
    from qkprism.runs import json_value

    typer.echo(json.dumps(json_value(body), indent=1, allow_nan=False))


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and exit code 2."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except QKPrismError as error:
        typer.secho(f"qkprism: {error}", err=True, fg=typer.colors.RED)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
