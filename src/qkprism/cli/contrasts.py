"""Commands that make and check contrasts: new, check, draw, shelf."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from qkprism.cli.app import (
    ContrastArgument,
    DeviceMapOption,
    DeviceOption,
    DtypeOption,
    JsonOption,
    ModelOption,
    app,
)
from qkprism.cli.inputs import Loading, source_named
from qkprism.cli.printing import print_json, print_sentences
from qkprism.cli.reports import write_page
from qkprism.cli.settings import SETTINGS
from qkprism.errors import QKPrismError
from qkprism.options import checked_seed
from qkprism.progress import say

STARTER = """\
# A contrast in one file. Try it:  qkprism check {file}   and then:  qkprism heads {file}
question = "Which box holds the thing that is asked for?"
places = 5                            # candidates in a prompt; `asked` and `other` are two of them, drawn for you
exchange = ["thing", "box", "order"]  # what really can change places between `asked` and `other`
twins = ["thing", "order"]            # what a twin of a prompt has changed
prompt = '''
{% for i in range(places) %}
{{ "The" if loop.first else ", the" }} {{ thing[i] }} is in box {{ key(i, box[i], order=i, thing=thing[i]) }}
{%- endfor %}. The {{ goal }} is in box'''
# key() marks the word at place `asked` as the positive key, that at `other` as the target, the rest as negative keys.
# pos(), neg(), target() and query() mark a word as you say. Without query() the last token is the query.

[words]                # a list of your own, a file beside this one ("mine.txt"), or one that comes with qkprism
things = "objects"
boxes = "letters"

[draw]                 # in this order: sample(list, n), choice(list), shuffle(list), number(low, high), each([lists])
thing = "sample(things, places)"
box = "sample(boxes, places)"
goal = "thing[asked]"
"""


class PartOption(StrEnum):
    """What a template can draw."""

    contrast = "contrast"
    search = "search"
    test = "test"


ModelsTokens = Annotated[
    str, typer.Option("--model", "-m", help="Whose tokenizer to use: hub name, folder, .gguf file, smollm2, or none.")
]


@app.command(epilog="Example:  qkprism new my.toml")
def new(
    file: Annotated[Path, typer.Argument(help="Where to write it: a name that ends in .toml.", show_default=False)],
) -> None:
    """Write a template to start from."""
    if file.suffix != ".toml":
        raise QKPrismError(f"{file} is not a name for a template; give one that ends in .toml, such as my.toml.")
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(STARTER.replace("{file}", str(file)))
    except FileExistsError:
        raise QKPrismError(f"{file} is there already; give another name, or check it: qkprism check {file}") from None
    except OSError as error:
        raise QKPrismError(f"{file} cannot be written: {error.strerror}") from error
    typer.echo(f"Written: {file}   Next: qkprism check {file}")


@app.command(epilog="Examples:  qkprism check my.toml   qkprism check induction   qkprism check my.jsonl")
def check(
    contrast: ContrastArgument,
    model: ModelsTokens = "smollm2",
    n: Annotated[int, typer.Option("-n", help="How many prompts to draw.", min=8)] = 200,
    shown: Annotated[int, typer.Option(help="How many prompts to show.", min=0)] = 3,
    seed: Annotated[int, typer.Option(help="Of the draws and of the held-out words.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Draw some prompts, show their tokens and marks, and say what is wrong with them or may be."""
    from qkprism.cli.marked import show_check
    from qkprism.contrasts.checks import check as checked
    from qkprism.models.quick import word_offsets

    contrast = source_named(contrast)
    found, offsets = checked(contrast, n=n, seed=seed), None
    if not found.mistakes and model != "none":  # what is wrong anyway is said before a tokenizer is loaded
        tokenizer = _tokenizer(model)
        offsets = word_offsets(tokenizer)
        found = checked(contrast, tokenizer=tokenizer, offsets=offsets, n=n, seed=seed)
    if as_json:
        rows = [{"predictor": r.predictor, "auc": r.auc, "error": r.error, "tells": r.tells} for r in found.balance]
        mistakes = [{"file": found.name, "line": m.line, "message": m.message} for m in found.mistakes]
        print_json({"mistakes": mistakes, "notes": list(found.notes), "balance": rows})
    else:
        show_check(found, offsets, shown)
    if found.mistakes:
        raise SystemExit(1)


