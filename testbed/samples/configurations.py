"""Keys that configurations of public models set, fine-tunes' extras included: the door lets each in.

Sizes and tokens are left out: `write_public` takes those of `families`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from testbed.samples.families import SIZES, write_family

_COMMON: Final[dict[str, Any]] = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.1",
    "use_cache": True,
}
_LLAMA: Final = {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1}
_LLAMA3: Final = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
_QWEN2: Final = {"max_window_layers": 24, "sliding_window": 32768, "use_sliding_window": False, "rms_norm_eps": 1e-06}
_PHI3: Final = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attention_bias": False}
_GEMMA3: Final = {
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "rope_local_base_freq": 10000,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
}
_GLM: Final = {"attention_bias": True, "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-07}

PUBLIC: Final[Mapping[str, tuple[str, dict[str, Any]]]] = MappingProxyType(
    {
        "Llama 3.1": ("llama", _LLAMA | {"rope_scaling": _LLAMA3, "rope_theta": 500000.0}),
        "Llama 3.2, tuned with unsloth": (
            "llama",
            _LLAMA
            | {"rope_scaling": _LLAMA3 | {"factor": 32.0}, "rope_theta": 500000.0, "tie_word_embeddings": True}
            | {"_name_or_path": "unsloth/Llama-3.2-1B-Instruct", "unsloth_fixed": True, "unsloth_version": "2024.12.4"},
        ),
        "Llama 2, tuned": (
            "llama",
            {"_name_or_path": "meta-llama/Llama-2-7b-hf", "pretraining_tp": 1, "max_length": 4096, "use_cache": False}
            | {"do_sample": True, "temperature": 0.9, "top_p": 0.6, "torch_dtype": "float16"},
        ),
        "TinyLlama": ("llama", {"pretraining_tp": 1, "attention_bias": False, "transformers_version": "4.35.0"}),
        "SmolLM2": (
            "llama",
            _LLAMA
            | {"is_llama_config": True, "rope_interleaved": False, "rope_theta": 100000, "tie_word_embeddings": True}
            | {"initializer_range": 0.041666666666666664}
            | {"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}}},
        ),
        "DeepSeek R1, distilled into Llama": (
            "llama",
            _LLAMA | {"rope_scaling": _LLAMA3, "_attn_implementation_autoset": True, "rope_theta": 500000.0},
        ),
        "Qwen2.5": ("qwen2", _QWEN2 | {"rope_theta": 1000000.0, "tie_word_embeddings": True, "use_mrope": False}),
        "DeepSeek R1, distilled into Qwen": ("qwen2", _QWEN2 | {"rope_theta": 10000, "use_mrope": False}),
        "Qwen2.5, saved by transformers 5": (
            "qwen2",
            _QWEN2
            | {"sliding_window": None, "layer_types": ["full_attention"] * SIZES["num_hidden_layers"]}
            | {"dtype": "bfloat16", "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"}},
        ),
        "Qwen3": ("qwen3", _QWEN2 | {"attention_bias": False, "rope_theta": 1000000, "sliding_window": None}),
        "Mistral v0.3": ("mistral", {"sliding_window": None, "rope_theta": 1000000.0}),
        "Mistral v0.1, tuned": (
            "mistral",
            {"_name_or_path": "mistralai/Mistral-7B-v0.1", "sliding_window": 4096, "use_cache": False},
        ),
        "Gemma 3": ("gemma3_text", _GEMMA3 | {"use_bidirectional_attention": False}),
        "Gemma 3, as transformers saves it": (
            "gemma3_text",
            {name: value for name, value in _GEMMA3.items() if name != "sliding_window_pattern"}
            | {"_sliding_window_pattern": 6, "layer_types": ["sliding_attention"] * SIZES["num_hidden_layers"]},
        ),
        "SmolLM3": (
            "smollm3",
            {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 2, "max_window_layers": 28}
            | {"no_rope_layer_interval": 4, "use_sliding_window": False, "sliding_window": None, "use_cache": False}
            | {"rope_theta": 5000000.0, "tie_word_embeddings": True},
        ),
        "OLMo 2": ("olmo2", {"attention_bias": False, "rope_theta": 500000, "transformers_version": "4.50.0.dev0"}),
        "OLMo 3": (
            "olmo3",
            {"attention_bias": False, "rope_theta": 500000, "sliding_window": 4096}
            | {"layer_types": ["sliding_attention", "full_attention"]}
            | {
                "rope_scaling": {
                    "attention_factor": 1.2079441541679836,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "factor": 8.0,
                    "original_max_position_embeddings": 8192,
                    "rope_type": "yarn",
                }
            },
        ),
        "Phi 4": (
            "phi3",
            _PHI3 | {"original_max_position_embeddings": 16384, "sliding_window": None, "rope_theta": 250000},
        ),
        "Phi 3, with code of its own too": (
            "phi3",
            _PHI3
            | {"auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "sliding_window": 2047}
            | {"original_max_position_embeddings": 4096},
        ),
        "GLM 4": ("glm4", _GLM),
        "GLM 4, the first": ("glm", _GLM),
        "Seed-OSS": (
            "seed_oss",
            {"attention_bias": True, "attention_out_bias": False, "attention_dropout": 0.1, "residual_dropout": 0.1}
            | {"mlp_bias": False, "rope_scaling": {"rope_type": "default"}, "rope_theta": 10000000.0},
        ),
        "StarCoder 2": (
            "starcoder2",
            {"attention_dropout": 0.1, "embedding_dropout": 0.1, "residual_dropout": 0.1, "use_bias": True}
            | {"attention_softmax_in_fp32": True, "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True}
            | {"hidden_act": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-05, "norm_epsilon": 1e-05}
            | {"mlp_type": "default", "norm_type": "layer_norm", "rope_theta": 999999.4420358813},
        ),
        "Ernie 4.5": ("ernie4_5", {"use_bias": False, "rope_theta": 500000, "tie_word_embeddings": True}),
    }
)
"""Type of model, and what its config.json sets besides `_COMMON`, by the model's name."""


def write_public(folder: Path, name: str) -> None:
    """Write a small random model whose config.json has the keys of a public one."""
    kind, keys = PUBLIC[name]
    wide = {"hidden_size": 128} if kind == "qwen2" else {}
    write_family(folder, kind, tie_word_embeddings=keys.get("tie_word_embeddings", False), **wide)
    path = folder / "config.json"
    written = json.loads(path.read_text())
    sizes = {key: written[key] for key in {*SIZES, "architectures", "model_type"} & written.keys()}
    unused = {"rms_norm_eps"} if kind == "starcoder2" else {"hidden_act"} if kind == "gemma3_text" else set()
    unused |= {"rope_scaling", "rope_theta"} if "rope_parameters" in keys else set()
    public = {key: value for key, value in _COMMON.items() if key not in unused} | sizes | keys
    path.write_text(json.dumps(public | {"max_position_embeddings": 4096}))
