"""What does training toy heads in a bank save? The bank beside a plain one-head PyTorch loop, in one run.

    python benchmarks/toy.py            # figures as printed in benchmarks/README.md
    python benchmarks/toy.py --quick    # fewer rounds
    python benchmarks/toy.py --grid runs/toy --seeds 0 1    # train the grid; accuracies and ranks
    python benchmarks/toy.py --protocols runs/protocols     # twelve heads by the paper's protocol and by the fast one

Both draw the same things (latents, payloads, full noise on every token and selector) and take the same steps of AdamW
with batches of 256. The unit is CPU time a head and step; ways take turns and a ratio is the median over rounds,
because machines are noisy. The loop's time a head is the mean over d_head 8 and 16, weighted as the grid is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from qkprism.toy.bank import deal
from qkprism.toy.cells import Cell, paper_grid
from qkprism.toy.contrasts import Sampling
from qkprism.toy.portrait import Depth, portray
from qkprism.toy.stack import PROTOCOLS, Stack, largest_rank
from qkprism.toy.studying import study
from qkprism.toy.task import Maps, ToyTask
from qkprism.toy.training import train

BATCH = 256


class OneHead(nn.Module):
    """The head as the paper writes it."""

    def __init__(self, width: int, d_head: int, payloads: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, d_head, bias=False) for _ in range(3))
        self.output = nn.Linear(d_head, payloads, bias=False)

    def forward(self, tokens: Tensor, selector: Tensor) -> Tensor:
        query, key, value = self.query(selector), self.key(tokens), self.value(tokens)
        attention = (key @ query[:, :, None] / query.shape[1] ** 0.5).softmax(1)
        return self.output((attention.mT @ value)[:, 0])


def plain_batch(task: ToyTask, maps: Maps) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings of a fresh batch."""
    z1, z2 = (torch.randn(BATCH, task.tokens, rank).sign() for rank in task.ranks)
    payload = torch.randint(task.payloads, (BATCH, task.tokens))
    noise = task.sigma * torch.randn(BATCH, task.tokens, task.width)
    tokens = z1 @ maps.key_1.T + z2 @ maps.key_2.T + maps.payload.T[payload] + noise
    row, original = torch.arange(BATCH), torch.randint(task.tokens, (BATCH,))
    named = z1[row, original] @ maps.query_1.T + z2[row, original] @ maps.query_2.T
    return tokens, named + task.sigma * torch.randn(BATCH, task.width), payload[row, original]


def plain_loop(task: ToyTask, d_head: int) -> Callable[[int], None]:
    """A loop for one head: some steps of it."""
    maps, head = Maps.draw(task, 0), OneHead(task.width, d_head, task.payloads)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-4, weight_decay=0.01)

    def run(steps: int) -> None:
        for _ in range(steps):
            tokens, selector, answer = plain_batch(task, maps)
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(tokens, selector), answer).backward()
            optimizer.step()

    return run


def bank_loop(cells: Sequence[Cell]) -> Callable[[int], None]:
    """The bank of all cells: some steps of it."""
    kinds = dict.fromkeys((cell.task.variant, cell.d_head) for cell in cells)
    stacks = [Stack.of([cell for cell in cells if (cell.task.variant, cell.d_head) == kind]) for kind in kinds]
    task, rank, protocol, done = cells[0].task, largest_rank(cells), PROTOCOLS["paper"], [0]

    def run(steps: int) -> None:
        for _ in range(steps):
            dealt = deal(task, rank, BATCH, "benchmark", done[0])
            for stack in stacks:
                stack.step(dealt, protocol, done[0])
            done[0] += 1

    return run


def cpu_time(run: Callable[[int], None], steps: int) -> float:
    """CPU seconds a step."""
    start = time.process_time()
    run(steps)
    return (time.process_time() - start) / steps


