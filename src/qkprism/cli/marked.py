"""Contrasts on a terminal: tokens with their marks, balance, mistakes with a picture of the line."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text as Coloured

from qkprism.cli.printing import print_rows, terminal_width
from qkprism.contrasts.balance import Offsets, words_of
from qkprism.contrasts.checks import FEW, ContrastCheck
from qkprism.contrasts.markup import SIDES, Text
from qkprism.notes import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qkprism.contrasts.tasks import Task

_STYLES = {"+": "black on #9ecae1", "-": "black on #fdbe85", "?": "black on #d0d0d0"}


def console() -> Console:
    """Where prompts and marks go; a pipe has no width of its own. NO_COLOR is heeded."""
    return Console(width=terminal_width(), highlight=False)


def show_check(found: ContrastCheck, offsets: Offsets | None, shown: int, named: str) -> None:
    """All that a check has found of the contrast of a name: mistakes first, for they are to be mended."""
    out = console()
    for mistake in found.mistakes:
        out.print(Coloured(f"{found.name}:{mistake.line}: {mistake.message}", style="red"), soft_wrap=True)
        if picture := mistake.picture(found.source):
            out.print(Coloured(picture), soft_wrap=True)
    if found.contrast is None:
        return
    _show_head(found, out)
    for example in found.contrast[:shown] if shown else ():
        for which, text in enumerate(example.texts):
            out.print(Coloured("  twin: " if which else "  ").append(tokens(text, offsets or words_of)))
    if shown:
        legend = [Coloured(f" {sign} {name} ", _STYLES[sign]) for sign, name in SIDES.items()]
        out.print(Coloured("  ").join([Coloured(""), *legend, Coloured("* the target")]))
    if found.balance:
        _show_balance(found, out)
    for note in found.notes:
        out.print(Coloured(f"Note: {note}"))
    if not found.mistakes:
        out.print(Coloured(_verdict(found), style="bold"))
        if len(found.contrast) >= FEW:
            out.print(Coloured(f"Next: qkprism heads {shlex.quote(named)}"), soft_wrap=True)


def _show_head(found: ContrastCheck, out: Console) -> None:
    contrast, drawn = found.contrast, found.task
    assert contrast is not None
    out.print(Coloured(f"{contrast.name}: {contrast.description or counted(len(contrast), 'example')}", style="bold"))
    if drawn is None:
        return
    for name, words in drawn.words.items():
        out.print(Coloured(f"  {name}: {_counts(drawn, name, words)}", style="dim"))
    can = [f"exchange {', '.join(drawn.factors) or 'nothing'}", f"twins {', '.join(drawn.template.twins) or 'none'}"]
    if drawn.frame != "post":
        can.append("positions are counted from the query (frame = 'relative')")
    out.print(Coloured(f"  {'; '.join(can)}", style="dim"))


def _counts(drawn: Task, name: str, words: Sequence[str]) -> str:
    """How many words of a list there are, and what for."""
    held_out, dropped = drawn.held_out[name], drawn.dropped.get(name, ())
    if name in drawn.template.shared:
        counts = f"{len(words)} words, to find with and to test on"
    else:
        counts = f"{len(words) + len(held_out)} words: {len(words)} to find with, {len(held_out)} to test on"
    return f"{counts}; {len(dropped)} more left out" if dropped else counts


def tokens(text: Text, offsets: Offsets) -> Coloured:
    """A text with its tokens apart and its marks in colour, and with a sign where there is no colour."""
    shown, end = Coloured(), 0
    for start, stop in offsets(text.text):
        shown.append(text.text[end:start].replace("\n", "⏎"))
        signs = [sign for sign, span in text.marks if span.unit == "char" and start < span.end and span.start < stop]
        target = any(span.target and start < span.end and span.start < stop for span in text.negative)
        piece = text.text[max(start, end) : stop].replace("\n", "⏎")
        if signs:
            shown.append(f"{signs[-1]}{piece}{'*' if target else ''}", style=_STYLES[signs[-1]])
        else:
            shown.append(piece)
        end = max(end, stop)
        shown.append("|" if end < len(text.text) else "", style="dim")
    return shown


def _show_balance(found: ContrastCheck, out: Console) -> None:
    out.print(Coloured("Can one simple thing tell positive from negative keys? (AUC 0.5: no better than a coin toss)"))
    table = Table(header_style="bold")
    for name in ("of a key", "AUC", "error", "verdict"):
        table.add_column(name, justify="left" if name in ("of a key", "verdict") else "right")
    for row in found.balance:
        verdict = "no leak" if not row.tells else "a leak, declared" if row.predictor in found.declared else "A LEAK"
        table.add_row(row.predictor, f"{row.auc:.2f}", f"{row.error:.2f}", verdict)
    out.print(table)


def _verdict(found: ContrastCheck) -> str:
    assert found.contrast is not None
    if (n := len(found.contrast)) < FEW:
        return f"Nothing is wrong so far, but a test needs at least {FEW} examples: write {FEW - n} more."
    wrong = [row.predictor for row in found.balance if row.tells and row.predictor not in found.declared]
    if wrong:
        return f"It can be used, but {' and '.join(wrong)} may be what is found."
    return "It can be used." if not found.notes else "It can be used; read the notes."


def show_shelf(rows: list[dict[str, Any]]) -> None:
    """The contrasts of the shelf, each with its question and what was found in the default model."""
    found = any(row["found"] for row in rows)
    columns = ("contrast", "question", *((*_FOUND, "made") if found else ()))
    cells = [{key: row[key] for key in ("contrast", "question")} | _found(row["found"]) for row in rows]
    for cell, row in zip(cells, rows, strict=True):
        made = row["found"].get("made", {})
        cell["made"] = f"{made['date']}, qkprism {made['qkprism']}" if made else "-"
    print_rows(cells, columns, "Contrasts that come with qkprism", fold=("question",))


_FOUND = ("head", "holds", "accuracy", "q", "chance", "rank", "effect", "nearest control", "part off by")


def show_findings(shelf: Any) -> None:
    """The table of a shelf that was run."""
    title = f"The shelf in {shelf.provenance['model']}: {shelf.provenance['n']} examples, held-out words"
    rows = shelf.to_frame().to_dict("records")
    print_rows([{"contrast": row["contrast"]} | _found(row) for row in rows], ("contrast", *_FOUND), title)


def _found(row: dict[str, Any]) -> dict[str, str]:
    """What was found for a contrast, a cell a column; dashes where nothing was."""
    if not row:
        return dict.fromkeys(_FOUND, "-")
    off = row["part_off"]
    control = f"{row['control']} {row['control_effect']:+.2f} ({row['errors_above']:.1f} errors above permuted)"
    return {
        "head": f"{row['head']} {row['feature']}",
        "holds": "yes" if row["holds"] else "no",
        "accuracy": f"{row['accuracy']:.2f}",
        "q": f"{row['q']:.0e}",
        "chance": f"{row['chance']:.2f}",
        "rank": str(row["rank"]),
        "effect": f"{row['effect']:+.2f}",
        "nearest control": control,
        "part off by": "-" if off is None or off != off else f"{off:.0%}",
    }
