"""Does the work grow with the processes? Fixed work a process, 1 to 4 of them, and what they send each other.

    python benchmarks/scaling.py                    # 1, 2, 3 and 4 processes on this machine, then the reckoning
    python benchmarks/scaling.py --counts 1 2 --prompts 64 --layers 6

Each process takes whole chunks of its own; sums are added up once at the end, and at checkpoints. Measured here:
seconds of the pass, seconds in which sums are added, bytes a head, and seconds that a checkpoint takes. What more nodes
would take is reckoned from those: a ring sends 2 (n - 1) / n of the bytes from every node, at a stated bandwidth.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NODES = (1, 100, 1000)
BANDWIDTH, LATENCY = 12.5e9, 50e-6  # bytes a second and seconds a step: 100 Gbit/s Ethernet
PASS_SECONDS = 600.0  # of a node, that the reckoning assumes between two additions


def work(prompts: int, layers: int) -> dict[str, Any]:
    """What one process does: a pass over its share, timed."""
    import qkprism as qk
    from prompts import contrast
    from qkprism.capture import source, streaming
    from qkprism.heads import all_heads
    from qkprism.ranks import join, ranks, wait
    from qkprism.runs import store

    join()
    streaming.CHUNK["cpu"] = prompts
    model = qk.load("smollm2", device="cpu", dtype="float32", quiet=True)
    heads = [head for head in all_heads(model.heads_per_layer) if head.layer < layers]
    spent: dict[str, list[float]] = {"added": [], "written": []}
    _timed(source, "over_all", spent["added"])
    _timed(store, "write_run", spent["written"])
    texts = contrast(prompts * ranks().count)
    with tempfile.TemporaryDirectory() as folder:
        wait()
        started, used = time.perf_counter(), time.process_time()
        place = Path(folder) / "kept"
        features = qk.decompose(
            model, texts, heads=heads, batch_size=8, checkpoint=place, recipe=qk.Recipe(rank=2), progress=False
        )
        wait()
        seconds, processor = time.perf_counter() - started, time.process_time() - used
    moments = [total for layer in features.layers.values() for total in layer.moments.values()]
    size = sum(t.numel() * t.element_size() for total in moments for t in total.tensors().values())
    return {
        "processes": ranks().count,
        "prompts": len(texts),
        "seconds": seconds,
        "processor": processor,
        "added": sum(spent["added"]),
        "checkpoint": statistics.median(spent["written"]) if spent["written"] else 0.0,
        "bytes_a_head": size / len(heads),
        "heads": len(heads),
        "first": ranks().is_first,
    }


def _timed(module: Any, name: str, spent: list[float]) -> None:
    plain = getattr(module, name)

    def timed(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return plain(*args, **options)
        finally:
            spent.append(time.perf_counter() - started)

    setattr(module, name, timed)


def run(count: int, prompts: int, layers: int) -> dict[str, Any]:
    """The measures of the first of some processes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", __file__]
    command += ["--worker", "--prompts", str(prompts), "--layers", str(layers)]
    said = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    lines = [line for line in said.stdout.splitlines() if line.startswith("{")]
    if said.returncode or not lines:
        raise SystemExit(said.stderr)
    found: dict[str, Any] = json.loads(lines[0])
    return found


def reckoned(size: float, nodes: int) -> float:
    """Seconds in which a ring of nodes adds up so many bytes."""
    return 2 * (nodes - 1) / nodes * size / BANDWIDTH + 2 * (nodes - 1) * LATENCY


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--counts", type=int, nargs="*", default=[1, 2, 3, 4])
    asked.add_argument("--prompts", type=int, default=128, help="of each process")
    asked.add_argument("--layers", type=int, default=30)
    asked.add_argument("--worker", action="store_true")
    given = asked.parse_args()
    if given.worker:
        done = work(given.prompts, given.layers)
        if done.pop("first"):  # lines of several would run into each other
            print(json.dumps(done), flush=True)
        return
    found = [run(count, given.prompts, given.layers) for count in given.counts]
    print("| processes | prompts | seconds | processor s of the first | adding up, s | share | a checkpoint, s |")
    print("|---|---|---|---|---|---|---|")
    for row in found:
        share = row["added"] / row["seconds"]
        print(
            f"| {row['processes']} | {row['prompts']} | {row['seconds']:.1f} | {row['processor']:.1f} | "
            f"{row['added']:.2f} | {share:.1%} | {row['checkpoint']:.2f} |"
        )
    last = found[-1]
    print(f"\n{last['bytes_a_head'] / 1e3:,.0f} kB a head and contrast are added up ({last['heads']} heads).")
    print(f"A checkpoint every 30 s: {last['checkpoint'] / 30:.2%} of a run.")
    size = last["bytes_a_head"] * last["heads"]
    told = ", ".join(
        f"{nodes:,} nodes: {reckoned(size, nodes):.3f} s, "
        f"{reckoned(size, nodes) / (PASS_SECONDS + reckoned(size, nodes)):.3%} of {PASS_SECONDS / 60:.0f} minutes"
        for nodes in NODES
    )
    print(f"At {BANDWIDTH * 8 / 1e9:.0f} Gbit/s and {LATENCY * 1e6:.0f} µs a step, {told}.")


if __name__ == "__main__":
    main()
