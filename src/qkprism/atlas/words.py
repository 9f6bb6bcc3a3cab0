"""What an atlas says in a few sentences: how much of a model's attention has an explanation."""

from __future__ import annotations

from qkprism.atlas.atlas import Atlas


def atlas_in_words(atlas: Atlas) -> list[str]:
    """What rebuilds rows of attention on plain text, in the median head."""
    frame, stages = atlas.to_frame(), atlas.coverage().set_index("with")
    three, sixteen = (stages["variation"][stage] for stage in ("+ asked position", "+ match 16"))
    first = (frame["decides: first token"] > 0.5).sum()
    told = [
        f"In the median of {len(frame)} heads, place and salience alone rebuild a row of attention to within "
        f"{three:.2f} of total variation; 16 directions of match bring it to {sixteen:.2f}. They suffice (within 0.1) "
        f"in {stages['suffice']['+ asked position']:.0%} of all rows. {first} heads rest on the "
        "first token in most rows."
    ]
    if "+ named" in stages.index:
        named, permuted = (stages["suffice"][stage] for stage in ("+ named", "+ permuted labels"))
        told.append(f"With named features {named:.0%} of rows suffice; with as much of permuted labels {permuted:.0%}.")
    return told
