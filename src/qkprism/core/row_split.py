"""The exact split of attention logits by the means of a head, and the directions of what is left.

With the mean query and the mean keys of natural text as they stand at their positions (R q_mean at the query's,
R k_mean at each key's; the first token of a text has a mean key of its own), q = R q_mean + dq and k = R k_mean + dk:

    scaling q.k = scaling (R q_mean . R k_mean  +  R q_mean . dk  +  dq . R k_mean  +  dq . dk)
                           position                salience         asked position    match

At the first token the first term is told apart: most heads rest there. The split needs nothing but means, and is exact.

The match is a bilinear form in dq and dk. Its directions, strongest first for logits within a row, do not depend on the
basis of the head:

    S_q = E[dq dq^T],  S_k = E over rows of Cov(R dk) within the row,   scaling S_q^1/2 S_k^1/2 = U S V^T
    cut at r: M_r = S_q^-1/2 U_r S_r V_r^T S_k^-1/2       match_r = dq^T M_r dk
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

PARTS = ("first token", "position", "salience", "asked position", "match")
"""The parts of a logit, in the order they are told."""

REST = "unnamed match"
"""What named features leave of the match."""

TINY = 1e-9  # of the largest variance: directions below it are left out


@dataclass(frozen=True)
class RowSplit:
    """The queries of some rows and the keys of their texts, beside the means at their positions; all rotated.

    Query heads share key heads in groups. Of the keys the first is the first token of the text.
    """

    query: Float[Tensor, "text head row d_head"]
    mean_query: Float[Tensor, "_ head row d_head"]
    key: Float[Tensor, "text kv_head token d_head"]
    mean_key: Float[Tensor, "_ kv_head token d_head"]
    scaling: float

    def products(self) -> Float[Tensor, "text head row token"]:
        """scaling q.k, which the parts add up to."""
        return self._logits(self.query, self.key)

    def parts(self) -> Float[Tensor, "part text head row token"]:
        """Every part of `PARTS`."""
        static = self._logits(self.mean_query, self.mean_key).expand(len(self.query), -1, -1, -1)
        first = torch.zeros_like(static)
        first[..., 0] = static[..., 0]
        salience = self._logits(self.mean_query, self.key_change)
        asked_position = self._logits(self.query_change, self.mean_key)
        return torch.stack(
            [first, static - first, salience, asked_position, self._logits(self.query_change, self.key_change)]
        )

    @property
    def query_change(self) -> Float[Tensor, "text head row d_head"]:
        """By how much queries differ from the mean."""
        return self.query - self.mean_query

    @property
    def key_change(self) -> Float[Tensor, "text kv_head token d_head"]:
        """By how much keys differ from the mean."""
        return self.key - self.mean_key

    def asks(self, query: Float[Tensor, "text head row d_head"]) -> Float[Tensor, "text head row token"]:
        """What other queries ask of the keys' differences from the mean, without scaling."""
        return self._logits(query, self.key_change) / self.scaling

    def _logits(self, query: Tensor, key: Tensor) -> Tensor:
        texts, heads, rows, width = query.shape
        groups = query.reshape(texts, key.shape[1], -1, width)
        return (groups @ key.mT).view(max(texts, len(key)), heads, rows, -1) * self.scaling


@dataclass(frozen=True)
class MatchDirections:
    """The directions of the match of one head, or of several, strongest first.

    `query` takes dq (without rotation) to coordinates x, `key` takes R dk to y, and match = sum_i strength_i x_i y_i.
    """

    query: Float64[Tensor, "*head direction d_head"]
    strength: Float64[Tensor, "*head direction"]
    key: Float64[Tensor, "*head direction d_head"]

    @classmethod
    def of(
        cls,
        query_covariance: Float[Tensor, "*head d_head d_head"],
        key_covariance: Float[Tensor, "*head d_head d_head"],
        scaling: float,
    ) -> MatchDirections:
        """From the covariances of queries and of keys within rows."""
        (query_root, query_inverse), (key_root, key_inverse) = (
            _roots(covariance.double()) for covariance in (query_covariance, key_covariance)
        )
        left, strength, right = torch.linalg.svd(scaling * query_root @ key_root)
        return cls(left.mT @ query_inverse, strength, right @ key_inverse)

    def form(self, rank: int) -> Float64[Tensor, "*head d_head d_head"]:
        """M_r: the match of the first directions alone as a bilinear form."""
        scaled = self.query[..., :rank, :] * self.strength[..., :rank, None]
        return scaled.mT @ self.key[..., :rank, :]


def _roots(covariance: Float64[Tensor, "*head d d"]) -> tuple[Tensor, Tensor]:
    """The symmetric square root, and its inverse where there is variance."""
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    values = values.clamp(min=0)
    kept = values > TINY * values.amax(-1, keepdim=True)
    root = values.sqrt() * kept
    inverse = torch.where(kept, values, 1.0).rsqrt() * kept
    return (vectors * root.unsqueeze(-2)) @ vectors.mT, (vectors * inverse.unsqueeze(-2)) @ vectors.mT
