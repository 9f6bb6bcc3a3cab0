"""What does capturing cost? The streaming pass beside a bare forward pass and a hook-and-cache baseline, in one run.

    python benchmarks/capture.py            # figures as printed in benchmarks/README.md
    python benchmarks/capture.py --quick    # fewer prompts and rounds

The ways take turns, piece by piece of 128 prompts, and a ratio is the median over rounds, because machines are noisy.
Times are processor time, which other work on the machine disturbs less.
Memory is the peak of a process of its own for each way, less that of the bare forward pass.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import qkprism as qk
from memory import memory
from prompts import BATCH, contrast
from qkprism.capture.batching import Batches
from qkprism.capture.source import moments_of, sites_of
from qkprism.capture.streaming import MarkedContrast, ModelStream, Pass
from qkprism.capture.texts import Census
from qkprism.core.decomposition import decompose_layer
from qkprism.core.feature import Choices
from qkprism.heads import all_heads
from qkprism.models.batches import bucket, collate
from qkprism.models.encoding import Encoder, Encodings, encode

PIECE = 128  # prompts that one way runs before the next has its turn


def batches_of(model: qk.Model, prompts: qk.Contrast) -> list[Any]:
    return [collate(examples) for examples in bucket(encode(model.tokenizer, prompts), batch_size=BATCH)]


def bare(model: qk.Model, batches: list[Any]) -> None:
    with torch.no_grad():
        for batch in batches:
            model.hf.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False)


def stream(model: qk.Model, prompts: qk.Contrast, heads: tuple[qk.Head, ...]) -> Any:
    sites, encoded = sites_of(model, heads), Encodings(prompts.examples, Encoder.of(model.tokenizer))
    marked = MarkedContrast.of("boxes", encoded, Census.of(encoded, prompts), "plain", 0)
    batches = Batches(model, sorted(sites), batch_size=BATCH)
    return moments_of(ModelStream(batches, sites, [Pass((marked,))]))["boxes"]


def hook_and_cache(model: qk.Model, batches: list[Any]) -> dict[tuple[int, int], torch.Tensor]:
    """What one would write without the library: eager attention, every q and k stored, then a loop over the heads."""
    hf = model.hf
    stored: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    former = hf.config._attn_implementation
    hf.set_attn_implementation("eager")

    def keep(layer: int) -> Callable[..., None]:
        def hook(module: Any, _: Any, kwargs: Any) -> None:
            from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

            hidden = kwargs["hidden_states"]
            shape = (*hidden.shape[:-1], -1, module.head_dim)
            q, k = (p(hidden).view(shape).transpose(1, 2) for p in (module.q_proj, module.k_proj))
            q, k = apply_rotary_pos_emb(q, k, *kwargs["position_embeddings"])
            stored.setdefault(layer, []).append((q, k))

        return hook

    handles = [
        layer.self_attn.register_forward_pre_hook(keep(i), with_kwargs=True) for i, layer in enumerate(hf.model.layers)
    ]
    bare(model, batches)
    for handle in handles:
        handle.remove()
    hf.set_attn_implementation(former)
    found = {}
    for layer, parts in stored.items():
        for head in range(model.layers[layer].n_heads):
            total, count = 0, 0
            for (q, k), batch in zip(parts, batches, strict=True):
                key = k[:, model.kv_head(qk.Head(layer, head))][batch.key_row, batch.key_column]
                difference = (batch.positive_mean - batch.negative_mean) @ key
                total = total + q[torch.arange(len(q)), head, batch.query].T @ difference
                count += len(q)
            found[layer, head] = total / count
    return found


def _rotated(names: list[str], turn: int) -> list[str]:
    at = turn % len(names)
    return names[at:] + names[:at]


def timed(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def times(n: int, rounds: int) -> dict[str, Any]:
    """Interleaved timings of every way, and of the closing decompositions."""
    model = qk.load("smollm2")
    prompts = contrast(n)
    heads = all_heads(model.heads_per_layer)
    first = tuple(head for head in heads if head.layer < 20)
    ways: dict[str, Callable[[qk.Contrast], Any]] = {
        "bare": lambda piece: bare(model, batches_of(model, piece)),
        "stream": lambda piece: stream(model, piece, heads),
        "stream_two_thirds": lambda piece: stream(model, piece, first),
        "baseline": lambda piece: hook_and_cache(model, batches_of(model, piece)),
    }
    for way in ways.values():
        way(prompts[: 2 * BATCH])
    seconds: dict[str, list[float]] = {name: [0.0] * rounds for name in ways}
    for round_ in range(rounds):
        for turn, at in enumerate(range(0, n, PIECE)):
            for name in _rotated([*ways], round_ + turn):
                seconds[name][round_] += timed(lambda name=name, at=at: ways[name](prompts[at : at + PIECE]))
        print(
            f"round {round_ + 1}: " + ", ".join(f"{k} {v[round_]:.1f} s" for k, v in seconds.items()), file=sys.stderr
        )
    ratios = {
        name: statistics.median(a / b for a, b in zip(values, seconds["bare"], strict=True))
        for name, values in seconds.items()
    }
    return {
        "prompts": n,
        "tokens_mean": statistics.mean(e.length for e in encode(model.tokenizer, prompts)),
        "heads": len(heads),
        "rounds": rounds,
        "ratio_to_bare": ratios,
        "ms_a_head_and_contrast": closing(model, prompts, heads),
    }


def closing(model: qk.Model, prompts: qk.Contrast, heads: tuple[qk.Head, ...]) -> dict[str, float]:
    """Milliseconds of the decomposition itself, for one contrast (raw) and two (contrast metric)."""
    sums = stream(model, prompts, heads)
    sites = sites_of(model, heads)
    found = {}
    for name, contrasts, metric in (
        ("raw, one contrast", ["a"], "raw"),
        ("contrast metric, two", ["a", "b"], "contrast"),
    ):
        start = time.perf_counter()
        for layer, site in sites.items():
            moments = dict.fromkeys(contrasts, sums[layer])
            decompose_layer(moments, site.heads, site.scaling, Choices(metric=metric))  # type: ignore[arg-type]
        found[name] = (time.perf_counter() - start) / len(heads) / len(contrasts) * 1000
    return found


def peak(way: str, n: int) -> float:
    """Peak memory in MB of one way in a process of its own."""
    command = [sys.executable, __file__, "--peak", way, "--prompts", str(n)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().splitlines()[-1])


def run_for_peak(way: str, n: int) -> None:
    model = qk.load("smollm2")
    if way == "bare":
        bare(model, batches_of(model, contrast(n)))
    elif way == "baseline":
        hook_and_cache(model, batches_of(model, contrast(n)))
    else:
        named = [contrast(n, name=f"c{i}", seed=i) for i in range(int(way))]
        qk.decompose(model, named, batch_size=BATCH, progress=False)
    print(memory()[1])


def memories(small: int, large: int) -> dict[str, float]:
    """Extra peak memory in MB over the bare forward pass of as many prompts, whose texts are held in both."""
    base, base_large = peak("bare", small), peak("bare", large)
    one, two, one_large = peak("1", small), peak("2", small), peak("1", large)
    return {
        "bare_mb": base,
        f"bare_mb_{large}_prompts": base_large,
        "extra_mb_one_contrast": one - base,
        "extra_mb_second_contrast": two - one,
        f"extra_mb_one_contrast_{large}_prompts": one_large - base_large,
        "extra_mb_baseline": peak("baseline", small) - base,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--prompts", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak", choices=["bare", "1", "2", "baseline"])
    parser.add_argument("--only", choices=["time", "memory"])
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    if given.peak:
        run_for_peak(given.peak, given.prompts)
        return
    n, rounds = (64, 3) if given.quick else (given.prompts, given.rounds)
    result: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    if given.only != "memory":
        result["time"] = times(n, rounds)
    if given.only != "time":
        result["memory"] = memories(n, 4 * n)
    text = json.dumps(result, indent=1)
    print(text)
    if given.save:
        given.save.write_text(text + "\n")


if __name__ == "__main__":
    main()
