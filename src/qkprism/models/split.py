"""A model whose heads are split over processes, by transformers (tensor parallel): `device_map="tp"` under torchrun.

Each process computes its own heads. The tap gathers queries, keys and values of all of them, so that what is read and
edited is the whole call, the same in every process; nothing is added up. The model's own attention function gets this
process's part again. Processes beyond those that hold one model (`tp:2` with four of them) share the examples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from qkprism.errors import QKPrismError
from qkprism.ranks import hold_together, processes


@dataclass(frozen=True)
class HeadSplit:
    """The processes that hold one model, and which of them this is."""

    group: Any
    number: int
    count: int

    def whole(self, tensor: Tensor, axis: int = 1) -> Tensor:
        """The heads of all processes."""
        from torch import distributed

        parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.count)]
        distributed.all_gather(parts, tensor.contiguous(), group=self.group)
        return torch.cat(parts, axis)

    def part(self, tensor: Tensor, axis: int = 1) -> Tensor:
        """The heads of this process."""
        return tensor.chunk(self.count, axis)[self.number]


def split_of(hf: PreTrainedModel, module: nn.Module, heads: int) -> HeadSplit | None:
    """How a model's heads are split, if this module computes fewer than it has."""
    if (getattr(hf, "_tp_size", None) or 1) < 2:
        return None
    every = getattr(getattr(module, "config", None), "num_attention_heads", heads)
    return _split(hf) if heads < every else None


@lru_cache(maxsize=4)
def _split(hf: PreTrainedModel) -> HeadSplit:
    mesh: Any = hf._device_mesh
    mesh = mesh["tp"] if mesh.ndim > 1 else mesh
    return HeadSplit(mesh.get_group(), mesh.get_local_rank(), mesh.size())


def processes_of_model(device_map: object) -> int | None:
    """How many processes hold one model: `tp` is all of them, `tp:2` two; None if the map says something else."""
    if not isinstance(device_map, str) or device_map.partition(":")[0] != "tp":
        return None
    _, _, told = device_map.partition(":")
    count = processes() if not told else int(told) if told.isdigit() else 0
    if count < 2 or processes() % count:
        raise QKPrismError(
            f"device_map={device_map!r} splits the heads of a model over {count} of {processes()} processes. Start the "
            "command with torchrun --nproc-per-node N, and give tp, or tp:M where M divides N."
        )
    return count


def check_heads(config: PreTrainedConfig, count: int, name: str) -> None:
    """Refuse a model whose heads cannot be dealt out evenly."""
    config = config.get_text_config()
    heads = getattr(config, "num_attention_heads", 0)
    keys = getattr(config, "num_key_value_heads", None) or heads
    if heads % count or keys % count:
        raise QKPrismError(
            f"{name} has {keys} key heads for {heads} heads, which {count} processes cannot share evenly. Use as many "
            f"processes as divide {keys}, with tp:M if there are more, or leave device_map out."
        )


def load_split(kind: Any, source: str, options: dict[str, Any], count: int) -> tuple[PreTrainedModel, Any]:
    """Load a model so that each of so many processes has its part of it, and what was read of its files."""
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from transformers.distributed.configuration_utils import DistributedConfig
        from transformers.distributed.tensor_parallel import apply_tensor_parallelism
    except ImportError:
        raise QKPrismError("This transformers cannot split a model as qkprism reads it. Update transformers.") from None
    hold_together(count)
    if count == processes():
        split = DistributedConfig(tp_size=count, tp_plan="auto")
        hf, report = kind.from_pretrained(source, **options | {"device_map": None}, distributed_config=split)
        return hf, report
    hf, report = kind.from_pretrained(source, **options | {"device_map": None})
    where = "cuda" if torch.cuda.is_available() else "cpu"
    mesh: Any = init_device_mesh(where, (processes() // count, count), mesh_dim_names=("data", "tp"))
    hf = apply_tensor_parallelism(hf, mesh["tp"]).to(where)
    hf._tp_size, hf._device_mesh = count, mesh
    return hf, report
