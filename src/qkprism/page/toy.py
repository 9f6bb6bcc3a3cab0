"""The page of a toy study: the paper's sections 2 to 4 told with this run's figures and numbers."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from qkprism.figures.toy import toy_figures
from qkprism.page.layout import figure as html_figure
from qkprism.page.layout import page
from qkprism.page.toy_claims import claims
from qkprism.page.toy_verdicts import ToyClaim

if TYPE_CHECKING:
    from collections.abc import Mapping

    import plotly.graph_objects as go

    from qkprism.toy.results import Study

_SECTIONS = (
    (
        "The task",
        "A selector names one of 16 tokens by two latents, z1 and z2, and a single attention head has to tell that "
        "token's payload. Latents are sign vectors (discrete) or Gaussian vectors (continuous) of ranks r1 and r2; "
        "queries and keys hold them through different random maps. Here the truth is known, so every claim can be "
        "checked. What a head can reach at best is known, too: tokens may share their latents, and a dot product "
        "favours long keys.",
        ("accuracy",),
    ),
    (
        "Ranks",
        "The contrastive covariance of z1 compares keys that share z1 with the query and keys that do not, while z2 is "
        "held fixed. Its rank should be r1. It is, wherever the head has room for both latents, and mostly also in "
        "heads that were never trained: the rank tells what queries and keys hold, not what the head uses.",
        ("ranks", "untrained", "sizes"),
    ),
    (
        "Subspaces",
        "The singular vectors of the contrastive covariance span the subspace of a latent in key and in query space. "
        "Projected there, keys and queries of one value of z1 fall into one place.",
        ("clouds",),
    ),
    (
        "Interventions",
        "If the subspaces are right, exchanging two keys' coordinates in them must move the attention from one token "
        "to the other. Swapping both does. But does the swap of one latent do what exchanging that latent does? Here "
        "the exchange can really be made.",
        ("swaps", "matched", "truth"),
    ),
    (
        "Attributions",
        "A logit can be split into what z1, z2 and the rest of a key give. The true split is known.",
        ("parts",),
    ),
    (
        "Coordinates",
        "A head only ever computes q·k. A change of basis that leaves every logit as it was leaves the model as it "
        "was; results that it changes were about coordinates.",
        ("gauge",),
    ),
    (
        "Superposition",
        "With more latent dimensions than the head has, coordinates share dimensions, of one latent or of both.",
        ("interactions",),
    ),
    ("Limits", "Latents that correlate in the data, and few examples.", ("limits",)),
)


def toy_report(study: Study, figures: Mapping[str, go.Figure] | None = None) -> str:
    """The page of a study, as HTML that needs no network; its figures are made unless given."""
    figures = figures or toy_figures(study)
    parts = [
        "<h1>The toy laboratory</h1>",
        f"<p>{len(study.heads)} attention heads, trained on the payload retrieval task of the paper. All figures and "
        "numbers are of this run.</p>",
        "<h2>The paper and this run</h2>",
        _table(claims(study)),
    ]
    for title, text, names in _SECTIONS:
        if shown := [html_figure(figures[name]) for name in names if name in figures]:
            parts += [f"<h2>{title}</h2>", f"<p>{text}</p>", *shown]
    return page("the toy laboratory", parts, _STYLE)


_STYLE = """
#claims td, #claims th { text-align: left; vertical-align: top; } #claims td:first-child { white-space: nowrap; }
.yes { color: #0072B2; } .no { color: #B2182B; } .partly { color: #8A6100; } p { max-width: 60rem; }
"""


def _table(rows: list[ToyClaim]) -> str:
    body = "".join(
        f"<tr><td><b class={row.verdict}>{_VERDICTS[row.verdict]}</b></td><td>{escape(row.paper)}</td>"
        f"<td>{escape(row.run)}</td><td>{escape(row.rule)}</td></tr>"
        for row in rows
    )
    head = "<tr><th></th><th>the paper</th><th>this run</th><th>agrees if</th></tr>"
    return f"<div class=scroll><table id=claims><thead>{head}</thead><tbody>{body}</tbody></table></div>"


_VERDICTS = {"yes": "agrees", "partly": "in part", "no": "differs", "new": "new"}
