"""Commands on contrasts and run folders: heads, decompose, show, intervene, attribute."""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from qkprism.cli.app import (
    BatchOption,
    ContrastArgument,
    ContrastsArgument,
    DeviceOption,
    DtypeOption,
    HeadsOption,
    JsonOption,
    LimitOption,
    ModelOption,
    RunArgument,
    app,
)
from qkprism.cli.printing import print_json, print_table
from qkprism.errors import QKPrismError


class Outcome(StrEnum):
    """Where the effect of an intervention is measured."""

    attention = "attention"
    logits = "logits"


class Frame(StrEnum):
    """The frame of queries and keys under rotary positions."""

    post = "post"
    relative = "relative"


class Centre(StrEnum):
    """What is taken off before queries and keys are compared."""

    query = "query"
    none = "none"


@app.command(epilog="Examples:  qkprism heads induction --top 8   qkprism heads examples/boxes.jsonl")
def heads(
    contrast: ContrastArgument,
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

    found = resolved(contrast, model, "search", limit)
    loaded = qk.load(model, dtype=dtype, device=device)
    scores = qk.find_heads(loaded, found.contrast, by=by, chat=found.chat)
    frame = scores.to_frame().head(top)
    if as_json:
        print_json({"n": scores.n, "chance": scores.chance, "heads": frame.to_dict("records")})
        return
    shown = ["head", "accuracy", "accuracy_all", "attention_positive", "attention_negative", "ratio", "logit_gap"]
    print_table(frame, shown, f"{scores.n} examples, {len(scores)} heads; chance accuracy {scores.chance:.2f}")


@app.command(
    epilog="Examples:  qkprism decompose induction --top 8 --save runs/induction   "
    "qkprism decompose order.jsonl lexical.jsonl --heads L18H6,L21H7"
)
def decompose(
    contrasts: ContrastsArgument,
    model: ModelOption = "smollm2",
    chosen: HeadsOption = None,
    top: Annotated[int | None, typer.Option(help="Find the best N heads first and use those.", min=1)] = None,
    rank: Annotated[str, typer.Option(help="A number, energy, heldout, balanced, or own (not below balanced).")] = "",
    metric: Annotated[str | None, typer.Option(help="raw or contrast (default with two contrasts or more).")] = None,
    reading: Annotated[str | None, typer.Option(help="Of twins: symmetric, paired or matched.")] = None,
    token: Annotated[str, typer.Option(help="Which token of a span: last, first or every.")] = "last",
    chat: Annotated[bool, typer.Option("--chat", help="Put texts into the model's chat template.")] = False,
    batch_size: BatchOption = None,
    seed: Annotated[int, typer.Option(help="Of folds and nulls.")] = 0,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's choices instead of ours.")] = False,
    rope: Annotated[
        Frame | None,
        typer.Option(help="Positions as they are (post), or counted from the query; a template says which it wants."),
    ] = None,
    center: Annotated[
        Centre | None,
        typer.Option(help="What is taken off: the mean query, or nothing; a template says which it wants."),
    ] = None,
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
    found = [resolved(name, model, "contrast", limit, chat=chat) for name in contrasts]
    named = {one.contrast.name: one.contrast for one in found}
    if len(named) < len(contrasts):
        raise QKPrismError("Two of the files hold contrasts of the same name.")
    frame = rope.value if rope else _shared(contrasts, [one.frame for one in found], "frame", "--rope")
    wanted = [None if paper else one.center or "query" for one in found]  # the paper has its own
    taken_off = center.value if center else _shared(contrasts, wanted, "centre", "--center")
    texts = True if chat else _shared(contrasts, [one.chat for one in found], "chat template", "--chat")
    loaded = qk.load(model, dtype=dtype, device=device)
    scores = qk.find_heads(loaded, found[0].contrast, chat=texts) if top else None
    picked: Any = scores.top(top) if scores and top else chosen.split(",") if chosen else None
    kept = save.with_name(f".{save.name}.checkpoint") if save else None
    options: dict[str, Any] = {"metric": metric, "reading": reading, "token": token, "seed": seed, "chat": texts}
    options |= {
        "rank": int(rank) if rank.isdigit() else rank or None,
        "batch_size": batch_size,
        "rope": frame,
        "center": taken_off,
    }
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
    contrast: ContrastArgument,
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
    features = qk.Features.load(run)
    examples = resolved(contrast, model, "test", limit, chat=features.provenance["options"]["chat"]).contrast
    loaded = qk.load(model, dtype=dtype, device=device)
    options: dict[str, Any] = {"outcome": outcome.value, "together": not each, "draws": draws, "seed": seed}
    effects = qk.intervene(loaded, examples, features, heads=chosen.split(",") if chosen else None, **options)
    if as_json:
        print_json({"effects": effects.to_frame().to_dict("records"), "verdict": effects.verdict()})
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
    print_table(frame[frame.target == "given"], shown, title)
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
        print_json({"variance_shares": why.variance_shares(), "tokens": why.to_frame().to_dict("records")})
    else:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in why.variance_shares().items())
        columns = ["position", "token", "mark", *why.terms, "logit", "attention"]
        print_table(
            why.to_frame(), columns, f"{why.head}, query at token {why.query}, {why.method}; of the variance: {shares}"
        )
    if save is not None:
        typer.echo(f"Figure: {save_figure(why.plot(), save).resolve()}", err=as_json)


def _show(features: Any, as_json: bool) -> None:
    frame = features.to_frame()
    if as_json:
        print_json({"provenance": dict(features.provenance), "features": frame.to_dict("records")})
        return
    shown = ["contrast", "head", "rank", "rank_heldout", "rank_energy", "t", "logit_gap", "logit_gap_error"]
    shown += ["salience_energy", "key_agreement", "n"]
    best = frame.sort_values("t", ascending=False)
    title = f"{len(frame)} features in {features.provenance.get('model', 'vectors')}, strongest evidence first"
    print_table(best.head(30), shown, title)
    for note in dict.fromkeys(note for feature in features.values() for note in feature.notes):
        typer.echo(f"Note: {note}")


def _shared(names: list[str], values: list[Any], what: str, option: str) -> Any:
    """What all contrasts want alike: they are run together."""
    if any(value != values[0] for value in values):
        raise QKPrismError(f"{', '.join(names)} want different things of the {what}; say which with {option}.")
    return values[0]


def resolved(name: str, model: str, part: Any, limit: int | None, *, chat: Any = None) -> Any:
    """The contrast of that name, whose marks are known to fit the model's tokens before the model itself is loaded."""
    from qkprism.contrasts.sources import resolve

    resolve(name, part, limit=1)  # what is wrong with it anyway is said before a tokenizer is loaded
    from qkprism.models.encoding import encode
    from qkprism.models.loading import load_tokenizer

    tokenizer, causal = load_tokenizer(model)
    found = resolve(name, part, tokenizer=tokenizer, limit=limit)
    for note in found.notes:
        typer.echo(f"Note: {note}", err=True)
    if tokenizer is not None and causal:
        encode(tokenizer, found.contrast, chat=chat or found.chat)
    return found
