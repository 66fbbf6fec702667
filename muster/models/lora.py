"""Low-rank adapters, and the weights that come of one: the same bits on every machine.

An adapter adds (alpha / rank) · B A to each matrix that it has a pair for (LoRA, arXiv 2106.09685, section 4.1). Its
folder is one of the `peft` library's. Weights come of it by products and sums of float32, each rounded once and in one
order: never by a library's matrix product, whose order of adding differs between processors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from safetensors.numpy import save_file

from muster.constants import MAX_LORA_RANK
from muster.errors import MalformedError
from muster.models.safetensors import tensors_of

CONFIG_NAME: Final = "adapter_config.json"
WEIGHTS_NAME: Final = "adapter_model.safetensors"
MAX_CONFIG_BYTES: Final = 1 << 16

_PREFIX: Final = "base_model.model."
_DOWN: Final = ".lora_A.weight"
_UP: Final = ".lora_B.weight"
_WEIGHT: Final = ".weight"
_STORED: Final = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}
"""How numbers that can be adapted lie in a file, by safetensors' names of dtypes."""
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
    """What is read of peft's configuration. An adapter that means more comes out wrong, which its hashes show."""

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
        """Open an adapter on disk, which stays there: its numbers are read where they are needed.

        Raises MalformedError when the folder holds no adapter of float32, OSError when it cannot be read.
        """
        with (folder / CONFIG_NAME).open("rb") as file:
            said = file.read(MAX_CONFIG_BYTES + 1)
        if len(said) > MAX_CONFIG_BYTES:
            raise MalformedError(f"an adapter's configuration of more than {MAX_CONFIG_BYTES} bytes")
        try:
            config = _Config.model_validate_json(said)
            matrices = _matrices(folder / WEIGHTS_NAME)
        except ValueError as error:  # pydantic's is one
            raise MalformedError(f"no LoRA adapter: {str(error)[:300]}") from error
        pairs = {}
        for key, down in matrices.items():
            if key.startswith(_PREFIX) and key.endswith(_DOWN):
                module = key.removeprefix(_PREFIX).removesuffix(_DOWN)
                pairs[module + _WEIGHT] = _pair(down, matrices.get(_PREFIX + module + _UP), config.r)
        if 2 * len(pairs) != len(matrices):
            raise MalformedError("an adapter that is more than pairs of matrices")
        return cls(config.r, config.lora_alpha, pairs)

    def write(self, folder: Path, *, base_model: str) -> None:
        """Write the adapter's two files; syncing is the caller's. Raises OSError, SafetensorError.

        base_model: what it belongs to, for those who read it by peft.
        """
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
        (folder / CONFIG_NAME).write_text(json.dumps(config, indent=1))

    def shape(self, name: str) -> tuple[int, int]:
        """Return outputs and inputs of the matrix of this name."""
        pair = self.pairs[name]
        return pair.up.shape[0], pair.down.shape[1]

    def merge(self, name: str, data: memoryview, dtype: str, start: int = 0) -> None:
        """Add to a run of a matrix's numbers what the adapter adds to them, in place.

        data: numbers `start`, `start` + 1 … of the matrix, row by row; dtype: theirs, as safetensors calls it. Raises
        MalformedError for another dtype than BF16, F16 and F32.
        """
        if dtype not in _STORED:
            raise MalformedError(f"an adapter of weights in {dtype}")
        numbers = np.frombuffer(data, _STORED[dtype])
        with np.errstate(all="ignore"):  # what is not finite stays so
            self._merge(self.pairs[name], numbers, dtype, start)

    def _merge(self, pair: Pair, numbers: np.ndarray[Any, Any], dtype: str, start: int) -> None:
        scale = np.float32(self.alpha / self.rank)
        inputs, stop = pair.down.shape[1], start + len(numbers)
        at = start
        while at < stop:
            first = at // inputs
            last = min(first + max(1, _BLOCK // inputs), -(-stop // inputs))
            end = min(stop, last * inputs)
            rows = _product(pair.up[first:last] * scale, pair.down).reshape(-1)
            added = rows[at - first * inputs : end - first * inputs]
            part = numbers[at - start : end - start]
            part[:] = _narrow(_widen(part, dtype) + added, dtype)
            at = end


# --- Numbers


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
    """Return the nearest number of the dtype, the even one of two that are as near."""
    if dtype != "BF16":
        return values.astype(_STORED[dtype])
    bits = values.view(np.uint32)
    narrow = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    narrow[np.isnan(values)] = 0x7FC0
    return narrow


def _matrices(path: Path) -> dict[str, Floats]:
    """Map the tensors of a safetensors file of float32 matrices. Raises ValueError for any other file."""
    found: dict[str, Floats] = {}
    tensors = tensors_of(path)
    whole = np.memmap(path, np.uint8, "r")  # once: each keeps a file open
    for tensor in tensors:
        if tensor.dtype != "F32" or len(tensor.shape) != 2 or min(tensor.shape) < 1:
            raise ValueError(f"{tensor.name} is {tensor.dtype} {list(tensor.shape)[:9]} and no matrix of float32")
        found[tensor.name] = np.ndarray(tensor.shape, "<f4", whole, tensor.start)
    return found


def _pair(down: Floats, up: Floats | None, rank: int) -> Pair:
    if up is None:
        raise MalformedError("an adapter needs pairs of matrices")
    if len(down) != rank or up.shape[1] != rank:
        raise MalformedError(f"an adapter's matrices of {list(down.shape)} and {list(up.shape)} for a rank of {rank}")
    return Pair(down, up)
