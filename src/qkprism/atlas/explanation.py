"""`Explanation`: why heads attend from one token of a text to others, in parts that add up.

For an edge, a head attending from the query to a key, the question is why this key and not another: its lead is the
difference of its logit from that of its rival, the most attended other key (but the first token, where heads rest).
Every part of the split has its share of the lead; the shares add up to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float64
from torch import Tensor

from qkprism.atlas.coverage import STAGES
from qkprism.core.row_split import PARTS
from qkprism.errors import QKPrismError
from qkprism.files import write_text
from qkprism.heads import Head, HeadLike

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

REST = "unnamed match"
THREE = STAGES.index("+ asked position")
EVEN = 0.1  # logits: a smaller lead is none


@dataclass(frozen=True)
class HeadRow:
    """One row of attention of one head, token by token.

    `terms` are the parts of the logits, which they add up to; named features come before the rest of the match. `null`
    has the parts that features from permuted labels would have. `variation` says how far the row is from the true one
    when it is rebuilt from some parts alone, stage by stage (`variation_later`: without the first token).
    """

    head: Head
    attention: Float64[Tensor, " token"]
    logits: Float64[Tensor, " token"]
    terms: Mapping[str, Float64[Tensor, " token"]]
    null: Mapping[str, Float64[Tensor, "draw token"]]
    variation: Mapping[str, float]
    variation_later: Mapping[str, float]
    sink: float = 0.0  # attention that goes to a sink which is no token


@dataclass(frozen=True)
class Edge:
    """A head attending from the query to one key, and why it leads its rival there."""

    head: Head
    query: int
    key: int
    attention: float
    rival: int | None
    lead: float
    shares: Mapping[str, float]  # of the lead, in logits, by part
    decides: str
    offered: tuple[str, ...]  # named features that move the lead more than permuted labels do
    variation: float  # of the row from position, salience and asked position alone
    sentence: str

    @property
    def unexplained(self) -> float:
        """The part of the lead that has no name: the rest of the match."""
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

    def to_frame(self) -> pd.DataFrame:
        """A row an edge: attention, rival, lead, and the share of every part in the lead."""
        import pandas as pd

        return pd.DataFrame([self._record(edge) for edge in self.edges])

    def _record(self, edge: Edge) -> dict[str, Any]:
        return {
            "head": str(edge.head),
            "query": self.tokens[edge.query],
            "key": self.tokens[edge.key],
            "token": edge.key,
            "attention": edge.attention,
            "rival": None if edge.rival is None else self.tokens[edge.rival],
            "lead": edge.lead,
            "decides": edge.decides,
            **edge.shares,
            "variation": edge.variation,
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

    def shades(self) -> list[float]:
        """How much attention the heads of the edges give each token together, from 0 to 1; the first token has none."""
        mass = torch.stack([self.rows[edge.head].attention for edge in self.edges]).mean(0)
        mass[0] = 0.0
        return [float(value) for value in mass / mass.amax().clamp(min=1e-9)]

    def plot(self, head: HeadLike | None = None) -> go.Figure:
        """The parts of the logits of the most attended tokens in one head, the first edge's unless named."""
        from qkprism.figures.explanation import explanation_figure

        return explanation_figure(self, Head.parse(head) if head is not None else self.edges[0].head)

    def to_html(self) -> str:
        """A page of its own: the sentences, the table, and a figure for each of the first heads."""
        from qkprism.page.explanation import explanation_page

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
        return f"<ol>{told}</ol>{self.plot().to_html(full_html=False, include_plotlyjs='require')}"


def edge_of(row: HeadRow, query: int, key: int, tokens: Sequence[str]) -> Edge:
    """Why a head attends to a key rather than to its rival."""
    rival = rival_of(row, key)
    shares = {name: float(_lead(values, key, rival)) for name, values in row.terms.items()}
    if 0 in (key, rival):  # the place of the first token is to be the first
        shares["first token"], shares["position"] = shares["first token"] + shares["position"], 0.0
    lead = float(_lead(row.logits, key, rival))
    offered = tuple(name for name, null in row.null.items() if _beats(shares[name], null, key, rival))
    sign = 1 if lead >= 0 else -1
    names = [name for name in shares if name not in row.null or name in offered]
    decides = max(names, key=lambda name: sign * shares[name])
    edge = Edge(
        head=row.head,
        query=query,
        key=key,
        attention=float(row.attention[key]),
        rival=rival,
        lead=lead,
        shares=shares,
        decides=decides,
        offered=offered,
        variation=row.variation[STAGES[THREE]],
        sentence="",
    )
    return Edge(**{**vars(edge), "sentence": sentence_of(edge, tokens)})


def rival_of(row: HeadRow, key: int) -> int | None:
    """The most attended other key; the first token is nobody's rival where there is another."""
    logits = row.logits.clone()
    logits[key] = -torch.inf
    if logits[1:].isfinite().any():
        logits[0] = -torch.inf
    return int(logits.argmax()) if logits.isfinite().any() else None


def _lead(values: Tensor, key: int, rival: int | None) -> Tensor:
    """What one key has more than its rival; without a rival, all it has."""
    return values[..., key] if rival is None else values[..., key] - values[..., rival]


def _beats(share: float, null: Tensor, key: int, rival: int | None) -> bool:
    """Whether a feature moves the lead more than every draw of permuted labels."""
    return abs(share) > float(_lead(null, key, rival).abs().amax())


def sentence_of(edge: Edge, tokens: Sequence[str]) -> str:
    """One sentence, made from the numbers of the edge and nothing else."""
    start = f"{edge.head} attends from {tokens[edge.query]!r} to {tokens[edge.key]!r} ({edge.attention:.2f})"
    if edge.rival is None:
        return f"{start}: it sees nothing else."
    rival = tokens[edge.rival]
    word = "leads" if edge.lead >= 0 else "trails"
    size, share = abs(edge.lead), edge.shares[edge.decides]
    if size < EVEN:
        strongest = max(edge.shares, key=lambda part: abs(edge.shares[part]))
        told = f"{WORDS.get(strongest, strongest)} gives {edge.shares[strongest]:+.1f}, and the rest takes it back"
        return f"{start}, about as much as to {rival!r} (token {edge.rival}): {told}."
    said = f"{start}: {WORDS.get(edge.decides, edge.decides)} gives {share:+.1f} of the {size:.1f} logits by which it "
    said += f"{word} {rival!r} (token {edge.rival})"
    second = _second(edge)
    if second:
        said += f", {WORDS.get(second, second)} {edge.shares[second]:+.1f}"
    if edge.decides != REST and second != REST:
        said += f"; {edge.unexplained:+.1f} is match without a name"
    return said + "."


def _second(edge: Edge) -> str | None:
    """The part with the next largest share, if it is at least a quarter of the largest."""
    others = {name: abs(share) for name, share in edge.shares.items() if name != edge.decides}
    name = max(others, key=lambda part: others[part])
    return name if others[name] >= 0.25 * abs(edge.shares[edge.decides]) else None


WORDS = {
    "first token": "being the first token",
    "position": "its place",
    "salience": "what the key is, whatever the query,",
    "asked position": "the place that the query asks for",
    REST: "a match of query and key that has no name",
}
assert set(PARTS) - {"match"} <= set(WORDS)
