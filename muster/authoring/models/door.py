"""The door of a run: whether engine, replay and trainer compute the same of a checkpoint, as far as its files tell.

Static: configuration, tokenizer, chat template, names and shapes of tensors, and one pass over the weights. What no
file tells is measured by `muster model check` (`muster.authoring.models.measured`). The door refuses what it does not
know: an architecture is let in once engine, replay and trainer were measured to agree on it (docs/use/models.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from muster.environments.task import ask
from muster.errors import ConfigError, MalformedError
from muster.models.files import load_tokenizer, stop_tokens_of, vocabulary_of
from muster.models.safetensors import tensors_of
from muster.protocol.prompts import end_token, prompt_text, prompt_tokens

if TYPE_CHECKING:
    from transformers import PretrainedConfig

DTYPES: Final = frozenset({"F32", "BF16", "F16"})
"""What weights may be, by safetensors' names."""

KNOWN: Final = frozenset(
    {
        *("gemma", "gemma3_text", "glm4", "llama", "mistral", "olmo2", "olmo3"),
        *("phi3", "qwen2", "qwen3", "smollm3"),
    }
)
"""Values of `model_type` that engine, replay and trainer were measured to agree on."""

ROPES: Final = frozenset({"default", "linear", "llama3", "yarn"})
"""Position encodings that are the same whatever stands in or beside a row."""

NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "is_causal": (True,),
    "logit_scale": (None, 1, 1.0),
    "logits_scaling": (None, 1, 1.0),
    "use_bidirectional_attention": (None, False),
    "use_sliding_window": (None, False),
    "attention_dropout": (None, 0, 0.0),
    "pretraining_tp": (None, 1),
}
"""Settings that one of the three programs heeds and another does not, and the values that change nothing."""

PAPERWORK: Final = frozenset(
    {
        *("_name_or_path", "architectures", "auto_map", "dtype", "model_type", "torch_dtype", "transformers_version"),
        *("use_cache", "_attn_implementation", "unsloth_fixed", "unsloth_version", "model_name", "license"),
        *("generation_config", "rope_scaling", "rope_theta", "rope_parameters", "partial_rotary_factor"),
        *("quantization_config", "_flash_attn_2_enabled", "sliding_window", "head_dim", "use_return_dict"),
    }
)
"""Settings that transformers' classes of configurations may lack and that change nothing by being there."""

MOST_LAYERS: Final = 1_024
MOST_NUMBERS: Final = 1 << 20
"""Largest number of layers, and of any size in a configuration but the context's: nothing larger is built here."""
MAX_CONFIG_BYTES: Final = 1 << 20
MATRIX: Final = "docs/use/models.md lists what was tried"

PROBE: Final = ask("What is 2 + 3? Answer with only the number.")


def check_checkpoint(directory: Path) -> None:
    """Raise ConfigError unless worker, validator and trainer can use the folder, and compute the same with it."""
    # 1. The configuration: a known architecture, and no setting that the three programs read differently.
    raw = read_config(directory)
    config = _known_config(directory, raw)
    check_settings(raw, config)
    # 2. The weights: whole, finite, and just those that the architecture has.
    shapes = _check_files(directory)
    _check_names(config, shapes, ties=bool(config.tie_word_embeddings))
    # 3. The tokenizer: prompts that the model has tokens for, and an end that both agree on.
    check_tokenizer(directory)
    _check_finite(directory)


# --- The configuration


def read_config(directory: Path) -> dict[str, Any]:
    """Return config.json, which a stranger may have written. Raises ConfigError."""
    path = directory / "config.json"
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
        config = json.loads(data) if len(data) <= MAX_CONFIG_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path} is no configuration of a model")
    return config


