"""The door: refuse, in words, a model folder for which engine, replay and trainer would not compute the same.

Three programs run a run's model: the worker's vLLM, the validator's replay and the trainer. FAMILIES are the
architectures that all three are known to compute alike; a configuration may change of them what `FREE` and the family
list, and nothing else. Nothing here starts an engine: it reads configuration, tokenizer, and the weights once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from muster.authoring.models.template import check_bound
from muster.environments.task import ask
from muster.errors import ConfigError, MalformedError
from muster.models.files import check_place, config_of, load_tokenizer
from muster.models.safetensors import pieces_of
from muster.models.weights import check_scale, weights_in
from muster.protocol.prompts import chat_template, end_token, prompt_text, prompt_tokens
from muster.verification.rules import ModelFacts

if TYPE_CHECKING:
    from transformers import PretrainedConfig

DTYPES: Final = MappingProxyType({"F32": ("<u4", 0x7F800000), "BF16": ("<u2", 0x7F80), "F16": ("<u2", 0x7C00)})
"""What weights may be, by safetensors' names: how to read them, and the bits that NaN and infinity set."""

LIMITS: Final = MappingProxyType(
    {"num_hidden_layers": 512, "hidden_size": 1 << 16, "intermediate_size": 1 << 20, "vocab_size": 1 << 21}
    | {"max_position_embeddings": 1 << 24}
    | dict.fromkeys(("num_attention_heads", "num_key_value_heads", "head_dim"), 1 << 11)
)
"""Largest sizes of a configuration that a model is built from, without memory."""

BUILDING: Final = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError)
"""What transformers raises for settings that fit no configuration, or no model."""

_BIASES: Final = frozenset({"attention_bias", "mlp_bias"})
_PART: Final = frozenset({"partial_rotary_factor"})
_WINDOW: Final = frozenset({"sliding_window"})

FAMILIES: Final = MappingProxyType(
    {
        "arcee": _BIASES,
        "ernie4_5": frozenset(),
        "gemma": frozenset(),
        "gemma3_text": _WINDOW
        | {"query_pre_attn_scalar", "layer_types", "rope_local_base_freq"}
        | {"sliding_window_pattern", "_sliding_window_pattern"},
        "glm": _PART | {"attention_bias"},
        "glm4": _PART | {"attention_bias"},
        "helium": frozenset(),
        "llama": _BIASES,
        "mistral": _WINDOW,
        "ministral": _WINDOW | {"layer_types"},
        "olmo": frozenset(),
        "olmo2": frozenset(),
        "olmo3": _WINDOW | {"layer_types"},
        "phi3": _WINDOW | _PART | {"original_max_position_embeddings"},
        "seed_oss": frozenset(),
        "starcoder2": _WINDOW,
        "qwen2": frozenset({"max_window_layers"}),
        "qwen3": frozenset({"max_window_layers"}),
        "smollm3": frozenset({"max_window_layers", "no_rope_layers", "no_rope_layer_interval"}),
    }
)
"""Model types that all three programs compute alike, and what a configuration may set of them besides FREE."""

BY_LAYER: Final = frozenset({"gemma3_text", "olmo3"})
"""Families in which each type of layer may turn positions in a way of its own."""
WHOLE_HEADS: Final = frozenset({"helium", "qwen2"})
"""Families of which the engine divides hidden_size by the heads, whatever head_dim says."""

REFUSED: Final = (
    (r"moe|mixtral|deepseek|dbrx|gpt_oss|jamba|arctic|olmoe|next", "it is, or may be, a mixture of experts"),
    (r"mamba|zamba|bamba|rwkv|falcon_h1|recurrent|lfm|jamba", "it keeps a state between tokens: rows cannot be packed"),
    (r"gemma2|gemma3n|cohere|granite|nanochat", "it caps or scales its logits"),
    (r"bloom|mpt|^falcon$", "it biases attention by distance (alibi)"),
    (r"gpt|opt|codegen|^phi$", "its positions, head or names of weights are not those of a Llama"),
)
"""Why a model type is refused, by a pattern of its name; the first that fits."""

FREE: Final = frozenset(LIMITS) | {
    *("rms_norm_eps", "rope_parameters", "rope_theta", "rope_scaling", "initializer_range"),
    *("tie_word_embeddings", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "layer_types"),
    *("attention_dropout", "residual_dropout", "embedding_dropout", "resid_pdrop", "embd_pdrop"),
}
"""What a configuration may set of any family."""

