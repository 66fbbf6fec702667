"""Low-rank adapters: exact values, any cut the same bits, files of strangers."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from muster.constants import MAX_LORA_RANK
from muster.errors import MalformedError
from muster.models.lora import CONFIG_NAME, MAX_CONFIG_BYTES, WEIGHTS_NAME, Adapter, Pair

NAME = "model.layers.0.mlp.up_proj.weight"
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def floats(*rows: list[float]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(rows, np.float32)


def drawn(outputs: int, inputs: int, rank: int) -> Adapter:
    random = np.random.default_rng(rank)
    down, up = (random.normal(0, 0.3, shape).astype(np.float32) for shape in ((rank, inputs), (outputs, rank)))
    return Adapter(rank, 3.0, {NAME: Pair(down, up)})


def merged(adapter: Adapter, weights: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return the adapted matrix, by one call."""
    data = bytearray(weights.to(DTYPES[dtype]).contiguous().view(torch.uint8).numpy().tobytes())
    adapter.merge(NAME, memoryview(data), dtype)
    return torch.frombuffer(data, dtype=DTYPES[dtype]).reshape(weights.shape)


def test_the_scaled_product_is_added() -> None:
    adapter = Adapter(1, 2.0, {NAME: Pair(floats([1, 10]), floats([1], [2]))})
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    for dtype in DTYPES:
        assert merged(adapter, weights, dtype).tolist() == [[3, 22], [7, 44]]
    assert adapter.shape(NAME) == (2, 2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_product_and_sum_is_rounded_once_and_in_order(dtype: str) -> None:
    outputs, inputs, rank = 5, 7, 6
    adapter = drawn(outputs, inputs, rank)
    pair = adapter.pairs[NAME]
    weights = torch.from_numpy(np.random.default_rng(1).normal(0, 1, (outputs, inputs)).astype(np.float32))
    expected = torch.empty(outputs, inputs, dtype=DTYPES[dtype])
    for i in range(outputs):
        for j in range(inputs):
            total = np.float32(0)
            for k in range(rank):
                scaled = np.float32(pair.up[i, k] * np.float32(3.0 / rank))
                total = np.float32(total + np.float32(scaled * pair.down[k, j]))
            wide = np.float32(weights[i, j].to(DTYPES[dtype]).float().item())
            expected[i, j] = torch.tensor(float(np.float32(wide + total))).to(DTYPES[dtype])
    assert torch.equal(merged(adapter, weights, dtype), expected)


@pytest.mark.parametrize(
    ("weight", "added", "becomes"),
    [(1.0, 2.0**-8, 1.0), (1 + 2.0**-7, 2.0**-8, 1 + 2.0**-6), (1.0, 2.0**-8 + 2.0**-20, 1 + 2.0**-7)],
    ids=["a tie down to even", "a tie up to even", "above a tie"],
)
def test_bfloat16_is_rounded_to_the_nearest(weight: float, added: float, becomes: float) -> None:
    adapter = Adapter(1, 1.0, {NAME: Pair(floats([added]), floats([1.0]))})
    assert merged(adapter, torch.tensor([[weight]]), "BF16").item() == becomes


def test_merge_keeps_non_finite_values() -> None:
    adapter = Adapter(1, 1.0, {NAME: Pair(floats([1.0]), floats([float("nan")], [float("inf")], [3e38]))})
    for dtype in DTYPES:
        out = merged(adapter, torch.tensor([[1.0], [1.0], [3e38]]), dtype)[:, 0]
        assert torch.isnan(out[0])
        assert out[1:].tolist() == [float("inf")] * 2


@given(
    outputs=st.integers(1, 9),
    inputs=st.integers(1, 9),
    rank=st.integers(1, 4),
    dtype=st.sampled_from(sorted(DTYPES)),
    cuts=st.lists(st.integers(0, 81), max_size=5),
)
def test_any_cut_gives_the_bits_of_the_whole(outputs: int, inputs: int, rank: int, dtype: str, cuts: list[int]) -> None:
    adapter, count = drawn(outputs, inputs, rank), outputs * inputs
    weights = torch.linspace(-1, 1, count).reshape(outputs, inputs)
    data = bytearray(weights.to(DTYPES[dtype]).view(torch.uint8).numpy().tobytes())
    width = len(data) // count
    ends = sorted({0, count, *(cut for cut in cuts if cut < count)})
    for start, stop in pairwise(ends):
        adapter.merge(NAME, memoryview(data)[start * width : stop * width], dtype, start)
    whole = merged(adapter, weights, dtype)
    assert bytes(data) == whole.contiguous().view(torch.uint8).numpy().tobytes()


def test_blocks_of_a_large_matrix_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, weights = drawn(40, 33, 3), torch.ones(40, 33)
    whole = merged(adapter, weights, "F32")
    for block in (1, 33, 100):
        monkeypatch.setattr("muster.models.lora._BLOCK", block)
        assert torch.equal(merged(adapter, weights, "F32"), whole)


def test_another_dtype_is_refused() -> None:
    with pytest.raises(MalformedError, match="I8"):
        drawn(1, 1, 1).merge(NAME, memoryview(bytearray(1)), "I8")


# Files


def test_an_adapter_is_read_as_it_was_written(tmp_path: Path) -> None:
    adapter = drawn(5, 7, 2)
    adapter.write(tmp_path, base_model="step 0")
    read = Adapter.read(tmp_path)
    assert (read.rank, read.alpha, read.pairs.keys()) == (2, 3.0, {NAME})
    assert np.array_equal(read.pairs[NAME].down, adapter.pairs[NAME].down)
    assert np.array_equal(read.pairs[NAME].up, adapter.pairs[NAME].up)
    config = json.loads((tmp_path / CONFIG_NAME).read_text())
    assert (config["target_modules"], config["r"], config["bias"]) == (["up_proj"], 2, "none")


def test_a_deep_model_s_adapter_keeps_one_file_open(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pairs = {
        NAME.replace("0", str(layer)): Pair(*random.normal(size=(2, 2, 2)).astype(np.float32)) for layer in range(700)
    }
    Adapter(2, 3.0, pairs).write(tmp_path, base_model="step 0")
    files = psutil.Process().num_fds()
    read = Adapter.read(tmp_path)
    assert psutil.Process().num_fds() <= files + 1
    assert read.pairs.keys() == pairs.keys()
    for name, pair in read.pairs.items():
        assert np.array_equal(pair.down, pairs[name].down)
        assert np.array_equal(pair.up, pairs[name].up)


KEY = "base_model.model.model.layers.0.mlp.up_proj.lora_"
GOOD = {"peft_type": "LORA", "r": 2, "lora_alpha": 4.0}


@pytest.mark.parametrize(
    ("config", "tensors", "says"),
    [
        (GOOD | {"peft_type": "IA3"}, {}, "peft_type"),
        (GOOD | {"r": 0}, {}, "greater than or equal to 1"),
        (GOOD | {"r": MAX_LORA_RANK + 1}, {}, "less than or equal to 256"),
        (GOOD | {"lora_alpha": 0}, {}, "lora_alpha"),
        ({"peft_type": "LORA"}, {}, "Field required"),
        (GOOD | {"pad": " " * MAX_CONFIG_BYTES}, {}, "more than 65536 bytes"),
        (GOOD, {"B.weight": None}, "needs pairs"),
        (GOOD, {"A.weight": None}, "more than pairs"),
        (GOOD, {"A.weight": np.zeros((3, 4), np.float32)}, r"\[3, 4\]"),
        (GOOD, {"A.weight": np.zeros((2, 0), np.float32)}, r"F32 \[2, 0\] and no matrix"),
        (GOOD, {"A.weight": np.zeros(8, np.float32)}, r"F32 \[8\] and no matrix"),
        (GOOD, {"B.weight": np.zeros((5, 2), np.float16)}, "F16"),
        (GOOD, {"embedding": np.zeros((1, 1), np.float32)}, "more than pairs"),
    ],
)
def test_invalid_adapter_is_refused(
    config: dict[str, Any], tensors: dict[str, np.ndarray[Any, Any] | None], says: str, tmp_path: Path
) -> None:
    good = {"A.weight": np.zeros((2, 4), np.float32), "B.weight": np.zeros((5, 2), np.float32)}
    parts = {KEY + name: value for name, value in (good | tensors).items() if value is not None}
    save_file(parts, tmp_path / WEIGHTS_NAME)
    (tmp_path / CONFIG_NAME).write_text(json.dumps(config))
    with pytest.raises(MalformedError, match=says):
        Adapter.read(tmp_path)
    (tmp_path / CONFIG_NAME).write_text(json.dumps(GOOD))
    save_file({KEY + name: value for name, value in good.items()}, tmp_path / WEIGHTS_NAME)
    assert Adapter.read(tmp_path).rank == 2, "and the same without that is one"


def headed(**tensor: object) -> bytes:
    """Return a file whose head names one tensor, and 16 bytes."""
    head = json.dumps({"x": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]} | tensor}).encode()
    return len(head).to_bytes(8, "little") + head + bytes(16)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no LoRA adapter"),
        (b"{", "no LoRA adapter"),
        (b"\xff" * 64, "a head of"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "a head of 1099511627776 bytes"),
        (headed(shape=[1] * 63 + [2, 2]), "no matrix"),
        (headed(shape=[0, 1 << 62]), "deserializing header"),
        (headed(shape=[1 << 40, 1 << 40]), "deserializing header"),
        (headed(shape=[2, -2]), "deserializing header"),
        (headed(shape=4), "deserializing header"),
        (headed(data_offsets=[0, 17]), "deserializing header"),
        (headed(data_offsets=[-1000, -984]), "deserializing header"),
        (headed(data_offsets=[16, 32]), "deserializing header"),
        (headed(data_offsets=[0, 1e400]), "deserializing header"),
        (headed(), "more than pairs"),
    ],
)
def test_weights_that_are_no_matrices_are_refused(data: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / CONFIG_NAME).write_text(json.dumps(GOOD))
    (tmp_path / WEIGHTS_NAME).write_bytes(data)
    with pytest.raises(MalformedError, match=says):
        Adapter.read(tmp_path)