def _known_config(directory: Path, raw: Mapping[str, Any]) -> PretrainedConfig:
    from transformers import AutoConfig

    if "quantization_config" in raw:
        raise ConfigError("the model is quantized, and cannot be trained", hint="take the version in bfloat16")
    if "auto_map" in raw:
        raise ConfigError("the model needs code of its own, which is never run", hint=MATRIX)
    kind = raw.get("model_type")
    if kind not in KNOWN:
        reason = "has experts" if any("expert" in name for name in raw) else "is not known to agree in all programs"
        says = f"the architecture {str(kind)[:80]!r} {reason}, so honest work could be rejected"
        raise ConfigError(says, hint=MATRIX)
    for name, value in raw.items():
        most = MOST_LAYERS if name.endswith("layers") else MOST_NUMBERS
        sized = name.endswith(("_size", "_heads", "_dim", "_rank", "hidden_layers"))
        if sized and value is not None and not (type(value) is int and 0 <= value <= most):
            raise ConfigError(f"config.json has {name} = {str(value)[:80]}; it is a number up to {most}")
    try:
        return AutoConfig.from_pretrained(directory, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(f"transformers cannot read the model's configuration: {str(error)[:300]}") from error


def check_settings(raw: Mapping[str, Any], config: PretrainedConfig) -> None:
    """Raise ConfigError for a setting that engine, replay and trainer may not read alike."""
    for name, values in NEUTRAL.items():
        value = raw.get(name, getattr(config, name, values[0]))
        if value not in values:
            says = f"config.json has {name} = {str(value)[:80]}, which engine and trainer do not compute alike"
            raise ConfigError(says, hint=MATRIX)
    for rope in _ropes(raw):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ROPES:
            raise ConfigError(
                f"RoPE of type {str(kind)[:80]} depends on the length of a row, and on what stands beside it",
                hint=f"take a version of the model with one of: {', '.join(sorted(ROPES))}",
            )
    known = {*type(config)().to_dict(), *PAPERWORK, *NEUTRAL}
    if others := sorted(name for name in raw if name not in known):
        raise ConfigError(
            f"config.json has settings that transformers does not read and the engine may: {', '.join(others)[:200]}",
            hint="remove them if they mean nothing; the model is then another one by its hash",
        )


def _ropes(raw: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of RoPE, those of single kinds of layers too."""
    for name in ("rope_scaling", "rope_parameters"):
        found = raw.get(name)
        for rope in (found, *found.values()) if isinstance(found, dict) else ():
            if isinstance(rope, dict):
                yield rope


# --- The weights


def _check_files(directory: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors by name. Raises ConfigError for files that are cut off, or of other numbers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        size = path.stat().st_size
        try:
            tensors = tensors_of(path)
        except ValueError as error:
            raise ConfigError(f"{path.name} is no safetensors file: {error}") from error
        if any(tensor.stop > size for tensor in tensors):
            raise ConfigError(f"{path.name} is cut off at {size} bytes", hint="download it again")
        if others := sorted({tensor.dtype for tensor in tensors} - DTYPES):
            raise ConfigError(
                f"{path.name} has weights in {', '.join(others)}; a run needs {', '.join(sorted(DTYPES))}"
            )
        for tensor in tensors:
            if tensor.name in shapes:
                raise ConfigError(f"{path.name} has {tensor.name}, which another file has too")
            shapes[tensor.name] = tensor.shape
    return shapes


def _check_names(config: PretrainedConfig, shapes: Mapping[str, tuple[int, ...]], *, ties: bool) -> None:
    """Raise ConfigError unless the files hold just the tensors of the architecture.

    transformers fills a missing one at random, each time with other numbers, and ignores what it does not know.
    """
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, ZeroDivisionError) as error:
        raise ConfigError(f"transformers cannot build the model: {str(error)[:300]}") from error
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if ties:
        expected.pop("lm_head.weight", None)
        if "lm_head.weight" in shapes:
            raise ConfigError(
                "config.json ties the head to the embedding, and the weights have another head",
                hint="drop lm_head.weight, or set tie_word_embeddings to false",
            )
    for what, names in (
        ("lack", sorted(expected.keys() - shapes.keys())),
        ("have tensors that the architecture has not:", sorted(shapes.keys() - expected.keys())),
        ("have another shape for", sorted(n for n in expected.keys() & shapes.keys() if expected[n] != shapes[n])),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise ConfigError(
                f"the weights {what} {', '.join(names[:3])}{more}",
                hint="write the folder again by transformers' save_pretrained",
            )


def _check_finite(directory: Path) -> None:
    """Raise ConfigError where a weight is no number."""
    from muster.models.weights import read_weights

    try:
        for name, tensor in read_weights(directory):
            if not math.isfinite(float(tensor.abs().max()) if tensor.numel() else 0.0):
                raise ConfigError(f"{name} has weights that are no numbers", hint="take another copy of the model")
    except MalformedError as error:
        raise ConfigError(str(error)) from error


# --- The tokenizer


def check_tokenizer(directory: Path) -> None:
    """Raise ConfigError for a tokenizer or template that does not fit the model, or that a run does not hash."""
    if (directory / "tekken.json").exists() and not (directory / "tokenizer.json").exists():
        raise ConfigError(
            "tekken.json is read only where mistral-common is installed", hint="take a version with tokenizer.json"
        )
    size, tokenizer = vocabulary_of(directory), load_tokenizer(directory)
    if (largest := max(tokenizer.get_vocab().values(), default=0)) >= size:
        raise ConfigError(
            f"the tokenizer has token {largest}, beyond the model's vocabulary of {size}",
            hint="enlarge the embedding (resize_token_embeddings), or drop the tokens that were added",
        )
    try:
        text, prompt = prompt_text(tokenizer, PROBE, 8), prompt_tokens(tokenizer, PROBE, 8)
    except MalformedError as error:
        raise ConfigError(str(error), hint="take a chat template that renders plain text") from error
    if PROBE.messages[-1].content not in text:
        raise ConfigError("the chat template leaves out the question", hint="take one that renders plain text")
    end, stop = end_token(tokenizer), stop_tokens_of(directory)
    if max(*prompt.tolist(), end, *stop) >= size:
        raise ConfigError(f"the tokenizer has tokens beyond the model's vocabulary of {size}")
    if end not in stop:
        raise ConfigError(
            f"the tokenizer ends an answer with token {end}, and config.json's eos_token_id is"
            f" {', '.join(map(str, sorted(stop))) or None}",
            hint="set eos_token_id in config.json to the token that ends a turn of the chat template",
        )
