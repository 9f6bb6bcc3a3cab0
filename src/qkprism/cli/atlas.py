"""Commands on plain text: atlas, explain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkprism.cli.app import HeadsOption, JsonOption, SaveOption, app
from qkprism.cli.inputs import Loading, check_folders, check_text, check_there, checkpoint_of, heads_named, place_for
from qkprism.cli.printing import print_item, print_json, print_sentences, print_table
from qkprism.cli.reports import write_page
from qkprism.cli.settings import SETTINGS
from qkprism.errors import QKPrismError
from qkprism.options import checked_seed

if TYPE_CHECKING:  # a command imports what it needs, so that help is quick
    from qkprism.atlas.atlas import Atlas
    from qkprism.atlas.explanation import Explanation
    from qkprism.heads import Head

FeaturesOption = Annotated[
    list[Path] | None, typer.Option(help="Run folders of features or of the shelf, to name parts of the match.")
]


@app.command(
    epilog="Examples:  qkprism atlas   qkprism atlas --texts corpus.jsonl --windows 512 --save runs/atlas   "
    "qkprism atlas --merge runs/one --merge runs/two --save runs/both"
)
def atlas(
    loading: Loading,
    texts: Annotated[
        list[Path] | None,
        typer.Option(help="Text files (.txt, .md, .jsonl, .parquet) or folders; else the model writes its own."),
    ] = None,
    windows: Annotated[int, typer.Option(help="Pieces of text to read.", min=4)] = 128,
    length: Annotated[int, typer.Option(help="Tokens of a piece.", min=16)] = 256,
    seed: Annotated[int, typer.Option(help="Of what is held out and of the model's own text.")] = 0,
    features: FeaturesOption = None,
    merge: Annotated[
        list[Path] | None, typer.Option(help="Instead: add up atlases of one model, two or more; give --save.")
    ] = None,
    save: SaveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Survey every head on plain text: where it looks, what decides, and what can be explained."""
    check_there(texts or ())
    check_folders([*(features or ()), *(merge or ())])
    checked_seed(seed)
    if merge and (texts or features or save is None or len(merge) < 2):
        raise QKPrismError(
            "--merge adds up atlases that are there: name two or more, and --save; no texts or features."
        )
    save = place_for(save, "atlas")
    SETTINGS.hold(save)
    if merge:
        from qkprism.atlas.atlas import Atlas

        first, *others = (Atlas.load(place) for place in merge)
        found = sum(others, first)
    else:
        found = _surveyed(loading, save, texts, windows=windows, length=length, seed=seed, features=features)
    report = None if save is None else write_page(found.save(save))
    if as_json:
        print_json({"provenance": dict(found.provenance), "heads": found.to_frame().to_dict("records")})
    else:
        _print_atlas(found)
        typer.echo(f"Atlas:  {save}\nReport: {report}" if save else "`qkprism explain` uses this atlas.")


def _surveyed(loading: Loading, save: Path | None, texts: list[Path] | None, **options: Any) -> Atlas:
    """Survey a model; an atlas that is not saved elsewhere is kept for `explain`."""
    import qkprism as qk
    from qkprism.atlas.explain import cached_atlas
    from qkprism.runs.folder import remove_run

    loaded = loading.load()
    checkpoint = checkpoint_of(save)
    found = qk.survey(loaded, texts or None, **options, checkpoint=checkpoint)
    found.save(save or cached_atlas(loaded))
    if checkpoint is not None:
        remove_run(checkpoint)
    return found


def _print_atlas(found: Atlas) -> None:
    from qkprism.atlas.words import atlas_in_words

    print_sentences([one.sentence for one in atlas_in_words(found)])
    coverage = found.coverage().round(3)
    print_table(coverage, [*coverage], "Rows rebuilt from parts alone, on held-out text (total variation: 0 is exact)")
    columns = ["head", "attention: first token", "attention: distance 1", "attention: after the same token"]
    best = found.to_frame().sort_values("attention: after the same token", ascending=False).head(10)
    print_table(best, columns, "Heads that attend to what followed the same token before")


@app.command(
    epilog='Examples:  qkprism explain "The hat is in box O, the jam is in box Z. The jam is in box"   '
    'qkprism explain "Mary met John. She greeted him" --query him --key John'
)
def explain(
    text: Annotated[str, typer.Argument(help="Any text; [?so] marks the query, [+so] the key.", show_default=False)],
    loading: Loading,
    query: Annotated[str | None, typer.Option(help="The token that attends: text or number; else the last.")] = None,
    key: Annotated[str | None, typer.Option(help="The token attended to: text or number; else the strongest.")] = None,
    chosen: HeadsOption = None,
    atlas: Annotated[Path | None, typer.Option(help="A run folder of `qkprism atlas`; else the one kept.")] = None,
    features: FeaturesOption = None,
    top: Annotated[int, typer.Option(help="How many edges to tell.", min=1)] = 8,
    save: Annotated[Path | None, typer.Option(help="Write the page, such as why.html.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Why do heads attend there? Any text, in parts that add up, strongest edges first."""
    heads = heads_named(chosen)
    check_text(text)
    if save is not None and save.is_dir():
        raise QKPrismError(f"{save} is a folder. Give a file for the page, such as {save / 'why.html'}.")
    check_folders([*(features or ()), *([atlas] if atlas else ())])
    import qkprism as qk

    options: dict[str, Any] = {"query": query, "key": key, "head": heads, "atlas": atlas, "top": top}
    found = qk.explain(loading.load(), text, features=features, **options)
    if as_json:
        print_json({"provenance": dict(found.provenance), "edges": found.to_frame().to_dict("records")})
    else:
        for number, edge in enumerate(found.edges, 1):
            print_item(f"{number}. ", edge.sentence)
            if names := ", ".join(name for name in edge.tried if name not in edge.offered):
                print_item("   ", f"{names}: no better here than permuted labels, so its part counts as unnamed.")
        _print_rebuilt(found)
        if features:
            _print_named(found, heads)
    if save is not None:
        typer.echo(f"Page: {found.save(save).resolve()}", err=as_json)


def _print_named(found: Explanation, heads: Sequence[Head] | None) -> None:
    """Which heads were asked where features are given, and what to try where they say nothing."""
    if heads is None:
        print_sentences(
            [f"Asked of the {len(found.rows)} heads that these runs have features of; --head names others."]
        )
    if not any(edge.tried for edge in found):
        print_sentences(["None of the features that were given holds in these heads."])
    elif not any(edge.offered for edge in found):
        print_sentences(["No feature is named here. Features are of the queries that contrasts mark: try --query."])


def _print_rebuilt(found: Explanation) -> None:
    """How much of each edge is explained, and how well its parts alone rebuild the row."""
    frame = found.to_frame().rename(columns={"variation": "named_parts_off_by", "unnamed match": "unnamed_match"})
    frame = frame.rename(columns={"variation without first": "without_the_first_token", "tried": "features_tried"})
    columns = ["head", "key", "height", "unnamed_match", "named_parts_off_by", "without_the_first_token"]
    columns += ["features_tried"] if any(frame["features_tried"]) else []
    typer.echo("")
    print_table(frame, columns, "How much of each row has a name")
    print_sentences(
        [
            "Height: logits above the mean of the tokens after the first; unnamed match: what of it has no name.",
            "Off by: total variation between the row and what its named parts alone make of it (0 is exact, 1 shares "
            "nothing).",
        ]
    )
