"""The page of an atlas: what of a model's attention can be explained, and with what."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from qkprism.figures.atlas import atlas_figure, coverage_figure
from qkprism.page.layout import figure, page, table

if TYPE_CHECKING:
    import pandas as pd

    from qkprism.atlas.atlas import Atlas

_MAPS = (
    "attention: first token",
    "attention: distance 1",
    "attention: after the same token",
    "attention: same token before",
    "signature: induction-like",
    "variation without first: + asked position",
    "suffice: + asked position",
)
BEST = 12


def atlas_page(atlas: Atlas) -> str:
    """One self-contained page."""
    frame = atlas.to_frame()
    model = str(atlas.provenance.get("model", ""))
    text = atlas.provenance.get("text", {})
    parts = [
        f"<h1>What of {escape(model)}'s attention can we explain?</h1>",
        f"<p>{escape(summary(atlas))}</p>",
        f"<p class=note>Learned from {text.get('tokens')} tokens of {escape(str(text.get('origin')))}; tested on "
        f"{text.get('held_out_tokens')} others.</p>",
        figure(coverage_figure(frame)),
        _coverage(atlas),
        "<h2>What decides</h2>",
        _deciding(frame),
        "<h2>Where heads look</h2>",
        *(figure(atlas_figure(frame, name, model)) for name in _MAPS if name in frame),
        "<h2>Heads that follow the same token</h2>",
        _strongest(atlas, frame, "attention: after the same token"),
    ]
    return page(f"atlas of {escape(model)}", parts)


def summary(atlas: Atlas) -> str:
    """A few sentences made from the numbers."""
    frame, stages = atlas.to_frame(), atlas.coverage().set_index("with")
    three, sixteen = (stages["variation"][stage] for stage in ("+ asked position", "+ match 16"))
    first = (frame["decides: first token"] > 0.5).sum()
    said = (
        f"{len(frame)} heads. In the median head, place and salience alone rebuild a row of attention to within "
        f"{three:.2f} of total variation; 16 directions of match bring it to {sixteen:.2f}. They suffice (within 0.1) "
        f"in {stages['suffice']['+ asked position']:.0%} of all rows. {first} heads rest on the first "
        "token in most rows."
    )
    if "+ named" not in stages.index:
        return said
    named, permuted = (stages["suffice"][stage] for stage in ("+ named", "+ permuted labels"))
    return f"{said} With named features {named:.0%} of rows suffice; with as much of permuted labels {permuted:.0%}."


def _coverage(atlas: Atlas) -> str:
    """What suffices, with one part more in each row."""
    told = atlas.coverage()
    shares = {name: [f"{share:.0%}" for share in told[name]] for name in ("suffice", "heads")}
    rows: list[dict[str, Any]] = [
        {str(name): value for name, value in row.items()} for row in told.assign(**shares).to_dict("records")
    ]
    return table(
        rows,
        {
            "with": "rebuilt from",
            "variation": "variation, median head",
            "later": "without the first token",
            "suffice": "of all rows within 0.1",
            "heads": "of heads within 0.1 on average",
        },
    )


def _deciding(frame: pd.DataFrame) -> str:
    columns = [str(name) for name in frame if str(name).startswith("decides: ")]
    rows: list[dict[str, Any]] = []
    leading = frame[columns].idxmax(axis=1)
    for column in columns:
        rows.append(
            {
                "part": column.removeprefix("decides: "),
                "heads": int((leading == column).sum()),
                "rows": f"{frame[column].mean():.0%}",
                "most": ", ".join(frame.sort_values(column, ascending=False)["head"].head(5)),
            }
        )
    names = {"part": "part", "heads": "heads in which it decides most rows", "rows": "of all rows", "most": "most in"}
    return table(rows, names)


def _strongest(atlas: Atlas, frame: pd.DataFrame, column: str) -> str:
    rows = []
    for head, mass in frame.sort_values(column, ascending=False)[["head", column]].head(BEST).itertuples(index=False):
        found = next((rows_ for name, rows_ in atlas.strongest.items() if str(name) == head), ())
        shown = "; ".join(f"...{row.before[-24:]}[{row.key}] ... [{row.query}]" for row in found[:2])
        rows.append({"head": head, "mass": float(mass), "shown": " ".join(shown.split())})
    return table(rows, {"head": "head", "mass": "attention on what followed the same token", "shown": "strongest rows"})
