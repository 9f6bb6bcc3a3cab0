"""What does an atlas cost, and how much does it explain? Every bar of it, in one script.

    python benchmarks/atlas.py --corpora one.jsonl two.jsonl              # all: figures of benchmarks/README.md
    python benchmarks/atlas.py --corpora one.jsonl two.jsonl --only cost  # or some of what follows

cost       the pass that learns, and what the signature adds, beside a bare forward pass, in turns, processor time
coverage   total variation on held-out text of the first corpus: learned from it, and from what the model writes itself
match      the match of common held-out rows with means and directions from two halves of a corpus, and from two corpora
signature  of the ten heads with most induction mass, how many are found, and how many others: in each corpus, in the
           docstrings of the standard library, and in text that the model writes itself
memory     peak of a process of its own: bare pass, survey, survey of twice the text
explain    one row of 4,096 tokens beside a bare pass, and seconds with an atlas at hand

The corpora are files of the user's; nothing in the library was chosen by looking at them.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import qkprism as qk
from memory import memory
from qkprism.atlas.atlas import HeadMeans
from qkprism.atlas.coverage import CoverageSums, add_rows
from qkprism.atlas.explain import explain
from qkprism.atlas.rows import STAGES, RotatedRows
from qkprism.atlas.signature import AT_ONCE, LIKE, run_windows, signature
from qkprism.atlas.sums import KINDS, Kinds, LayerSums, add_call, empty_sums
from qkprism.atlas.survey import survey
from qkprism.atlas.windows import WindowBatch, Windows, cut, documents_of, written_by
from qkprism.core.row_split import PARTS
from qkprism.heads import Head
from qkprism.models.calls import AttentionCall
from qkprism.models.rotation import Rotation

MODEL, LENGTH = "smollm2", 256
ROW = 4096
WRITTEN = 1  # seed of the text for the signature
Layers = Mapping[int, HeadMeans]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", nargs="*", type=Path, default=[], help="two; for the signature any number")
    parser.add_argument("--windows", type=int, default=192, help="of each corpus; a quarter is held out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=list(JOBS), choices=list(JOBS))
    parser.add_argument("--atlas", type=Path, help="one at hand, for explain; without it a small one is made")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.alone:
        alone(arguments.alone, arguments.corpora[0], arguments.atlas)
        return
    for name in arguments.only:
        print(f"\n{name}", flush=True)
        JOBS[name](arguments)


def windows_of(model: qk.Model, corpus: Path, most: int) -> Windows:
    documents, origin = documents_of(corpus)
    return cut(model.tokenizer, documents, LENGTH, most, origin)


def learn(model: qk.Model, windows: Windows) -> dict[int, HeadMeans]:
    """Means and covariances, as `survey` learns them."""
    few = Windows(windows.ids[:AT_ONCE], windows.document[:AT_ONCE], "")
    centre = {layer: one.key / one.tokens for layer, one in sums_of(model, few, None).items()}
    sums = sums_of(model, windows, centre)
    return {layer: HeadMeans(one, model.layers[layer].scaling) for layer, one in sums.items()}


def sums_of(model: qk.Model, windows: Windows, centre: Mapping[int, Tensor] | None) -> dict[int, LayerSums]:
    sums: dict[int, LayerSums] = {}
    prepared: dict[int, tuple[WindowBatch, Kinds]] = {}

    def visit(call: AttentionCall, rotation: Rotation | None, start: int) -> None:
        batch, kinds = of_batch(prepared, windows, start)
        one = sums.setdefault(call.layer, empty_sums(call))
        add_call(one, call, rotation, batch, kinds, None if centre is None else centre[call.layer])

    run_windows(model, windows, visit)
    return sums


def of_batch(prepared: dict[int, tuple[WindowBatch, Kinds]], windows: Windows, start: int) -> tuple[WindowBatch, Kinds]:
    """A batch and the kinds of its keys, made once for all layers."""
    if start not in prepared:
        prepared.clear()
        batch = WindowBatch.of(windows.ids[start : start + AT_ONCE])
        prepared[start] = batch, Kinds.of(batch, start, torch.device("cpu"))
    return prepared[start]


def rows_of(
    model: qk.Model, windows: Windows, visit: Callable[[AttentionCall, Rotation | None, Kinds, int], None]
) -> None:
    """Show calls with the rows that are looked at."""
    prepared: dict[int, tuple[WindowBatch, Kinds]] = {}
    run_windows(model, windows, lambda call, rotation, n: visit(call, rotation, of_batch(prepared, windows, n)[1], n))


def bare(model: qk.Model, windows: Windows) -> None:
    for start in range(0, len(windows), AT_ONCE):
        batch = WindowBatch.of(windows.ids[start : start + AT_ONCE])
        model.run(batch.input_ids, batch.there.long())


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def cost(arguments: argparse.Namespace) -> None:
    model = qk.load(MODEL)
    few = windows_of(model, arguments.corpora[0], 8)
    layers = learn(model, few)
    centre = {layer: means.mean_key for layer, means in layers.items()}

    ways: dict[str, Callable[[], object]] = {
        "bare": lambda: bare(model, few),
        "survey pass": lambda: sums_of(model, few, centre),
        "signature": lambda: signature(model, few, layers),
    }
    times = {name: [] for name in ways}
    for _ in range(arguments.rounds):
        for name, way in ways.items():
            times[name].append(seconds(way))
    for name in ways:
        ratios = [own / reference for own, reference in zip(times[name], times["bare"], strict=True)]
        print(f"  {name:12s} {statistics.median(ratios):.2f}  {' '.join(f'{ratio:.2f}' for ratio in ratios)}")


def coverage(arguments: argparse.Namespace) -> None:
    model = qk.load(MODEL)
    learned, tested = windows_of(model, arguments.corpora[0], arguments.windows).split(0.25, 0)
    written = written_by(model, LENGTH, len(learned), 0)
    found = {"its own corpus": learn(model, learned), "text the model wrote": learn(model, written)}
    tables = {name: variation(model, tested, layers) for name, layers in found.items()}
    print(f"  {len(tested)} held-out windows of {tested.origin}; median over heads (without the first token)")
    for name, (whole, later) in tables.items():
        told = [f"{s} {a:.3f} ({b:.3f})" for s, a, b in zip(STAGES, median(whole), median(later), strict=True)]
        print(f"  from {name}: {', '.join(told)}")
    more = [(tables["text the model wrote"][0] - tables["its own corpus"][0]).median(0).values]
    print(f"  more, median over heads: {', '.join(f'{s} {x:+.3f}' for s, x in zip(STAGES, more[0], strict=True))}")


def median(table: Tensor) -> list[float]:
    return [float(value) for value in table.median(0).values]


def variation(model: qk.Model, windows: Windows, layers: Layers) -> tuple[Tensor, Tensor]:
    """Total variation by head and stage, with and without the first token."""
    sums = {layer: CoverageSums.zeros(len(means.mean_query)) for layer, means in layers.items()}
    rows_of(
        model,
        windows,
        lambda call, rotation, kinds, start: add_rows(
            sums[call.layer], call, rotation, layers[call.layer], kinds, start
        ),
    )
    both = [
        torch.cat([getattr(one, name) / one.rows for one in sums.values()]) for name in ("variation", "variation_later")
    ]
    return both[0], both[1]


def match(arguments: argparse.Namespace) -> None:
    model = qk.load(MODEL)
    corpus, other = (windows_of(model, one, arguments.windows) for one in arguments.corpora)
    learned, tested = corpus.split(0.125, 0)
    first, second = learned.split(0.5, 1)
    size = f"{len(first)}, {len(second)} and {len(other)} windows learned from, {len(tested)} tested on"
    print(f"  correlation within rows, {size}; median over heads (lowest tenth)")
    means = {name: learn(model, windows) for name, windows in (("a", first), ("b", second), ("c", other))}
    found = agreements(model, tested, means)
    for pair, name in (("ab", "halves"), ("ac", "corpora")):
        told = [f"{rank} {float(v.median()):.3f} ({float(v.quantile(0.1)):.3f})" for rank, v in found[pair].items()]
        print(f"  across {name}: {', '.join(told)}")


RANKS = {"whole match": None, "32 directions": 32, "16 directions": 16}


def agreements(model: qk.Model, windows: Windows, means: Mapping[str, Layers]) -> dict[str, dict[str, Tensor]]:
    """For pairs of means the correlation of match logits within rows, by rank and head."""
    sums: dict[tuple[str, str, int], Tensor] = {}

    def visit(call: AttentionCall, rotation: Rotation | None, kinds: Kinds, _: int) -> None:
        seen = call.logits(rows=kinds.rows).isfinite() & kinds.there[:, None, :, None]
        seen[..., 0] = False
        split = {name: RotatedRows.of(call, rotation, one[call.layer], kinds.rows) for name, one in means.items()}
        for title, rank in RANKS.items():
            values = {}
            for name, rows in split.items():
                values[name] = within_rows(match_of(rows, rank), seen)
            for pair in ("ab", "ac"):
                one, other = values[pair[0]], values[pair[1]]
                terms = [(x * y).sum((0, 2, 3)).double() for x, y in ((one, other), (one, one), (other, other))]
                key = (pair, title, call.layer)
                sums[key] = sums.get(key, 0) + torch.stack(terms)

    rows_of(model, windows, visit)
    found: dict[str, dict[str, Tensor]] = {"ab": {}, "ac": {}}
    for pair in found:
        for title in RANKS:
            layers = [value for (p, t, _), value in sums.items() if (p, t) == (pair, title)]
            found[pair][title] = torch.cat([x[0] / (x[1] * x[2]).sqrt() for x in layers])
    return found


def match_of(rows: RotatedRows, rank: int | None) -> Tensor:
    """The whole match of some rows, or that of the first directions."""
    parts = rows.split.parts()
    if rank is None:
        return parts[PARTS.index("match")]
    stages = dict(zip(STAGES, rows.stages(parts), strict=True))
    return stages[f"+ match {rank}"] - stages["+ asked position"]


def within_rows(logits: Tensor, seen: Tensor) -> Tensor:
    """Logits less the mean of the tokens that a row sees, 0 elsewhere."""
    mean = (logits * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)
    return (logits - mean) * seen


def signatures(arguments: argparse.Namespace) -> None:
    model = qk.load(MODEL)
    for name, windows in signature_texts(model, arguments).items():
        learned, tested = windows().split(0.25, 0)
        layers = learn(model, learned)
        mass = attention_on(layers, KINDS[2])
        scores = signature(model, tested, layers)
        top = sorted(mass, key=lambda head: -mass[head])[:10]
        print(f"  {name}, {learned.tokens} tokens learned from, {tested.tokens} tested on")
        like = scores["signature: induction-like"]
        tell_signature(top, [head for head in mass if like[head] > LIKE], mass)


def signature_texts(model: qk.Model, arguments: argparse.Namespace) -> dict[str, Callable[[], Windows]]:
    """The corpora, and two texts that need none."""
    most = arguments.windows
    texts = {corpus.name: partial(windows_of, model, corpus, most) for corpus in arguments.corpora}
    texts["docstrings"] = lambda: cut(model.tokenizer, docstrings(), LENGTH, most, "docstrings")
    texts["its own text"] = lambda: written_by(model, LENGTH, most, WRITTEN)
    return texts


def docstrings() -> Iterator[str]:
    """The docstrings of the standard library, a document a module, in an order by seed."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    random.Random(0).shuffle(files)
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
        yield "\n\n".join(filter(None, (ast.get_docstring(one) for one in ast.walk(tree) if isinstance(one, kinds))))


