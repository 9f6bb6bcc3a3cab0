"""`Explanation`: why heads attend from one token of a text to others, in parts that add up.

Logits matter beside other logits only. For an edge, a head attending from the query to a key, two questions are
answered, each by shares that add up:

    height   how far the key's logit is above the mean of the tokens after the first: what makes it attended. The part
             with the largest share decides: of all parts it is the one whose removal moves the attention most, in nine
             edges of ten (benchmarks/explain.py)
    lead     how far it is above its rival, the most attended other token but the first: why this one and not that one

The first token is told apart because heads rest there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.atlas.rows import STAGES
from qkprism.core.row_split import PARTS, REST
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike
from qkprism.runs.files import write_text

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

THREE = STAGES.index("+ asked position")
NAMED = "+ named"  # the stage of the features that are told of a row
EVEN = 0.1  # logits: a smaller lead is none
RESTS = 0.5  # attention on the first token from which a sentence says so
EXACT = 1e-9
ROUNDED = 0.05  # logits: less reads 0.0
FRAME = "width: 100%; height: 620px; border: 0"  # of the page in a notebook


@dataclass(frozen=True)
class HeadRow:
    """One row of attention of one head, token by token.

    `terms` are the parts of the logits, which they add up to; named features come before the rest of the match. `null`
    has the parts that features from permuted labels would have, and `tried` names all features that hold in the head.
    `variation` says how far the row is from the true one
    when it is rebuilt from some parts alone, stage by stage (`variation_later`: without the first token).
    """

    head: Head
    attention: Float64[Tensor, " token"]
    logits: Float64[Tensor, " token"]
    terms: Mapping[str, Float64[Tensor, " token"]]
    null: Mapping[str, Float64[Tensor, "draw token"]]
    variation: Mapping[str, float]
    variation_later: Mapping[str, float]
    tried: tuple[str, ...] = ()
    sink: float = 0.0  # attention that goes to a sink which is no token


@dataclass(frozen=True)
class Edge:
    """A head attending from the query to one key: what lifts the key above the others, and what above its rival.

    `resting` is the attention on the first token. `shares` of the height and `lead_shares` of the lead are in logits,
    by part. In each the named features are offered that move it more than their permuted labels do; all others are part
    of the match without a name. `variation` is that of the row rebuilt from position, salience and named features alone
    (`variation_later`: without the first token).
    """

    head: Head
    query: int
    key: int
    attention: float
    resting: float
    height: float
    shares: Mapping[str, float]
    decides: str
    rival: int | None
    lead: float
    lead_shares: Mapping[str, float]
    tried: tuple[str, ...]
    variation: float
    variation_later: float
    sentence: str

    @property
    def offered(self) -> tuple[str, ...]:
        """The features that name a share of the height or of the lead."""
        return tuple(name for name in self.tried if name in self.shares or name in self.lead_shares)

    @property
    def unexplained(self) -> float:
        """The part of the height that has no name: the rest of the match."""
        return self.shares[REST]


@dataclass(frozen=True, repr=False)
class Explanation:
    """Why heads attend from one token of a text: the strongest edges first, and every row behind them."""

    tokens: tuple[str, ...]
    query: int
    key: int | None
    edges: tuple[Edge, ...]
    rows: Mapping[Head, HeadRow]
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Edge]:
        return iter(self.edges)

    def __len__(self) -> int:
        return len(self.edges)

    def row(self, head: HeadLike) -> HeadRow:
        """The row of one head."""
        wanted = Head.parse(head)
        if wanted not in self.rows:
            raise QKPrismError(f"{wanted} is not in this explanation. There are: {', '.join(map(str, self.rows))}.")
        return self.rows[wanted]

    def edge(self, head: HeadLike, key: int) -> Edge:
        """Why a head attends to one key, a token's number, rather than to its rival."""
        return edge_of(self.row(head), self.query, key, self.tokens)

    def most_attended(self, head: HeadLike, most: int) -> list[int]:
        """The tokens that a head attends to most, by their numbers, best first."""
        row = self.row(head)
        order: list[int] = row.attention.argsort(descending=True).tolist()
        return [place for place in order if bool(row.logits[place].isfinite())][:most]

    def to_frame(self) -> pd.DataFrame:
        """A row an edge: attention, height, lead, the share of every part in both, and how well the row is rebuilt."""
        import pandas as pd

        return pd.DataFrame([self._record(edge) for edge in self.edges])

    def _record(self, edge: Edge) -> dict[str, Any]:
        return {
            "head": str(edge.head),
            "query": self.tokens[edge.query],
            "key": self.tokens[edge.key],
            "token": edge.key,
            "attention": edge.attention,
            "height": edge.height,
            "decides": edge.decides,
            **edge.shares,
            "rival": None if edge.rival is None else self.tokens[edge.rival],
            "lead": edge.lead,
            **{f"lead: {name}": share for name, share in edge.lead_shares.items()},
            "tried": ", ".join(edge.tried),
            "variation": edge.variation,
            "variation without first": edge.variation_later,
            "sentence": edge.sentence,
        }

    def tokens_frame(self, head: HeadLike) -> pd.DataFrame:
        """A row a token that the query sees: attention, logit, and every part of it."""
        import pandas as pd

        row = self.row(head)
        seen = row.logits.isfinite()
        columns: dict[str, Any] = {"position": seen.nonzero()[:, 0].tolist()}
        columns["token"] = [self.tokens[at] for at in columns["position"]]
        columns |= {"attention": row.attention[seen].numpy(), "logit": row.logits[seen].numpy()}
        columns |= {name: values[seen].numpy() for name, values in row.terms.items()}
        return pd.DataFrame(columns)

    def plot(self, head: HeadLike | None = None) -> go.Figure:
        """The parts of the logits of the most attended tokens in one head, the first edge's unless named."""
        from qkprism.figures.explanation import explanation_figure

        return explanation_figure(self, Head.parse(head) if head is not None else self.edges[0].head)

    def to_html(self) -> str:
        """A page of its own, to click and to mail: the explorer's view of these edges, with the data inside."""
        from qkprism.explorer.mail import explanation_page

        return explanation_page(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page."""
        return write_text(Path(path), self.to_html())

    def __str__(self) -> str:
        return "\n".join(edge.sentence for edge in self.edges)

    def __repr__(self) -> str:
        return f"Explanation(from {self.tokens[self.query]!r}, token {self.query}; {len(self.edges)} edges)\n{self}"

    def _repr_html_(self) -> str:
        told = "".join(f"<li>{escape(edge.sentence)}</li>" for edge in self.edges)
        page = escape(self.to_html())
        return f'<ol>{told}</ol><iframe sandbox="allow-scripts" title="why" style="{FRAME}" srcdoc="{page}"></iframe>'


def edge_of(row: HeadRow, query: int, key: int, tokens: Sequence[str]) -> Edge:
    """Why a head attends to a key."""
    rival = rival_of(row, key)
    level = later_mean(row)
    shares = {name: float(values[key] - level @ values) for name, values in row.terms.items()}
    lead_shares = {name: float(_over(values, key, rival)) for name, values in row.terms.items()}
    for of_first in ([shares] if key == 0 else []) + ([lead_shares] if 0 in (key, rival) else []):
        # the place of the first token is to be the first
        of_first["first token"], of_first["position"] = of_first["first token"] + of_first["position"], 0.0
    for name, null in row.null.items():  # what permuted labels do as well has no name here
        for of_edge, drawn in ((shares, null[:, key] - null @ level), (lead_shares, _over(null, key, rival))):
            if abs(of_edge[name]) <= float(drawn.abs().amax()):
                of_edge[REST] += of_edge.pop(name)
    height = sum(shares.values())
    deciding = lead_shares if float(level[key]) == 1 else shares  # a key that is the mean itself has no height
    sign = 1 if sum(deciding.values()) >= 0 else -1
    edge = Edge(
        head=row.head,
        query=query,
        key=key,
        attention=float(row.attention[key]),
        resting=float(row.attention[0]),
        height=height,
        shares=shares,
        decides=max(deciding, key=lambda name: sign * deciding[name]),
        rival=rival,
        lead=sum(lead_shares.values()),
        lead_shares=lead_shares,
        tried=row.tried,
        variation=row.variation.get(NAMED, row.variation[STAGES[THREE]]),
        variation_later=row.variation_later.get(NAMED, row.variation_later[STAGES[THREE]]),
        sentence="",
    )
    return replace(edge, sentence=sentence_of(edge, tokens))


def later_mean(row: HeadRow) -> Float64[Tensor, " token"]:
    """The weights of a mean over the tokens that the query sees, but the first; over all if there is no other."""
    seen = row.logits.isfinite()
    later = seen.clone()
    later[0] = False
    chosen = later if bool(later.any()) else seen
    return chosen.double() / chosen.sum()


def rival_of(row: HeadRow, key: int) -> int | None:
    """The most attended other key; the first token is nobody's rival where there is another."""
    logits = row.logits.clone()
    logits[key] = -torch.inf
    if logits[1:].isfinite().any():
        logits[0] = -torch.inf
    return int(logits.argmax()) if logits.isfinite().any() else None


def _over(values: Float64[Tensor, "*draw token"], key: int, rival: int | None) -> Float64[Tensor, "*draw"]:
    """What one key has more than its rival; without a rival nothing."""
    return values[..., key] - values[..., key if rival is None else rival]


def sentence_of(edge: Edge, tokens: Sequence[str]) -> str:
    """Three short sentences, made from the numbers of the edge and nothing else."""
    key = f"{edge.attention:.2f}"
    if _again(tokens, edge.key):
        key = f"token {edge.key}, {key}"
    if edge.resting >= RESTS and edge.key:
        key = f"{key}; the first token has {edge.resting:.2f}"
    query = f" (token {edge.query})" if _again(tokens, edge.query) else ""
    start = f"{edge.head} attends from {_read(tokens[edge.query])}{query} to {_read(tokens[edge.key])} ({key})"
    if edge.rival is None:
        return f"{start}: it sees nothing else."
    if not any(abs(share) > EXACT for share in edge.shares.values()):
        why = "because of" if edge.lead >= 0 else "in spite of"
        return f"{start} {why} {_word(edge.decides)}. {_lead_words(edge, tokens)}"
    why, side = ("because of", "above") if edge.height >= 0 else ("in spite of", "below")
    told = [edge.decides, *_second(edge.shares, edge.decides)]
    height = f"{_read(tokens[edge.key])} stands {abs(edge.height):.1f} logits {side} the mean token"
    return f"{start} {why} {_word(edge.decides)}. {height}: {_parts(edge.shares, told)}. {_lead_words(edge, tokens)}"


def _again(tokens: Sequence[str], place: int) -> bool:
    """Whether another token reads the same."""
    return [token.strip() for token in tokens].count(tokens[place].strip()) > 1


def _read(token: str) -> str:
    """A token as it reads in a sentence: without the space before it, so that lines break elsewhere."""
    return repr(token.strip() or token)


def _lead_words(edge: Edge, tokens: Sequence[str]) -> str:
    assert edge.rival is not None
    rival = f"{_read(tokens[edge.rival])} (token {edge.rival})"
    if abs(edge.lead) < EVEN:
        return f"{rival} gets about as much."
    sign, word = (1, "leads") if edge.lead >= 0 else (-1, "trails")
    tips = max(edge.lead_shares, key=lambda name: sign * edge.lead_shares[name])
    return f"It {word} {rival} by {abs(edge.lead):.1f}: {_parts(edge.lead_shares, [tips])}."


def _parts(shares: Mapping[str, float], told: Sequence[str]) -> str:
    """Some parts by name, and all others together, so that the numbers as they are printed add up."""
    parts = [f"{_word(name)} {shares[name]:+.1f}" for name in told]
    rest = round(sum(shares.values()), 1) - sum(round(shares[name], 1) for name in told)
    return ", ".join([*parts, f"all else {rest:+.1f}"] if abs(rest) >= ROUNDED else parts)


def _second(shares: Mapping[str, float], first: str) -> list[str]:
    """The part with the next largest share, if it is at least half of the largest."""
    others = {name: abs(share) for name, share in shares.items() if name != first}
    name = max(others, key=lambda part: others[part])
    return [name] if others[name] >= abs(shares[first]) / 2 else []


def _word(part: str) -> str:
    return WORDS.get(part, f"the feature {part}")


WORDS = {
    "first token": "being the first token",
    "position": "its position",
    "salience": "its salience",
    "asked position": "the asked position",
    "soft cap": "the soft cap",
    "position bias": "the position bias",
    REST: "an unnamed match",
}
assert set(PARTS) - {"match"} <= set(WORDS)
