"""Text as windows of tokens: from the user's texts and files, or drawn from the model itself.

A window is a piece of a document as the model would read it alone: with the special tokens of its tokenizer, and its
first token at position 0. The package ships no corpus; without texts a causal model writes its own, by seed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from qkprism.contrasts.markup import check_unicode
from qkprism.errors import QKPrismError
from qkprism.models.model import Model
from qkprism.options import show
from qkprism.runs.files import path_of

Place = str | os.PathLike[str]
SHORTEST = 16  # tokens of a window
DRAWN_AT_ONCE = 32  # texts that a model writes side by side


@dataclass(frozen=True)
class Windows:
    """Windows of tokens, and the document of each. Those of one document are on one side of a split."""

    ids: tuple[tuple[int, ...], ...]
    document: tuple[int, ...]
    origin: str  # where they are from, in words

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return sum(map(len, self.ids))

    def split(self, held_out: float, seed: int) -> tuple[Windows, Windows]:
        """Windows to learn from, and windows of other documents to test on."""
        documents = sorted(set(self.document))
        if len(documents) < 2:
            # One long document: its end is held out.
            cut = len(self) - max(1, round(held_out * len(self)))
            return self._pick(range(cut)), self._pick(range(cut, len(self)))
        order = torch.randperm(len(documents), generator=torch.Generator().manual_seed(seed)).tolist()
        wanted, count = held_out * len(self), 0
        held: set[int] = set()
        for place in order:
            if count >= wanted or len(held) == len(documents) - 1:
                break
            held.add(documents[place])
            count += self.document.count(documents[place])
        sides = [[i for i, document in enumerate(self.document) if (document in held) is out] for out in (False, True)]
        return self._pick(sides[0]), self._pick(sides[1])

    def _pick(self, which: Iterable[int]) -> Windows:
        chosen = list(which)
        return Windows(tuple(self.ids[i] for i in chosen), tuple(self.document[i] for i in chosen), self.origin)


@dataclass(frozen=True)
class WindowBatch:
    """Some windows of a pass, padded on the right."""

    input_ids: Int64[Tensor, "window token"]
    there: Bool[Tensor, "window token"]

    @classmethod
    def of(cls, windows: Sequence[tuple[int, ...]], filler: int = 0) -> WindowBatch:
        width = max(map(len, windows))
        ids = torch.tensor([[*one, *[filler] * (width - len(one))] for one in windows])
        lengths = torch.tensor([len(one) for one in windows])
        return cls(ids, torch.arange(width) < lengths[:, None])


def cut(tokenizer: PreTrainedTokenizerBase, documents: Iterable[str], length: int, most: int, origin: str) -> Windows:
    """Documents cut into windows of `length` tokens, at most so many; shorter rests count if they are not too short."""
    before, after = _special(tokenizer)
    room = length - len(before) - len(after)
    if room < SHORTEST:
        raise QKPrismError(f"A window of {length} tokens is too short. Give a length of {SHORTEST} or more.")
    ids: list[tuple[int, ...]] = []
    document: list[int] = []
    for number, text in enumerate(documents):
        tokens = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        for start in range(0, len(tokens), room):
            piece = tokens[start : start + room]
            if len(piece) >= min(SHORTEST, room):
                ids.append((*before, *piece, *after))
                document.append(number)
        if len(ids) >= most:
            break
    if not ids:
        raise QKPrismError(f"No text of {SHORTEST} tokens or more was found in {origin}. Give longer texts.")
    return Windows(tuple(ids[:most]), tuple(document[:most]), origin)


def _special(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before and after a text."""
    ids = list(tokenizer("")["input_ids"])
    return ids[:1], ids[1:]


def documents_of(texts: Any) -> tuple[Iterator[str], str]:
    """The documents of whatever was given, and where they are from in words: strings, or files and folders of text."""
    if isinstance(texts, os.PathLike):
        texts = [texts]
    if isinstance(texts, str):
        texts = [Path(texts)] if _is_place(texts) else [texts]
    if not isinstance(texts, Iterable):
        raise QKPrismError(f"{show(texts)} is not text. Give strings, or paths of .txt, .md, .jsonl or .parquet files.")
    listed = list(texts)
    if not listed:
        raise QKPrismError("No text was given. Leave texts out to let the model write some.")
    if wrong := [one for one in listed if not isinstance(one, str | os.PathLike)]:
        raise QKPrismError(f"{show(wrong[0])} is not text. Give strings, or paths of files.")
    places = [path_of(one) for one in listed if isinstance(one, os.PathLike)]
    origin = ", ".join(place.name for place in places[:3]) + (" ..." if len(places) > 3 else "")
    return _read_all(listed), origin or f"{len(listed)} texts"


def _is_place(text: str) -> bool:
    """Whether a string is the name of something on disk rather than text."""
    try:
        return len(text) < 1000 and "\n" not in text and Path(text).exists()
    except OSError:
        return False