def attention_on(layers: Layers, kind: str) -> dict[Head, float]:
    """Mean attention on keys of a kind, by head."""
    place = KINDS.index(kind)
    return {Head(i, h): float(v) for i, means in layers.items() for h, v in enumerate(means.attention[:, place])}


def tell_signature(top: list[Head], found: list[Head], mass: Mapping[Head, float]) -> None:
    others, missed = ([head for head in one if head not in two] for one, two in ((found, top), (top, found)))
    told = [", ".join(f"{head} ({mass[head]:.3f})" for head in heads) or "none" for heads in (others, missed)]
    print(f"    {10 - len(missed)} of 10 found, {len(others)} others: {told[0]}; missed: {told[1]}")


def memories(arguments: argparse.Namespace) -> None:
    peaks = {name: in_process(name, arguments) for name in ("bare 16", "survey 16", "survey 32")}
    for name, peak in peaks.items():
        print(f"  {name:12s} {peak['MB']:.0f} MB, {peak['MB'] - peaks['bare 16']['MB']:+.0f}")


def explaining(arguments: argparse.Namespace) -> None:
    found = {name: in_process(name, arguments) for name in ("bare row", "explain row", "explain quick")}
    row, quick = found["explain row"], found["explain quick"]
    more = row["MB"] - found["bare row"]["MB"]
    print(f"  a row of {row['tokens']:,} tokens: {more:+.0f} MB beside a bare pass of {found['bare row']['MB']:.0f} MB")
    times = ", ".join(f"{name} {quick[name]:.2f}" for name in quick if name != "MB")
    print(f"  seconds after loading, atlas from its folder: {times}")


