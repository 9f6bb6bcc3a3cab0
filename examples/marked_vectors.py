"""What the examples with other libraries share: where the marks of a contrast are, and a small model to try.

marks    = Marks.of(tokenizer, contrast)                                                # token ids and positions
source   = qk.VectorSource.from_transformerlens(cache, contrast.name, **marks.places)   # or from_nnsight
features = qk.decompose(source)
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

import qkprism as qk
from qkprism.capture.texts import LabelCell, cell_of
from qkprism.models.encoding import encode

BOXES = Path(__file__).parent / "boxes.jsonl"


@dataclass(frozen=True)
class Marks:
    """The tokens of some texts, padded on the right, and the positions of what is marked in them.

    A causal model sees nothing of what comes later, so padding on the right needs no mask.
    """

    ids: Tensor  # [example, token]
    query: Tensor  # [example]
    positive: Tensor  # [example, key]
    negative: Tensor  # [example, key]
    positive_label: Tensor  # [example, key]: keys with the same labels have the same number
    negative_label: Tensor  # [example, key]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, contrast: qk.Contrast) -> Marks:
        """Of a contrast whose examples have equally many keys."""
        texts = [example.text for example in encode(tokenizer, contrast)]
        rows = [torch.tensor(text.ids) for text in texts]
        cells: dict[LabelCell, int] = {}

        def labels(positive: bool) -> Tensor:
            sides = [[cell_of(key.labels) for key in text.keys if key.positive == positive] for text in texts]
            return torch.tensor([[cells.setdefault(cell, len(cells)) for cell in side] for side in sides])

        return cls(
            torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
            torch.tensor([text.query for text in texts]),
            torch.tensor([text.positive for text in texts]),
            torch.tensor([text.negative for text in texts]),
            labels(positive=True),
            labels(positive=False),
        )

    @property
    def places(self) -> dict[str, Tensor]:
        """What `VectorSource` takes: the positions of queries and keys, and which keys differ by noise only."""
        return {name: value for name, value in vars(self).items() if name != "ids"}


def tiny_llama(folder: Path, contrast: qk.Contrast) -> Path:
    """A Llama of random weights with a tokenizer of the contrast's words: nothing is downloaded."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    words = Tokenizer(models.WordLevel(unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    words.train_from_iterator((example.text.text for example in contrast), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 3, "vocab_size": len(tokenizer)}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def main(capture: Callable[[str, qk.Contrast, Sequence[int]], qk.VectorSource]) -> None:
    """Print the features of two layers of the model in the folder that the command names, or else of a random one."""
    contrast = qk.Contrast.read(BOXES)
    with tempfile.TemporaryDirectory() as made:
        folder = sys.argv[1] if len(sys.argv) > 1 else str(tiny_llama(Path(made), contrast))
        source = capture(folder, contrast, [1, 2])
    for (_, head), feature in qk.decompose(source).items():
        print(f"{head}: {feature.evidence}")
