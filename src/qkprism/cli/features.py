"""Commands on contrasts and run folders: heads, decompose, show, intervene, attribute."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkprism.cli.app import (
    BatchOption,
    ChatOption,
    ContrastArgument,
    ContrastsArgument,
    HeadsOption,
    JsonOption,
    LimitOption,
    RunArgument,
    SaveOption,
    TokenOption,
    app,
)
from qkprism.cli.inputs import (
    Loading,
    check_run,
    check_sources,
    check_text,
    checkpoint_of,
    fitting_contrasts,
    heads_named,
    like,
    place_for,
    source_named,
)
from qkprism.cli.printing import print_json, print_sentences, print_table
from qkprism.cli.reports import keep_and_write, write_page
from qkprism.cli.settings import SETTINGS
from qkprism.encoding import Encoding
from qkprism.errors import QKPrismError
from qkprism.options import (
    CENTERS,
    FRAMES,
    HEAD_MEASURES,
    METRICS,
    PRESETS,
    READINGS,
    RULES,
    SPLITS,
    Outcome,
    Rank,
    checked_rank,
    checked_seed,
    choice,
    either,
)
from qkprism.progress import part
from qkprism.runs.files import check_figure_name

if TYPE_CHECKING:
    from qkprism.contrasts.sources import Resolved
    from qkprism.results.scores import HeadScores

SHOWN = 64  # texts that are kept with a run


@app.command(epilog="Examples:  qkprism heads induction --top 8   qkprism heads examples/boxes.jsonl")
def heads(
    contrast: ContrastArgument,
    loading: Loading,
    top: Annotated[int, typer.Option(help="How many heads to show.", min=1)] = 10,
    by: Annotated[str, typer.Option(help=f"{either(HEAD_MEASURES)}.")] = "accuracy",
    token: TokenOption = "last",
    chat: ChatOption = False,
    batch_size: BatchOption = None,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score every head by how it attends to the positive keys of a contrast."""
    choice(by, HEAD_MEASURES, "a measure of heads")
    encoding = Encoding(token, chat)  # type: ignore[arg-type]
    contrast = source_named(contrast)
    check_sources([contrast], "search")
    import qkprism as qk

    found = fitting_contrasts(encoding, [contrast], "search", loading.name, limit)[0]
    encoding = like(encoding, found.chat)
    scores = qk.find_heads(loading.load(), found.contrast, by=by, encoding=encoding, batch_size=batch_size)
    frame = scores.to_frame().head(top)
    if as_json:
        found_at = scores.count_found()._asdict()
        print_json({"n": scores.n, "chance": scores.chance, "found": found_at, "heads": frame.to_dict("records")})
        return
    shown = ["head", "accuracy", "q", "accuracy_all", "attention_positive", "attention_negative", "ratio", "logit_gap"]
    from qkprism.results.words import heads_in_words

    print_sentences(heads_in_words(scores))
    print_table(frame, shown, f"{scores.n} examples, {len(scores)} heads; chance accuracy {scores.chance:.2f}")