def _read_all(listed: Sequence[Any]) -> Iterator[str]:
    for one in listed:
        for text in [one] if isinstance(one, str) else read_documents(path_of(one)):
            check_unicode(text)
            yield text


def read_documents(place: Path) -> Iterator[str]:
    """The documents of a file (.jsonl: field `text`; .parquet: column `text`; else plain text), folder or dataset."""
    if place.is_dir():
        if any((place / name).is_file() for name in _DATASET):
            yield from _dataset(place)
            return
        files = sorted(path for path in place.rglob("*") if path.suffix in _READERS and path.is_file())
        if not files:
            raise QKPrismError(f"{place} holds no text. Files read are: {', '.join(_READERS)}.")
        for file in files:
            yield from _READERS[file.suffix](file)
        return
    if not place.is_file():
        raise QKPrismError(f"{place} does not exist.")
    yield from _READERS.get(place.suffix, _plain)(place)


def _plain(place: Path) -> Iterator[str]:
    yield "".join(_lines(place))


def _json_lines(place: Path) -> Iterator[str]:
    for number, line in enumerate(_lines(place), 1):
        if line.strip():
            yield _text_of(place, number, line)


def _lines(place: Path) -> Iterator[str]:
    try:
        with place.open(encoding="utf-8-sig") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as error:
        raise QKPrismError(f"{place} cannot be read as UTF-8 text ({error}).") from None


def _text_of(place: Path, number: int, line: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise QKPrismError(f"{place}, line {number}: not JSON ({error}).") from None
    text = record if isinstance(record, str) else record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise QKPrismError(f'{place}, line {number}: no field "text" with a string in it.')
    return text


def _parquet(place: Path) -> Iterator[str]:
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise QKPrismError(f"{place}: reading parquet needs pyarrow. Run: pip install pyarrow") from None
    try:
        file = parquet.ParquetFile(place)
    except (OSError, ValueError) as error:
        raise QKPrismError(f"{place} is not a parquet file ({error}).") from None
    if "text" not in file.schema_arrow.names:
        raise QKPrismError(f"{place} has no column `text`. It has: {', '.join(file.schema_arrow.names)}.")
    for batch in file.iter_batches(columns=["text"]):
        yield from (text for text in batch.column(0).to_pylist() if isinstance(text, str))


def _dataset(place: Path) -> Iterator[str]:
    try:
        datasets = import_module("datasets")
    except ImportError:
        raise QKPrismError(f"{place} is a dataset on disk. Run: pip install datasets") from None
    dataset = datasets.load_from_disk(str(place))
    if isinstance(dataset, Mapping):
        raise QKPrismError(f"{place} holds several datasets. Choose one, such as {place / next(iter(dataset))}.")
    if "text" not in dataset.column_names:
        raise QKPrismError(f"{place} has no column `text`. It has: {', '.join(dataset.column_names)}.")
    yield from (row["text"] for row in dataset)


_DATASET = ("dataset_info.json", "dataset_dict.json")  # which say that a folder is a dataset, or several
_READERS = {".txt": _plain, ".md": _plain, ".jsonl": _json_lines, ".parquet": _parquet}


def written_by(model: Model, length: int, most: int, seed: int, tick: Any = None) -> Windows:
    """Windows that a causal model writes itself, each a document of its own; the token it starts from is left out."""
    if not model.is_causal or not hasattr(model.hf, "generate") or model.tokenizer is None:
        raise QKPrismError(f"{model.name} does not write text by itself. Give texts: survey(model, texts=[...]).")
    before, _ = _special(model.tokenizer)
    start = _first_token(model)
    ids: list[tuple[int, ...]] = []
    for first in range(0, most, DRAWN_AT_ONCE):
        count = min(DRAWN_AT_ONCE, most - first)
        for row in _write(model, start, count, length - len(before), seed + first):
            ids.append((*before, *row))
        if tick:
            tick(count)
    return Windows(tuple(ids), tuple(range(len(ids))), f"text that {model.name} wrote itself")


def _first_token(model: Model) -> int:
    tokenizer = model.tokenizer
    for found in (tokenizer.bos_token_id, tokenizer.eos_token_id):  # type: ignore[union-attr]
        if found is not None:
            return int(found)
    raise QKPrismError(f"{model.name} has no token to begin a text with. Give texts: survey(model, texts=[...]).")


def _write(model: Model, start: int, count: int, length: int, seed: int) -> list[list[int]]:
    """Text drawn from the model's own distribution; the random state of the caller stays as it was."""
    prompt = torch.full((count, 1), start, device=model.device)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        written = model.hf.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            repetition_penalty=1.0,
            max_new_tokens=length,
            min_new_tokens=length,
            pad_token_id=start,
        )
    return [row[1:].tolist() for row in written]
