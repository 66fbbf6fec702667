"""Tiny random models of any family that transformers knows, as checkpoint folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch

from muster.authoring.models.door import FAMILIES
from muster.models.init import make_tokenizer

SIZES: Final[dict[str, Any]] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 128,
    "vocab_size": 128,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def write_family(folder: Path, kind: str, **settings: object) -> None:
    """Write a checkpoint folder of two small random layers, or the configuration alone of a family that is refused."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if kind not in FAMILIES:
        AutoConfig.for_model(kind).save_pretrained(folder)  # its configuration says enough
        return
    config = AutoConfig.for_model(kind, **{**SIZES, **settings})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)


_FAMILIES: Final = (
    *("llama", "qwen2", "qwen3", "gemma", "olmo2", "smollm3", "glm4", "mistral", "gemma3_text", "olmo3", "phi3"),
    *("olmo", "glm", "phi", "starcoder2", "stablelm", "arcee", "seed_oss", "helium", "ministral", "exaone4", "gemma2"),
    *("granite", "cohere", "cohere2", "nemotron", "gpt2", "gpt_neox", "gptj", "gpt_bigcode", "opt", "bloom", "mpt"),
    *("falcon", "mamba", "mamba2", "gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe", "granitemoe"),
    "apertus",
)
_WHOLE_HEADS: Final = ("helium", "qwen2")
_WINDOWED: Final = ("mistral", "gemma3_text", "olmo3", "phi3")

KINDS: Final[dict[str, dict[str, Any]]] = {
    kind: ({"sliding_window": 32} if kind in _WINDOWED else {}) | ({"hidden_size": 128} if kind in _WHOLE_HEADS else {})
    for kind in _FAMILIES
}
"""Families that are tried, and what a model of each sets besides SIZES."""

_ROPE: Final = {"rope_theta": 10_000.0, "original_max_position_embeddings": 32}
_LLAMA3: Final = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

VARIANTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama, llama3": ("llama", {"rope_parameters": {**_ROPE, **_LLAMA3}}),
    "llama, YaRN": ("llama", {"rope_parameters": {**_ROPE, "rope_type": "yarn", "factor": 16.0}}),
    "llama, short YaRN": ("llama", {"rope_parameters": {**_ROPE, "rope_type": "yarn", "factor": 4.0}}),
    "qwen2, heads of another size": ("qwen2", {"head_dim": 64}),
    "llama, linear": ("llama", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}}),
    "llama, dynamic": ("llama", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 4.0}}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "phi3, longrope": (
        "phi3",
        {
            "num_attention_heads": 2,
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                **_ROPE,
                "rope_type": "longrope",
                "short_factor": [1.0] * 16,
                "long_factor": [4.0] * 16,
            },
        },
    ),
}
"""Variants of these that are tried, by name."""