@app.command(
    epilog="Examples:  qkprism decompose induction --top 8 --save runs/induction   "
    "qkprism decompose order.jsonl lexical.jsonl --heads L18H6,L21H7"
)
def decompose(
    contrasts: ContrastsArgument,
    loading: Loading,
    chosen: HeadsOption = None,
    top: Annotated[int | None, typer.Option(help="Find the best N heads first and use those.", min=1)] = None,
    rank: Annotated[str | None, typer.Option(help=f"A number, {either(RULES)}.")] = None,
    metric: Annotated[str | None, typer.Option(help="contrast (default) or raw, the paper's.")] = None,
    reading: Annotated[str | None, typer.Option(help="Of twins: symmetric, paired or matched.")] = None,
    token: TokenOption = "last",
    chat: ChatOption = False,
    batch_size: BatchOption = None,
    seed: Annotated[int, typer.Option(help="Of folds and nulls.")] = 0,
    preset: Annotated[
        str | None, typer.Option(help="paper: the choices of the paper's text; paper-code: of its authors' programs.")
    ] = None,
    rope: Annotated[
        str | None,
        typer.Option(help="Positions as they are (post), or counted from the query; a template says which it wants."),
    ] = None,
    center: Annotated[
        str | None,
        typer.Option(help="What is taken off: the mean query, or nothing; a template says which it wants."),
    ] = None,
    limit: LimitOption = None,
    save: SaveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the query-key features of contrasts: ranks, evidence, logit gaps."""
    if chosen is not None and top:
        raise QKPrismError("Give --heads or --top, not both.")
    encoding = Encoding(token, chat)  # type: ignore[arg-type]
    picked: Any = heads_named(chosen)
    options: dict[str, Any] = {"seed": checked_seed(seed)}
    cut = _rank(rank)
    _check_choices(metric=metric, reading=reading, rope=rope, center=center, preset=preset)
    save = place_for(save, "features")
    contrasts = [source_named(name) for name in contrasts]
    check_sources(contrasts, "contrast")
    SETTINGS.hold(save)
    import qkprism as qk
    from qkprism.runs.folder import remove_run

    found = fitting_contrasts(encoding, contrasts, "contrast", loading.name, limit)
    frame: Any = rope or _shared(contrasts, [one.frame for one in found], "frame", "--rope")
    wanted = [None if preset else one.center or "query" for one in found]  # the paper has its own
    taken_off = center or _shared(contrasts, wanted, "centre", "--center")
    template = None if chat else _shared(contrasts, [one.chat for one in found], "chat template", "--chat")
    arguments: dict[str, Any] = {"encoding": like(encoding, template, frame), "batch_size": batch_size}
    loaded = loading.load()
    with part(1, 2, "heads"):
        scores = qk.find_heads(loaded, found[0].contrast, **arguments) if top else None
    picked = scores.top(top) if scores and top else picked
    kept = checkpoint_of(save)
    recipe: Any = qk.Recipe(preset=preset, center=taken_off, reading=reading, metric=metric, rank=cut)  # type: ignore[arg-type]
    options |= {"recipe": recipe, "checkpoint": kept, **arguments}
    with part(2, 2, "features") if top else nullcontext():
        features = qk.decompose(loaded, {one.contrast.name: one.contrast for one in found}, heads=picked, **options)
    report = None
    if save is not None and kept is not None:
        features.save(save)
        seen = fitting_contrasts(encoding, contrasts[:1], "test", loading.name, SHOWN)[0].contrast
        report = keep_and_write(loaded, save, texts=seen, scores=scores)
        remove_run(kept)
    _show(features, as_json, scores)
    if report and not as_json:
        typer.echo(f"Run folder: {save}\nReport:     {report}")


@app.command(epilog="Example:  qkprism show runs/boxes")
def show(run: RunArgument, as_json: JsonOption = False) -> None:
    """Show the features of a run folder again, without the model."""
    check_run(run, "features")
    from qkprism.results.features import Features
    from qkprism.results.scores import HeadScores
    from qkprism.runs.catalogue import SCORES

    kept = run / SCORES
    _show(Features.load(run), as_json, HeadScores.load(kept.parent) if kept.is_file() else None)


@app.command(
    epilog="Examples:  qkprism intervene runs/boxes test.jsonl   "
    "qkprism intervene runs/boxes test.jsonl --outcome logits --heads L18H6 --save runs/boxes-effects"
)
def intervene(
    run: RunArgument,
    contrast: ContrastArgument,
    loading: Loading,
    chosen: HeadsOption = None,
    outcome: Annotated[str, typer.Option(help="Where to look: attention, or the model's logits.")] = "attention",
    each: Annotated[bool, typer.Option("--each", help="With logits: edit the heads one by one, not together.")] = False,
    draws: Annotated[int, typer.Option(help="Of every random control.", min=1)] = 10,
    seed: Annotated[int, typer.Option(help="Of random targets and controls.")] = 0,
    batch_size: BatchOption = None,
    limit: LimitOption = None,
    save: SaveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Swap two keys in the subspaces of features and see what moves, beside all controls."""
    heads = heads_named(chosen)
    where, seed = Outcome(outcome, together=not each), checked_seed(seed)  # type: ignore[arg-type]
    save = place_for(save, "effects")
    contrast = source_named(contrast)
    check_sources([contrast], "test")
    check_run(run, "features")
    SETTINGS.hold(save)
    import qkprism as qk
    from qkprism.runs.folder import remove_run

    features = qk.Features.load(run)
    tested = fitting_contrasts(features.encoding, [contrast], "test", loading.name, limit)[0]
    kept = checkpoint_of(save)
    effects = qk.intervene(
        loading.load(),
        tested.contrast,
        features,
        heads=heads,
        outcome=where,
        compare=qk.Comparison(draws=draws, seed=seed),
        batch_size=batch_size,
        checkpoint=kept,
    )
    if as_json:
        print_json({"effects": effects.to_frame().to_dict("records"), "verdict": effects.verdict()})
    else:
        _show_effects(effects, features, tested)
    if save is not None and kept is not None:
        report = write_page(effects.save(save))
        remove_run(kept)
        if not as_json:
            typer.echo(f"Run folder: {save}\nReport:     {report}")


def _show_effects(effects: Any, features: Any, tested: Resolved) -> None:
    """The verdict first, by one method of editing; with --wide those by all methods, and the table of every edit."""
    from qkprism.subspaces.comparison import left_out

    words = " with words that are held out for the test" if tested.held_out else ""
    print_sentences([f"Two keys swapped in the subspace of each feature, in {int(effects.n[0])} examples{words}."])
    for sentence in effects.verdict(methods=None if SETTINGS.wide else effects.methods[:1]):
        print_sentences([sentence])
    detail = left_out(features, None)
    for note in effects.notes:
        if note not in detail:
            print_sentences([f"Note: {note}"])
        elif SETTINGS.wide:
            named = f" Decompose {' or '.join(tested.twins)}, which has twins." if tested.twins else ""
            print_sentences([f"Note: {note}{named}"])
    if SETTINGS.wide:
        frame = effects.to_frame()
        shown = ["head", "feature", "method", "control", "rank", *effects.measures]
        print_table(frame[frame.target == "given"], shown, "Every edit: the measures are of what is there after it")
    else:
        several = len(effects.methods) > 1
        methods = f", and those by the other methods ({', '.join(effects.methods[1:])})" if several else ""
        typer.echo(f"Every edit beside its controls{methods}: --wide.")


@app.command(
    epilog='Example:  qkprism attribute runs/boxes "The hat is in Box O, the jam is in Box Z. The jam is in Box" L18H6'
)
def attribute(
    run: RunArgument,
    text: Annotated[str, typer.Argument(help="A text; its query is the last token unless marked [?so].")],
    loading: Loading,
    head: Annotated[str | None, typer.Argument(help="A head such as L18H6; not needed if the run has one.")] = None,
    named: Annotated[
        str | None, typer.Option("--head", "--heads", help="The same as an option.", show_default=False)
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="oblique, sequential (the paper's), shapley, both or conditional.")
    ] = None,
    order: Annotated[str | None, typer.Option(help="For sequential: the features, first one first, by commas.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the figure as .html, .png or .svg.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Split the attention logits of a query token into features and a residual."""
    if method is not None:
        choice(method, SPLITS, "a method of attribution")
    if save is not None:
        check_figure_name(save)
    if head is not None and named is not None:
        raise QKPrismError("Give the head once: after the text, or with --head.")
    chosen = heads_named(head or named)
    if chosen is not None and len(chosen) > 1:
        raise QKPrismError(f"{head or named} are {len(chosen)} heads. `attribute` splits the logits of one; give one.")
    check_text(text)
    check_run(run, "features")
    import qkprism as qk
    from qkprism.figures.saving import save_figure

    features = qk.Features.load(run)
    order_of = order.split(",") if order else None
    why = qk.attribute(loading.load(), text, features, chosen[0] if chosen else None, method=method, order=order_of)
    if as_json:
        print_json({"variance_shares": why.variance_shares(), "tokens": why.to_frame().to_dict("records")})
    else:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in why.variance_shares().items())
        columns = ["position", "token", "mark", *why.terms, "logit", "attention"]
        print_table(
            why.to_frame(), columns, f"{why.head}, query at token {why.query}, {why.method}; of the variance: {shares}"
        )
    if save is not None:
        typer.echo(f"Figure: {save_figure(why.plot(), save).resolve()}", err=as_json)


def _show(features: Any, as_json: bool, scores: HeadScores | None = None) -> None:
    """Features with what their heads look at, where heads were looked for."""
    from qkprism.results.words import features_in_words, hardly_attending
    from qkprism.subspaces.modulation import interactions_in_words

    frame, looks = features.to_frame(), ["accuracy", "attention_positive"]
    if scores is not None:
        looked = scores.to_frame().set_index("head")
        frame = frame.assign(**{name: frame["head"].astype(str).map(looked[name]) for name in looks})
    if as_json:
        counts = {name: found._asdict() for name, found in features.count_found().items()}
        body = {"provenance": dict(features.provenance), "found": counts, "features": frame.to_dict("records")}
        print_json(body)
        return
    shown = ["feature", "head", "rank", "rank_heldout", "t", "q", *(looks if scores is not None else ())]
    shown += ["logit_gap", "logit_gap_error", "rank_energy", "salience_energy", "key_agreement", "n"]
    best = frame.sort_values(["q", "t"], ascending=[True, False])
    title = f"{len(frame)} features in {features.provenance.get('model', 'vectors')}, strongest evidence first"
    print_sentences(features_in_words(features, interactions_in_words(features)))
    if scores is not None and (few := hardly_attending(scores, [head for head in scores if head in features.heads])):
        print_sentences(few)
    print_table(best.head(30), shown, title)
    for note in features.notes:
        typer.echo(f"Note: {note}")


def _rank(text: str | None) -> Rank | None:
    """A rank as it is written: a number or a rule."""
    return None if text is None else checked_rank(int(text) if text.isdecimal() and len(text) < 10 else text)


_CHOICES = {
    "metric": (METRICS, "a metric"),
    "reading": (READINGS, "a reading of twins"),
    "rope": (FRAMES, "a frame of positions (rope)"),
    "center": (CENTERS, "a way to centre"),
    "preset": (PRESETS, "a preset"),
}


def _check_choices(**chosen: str | None) -> None:
    """Refuse choices that there are not."""
    for name, value in chosen.items():
        if value is not None:
            choice(value, *_CHOICES[name])


def _shared(names: list[str], values: list[Any], what: str, option: str) -> Any:
    """What all contrasts want alike: they are run together."""
    if any(value != values[0] for value in values):
        raise QKPrismError(f"{', '.join(names)} want different things of the {what}; say which with {option}.")
    return values[0]
