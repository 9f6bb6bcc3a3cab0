"""Tiny random Hugging Face models, one per architecture, made from configs: no hub, no download.

The weights are larger than a real initialisation, because attention that is nearly uniform would pass any test.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Literal

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

VOCABULARY, LAYERS, TOKENS, SHORT = 61, 2, 9, 6
Side = Literal["right", "left"]

_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_TEXT = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4} | _SPECIAL
_BLOCK = _TEXT | {"intermediate_size": 40, "max_position_embeddings": 64}
_GROUPED = _BLOCK | {"num_key_value_heads": 2}
_IMAGE = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 40}
_IMAGE |= {"image_size": 12, "patch_size": 4}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_positions": 64} | _SPECIAL
_DISTIL = {"dim": 32, "n_layers": LAYERS, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 64}
_T5 = {"d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 40, "num_layers": LAYERS, "decoder_start_token_id": 0}
_BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40}
_BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 64}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12}
_DEEPSEEK = _LATENT | {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
_DEEPSEEK |= {"first_k_dense_replace": 1, "moe_intermediate_size": 24, "num_key_value_heads": 4}
_GATED = _GROUPED | {"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2}
_GATED |= {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "head_dim": 8}
_GATED |= {"linear_value_head_dim": 8}
_HYBRID = _GATED | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_HYBRID |= {"shared_expert_intermediate_size": 24}
_PATCHES = {"depth": 1, "hidden_size": 32, "intermediate_size": 40, "num_heads": 4, "out_hidden_size": 32}
_PATCHES |= {"patch_size": 4, "num_position_embeddings": 16}
_MAMBA = _TEXT | {"num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40, "max_position_embeddings": 64}
_MAMBA |= {"layers_block_type": ["mamba", "moe", "attention", "mlp", "mamba", "attention"], "num_hidden_layers": 6}
_MAMBA |= {"ssm_state_size": 8, "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 2, "chunk_size": 4}
_MAMBA |= {"n_routed_experts": 4, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 24}
_COMPRESSED = _TEXT | {"num_hidden_layers": 3, "head_dim": 16, "q_lora_rank": 16, "moe_intermediate_size": 24}
_COMPRESSED |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "o_groups": 2, "o_lora_rank": 8, "hc_mult": 2}
_COMPRESSED |= {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4, "partial_rotary_factor": 0.5}
_COMPRESSED |= {"sliding_window": 4, "max_position_embeddings": 64, "num_key_value_heads": 1}
_COMPRESSED |= {"layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]}
_SHARING = _GROUPED | {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
_SHARING |= {"sliding_window": 4, "head_dim": 8}
_SHARING |= {"num_kv_shared_layers": 2, "global_head_dim": 8, "vocab_size_per_layer_input": VOCABULARY}
_SHARING |= {"hidden_size_per_layer_input": 4}


def _rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, **settings}}


_STRETCHED = {"factor": 4.0, "original_max_position_embeddings": 16}
_LLAMA3 = _STRETCHED | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LONG = _rope("longrope", short_factor=[1.0] * 4, long_factor=[2.0, 3.0, 4.0, 5.0])
_LONG |= {"original_max_position_embeddings": 16}

SINCE = {"deepseek_v4": (5, 8), "deepseek_v32": (5, 12), "t5": (5, 15)}
"""The transformers from which a family can be read, where that is after the oldest version allowed."""

# name: (model class, config class, config arguments)
_TABLE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "llama3": ("LlamaForCausalLM", "LlamaConfig", _GROUPED | _rope("llama3", **_LLAMA3)),
    "llama_yarn": ("LlamaForCausalLM", "LlamaConfig", _GROUPED | _rope("yarn", **_STRETCHED)),
    "llama_linear": ("LlamaForCausalLM", "LlamaConfig", _GROUPED | _rope("linear", factor=4.0)),
    "llama_dynamic": ("LlamaForCausalLM", "LlamaConfig", _GROUPED | _rope("dynamic", factor=4.0)),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _GROUPED | {"head_dim": 16}),
    "qwen3_next": ("Qwen3NextForCausalLM", "Qwen3NextConfig", _HYBRID),
    "qwen3_5": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", _GATED),
    "qwen3_5_vision": (
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5Config",
        {"text_config": _GATED, "vision_config": _PATCHES, "image_token_id": 60, "video_token_id": 59}
        | {"vision_start_token_id": 58, "vision_end_token_id": 57},
    ),
    "mistral": ("MistralForCausalLM", "MistralConfig", _GROUPED | {"sliding_window": 4}),
    "ministral3": (
        "Ministral3ForCausalLM",
        "Ministral3Config",
        _GROUPED | {"sliding_window": None} | _rope("yarn", **_STRETCHED, llama_4_scaling_beta=0.1),
    ),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", _GROUPED | _EXPERTS),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", _BLOCK | {"rotary_pct": 0.5}),
    "opt": ("OPTForCausalLM", "OPTConfig", _BLOCK | {"ffn_dim": 40, "word_embed_proj_dim": 32, "pad_token_id": 1}),
    "phi": ("PhiForCausalLM", "PhiConfig", _GROUPED | {"partial_rotary_factor": 0.5}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", _GROUPED),
    "phi3_long": ("Phi3ForCausalLM", "Phi3Config", _GROUPED | _LONG),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        _GROUPED
        | {"head_dim": 8, "sliding_window": 4, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8}
        | {"attn_implementation": "eager"},  # before 5.21 sdpa was the default, which drops the cap
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        _GROUPED
        | {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8}
        | {"layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gemma4": ("Gemma4ForCausalLM", "Gemma4TextConfig", _SHARING),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", _GROUPED),
    "olmo3": (
        "Olmo3ForCausalLM",
        "Olmo3Config",
        _GROUPED | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", _GROUPED | {"no_rope_layers": [1, 0]}),
    "granite": ("GraniteForCausalLM", "GraniteConfig", _GROUPED | {"attention_multiplier": 0.25}),
    "lfm2": (
        "Lfm2ForCausalLM",
        "Lfm2Config",
        _GROUPED | {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2, "block_multiple_of": 8},
    ),
    "nemotron_h": ("NemotronHForCausalLM", "NemotronHConfig", _MAMBA),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", _GROUPED | {"partial_rotary_factor": 0.5}),
    "cohere": ("CohereForCausalLM", "CohereConfig", _GROUPED),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        _GROUPED | _EXPERTS | {"head_dim": 8, "sliding_window": 4} | _rope("default"),
    ),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "DeepseekV3Config", _BLOCK | _DEEPSEEK),
    "deepseek_v4": ("DeepseekV4ForCausalLM", "DeepseekV4Config", _COMPRESSED),
    "bert": ("BertForMaskedLM", "BertConfig", _BLOCK),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", _BLOCK | {"pad_token_id": 1, "bos_token_id": 0}),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        _BLOCK | {"local_attention": 6, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"vocab_size": VOCABULARY, "pad_token_id": 0} | _DISTIL,
    ),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", _BLOCK | {"embedding_size": 16}),
    "esm": (
        "EsmForMaskedLM",
        "EsmConfig",
        _BLOCK | {"position_embedding_type": "rotary", "pad_token_id": 1, "bos_token_id": 0, "mask_token_id": 4},
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", {"vocab_size": VOCABULARY} | _T5 | _SPECIAL),
    "bart": ("BartForConditionalGeneration", "BartConfig", {"vocab_size": VOCABULARY} | _BART | _SPECIAL),
    "vit": ("ViTModel", "ViTConfig", _IMAGE),
    "dinov2": ("Dinov2Model", "Dinov2Config", _IMAGE),
    "clip": ("CLIPModel", "CLIPConfig", {"text_config": _BLOCK, "vision_config": _IMAGE, "projection_dim": 16}),
    "llava": (
        "LlavaForConditionalGeneration",
        "LlavaConfig",
        {
            "text_config": _GROUPED | {"model_type": "llama"},
            "vision_config": _IMAGE | {"model_type": "clip_vision_model"},
            "image_token_index": 60,
        },
    ),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", _GPT2 | {"rotary_dim": 4}),
    "gpt_neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
        | {"attention_types": [[["global", "local"], 1]]}
        | _SPECIAL,
    ),
    "falcon": ("FalconForCausalLM", "FalconConfig", _TEXT),
    "mpt": ("MptForCausalLM", "MptConfig", {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4}),
}


def too_new(name: object) -> bool:
    """Whether this is the name of a family that the installed transformers is too old for."""
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    return isinstance(name, str) and version < SINCE.get(name, (5, 0))


def tiny(
    name: str,
    *,
    attention: str | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **settings: Any,
) -> PreTrainedModel:
    """A tiny model with sharp random attention; `settings` change its config."""
    model_class, config_class, arguments = _TABLE[name]
    config: PreTrainedConfig = getattr(transformers, config_class)(**(arguments | settings))
    if attention is not None:
        config._attn_implementation = attention
    torch.manual_seed(seed)
    hf: PreTrainedModel = getattr(transformers, model_class)(config)
    _sharpen(hf)
    return hf.to(dtype).eval()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """On tensors this small threads cost more than they give. Import this where tiny models are used."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@torch.no_grad()
