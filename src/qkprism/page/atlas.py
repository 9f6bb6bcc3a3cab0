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
        "<h2>What decides</h2>",
        _deciding(frame),
        "<h2>Where heads look</h2>",
        *(figure(atlas_figure(frame, name, model)) for name in _MAPS if name in frame),
        "<h2>Heads that follow the same token</h2>",
        _strongest(atlas, frame, "attention: after the same token"),
    ]
    return page(f"atlas of {escape(model)}", parts)


def summary(atlas: Atlas) -> str:
    """Three sentences made from the numbers."""
    frame = atlas.to_frame()
    three, sixteen = (frame[f"variation: {stage}"].median() for stage in ("+ asked position", "+ match 16"))
    suffice = frame["suffice: + asked position"].mean()
    first = (frame["decides: first token"] > 0.5).sum()
    return (
        f"{len(frame)} heads. In the median head, place and salience alone rebuild a row of attention to within "
        f"{three:.2f} of total variation; 16 directions of match bring it to {sixteen:.2f}. They suffice (within 0.1) "
        f"in {suffice:.0%} of all rows. {first} heads rest on the first token in most rows."
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
