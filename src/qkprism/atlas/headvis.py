"""`export_headvis`: heads of a model in the data format of HeadVis, so that they can be seen in tools that read it.

Every text is run once. Of each head and text the strongest attention of every row is kept, sums for its metrics, and
the vectors of the strongest pairs; nothing is kept of tokens x tokens.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from qkprism.atlas import headvis_data as data
from qkprism.atlas.survey import windows_for
from qkprism.errors import QKPrismError
from qkprism.heads import Head, HeadLike, check_heads
from qkprism.models.calls import AttentionCall
from qkprism.models.model import Model
from qkprism.options import whole_number
from qkprism.progress import bar
from qkprism.results.features import Features
from qkprism.results.projections import principal_components
from qkprism.runs.files import path_of, whole_folder

TOP, LEAST, POINTS = 8, 0.005, 8  # arcs a row, attention that is kept, pairs a text in the clouds
SIDES = ("Q", "K", "O", "V")


def export_headvis(
    model: Model,
    folder: str | os.PathLike[str],
    heads: HeadLike | Sequence[HeadLike] | Features,
    *,
    texts: Any = None,
    windows: int = 200,
    length: int = 128,
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Write heads in the data format of HeadVis: the folder is what its page reads as `data/`.

    >>> export_headvis(model, "data", ["L18H6", "L15H6"])   # doctest: +SKIP

    model     what `load` gave
    folder    a new folder, or an empty one
    heads     which heads; features give theirs, with the held-out t and rank of each as metrics beside HeadVis's own
    texts     strings, or paths of files and folders of text; without any the model writes its own
    windows   how many pieces of text; 200 gives every decile its 20
    length    tokens of a piece
    seed      of the text that the model writes
    progress  whether a bar is shown
    """
    place = path_of(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise QKPrismError(f"{place} is not empty. Name a new folder.")
    named = heads.heads if isinstance(heads, Features) else heads
    wanted = check_heads(named, model.heads_per_layer, model.name)
    read = windows_for(model, texts, length, whole_number(windows, "windows", data.INTERVALS), seed, progress)
    found = {head: _Seen() for head in wanted}
    with bar(len(read), "windows read", progress) as tick:
        for number, ids in enumerate(read.ids):
            _read(model, number, ids, found)
            tick(1)
    run: dict[str, str | int] = {
        "model_name": model.name,
        "dataset_name": read.origin,
        "n_sequences": len(read),
        "seq_len": max(map(len, read.ids)),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attn_implementation": str(model.hf.config._attn_implementation),
    }
    with whole_folder(place) as part:
        _write(part, model, run, found, [_tokens(model, ids) for ids in read.ids], _of_features(heads))
    return place


@dataclass
class _Seen:
    """What is kept of one head: its sequences, its sums, and the vectors of the strongest pairs."""

    sequences: list[dict[str, Any]] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    rows: int = 0
    pairs: list[tuple[int, int, int]] = field(default_factory=list)
    vectors: dict[str, list[Tensor]] = field(default_factory=lambda: {side: [] for side in SIDES})


def _read(model: Model, number: int, ids: Sequence[int], found: Mapping[Head, _Seen]) -> None:
    def visit(call: AttentionCall) -> None:
        for head, seen in found.items():
            if head.layer == call.layer:
                _add(seen, call, head.index, number, ids)

    model.run(torch.tensor([list(ids)]), None, visit, layers=sorted({head.layer for head in found}))


def _add(seen: _Seen, call: AttentionCall, head: int, number: int, ids: Sequence[int]) -> None:
    logits = call.logits([head])
    attention = call.softmax(logits, [head])[0, 0].float().cpu()
    later = attention.clone().fill_diagonal_(0)
    later[0], later[:, 0] = 0, 0
    seen.sequences.append(_sequence(attention, number, float(later.max())))
    for name, total in _sums(attention, logits[0, 0].float().cpu(), torch.tensor(list(ids))).items():
        seen.sums[name] = seen.sums.get(name, 0.0) + total
    seen.rows += len(attention)
    group = call.kv_head(head)
    for index in later.flatten().topk(min(POINTS, later.numel())).indices.tolist():
        query, key = divmod(index, len(attention))
        if later[query, key] < LEAST:
            continue
        seen.pairs.append((number, query, key))
        values = call.value[0, group].float().cpu()
        of_pair = (call.query[0, head, query], call.key[0, group, key], attention[query] @ values, values[key])
        for side, vector in zip(SIDES, of_pair, strict=True):
            seen.vectors[side].append(vector.float().cpu())


def _sequence(attention: Float[Tensor, "query key"], number: int, strongest: float) -> dict[str, Any]:
    """The strongest attention of every row, sparse; tokens are added when files are written."""
    length = len(attention)
    values, keys = attention.topk(min(TOP, length))
    kept = values >= LEAST
    index = (torch.arange(length)[:, None] * length + keys)[kept]
    order = index.argsort()
    return {
        "sequence_id": number,
        "attention_indices": index[order].tolist(),
        "attention_values": [data.rounded(value) for value in values[kept][order].tolist()],
        "seq_len": length,
        "max_activation": data.rounded(strongest),
    }


def _sums(attention: Float[Tensor, "q k"], logits: Float[Tensor, "q k"], ids: Tensor) -> dict[str, float]:
    """The metrics of a text, summed over its rows."""
    length = len(ids)
    place = torch.arange(length)
    away = (place[:, None] - place).abs().float()
    same = (ids[:, None] == ids) & (place[:, None] > place)
    after = torch.cat([torch.zeros(length, 1, dtype=torch.bool), same[:, :-1]], 1)
    distance = (attention * away).sum(1)
    finite = logits.isfinite()
    count = finite.sum(1)
    mean = logits.masked_fill(~finite, 0).sum(1) / count.clamp(min=1)
    spread = ((logits - mean[:, None]).masked_fill(~finite, 0).square().sum(1) / count.clamp(min=1)).sqrt()
    best = logits.topk(min(2, length)).values
    several = count > 1
    margin = (best[:, 0] - best[:, -1])[several].sum()
    score = ((best[:, 0] - mean) / spread.clamp(min=1e-9))[several].sum()
    return {
        "self_attention_score": float(attention.diagonal().sum()),
        "prev_token_score": float(attention.diagonal(-1).sum()),
        "pattern_entropy": float(-torch.xlogy(attention, attention).sum()),
        "qk_distance": float(distance.sum()),
        "qk_distance_variance": float(((attention * away.square()).sum(1) - distance.square()).sum()),
        "induction_score": float(attention[after].sum()),
        "logit_std": float(spread.sum()),
        "top_logit_margin": float(margin),
        "logit_z_score": float(score),
    }


def _tokens(model: Model, ids: Sequence[int]) -> list[str]:
    assert model.tokenizer is not None
    return [str(model.tokenizer.decode([one])) for one in ids]


def _of_features(heads: object) -> dict[str, dict[Head, float]]:
    """The evidence for features, as more metrics."""
    if not isinstance(heads, Features):
        return {}
    found: dict[str, dict[Head, float]] = {}
    for (name, head), feature in heads.items():
        found.setdefault(f"held-out t: {name}", {})[head] = float(feature.spectrum.t[0])
        found.setdefault(f"rank: {name}", {})[head] = float(feature.rank)
    return found


def _write(
    place: Path,
    model: Model,
    run: Mapping[str, str | int],
    found: Mapping[Head, _Seen],
    tokens: Sequence[list[str]],
    more: Mapping[str, Any],
) -> None:
    for name in data.FOLDERS:
        (place / name).mkdir(parents=True, exist_ok=True)
    rows = []
    for head, seen in found.items():
        metrics = {name: data.rounded(total / max(seen.rows, 1)) for name, total in seen.sums.items()}
        metrics |= {name: data.rounded(values.get(head, math.nan)) for name, values in more.items()}
        rows.append({"layer": head.layer, "head": head.index, **metrics})
        told = [{**one, "tokens": tokens[one["sequence_id"]]} for one in data.sampled(seen.sequences)]
        strongest = [one["max_activation"] for one in seen.sequences]
        data.write_json(place / "heads" / f"{head}.json", data.head_json(told, strongest))
        data.write_json(place / "umap" / f"{head}.json", _cloud(seen))
    shape = (len(model.heads_per_layer), max(model.heads_per_layer.values()))
    metrics_told = data.METRICS | dict.fromkeys(more, "Of the feature that a run found in it.")
    data.write_json(place / "config.json", data.config(run, list(found), shape, metrics_told))
    data.write_json(place / "scatter_data.json", rows)
    data.write_json(place / "umap" / "sequences.json", {str(i): one for i, one in enumerate(tokens)})
    data.write_json(place / "server_config.json", {})
    data.write_json(place / "attributions" / "manifest.json", {})


def _cloud(seen: _Seen) -> dict[str, Any]:
    """Principal components of each side, at the strongest pairs; no `views`, so the page shows these."""
    sequence, query, key = ([pair[i] for pair in seen.pairs] for i in range(3))
    components: dict[str, dict[str, list[float]]] = {}
    for side, vectors in seen.vectors.items():
        points = principal_components(torch.stack(vectors).double())[0] if vectors else torch.zeros(0, 3)
        components[side] = {f"d{i}": [data.rounded(value) for value in points[:, i].tolist()] for i in range(3)}
    norms = [data.rounded(float(vector.norm())) for vector in seen.vectors["Q"]]
    return {"seq_idx": sequence, "top_q": query, "top_k": key, "norms": norms, "pca": components, "clusters": []}
