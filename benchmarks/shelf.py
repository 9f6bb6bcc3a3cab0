"""What the shelf costs beside its forward passes: processor time of whole contrasts, and of the same batches run bare.

python benchmarks/shelf.py --only boxes,coreference,sink -n 48
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import qkprism as qk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="boxes,coreference,sink")
    parser.add_argument("-n", type=int, default=48)
    given = parser.parse_args()
    model = qk.load("smollm2")
    for name in given.only.split(","):
        print(f"{name}: {cost(model, name, given.n)}", flush=True)


def cost(model: qk.Model, name: str, n: int) -> str:
    """One contrast, and every batch that went through the model for it once more."""
    batches: list[dict[str, Any]] = []
    body = model.hf.base_model
    hook = body.register_forward_pre_hook(lambda _, __, batch: batches.append(batch), with_kwargs=True)
    with tempfile.TemporaryDirectory() as folder:
        whole = seconds(lambda: qk.run_shelf(model, folder, contrasts=[name], n=n, progress=False))
    hook.remove()
    assert not any(batch.get("past_key_values") for batch in batches)  # these could not be run again
    with torch.no_grad():
        bare = seconds(lambda: [body(**batch) for batch in batches])
    rows = sum(len(batch["input_ids"]) for batch in batches)
    return f"{rows} rows, {whole:.1f} s, bare {bare:.1f} s, ratio {whole / bare:.2f}"


def seconds(work: Callable[[], object]) -> float:
    """Processor time."""
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
