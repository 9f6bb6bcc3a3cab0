"""The files of HeadVis (Anthropic, 2026): what its page reads of heads, sequences and clouds of queries and keys.

    config.json              the model, its heads, the names of metrics
    scatter_data.json        a row a head
    heads/L1H2.json          sequences by decile of their strongest attention, sparse: index = query * length + key
    umap/L1H2.json           principal components of Q, K, O and V at the strongest pairs
    umap/sequences.json      tokens by sequence
    server_config.json       {}: the page is static

Row 0, column 0 and the diagonal are left out wherever a maximum is taken, as the page does. Numbers have four decimals.

Two programs read this. HeadVis's page takes every number of a row of scatter_data.json for an axis. The loaders of
Neuronpedia put what they know by name into a database: they refuse a config.json without `RUN`, call attention to the
token before `prev_token_score`, and want the folder at `exports/<model>/headvis/<dataset>`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qkprism.heads import Head
from qkprism.runs.files import write_text

INTERVALS, SAMPLES, DIGITS = 10, 20, 4
EDGES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)  # tokens between query and key
TOP_TOKENS = 30
FOLDERS = ("heads", "umap", "attributions/qk", "attributions/ov", "custom_sequences")
RUN = ("model_name", "dataset_name", "n_sequences", "seq_len", "dtype", "attn_implementation")
BINS = 20  # of strongest attention
METRICS = {
    "self_attention_score": "Mean attention of a token to itself.",
    "prev_token_score": "Mean attention to the token before.",
    "pattern_entropy": "Mean entropy of a row of attention, in nats.",
    "qk_distance": "Mean distance from query to key, by attention.",
    "qk_distance_variance": "Variance of that distance.",
    "induction_score": "Mean attention to what followed the same token before.",
    "logit_std": "Mean standard deviation of the logits of a row.",
    "top_logit_margin": "Mean lead of the largest logit of a row over the next.",
    "logit_z_score": "Mean lead of the largest logit of a row over the mean, in standard deviations.",
}

Sampled = dict[str, Any]


def rounded(value: float) -> float:
    """Four decimals; what is no number is 0, because the page's axes know no gaps."""
    return round(float(value), DIGITS) if math.isfinite(value) else 0.0


def sampled(sequences: Sequence[Sampled]) -> list[Sampled]:
    """Sequences with their decile, 10 the strongest; at most 20 of each, evenly."""
    order = sorted(sequences, key=lambda one: one["max_activation"])
    found: list[Sampled] = []
    for interval in range(1, INTERVALS + 1):
        low, high = (len(order) * place // INTERVALS for place in (interval - 1, interval))
        step = max(1, -(-(high - low) // SAMPLES))
        found += [{**one, "interval": interval} for one in order[low:high:step]]
    return found


def head_json(sequences: Sequence[Sampled], strongest: Sequence[float]) -> dict[str, Any]:
    """The payload of one head: sampled sequences, and the strongest attention of all of them."""
    counts = Counter(min(int(value * BINS), BINS - 1) for value in strongest)
    mean = sum(strongest) / max(len(strongest), 1)
    return {
        "sequences": sequences,
        "qk_distance_histogram": distances(sequences),
        "top_query_tokens": top_tokens(sequences, query=True),
        "top_key_tokens": top_tokens(sequences, query=False),
        "histogram": {
            "bin_edges": [place / BINS for place in range(BINS + 1)],
            "bin_values": [counts[place] for place in range(BINS)],
        },
        "statistics": {"n_samples": len(strongest), "mean_max_activation": rounded(mean)},
    }


def distances(sequences: Sequence[Sampled]) -> dict[str, Any]:
    """How far queries are from the keys they attend to most, counted in bins that double."""
    counts = [0] * (len(EDGES) - 1)
    for one in sequences:
        for index in one["attention_indices"]:
            query, key = divmod(index, one["seq_len"])
            away = abs(query - key)
            counts[next((i for i in range(len(counts)) if away < EDGES[i + 1]), len(counts) - 1)] += 1
    return {"bin_edges": list(EDGES), "bin_values": counts}


def top_tokens(sequences: Sequence[Sampled], *, query: bool) -> list[dict[str, Any]]:
    """Tokens by their share of attention, as queries or as keys; the first token of a text is left out."""
    total: Counter[str] = Counter()
    for one in sequences:
        for index, value in zip(one["attention_indices"], one["attention_values"], strict=True):
            places = divmod(index, one["seq_len"])
            if places[1]:
                total[one["tokens"][places[0 if query else 1]]] += value
    mass = sum(total.values()) or 1.0
    return [{"token": token, "weight": rounded(weight / mass)} for token, weight in total.most_common(TOP_TOKENS)]


def config(
    run: Mapping[str, str | int], heads: Sequence[Head], shape: tuple[int, int], metrics: Mapping[str, str]
) -> dict[str, Any]:
    """What is read first; `run` has the fields of `RUN`, `shape` is layers and heads a layer."""
    pairs = [[head.layer, head.index] for head in heads]
    return {
        **run,
        "heads": pairs,
        "n_layers": shape[0],
        "n_heads": shape[1],
        "n_intervals": INTERVALS,
        "metrics": list(metrics),
        "metric_descriptions": dict(metrics),
        "head_data_pattern": "L{layer}H{head}.json",
        "has_umap": True,
        "umap_heads": pairs,
        "custom_plots": [
            {"key": "qk_distance_histogram", "label": "Q-K distance"},
            {"key": "histogram", "label": "Strongest attention of a text"},
        ],
        "custom_tables": [
            {"key": "top_query_tokens", "label": "Top query tokens"},
            {"key": "top_key_tokens", "label": "Top key tokens"},
        ],
        "statistics_display": {
            "n_samples": {"label": "Texts", "format": "default"},
            "mean_max_activation": {"label": "Mean max activation", "format": "default"},
        },
    }


def write_json(place: Path, value: Any) -> None:
    """JSON in ASCII; what is no number is refused."""
    write_text(place, json.dumps(value, allow_nan=False, separators=(",", ":")))
