"""What the examples with other libraries share: where the marks of a contrast are, and how vectors become features.

marks    = Marks.of(tokenizer, contrast)                 # token ids and the positions of queries and keys
vectors  = {layer: LayerVectors.at(marks, query, key)}   # queries and keys of all tokens, from elsewhere
features = features_of(vectors, "boxes")                 # a Feature a head
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

import qkprism as qk
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

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, contrast: qk.Contrast) -> Marks:
        """Of a contrast whose examples have equally many keys."""
        texts = [example.text for example in encode(tokenizer, contrast)]
        rows = [torch.tensor(text.ids) for text in texts]
        return cls(
            torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
            torch.tensor([text.query for text in texts]),
            torch.tensor([text.positive for text in texts]),
            torch.tensor([text.negative for text in texts]),
        )


@dataclass(frozen=True)
class LayerVectors:
    """The vectors of one layer at the marks, with as many key heads as query heads."""

    query: Tensor  # [example, head, d_head]
    positive: Tensor  # [example, key, head, d_head]
    negative: Tensor  # [example, key, head, d_head]

    @classmethod
    def at(cls, marks: Marks, query: Tensor, key: Tensor) -> LayerVectors:
        """From all queries and keys of a layer: [example, token, head, d_head], after the rotation.

        Under grouped-query attention several query heads share a key head: each gets its copy.
        """
        key = key.repeat_interleave(query.shape[2] // key.shape[2], 2)
        rows = torch.arange(len(query))
        return cls(query[rows, marks.query], key[rows[:, None], marks.positive], key[rows[:, None], marks.negative])


def features_of(vectors: Mapping[int, LayerVectors], contrast: str) -> dict[qk.Head, qk.Feature]:
    """The feature of a contrast in every head of these layers."""
    found = {}
    for layer, of_layer in vectors.items():
        for number in range(of_layer.query.shape[1]):
            head = qk.Head(layer, number)
            sides = (of_layer.query[:, number], of_layer.positive[:, :, number], of_layer.negative[:, :, number])
            found[head] = qk.decompose_vector_sets({contrast: qk.Vectors(*sides)}, head=head)[contrast, head]
    return found


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


def main(capture: Callable[[str, qk.Contrast, Sequence[int]], dict[int, LayerVectors]]) -> None:
    """Print the features of two layers of the model in the folder that the command names, or else of a random one."""
    contrast = qk.Contrast.read(BOXES)
    with tempfile.TemporaryDirectory() as made:
        folder = sys.argv[1] if len(sys.argv) > 1 else str(tiny_llama(Path(made), contrast))
        vectors = capture(folder, contrast, [1, 2])
    for head, feature in features_of(vectors, contrast.name).items():
        print(f"{head}: {feature.evidence}")
