"""The manifests of two versions decide which tensors they share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from muster.shardcast.delta.contents import fingerprints
from muster.shardcast.format.store import version_path
from muster.shardcast.publish import publish

SHARD = 256
INFINITE = b"\x37" + bytes(7) + b'{"a": {"dtype": "F32", "data_offsets": [0, Infinity]}}   '


def version(folder: Path, step: int, tensors: dict[str, torch.Tensor]) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir()
    save_file(tensors, checkpoint / "model.safetensors")
    (checkpoint / "config.json").write_text("{}")
    return version_path(folder / "out", publish(checkpoint, folder / "out", 1, step, shard_bytes=SHARD).root)


def test_a_tensor_is_the_same_where_every_shard_it_lies_in_is(tmp_path: Path) -> None:
    tensors = {name: torch.arange(256, dtype=torch.float32) + i for i, name in enumerate("abcd")}
    before = fingerprints(version(tmp_path, 0, tensors))
    tensors["b"] = tensors["b"].clone()
    tensors["b"][100] += 1
    after = fingerprints(version(tmp_path, 1, tensors))
    assert before.keys() == after.keys() == set("abcd")
    assert {name for name in "abcd" if before[name] != after[name]} == {"b"}


def test_a_shard_at_the_edge_counts_for_both_its_tensors(tmp_path: Path) -> None:
    """The head of the file is not a multiple of a shard: the tensors' ends fall into shards of their neighbours."""
    tensors = {name: torch.zeros(100) for name in "abc"}
    before = fingerprints(version(tmp_path, 0, tensors))
    tensors["b"] = tensors["b"].clone()
    tensors["b"][0] = 1
    after = fingerprints(version(tmp_path, 1, tensors))
    assert before["b"] != after["b"]
    assert before["a"] != after["a"]  # ends in the shard in which b begins
    assert before["c"] == after["c"]


def test_another_dtype_of_the_same_bytes_is_another_tensor(tmp_path: Path) -> None:
    before = fingerprints(version(tmp_path, 0, {"a": torch.zeros(64)}))
    after = fingerprints(version(tmp_path, 1, {"a": torch.zeros(64, dtype=torch.int32)}))
    assert before["a"] != after["a"]


@pytest.mark.parametrize("data", [b"", b"\x08" + bytes(7) + b'{"a":1}!', b"\x09" + bytes(7) + b'{"a": {}}', INFINITE])
def test_a_folder_that_is_no_version_of_a_model_tells_nothing(data: bytes, tmp_path: Path) -> None:
    whole = version(tmp_path, 0, {"a": torch.zeros(64)})
    assert fingerprints(tmp_path / "checkpoint-0") == {}, "there is no manifest"
    (whole / "model.safetensors").write_bytes(data)
    assert fingerprints(whole) == {}
