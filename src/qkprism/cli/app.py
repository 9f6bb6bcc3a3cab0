"""The app that commands are added to, and the options that several of them have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkprism.options import DTYPES, TOKENS, either

app = typer.Typer(
    name="qkprism",
    help="Why did this attention head attend to that token?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

ModelOption = Annotated[str, typer.Option("--model", "-m", help="Hub name, folder, .gguf file, or smollm2.")]
DtypeOption = Annotated[str | None, typer.Option(help=f"{either(DTYPES)}; the device's best if not given.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps; the best there is if not given.")]
DeviceMapOption = Annotated[str | None, typer.Option(help="auto: spread the model over all devices.")]
LimitOption = Annotated[int | None, typer.Option(help="Use the first N examples only.", min=1)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
ContrastArgument = Annotated[
    str,
    typer.Argument(
        help="A contrast: a file (.jsonl, .csv, .parquet), a template (.toml), or a name of the shelf.",
        show_default=False,
    ),
]
ContrastsArgument = Annotated[
    list[str], typer.Argument(help="One or more contrasts: files, templates or names of the shelf.", show_default=False)
]
RunArgument = Annotated[Path, typer.Argument(help="A run folder of features.", show_default=False)]
HeadsOption = Annotated[str | None, typer.Option("--heads", help="Heads such as L18H6,L21H7; all by default.")]
TokenOption = Annotated[str, typer.Option(help=f"Which token of a span: {either(TOKENS)}.")]
ChatOption = Annotated[bool, typer.Option("--chat", help="Put texts into the model's chat template.")]
BatchOption = Annotated[int | None, typer.Option(help="Texts a batch; by itself if not given.", min=1)]
