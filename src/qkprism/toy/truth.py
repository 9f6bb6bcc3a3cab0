"""What is known of a toy head: its true subspaces, its true dC, and how its latents interact (paper, sections 3 and 4).

keys of z_f lie along W_K A_f, queries along W_Q B_f
dC_f = g W_Q B_f A_f^T W_K^T          g = 1 for negatives drawn anew, 2^r / (2^r - 1) for signs that must differ
G = B^T W_Q^T W_K A                   q.k = z_q^T G z_k, but for payload and noise

W_Q -> A^T W_Q,  W_K -> A^-1 W_K leaves every logit as it was: a result that changes with it is about coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from qkprism.capture.vectors import Vectors
from qkprism.toy.cells import ToyHead
from qkprism.toy.samples import LATENTS, Latent, Negatives
from qkprism.toy.task import Samples, stream


def true_keys(head: ToyHead, latent: Latent) -> Float[Tensor, "d_head latent_rank"]:
    """W_K A_f: where keys have a latent."""
    return head.key.double() @ (head.maps.key_1 if latent == "z1" else head.maps.key_2).double()


def true_queries(head: ToyHead, latent: Latent) -> Float[Tensor, "d_head latent_rank"]:
    """W_Q B_f: where queries have a latent."""
    return head.query.double() @ (head.maps.query_1 if latent == "z1" else head.maps.query_2).double()


def expected_covariance(
    head: ToyHead, latent: Latent, negatives: Negatives = "differs"
) -> Float[Tensor, "d_head d_head"]:
    """dC in closed form. The mean of all sign vectors but z is -z / (2^r - 1), so negatives that differ add to it."""
    keys = true_keys(head, latent)
    differs = negatives == "differs" and head.cell.task.variant == "discrete"
    gain = 1 / (1 - 2.0 ** -keys.shape[1]) if differs else 1.0
    return gain * true_queries(head, latent) @ keys.mT


def overlap(found: Float[Tensor, "d_head rank"], true: Float[Tensor, "d_head latent_rank"]) -> float:
    """The mean squared cosine of the angles between two subspaces: 1 if one lies in the other."""
    ours, theirs = (torch.linalg.qr(basis)[0] for basis in (found, true))
    shared = min(ours.shape[1], theirs.shape[1])
    return float((ours.mT @ theirs).square().sum() / shared) if shared else float("nan")


def alignment(
    queries: Float[Tensor, "d_head rank"], keys: Float[Tensor, "d_head rank"], vectors: Vectors
) -> tuple[float, float]:
    """The mean cosine between the coordinates of queries and of their positive keys, and of their negative keys.

    1 and about 0 if queries and keys of one latent value lie in one place, as in the paper's picture of the cube.
    """
    query = vectors.query.double() @ queries
    found = [
        torch.cosine_similarity(query, key.double() @ keys, dim=-1).mean()
        for key in (vectors.positive, vectors.negative)
    ]
    return float(found[0]), float(found[1])


def logit_parts(head: ToyHead, samples: Samples) -> dict[str, Float64[Tensor, "sample token"]]:
    """The true parts of every logit (before scaling): what z1, z2 and the rest of each key give with the query."""
    query = head.queries(samples).double()
    product = head.keys(samples).double() @ query[:, :, None]
    parts: dict[str, Tensor] = {}
    for latent in LATENTS:
        along = getattr(samples, latent).double() @ true_keys(head, latent).mT
        parts[latent] = (along @ query[:, :, None])[:, :, 0]
    return parts | {"rest": product[:, :, 0] - parts["z1"] - parts["z2"]}


@dataclass(frozen=True)
class Interaction:
    """G and what it tells: shares of its squared entries, its symmetry, and how many dimensions it uses.

    `diagonal` is feature splitting: each coordinate meets itself only. `within` is the rest of a latent's own block,
    `across` is one latent answering the other: superposition. `symmetry` is <G, G^T> / |G|^2. `dimensions` is the
    effective rank (sum s)^2 / sum s^2 of its singular values, never above d_head; `crowding` is the number of latent
    coordinates for each of them.
    """

    matrix: Float[Tensor, "latent latent"]
    diagonal: float
    within: float
    across: float
    symmetry: float
    dimensions: float
    crowding: float


def interaction(head: ToyHead) -> Interaction:
    """G = B^T W_Q^T W_K A of a head."""
    g = (head.query.double() @ head.maps.query.double()).mT @ (head.key.double() @ head.maps.key.double())
    total, r1 = g.square().sum(), head.cell.task.r1
    diagonal = g.diagonal().square().sum() / total
    blocks = (g[:r1, :r1].square().sum() + g[r1:, r1:].square().sum()) / total
    values = torch.linalg.svdvals(g)
    dimensions = values.sum() ** 2 / values.square().sum()
    return Interaction(
        matrix=g,
        diagonal=float(diagonal),
        within=float(blocks - diagonal),
        across=float(1 - blocks),
        symmetry=float((g * g.mT).sum() / total),
        dimensions=float(dimensions),
        crowding=float(len(g) / dimensions),
    )


CONDITION = 30.0


def basis_change(
    d_head: int, random: torch.Generator, condition: float = CONDITION
) -> Float64[Tensor, "d_head d_head"]:
    """A random A with this condition number, its singular values evenly spread in the logarithm."""
    left, right = (
        torch.linalg.qr(torch.randn(d_head, d_head, generator=random, dtype=torch.float64))[0] for _ in range(2)
    )
    spread = condition ** -torch.linspace(-0.5, 0.5, d_head, dtype=torch.float64)
    return left @ torch.diag(spread) @ right


def rebased(head: ToyHead, condition: float = CONDITION) -> ToyHead:
    """The head after a random change of basis."""
    change = basis_change(head.cell.d_head, stream("gauge", repr(head.cell)), condition)
    query = (change.mT @ head.query.double()).to(head.query)
    key = torch.linalg.solve(change, head.key.double()).to(head.key)
    return replace(head, query=query, key=key)
