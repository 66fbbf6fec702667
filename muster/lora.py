"""Low-rank adapters, and the weights that come of one: the same bits on every machine.

An adapter adds (alpha / rank) · B A to each matrix that it has a pair for (LoRA, arXiv 2106.09685, section 4.1). Its
folder is one of the `peft` library's. Weights come of it by products and sums of float32, each rounded once and in one
order: no matrix product of a library, whose order of adding is another on every processor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from muster.constants import MAX_LORA_RANK
from muster.errors import MalformedError
from muster.files import write_durably

CONFIG_NAME: Final = "adapter_config.json"
WEIGHTS_NAME: Final = "adapter_model.safetensors"
MAX_CONFIG_BYTES: Final = 1 << 16

_PREFIX: Final = "base_model.model."
_DOWN: Final = ".lora_A.weight"
_UP: Final = ".lora_B.weight"
_WEIGHT: Final = ".weight"
_BLOCK: Final = 1 << 16
"""Numbers that are made at a time, so that they stay in a core's cache."""

Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Pair:
    """What is added to one matrix, float32 [outputs, inputs]."""

    down: Floats
    """A, float32 [rank, inputs]."""
    up: Floats
    """B, float32 [outputs, rank]."""


class _Config(BaseModel):
    """What of peft's configuration decides how the weights come out; everything else in it stays unread."""

    model_config = ConfigDict(extra="ignore", strict=True)

    peft_type: Literal["LORA"]
    r: Annotated[int, Field(ge=1, le=MAX_LORA_RANK)]
    lora_alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True)
class Adapter:
    """Pairs by the names of the weights that they change, as the model's own files have them."""

    rank: int
    alpha: float
    pairs: Mapping[str, Pair]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Raises MalformedError when the folder holds no adapter of float32, OSError when it cannot be read."""
        with (folder / CONFIG_NAME).open("rb") as file:
            said = file.read(MAX_CONFIG_BYTES + 1)
        if len(said) > MAX_CONFIG_BYTES:
            raise MalformedError(f"an adapter's configuration of more than {MAX_CONFIG_BYTES} bytes")
        try:
            config = _Config.model_validate_json(said)
            tensors = load_file(folder / WEIGHTS_NAME)
        except (ValidationError, SafetensorError, KeyError, TypeError, AttributeError) as error:
            raise MalformedError(f"no LoRA adapter: {str(error)[:300]}") from error
        pairs = {}
        for key, down in tensors.items():
            if key.startswith(_PREFIX) and key.endswith(_DOWN):
                module = key.removeprefix(_PREFIX).removesuffix(_DOWN)
                pairs[module + _WEIGHT] = _pair(down, tensors.get(_PREFIX + module + _UP), config.r)
        if 2 * len(pairs) != len(tensors):
            raise MalformedError("an adapter that is more than pairs of matrices")
        return cls(config.r, config.lora_alpha, pairs)

    def write(self, folder: Path, *, base_model: str) -> None:
        """Write the adapter's two files, durably. base_model: what it belongs to, for those who read it by peft."""
        modules = [name.removesuffix(_WEIGHT) for name in self.pairs]
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base_model,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "target_modules": sorted({module.rpartition(".")[2] for module in modules}),
        }
        tensors = {}
        for module, pair in zip(modules, self.pairs.values(), strict=True):
            tensors |= {_PREFIX + module + _DOWN: pair.down, _PREFIX + module + _UP: pair.up}
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / WEIGHTS_NAME, {"format": "pt"})
        write_durably(folder / CONFIG_NAME, json.dumps(config, indent=1).encode())

    def size(self, name: str) -> int:
        """Numbers that the matrix of this name has to have."""
        pair = self.pairs[name]
        return pair.up.shape[0] * pair.down.shape[1]

    def merge(self, name: str, data: memoryview, dtype: str, start: int = 0) -> None:
        """Add to a run of a matrix's numbers what the adapter adds to them, in place.

        data: numbers `start`, `start` + 1 … of the matrix, row by row; dtype: theirs, as safetensors calls it. Raises
        MalformedError for a dtype that is not of `WIDTHS`.
        """
        if dtype not in WIDTHS:
            raise MalformedError(f"an adapter of weights in {dtype}")
        numbers = np.frombuffer(data, _STORED[dtype])
        with np.errstate(all="ignore"):  # what is not finite stays so; whoever made it has said so
            self._merge(self.pairs[name], numbers, dtype, start)

    def _merge(self, pair: Pair, numbers: np.ndarray[Any, Any], dtype: str, start: int) -> None:
        up = pair.up * np.float32(self.alpha / self.rank)
        inputs, stop = pair.down.shape[1], start + len(numbers)
        at = start
        while at < stop:
            first = at // inputs
            last = min(first + max(1, _BLOCK // inputs), -(-stop // inputs))
            end = min(stop, last * inputs)
            added = _product(up[first:last], pair.down).reshape(-1)[at - first * inputs : end - first * inputs]
            part = numbers[at - start : end - start]
            part[:] = _narrow(_widen(part, dtype) + added, dtype)
            at = end


# --- Numbers

_STORED: Final = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}
WIDTHS: Final = {name: np.dtype(stored).itemsize for name, stored in _STORED.items()}
"""Bytes of a number, by safetensors' names of dtypes."""


def _product(up: Floats, down: Floats) -> Floats:
    """float32 [rows, inputs]: up [rows, rank] times down [rank, inputs], added up from the first of the rank on."""
    total = up[:, :1] * down[:1]
    term = np.empty_like(total)
    for i in range(1, len(down)):
        np.multiply(up[:, i : i + 1], down[i : i + 1], out=term)
        total += term
    return total


def _widen(numbers: np.ndarray[Any, Any], dtype: str) -> Floats:
    if dtype == "BF16":
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32)


def _narrow(values: Floats, dtype: str) -> np.ndarray[Any, Any]:
    """The nearest number of the dtype, the even one of two that are as near."""
    if dtype != "BF16":
        return values.astype(_STORED[dtype])
    bits = values.view(np.uint32)
    narrow = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    narrow[np.isnan(values)] = 0x7FC0
    return narrow


def _pair(down: Floats, up: Floats | None, rank: int) -> Pair:
    if up is None or down.dtype != np.float32 or up.dtype != np.float32:
        raise MalformedError("an adapter needs pairs of matrices of float32")
    if down.ndim != 2 or up.ndim != 2 or len(down) != rank or up.shape[1] != rank or not down.size or not up.size:
        raise MalformedError(f"an adapter's matrices of {list(down.shape)} and {list(up.shape)} for a rank of {rank}")
    return Pair(down, up)