ROPES: Final = frozenset({"default", "linear", "llama3", "yarn"})
"""Ways to turn positions that look at no row's length."""
ROPE_KEYS: Final = frozenset(
    {"rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"}
    | {"original_max_position_embeddings", "partial_rotary_factor"}
)
"""What those may set: the programs read anything else differently."""

METADATA: Final = frozenset(
    {"_name_or_path", "model_type", "architectures", "auto_map", "transformers_version", "transformers.js_config"}
    | {"dtype", "torch_dtype", "tokenizer_class", "id2label", "label2id", "is_llama_config", "pretraining_tp"}
    | {"_attn_implementation_autoset", "_flash_attn_2_enabled", "unsloth_version", "unsloth_fixed", "finetuning_task"}
)
"""Keys that change nothing of what the programs compute: where a model comes from, and what others do with it."""
PLAIN: Final = MappingProxyType(
    dict.fromkeys(("attention_bias", "mlp_bias", "qkv_bias", "use_bias", "use_mrope", "rope_interleaved"), False)
    | dict.fromkeys(("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "scale_attn_weights"), True)
    | {"norm_type": "layer_norm", "mlp_type": "default", "layer_norm_epsilon": 1e-5}
    | {"hidden_activation": "gelu_pytorch_tanh"}
)
"""The only value of keys that a type of model does not know: what it computes anyway."""

POSITIVE: Final = re.compile(
    r"eps$|theta$|base_freq$|(?<!short_)(?<!long_)factor$|^sliding_window$|^beta_|position_embeddings$|scalar$|_pattern$"
)
"""Names of settings that are numbers above 0."""
PROBE: Final = ask("What is 2 + 3? Answer with only the number.")


def check_checkpoint(directory: Path, temperature: float = 1.0) -> None:
    """Raise ConfigError unless worker, validator and trainer can use the folder: configuration, weights, tokenizer.

    `temperature`: of the run. Limits say less about a model whose logits are large, and every step would be refused.
    """
    check_place(directory)
    raw = read_config(directory)
    config = check_config(directory, raw)
    _check_tokenizer(directory, int(raw["vocab_size"]))
    check_tensors(directory, config)
    try:
        check_scale(directory, temperature)
    except MalformedError as error:
        raise ConfigError(str(error), hint="take another model, or a higher temperature") from error


# --- Configuration


def read_config(directory: Path) -> dict[str, Any]:
    """Return config.json of a folder. Raises ConfigError where it is none, or names numbers that no model has."""
    raw, path = config_of(directory), directory / "config.json"
    if not all(abs(one) < 1 << 31 for one in raw.values() if isinstance(one, int | float)):  # NaN is not less
        raise ConfigError(f"{path} has a number that no model has")
    for name, most in LIMITS.items():
        size = raw.get(name)
        if (name == "vocab_size" or size is not None) and not (type(size) is int and 1 <= size <= most):
            raise ConfigError(f"{path} has a {name} of {size!r}; 1 to {most} can be used", hint="muster model init")
    return raw


def check_config(directory: Path, raw: dict[str, Any]) -> PretrainedConfig:
    """Return the configuration as transformers reads it. Raises ConfigError unless all programs compute it alike."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, GenerationConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    # 1. A family that is known to be exact, unquantized.
    if any(raw.get(name) is not None for name in ("quantization_config", "compression_config")):
        raise ConfigError("the model is quantized, and cannot be trained", hint="take the version in bfloat16")
    kind = str(raw.get("model_type"))
    if kind not in FAMILIES:
        reason = next((why for pattern, why in REFUSED if re.search(pattern, kind)), "it was not measured to be exact")
        reason = "it needs code of its own" if "auto_map" in raw else reason
        raise ConfigError(
            f"the architecture {kind[:80]} cannot be used: {reason}", hint=f"choose one of: {', '.join(FAMILIES)}"
        )
    if raw.get("architectures") != [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]]:
        raise ConfigError(f"config.json names the architectures {str(raw.get('architectures'))[:200]} for {kind}")
    for name, value in _settings("", raw):
        if POSITIVE.search(name) and value is not None and not (type(value) in (int, float) and 0 < value < 1 << 31):
            raise ConfigError(f"config.json sets {name[:80]} to {str(value)[:80]}: it must be a number above 0")
    _check_ropes(raw, kind)
    try:
        if (directory / "generation_config.json").exists():  # is read with the weights
            GenerationConfig.from_pretrained(directory)
        config = AutoConfig.from_pretrained(directory, trust_remote_code=False)
        found, usual = config.to_dict(), type(config)().to_dict()
    except (OSError, StrictDataclassError, *BUILDING) as error:
        raise ConfigError(f"transformers cannot read config.json: {str(error)[:300]}") from error

    # 2. Nothing set that the type does not know, or that one program heeds and another does not.
    free = FREE | FAMILIES[kind] | METADATA | (GenerationConfig().to_dict().keys() - usual.keys())
    free -= {"layer_types", "rms_norm_eps"} - usual.keys()  # which vLLM reads of some types that do not have them
    for name in {*raw, *found} - free:
        value, expected = found.get(name, raw.get(name)), usual.get(name, PLAIN.get(name))
        is_other = (type(value) is bool, value) != (type(expected) is bool, expected)
        if is_other and (name in usual or value is not None):
            reason = "not all programs of a run compute alike" if name in usual else f"{kind} does not have"
            raise ConfigError(f"config.json sets {name[:80]} to {str(value)[:80]}, which {reason}")
    _check_numbers(found, kind)
    _check_ropes({**found, "rope_scaling": None}, kind)  # as the type makes them: phi3 takes yarn for longrope
    if "layer_types" not in FAMILIES[kind] and set(found.get("layer_types") or ()) - {"full_attention"}:
        raise ConfigError(f"config.json gives some layers of {kind} another attention than the rest")
    return config


def _check_numbers(found: dict[str, Any], kind: str) -> None:
    """Raise ConfigError for numbers that fit no model: programs fail on them, or each makes something else of them."""
    heads, size, tokens = found["num_attention_heads"], found["hidden_size"], found["vocab_size"]
    for name in ("bos_token_id", "pad_token_id"):
        if (token := found.get(name)) is not None and not 0 <= token < tokens:
            raise ConfigError(f"config.json sets {name} to {token}, beyond the model's vocabulary of {tokens}")
    if heads % (found.get("num_key_value_heads") or heads):
        raise ConfigError(f"config.json has {heads} heads: they are no multiple of num_key_value_heads")
    width = found.get("head_dim") or size / heads
    if kind in WHOLE_HEADS and width != size / heads:
        raise ConfigError(f"config.json sets head_dim to {width}: {kind} has hidden_size / num_attention_heads")
    for part in (1, *(value for name, value in _settings("", found) if name == "partial_rotary_factor")):
        if part > 1 or width * part % 2:
            raise ConfigError(f"config.json turns {part} of {width:g} numbers of a head: it must be an even number")


def _settings(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a configuration sets under its name, at any depth."""
    yield name, value
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _settings(str(key), one)


def _check_ropes(raw: dict[str, Any], kind: str) -> None:
    """Raise ConfigError where positions depend on a row's length, or are turned in a way that programs read apart."""
    named = [raw[name] for name in ("rope_scaling", "rope_parameters") if raw.get(name) not in (None, {})]
    if len(named) > 1:
        raise ConfigError("config.json has both rope_scaling and rope_parameters", hint="keep one of them")
    for rope in _ropes(named, kind):
        way = " and ".join(sorted({str(rope[name]) for name in ("rope_type", "type") if name in rope})) or "default"
        if way not in ROPES:
            raise ConfigError(
                f"the model turns positions by {way[:80]!r}: what a row is worth would depend on its length",
                hint=f"take a model with one of: {', '.join(sorted(ROPES))}",
            )
        allowed = ROPE_KEYS - (frozenset() if FAMILIES[kind] >= _PART else _PART)
        spread = 0.1 * math.log(rope.get("factor", 1)) + 1
        if way == "default":
            allowed -= {"factor"}
        elif way == "yarn" and math.isclose(rope.get("attention_factor", 0), spread):  # as without it
            allowed |= {"attention_factor"}
        if others := rope.keys() - allowed:
            raise ConfigError(f"not all programs of a run heed {', '.join(sorted(others))[:200]} of RoPE {way}")
        if way == "llama3" and not rope.get("low_freq_factor", 1) <= rope.get("high_freq_factor", 4):
            raise ConfigError("RoPE llama3 has a low_freq_factor above its high_freq_factor: not all programs heed it")
        if way in ("llama3", "yarn") and not rope.get("original_max_position_embeddings"):
            raise ConfigError(f"RoPE {way} names no original_max_position_embeddings, which programs guess differently")
        reach = rope.get("original_max_position_embeddings", 0) * rope.get("factor", 1)
        if way == "yarn" and reach < (raw.get("max_position_embeddings") or 0):
            raise ConfigError(
                f"the model's context is longer than its RoPE: yarn reaches {reach:g} positions",
                hint="set max_position_embeddings to original_max_position_embeddings * factor",
            )


def _ropes(found: list[Any], kind: str) -> Iterator[dict[str, Any]]:
    """Yield settings of RoPE: those of the whole model, or one for each type of layer."""
    for rope in found:
        if not isinstance(rope, dict):
            raise ConfigError("config.json has settings of RoPE that are no object")
        nested = [value for value in rope.values() if isinstance(value, dict)]
        if nested and (kind not in BY_LAYER or rope.keys() != {"full_attention", "sliding_attention"}):
            raise ConfigError(f"config.json nests settings of RoPE in another way than {kind} has them")
        for one in nested or [rope]:
            yield {name: value for name, value in one.items() if value is not None or name not in ROPE_KEYS}


# --- Weights


def check_tensors(directory: Path, config: PretrainedConfig) -> None:
    """Raise ConfigError unless the folder's weights are exactly those of the model, and all are numbers."""
    wanted = _wanted(config)
    try:
        found = weights_in(directory)
    except MalformedError as error:
        raise ConfigError(str(error), hint=error.hint) from error
    if others := sorted({tensor.dtype for _, tensor in found.values()} - DTYPES.keys()):
        raise ConfigError(f"the folder has weights in {', '.join(others)}; a run needs {', '.join(sorted(DTYPES))}")
    tied = config.tie_word_embeddings and "lm_head.weight"
    for what, names in (
        ("lacks", wanted.keys() - found.keys() - {tied}),
        ("has others than the model's:", found.keys() - wanted.keys()),
        ("has in another shape", {name for name in wanted.keys() & found if found[name][1].shape != wanted[name]}),
    ):
        if names:
            shown = ", ".join(sorted(names)[:5])[:400]
            raise ConfigError(f"the weights do not fit config.json: the folder {what} {shown} ({len(names)} in all)")
    for path, tensor in found.values():
        number, bits = DTYPES[tensor.dtype]
        if any(((np.frombuffer(part, number) & bits) == bits).any() for part in pieces_of(path, tensor)):
            raise ConfigError(f"{tensor.name} of {path.name} has values that are no numbers (NaN or infinite)")


def _wanted(config: PretrainedConfig) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the tensors of a model, which is built without memory."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except BUILDING as error:
        raise ConfigError(f"no model can be made of config.json: {str(error)[:300]}") from error
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


# --- Tokenizer


def _check_tokenizer(directory: Path, size: int) -> None:
    """Raise ConfigError unless prompts show the task in tokens that the model has, and its answers can end."""
    if (directory / "tekken.json").exists():
        raise ConfigError(
            "the folder has tekken.json, which is read only where mistral-common is installed",
            hint="remove it where tokenizer.json is there too: that one is read everywhere",
        )
    tokenizer = load_tokenizer(directory)
    check_bound(chat_template(tokenizer))
    try:
        text = prompt_text(tokenizer, PROBE, budget=8)
        prompt, end = prompt_tokens(tokenizer, PROBE, budget=8), end_token(tokenizer)
    except MalformedError as error:
        raise ConfigError(f"the chat template cannot be used: {error}") from error
    if PROBE.messages[-1].content not in text:
        raise ConfigError("the chat template leaves out the task's text: it may need content in parts")
    if max(*prompt.tolist(), end, *tokenizer.get_vocab().values()) >= size:
        raise ConfigError(f"the tokenizer has tokens beyond the model's vocabulary of {size}")
    if end not in (stops := ModelFacts.read(directory).stop_tokens):
        raise ConfigError(
            f"the tokenizer ends an answer with token {end}, and config.json's eos_token_id is {sorted(stops)}",
            hint="set eos_token_id in config.json to the token that ends a turn of the chat template",
        )