def in_process(name: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Run one way alone, in a process of its own."""
    corpora = [str(one) for one in arguments.corpora]
    command = [sys.executable, __file__, "--corpora", *corpora, "--alone", name]
    command += ["--atlas", str(arguments.atlas)] if arguments.atlas else []
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def alone(name: str, corpus: Path, atlas: Path | None) -> None:
    model = qk.load(MODEL)
    told: dict[str, float] = {}
    what, _, size = name.partition(" ")
    if what == "survey":
        survey(model, corpus, windows=int(size), length=LENGTH, progress=False)
    elif what == "explain":
        with tempfile.TemporaryDirectory() as folder:
            told = explain_row(model, size, corpus, atlas or made_atlas(corpus, Path(folder)))
    elif size == "row":
        model.run(torch.tensor([long_text(model, corpus)]))
    else:
        bare(model, windows_of(model, corpus, int(size)))
    print(json.dumps(told | {"MB": memory()[1]}))


def long_text(model: qk.Model, corpus: Path) -> list[int]:
    documents, _ = documents_of(corpus)
    text = " ".join(one for one, _ in zip(documents, range(400), strict=False))
    return list(model.tokenizer(text, verbose=False)["input_ids"][:ROW])


def explain_row(model: qk.Model, size: str, corpus: Path, atlas: Path) -> dict[str, float]:
    if size == "row":
        told = explain(model, model.tokenizer.decode(long_text(model, corpus)), atlas=atlas, progress=False)
        return {"tokens": len(told.tokens)}
    times = []
    for _ in range(2):
        start = time.perf_counter(), time.process_time()
        explain(model, "The hat is in box O, the jam is in box Z. The jam is in box", atlas=atlas, progress=False)
        times += [time.perf_counter() - start[0], time.process_time() - start[1]]
    return dict(zip(("first", "first of processor", "again", "again of processor"), times, strict=True))


def made_atlas(corpus: Path, folder: Path) -> Path:
    """A small atlas, made by another process so that making it does not count."""
    place = folder / "atlas"
    script = "import qkprism as qk; from pathlib import Path; from qkprism.atlas.survey import survey; "
    script += f"atlas = survey(qk.load({MODEL!r}), Path({str(corpus)!r}), windows=16, length=128, progress=False); "
    script += f"atlas.save({str(place)!r})"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    return place


JOBS: dict[str, Callable[[argparse.Namespace], None]] = {
    "cost": cost,
    "coverage": coverage,
    "match": match,
    "signature": signatures,
    "memory": memories,
    "explain": explaining,
}


if __name__ == "__main__":
    main()