@app.command(epilog="Examples:  qkprism draw my.toml -n 300 > my.jsonl   qkprism draw induction:before --part contrast")
def draw(
    contrast: ContrastArgument,
    n: Annotated[int, typer.Option("-n", help="How many examples.", min=1)] = 300,
    part: Annotated[
        PartOption, typer.Option(help="Of the words of the contrast, or held out for the test.")
    ] = PartOption.contrast,
    seed: Annotated[int, typer.Option(help="Of the draws and of the held-out words.")] = 0,
    model: ModelsTokens = "none",
) -> None:
    """Write the examples of a template as JSON lines."""
    from qkprism.contrasts.contrast import json_lines
    from qkprism.contrasts.sources import resolve

    resolve(contrast, part.value, limit=1, seed=seed)  # a broken template is told before a tokenizer is loaded
    tokenizer = None if model == "none" else _tokenizer(model)
    found = resolve(contrast, part.value, tokenizer=tokenizer, limit=n, seed=seed)
    for note in found.notes:
        say(f"Note: {note}")
    for line in json_lines(found.contrast):
        typer.echo(line)


@app.command(epilog="Examples:  qkprism shelf   qkprism shelf --run --model Qwen/Qwen3-0.6B --save runs/qwen")
def shelf(
    run: Annotated[
        bool,
        typer.Option(
            "--run",
            help="Run all of them through a model; if killed, it goes on. Under torchrun: -m qkprism -- shelf --run.",
        ),
    ] = False,
    model: ModelOption = "smollm2",
    save: Annotated[Path, typer.Option(help="With --run: the folder; what is in it is not computed again.")] = Path(
        "runs/shelf"
    ),
    n: Annotated[int, typer.Option("-n", help="With --run: examples of each contrast.", min=32)] = 300,
    seed: Annotated[int, typer.Option(help="With --run: of prompts, held-out words and controls.")] = 0,
    only: Annotated[str | None, typer.Option(help="With --run: some contrasts, by commas.")] = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    device_map: DeviceMapOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the contrasts that come with qkprism and what was found for each, or find it in a model."""
    from qkprism.cli.marked import show_findings, show_shelf
    from qkprism.contrasts.shelves import FOUND, check_on_shelf, shelf_rows

    if not run:
        rows = shelf_rows()
        if as_json:
            print_json({"contrasts": rows})
        else:
            show_shelf(rows)
        return
    chosen = None if only is None else [check_on_shelf(name) for name in only.split(",")]
    loading = Loading(model, dtype, device, device_map)
    checked_seed(seed)
    import qkprism as qk
    from qkprism.runs.files import write_text

    SETTINGS.hold(save)
    found = qk.run_shelf(loading.load(), save, contrasts=chosen, n=n, seed=seed)
    command = f"qkprism shelf --run --model {model} -n {n} --seed {seed}"
    write_text(save / FOUND, json.dumps(found.to_json(command), indent=1) + "\n")
    page = write_page(save)
    if as_json:
        print_json({"provenance": dict(found.provenance), "rows": found.to_frame().to_dict("records")})
        return
    print_sentences(found.in_words())
    show_findings(found)
    typer.echo(f"Run folder: {save}\nPage:       {page}")


def _tokenizer(model: str) -> Any:
    from qkprism.models.quick import quick_tokenizer

    if quick := quick_tokenizer(model):
        return quick
    from qkprism.models.loading import load_tokenizer

    tokenizer, _ = load_tokenizer(model)
    if tokenizer is None or not tokenizer.is_fast:
        raise QKPrismError(f"{model} has no tokenizer that tells where its tokens are; give --model none.")
    return tokenizer