def compare(rounds: int, steps: int) -> dict[str, float]:
    """Microseconds a head and step of both ways, and their ratio."""
    cells = paper_grid()
    share = sum(cell.d_head == 8 for cell in cells) / len(cells)
    ways = {
        "bank": bank_loop(cells),
        "loop_8": plain_loop(ToyTask("discrete", 4, 4), 8),
        "loop_16": plain_loop(ToyTask("discrete", 8, 8), 16),
    }
    for run in ways.values():
        run(3)
    taken = [{name: cpu_time(run, steps) for name, run in ways.items()} for _ in range(rounds)]
    loop = [share * one["loop_8"] + (1 - share) * one["loop_16"] for one in taken]
    bank = [one["bank"] / len(cells) for one in taken]
    return {
        "heads": len(cells),
        "loop_us_a_head_and_step": 1e6 * statistics.median(loop),
        "bank_us_a_head_and_step": 1e6 * statistics.median(bank),
        "ratio": statistics.median(a / b for a, b in zip(loop, bank, strict=True)),
    }


def grid(folder: Path, seeds: Sequence[int]) -> dict[str, object]:
    """Train the whole grid and tell how far accuracies are below the ceiling and which ranks are missed."""
    start, cpu = time.perf_counter(), time.process_time()
    found = study(folder, cells=paper_grid(seeds=seeds), progress=_report)
    spent = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
    table, ranks = found.accuracy(), found.ranks()
    roomy = table[table.r1 + table.r2 <= table.d_head]
    return {
        **spent,
        "heads": len(table),
        "most_below_ceiling": roomy.groupby(["variant", "d_head"]).below.max().to_string(),
        "mean_accuracy": table.groupby(["variant", "d_head"]).accuracy.mean().to_string(),
        "exact_latents": _exact(ranks).to_string(),
        "missed": {
            rule: [f"{row.cell} {row.latent}: {getattr(row, rule)}" for row in found.misses(rule)]
            for rule in ("energy", "balanced", "heldout")
        },
    }


def protocols(folder: Path) -> pd.DataFrame:
    """Accuracies and ranks of the same cells by the paper's protocol, ended early, and by the fast one."""
    ranks = ((2, 2), (3, 4), (4, 4), (2, 6), (5, 5), (6, 6))
    cells = [Cell(ToyTask(variant, *pair), 8) for variant in ("discrete", "continuous") for pair in ranks]
    rows: dict[str, dict[str, object]] = {str(cell): {} for cell in cells}
    for protocol in (replace(PROTOCOLS["paper"], steps=51_600), PROTOCOLS["fast"]):
        heads = train(cells, protocol, folder=folder / protocol.name, progress=_report)
        for head in heads.values():
            rows[str(head.cell)] |= {f"{protocol.name} steps": head.steps, f"{protocol.name} accuracy": head.accuracy}
        for row in portray([*heads.values()], Sampling(), Depth(swaps=0, draws=0, parts=False)).recovered:
            rows[str(row.cell)][f"{protocol.name} {row.latent}"] = row.energy
    return pd.DataFrame.from_dict(rows, orient="index")


def _exact(ranks: pd.DataFrame) -> pd.DataFrame:
    """How many latents have their true rank, by rule, below, on and above r1 + r2 = d_head."""
    exact = ranks[["energy", "balanced", "heldout"]].eq(ranks.true, axis=0)
    place = (ranks.r1 + ranks.r2 - ranks.d_head).apply(
        lambda over: "above" if over > 0 else "on" if not over else "below"
    )
    keys = [ranks.trained, ranks.variant, ranks.d_head, place.rename("place")]
    return exact.groupby(keys).agg(["sum", "size"])


def _report(step: int, left: int) -> None:
    print(f"step {step}, {left} heads in training", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--grid", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--protocols", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    if given.protocols:
        print(protocols(given.protocols).to_string())
        return
    if given.grid:
        for name, value in grid(given.grid, given.seeds).items():
            print(f"{name}:", value if not isinstance(value, str) else f"\n{value}")
        return
    rounds, steps = (3, 10) if given.quick else (given.rounds, given.steps)
    torch.set_num_threads(1)  # CPU time of threads that wait for each other says nothing
    result = {"torch": torch.__version__, **compare(rounds, steps)}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