def _sharpen(hf: PreTrainedModel) -> None:
    for name, parameter in hf.named_parameters():
        if parameter.ndim >= 2:
            parameter.normal_(0.0, 0.4)
        elif name.endswith(("bias", "sinks")):
            parameter.normal_(0.0, 0.5)
        else:
            parameter.add_(torch.randn_like(parameter), alpha=0.1)


def batch(hf: PreTrainedModel, side: Side = "right", tokens: int = TOKENS, short: int = SHORT) -> dict[str, Tensor]:
    """Whatever the model takes: two texts of which one is padded, two images, or both."""
    takes = inspect.signature(hf.forward).parameters
    inputs = text_batch(hf, side, tokens, short) if "input_ids" in takes else {}
    if "pixel_values" in takes and hf.config.model_type not in ("llava", "qwen3_5"):  # text alone will do for these
        inputs["pixel_values"] = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1)).to(hf.dtype)
    if hf.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(3, VOCABULARY, (2, 5), generator=torch.Generator().manual_seed(2))
    return inputs


def text_batch(
    hf: PreTrainedModel, side: Side = "right", tokens: int = TOKENS, short: int = SHORT
) -> dict[str, Tensor]:
    """Two texts of `tokens` and `short` tokens; the same words whichever side is padded."""
    ids = torch.randint(5, VOCABULARY - 1, (2, tokens), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    pad = hf.config.get_text_config().pad_token_id or 0
    words = ids[1, :short].clone()
    padding = slice(short, None) if side == "right" else slice(None, tokens - short)
    text = slice(None, short) if side == "right" else slice(tokens - short, None)
    mask[1, padding], ids[1, padding], ids[1, text] = 0, pad, words
    return {"input_ids": ids, "attention_mask": mask}
