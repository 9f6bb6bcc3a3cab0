"""How many texts and tokens a binding study runs, part by part, and how many of them are run because they differ.

python benchmarks/tokens.py                                    # what make demo runs
python benchmarks/tokens.py --size paper --phrasing chat       # what the presets of the paper's models run
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

import qkprism as qk
from qkprism.contrasts import Example
from qkprism.models.batches import tree_size
from qkprism.models.encoding import Encoder
from qkprism.studies.binding import MOST_FOR_ENTITIES, SIZES
from qkprism.studies.binding_prompts import BindingPrompts, binding_prompts

Row = tuple[tuple[int, ...], ...]  # the tokens of texts that are run together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="quick")
    parser.add_argument("--phrasing", default="cloze")
    given = parser.parse_args()
    tokenizer, size = qk.load("smollm2").tokenizer, SIZES[given.size]
    options = {"phrasing": given.phrasing, "tokenizer": tokenizer}
    prompts = binding_prompts("boxes", n_search=size.search, n_train=size.train, n_test=size.test, **options)
    task = prompts.task
    encoder = Encoder.of(tokenizer, task.encoding)

    def rows(examples: Iterable[Example]) -> list[Row]:
        return [tuple(text.ids for text in example.texts) for example in encoder.encode(enumerate(examples))]

    def twins(prompts: BindingPrompts) -> list[Row]:
        return joined([rows(contrast) for contrast in prompts.contrasts.values()])

    reflexive = rows(prompts.extra["reflexive"][: size.reflexive])
    factors = ("order", "lexical", "label")
    changed = [rows(pair[1] for pair in prompts.counterfactuals(factor)) for factor in factors]
    parts = {
        "search": rows(task.search),
        "order, the paper's": rows(prompts.extra["order_fixed"]),
        "order, lexical and reflexive twins": joined([twins(prompts), reflexive]),
        "tests": joined([rows(task.test), *changed]),
        "effect on the output, unedited": rows(task.test),
    }
    for n in size.entities:
        few = binding_prompts("boxes", n_search=1, n_train=MOST_FOR_ENTITIES, n_test=1, n_entities=n, **options)
        parts[f"{n} entities"] = twins(few)
    counted = {name: counts(own) for name, own in parts.items()}
    counted["in all"] = tuple(map(sum, zip(*counted.values(), strict=True)))
    for name, (texts, tokens, run) in counted.items():
        print(f"{name}: {texts:,} texts of {tokens / texts:.0f} tokens, {run / tokens:.0%} of {tokens:,} tokens run")


def joined(parts: Sequence[Sequence[Row]]) -> list[Row]:
    """The rows of several parts with the same first texts, of which some may have fewer; each text once."""
    found = [dict.fromkeys(row) for row in parts[0]]
    for part in parts[1:]:
        for row, more in zip(found, part, strict=False):
            row.update(dict.fromkeys(more))
    return [tuple(row) for row in found]


def counts(rows: Sequence[Row]) -> tuple[int, int, int]:
    """Texts, their tokens, and the tokens that are run when each common beginning is run once."""
    return sum(map(len, rows)), sum(len(text) for row in rows for text in row), sum(map(tree_size, rows))


if __name__ == "__main__":
    main()
