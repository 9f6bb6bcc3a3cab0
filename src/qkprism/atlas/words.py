"""What an atlas says in a few sentences: how much of a model's attention has an explanation."""

from __future__ import annotations

from qkprism.atlas.atlas import SUFFICE, Atlas
from qkprism.findings import Finding, findings


def atlas_in_words(atlas: Atlas) -> list[Finding]:
    """What rebuilds rows of attention on plain text, in the median head."""
    frame, stages, text = atlas.to_frame(), atlas.coverage().set_index("with"), atlas.provenance["text"]
    rows = stages[f"rows within {SUFFICE}"]
    three, sixteen = (stages["variation"][stage] for stage in ("+ asked position", "+ match 16"))
    first = (frame["decides: first token"] > 0.5).sum()
    told = [
        f"In the median of {len(frame)} heads, all parts but the match rebuild a row of attention to within "
        f"{three:.2f} of total variation; 16 directions of match bring it to {sixteen:.2f}. They suffice (within "
        f"{SUFFICE}) in {rows['+ asked position']:.0%} of all rows. All this was measured on {text['held_out_rows']:,} "
        f"rows of {text['held_out_tokens']:,} tokens that were held out ({text['origin']})."
    ]
    if "+ named" in stages.index:
        named, permuted = (rows[stage] for stage in ("+ named", "+ permuted labels"))
        told.append(f"With named features {named:.0%} of rows suffice; with as much of permuted labels {permuted:.0%}.")
    rest = Finding(f"{first} heads rest on the first token in most rows.", "atlas")
    return [*findings(told, "coverage"), rest]
