"""Train one model in this process alone (`Ranks`), or in several (`Distributed`).

torchrun starts the several; rank 0 is the trainer, and the others follow its commands.

    torchrun --nproc-per-node=8 -m trainer --config FILE

Weights, gradients and moments are sharded over the ranks (FSDP2); with bfloat16 the passes compute in it from float32
master weights, and gradients are added up in float32. Rank 0 broadcasts commands as tensors and JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from muster.errors import StorageError
from trainer.packing import Sample
from trainer.policy import Policy

PASS_SECONDS: Final = 1800.0
"""Longest that one rank waits for the others inside an update or a checkpoint."""


class Ranks:
    """The processes that train one model together: this one alone, on one device. `Distributed` are several."""

    rank, world = 0, 1
    sharded = False
    """Whether no rank has the whole model."""
    dtype = torch.float32
    """What the passes compute in."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")

    def shard(self, policy: Policy) -> None:
        """Divide a policy's parameters among the ranks, in place; all ranks call it with equal weights."""
        policy.to(self.device)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Add up float64 [n] on the CPU over all ranks."""
        return values

    def broadcast(self, command: str, tensors: Mapping[str, torch.Tensor] | None = None, **fields: Any) -> None:
        """Send a command to every other rank; does nothing on any rank but the first."""

    def save(self, state: dict[str, Any], folder: Path) -> Future[Any]:
        """Write tensors, as they are now, to files of torch.distributed.checkpoint; all ranks call it."""
        writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)
        begun = async_save(state, storage_writer=writer, process_group=self._file_group())
        assert isinstance(begun, Future)
        return begun

    def load(self, state: dict[str, Any], folder: Path) -> None:
        """Read what any number of ranks wrote into the tensors of `state`; all ranks call it."""
        load_state(state, checkpoint_id=folder, process_group=self._file_group())

    def _file_group(self) -> distributed.ProcessGroup | None:
        """Return the group that reads and writes; without any, torch.distributed.checkpoint would warn."""
        if not distributed.is_initialized():
            distributed.init_process_group(
                "gloo",
                store=distributed.HashStore(),  # pyright: ignore[reportPrivateImportUsage]
                rank=0,
                world_size=1,
            )
        return None


class Distributed(Ranks):
    """The processes that torchrun started: one per GPU, or several on CPUs over gloo."""

    sharded = True

    def __init__(self, *, silence_seconds: float, dtype: torch.dtype = torch.float32) -> None:
        """Join the process group. `silence_seconds`: the longest that rank 0 may send no command."""
        local = int(os.environ.get("LOCAL_RANK", "0"))
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", local) if cuda else torch.device("cpu")
        backend = "cpu:gloo,cuda:nccl" if cuda else "gloo"
        distributed.init_process_group(backend, timeout=timedelta(seconds=PASS_SECONDS))
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        self._commands = _group(silence_seconds + PASS_SECONDS)
        self._files = _group(PASS_SECONDS)
        """A separate group, since files are written while an update goes on."""
        self._mesh: DeviceMesh = init_device_mesh(self.device.type, (self.world,))
        self.dtype = dtype

    def shard(self, policy: Policy) -> None:
        """Shard with FSDP2: each layer by itself, the rest together."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # of this thread: every thread has its own current device
        narrow = None if self.dtype == torch.float32 else self.dtype
        precision = MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=torch.float32)
        for layer in policy.layers:
            fully_shard(layer, mesh=self._mesh, mp_policy=precision)
        fully_shard(policy, mesh=self._mesh, mp_policy=precision)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        values = values.clone()
        distributed.all_reduce(values)
        return values

    def broadcast(self, command: str, tensors: Mapping[str, torch.Tensor] | None = None, **fields: Any) -> None:
        from safetensors.torch import save

        if self.rank:
            return
        data = save(dict(tensors or {}) | {"": torch.zeros(0)}, {"command": command, "fields": json.dumps(fields)})
        size = torch.tensor([len(data)])
        distributed.broadcast(size, 0, group=self._commands)
        distributed.broadcast(torch.frombuffer(bytearray(data), dtype=torch.uint8), 0, group=self._commands)

    def receive(self) -> tuple[str, dict[str, torch.Tensor], dict[str, Any]]:
        """Wait for the next command of rank 0; return its name, tensors and fields. Every other rank calls this."""
        from safetensors.torch import load

        size = torch.zeros(1, dtype=torch.int64)
        distributed.broadcast(size, 0, group=self._commands)
        buffer = torch.zeros(int(size), dtype=torch.uint8)
        distributed.broadcast(buffer, 0, group=self._commands)
        data = buffer.numpy().tobytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        tensors = load(data)
        del tensors[""]
        return header["command"], tensors, json.loads(header["fields"])

    def _file_group(self) -> distributed.ProcessGroup:
        return self._files

    def close(self) -> None:
        """Stop the other ranks and leave the process group."""
        self.broadcast("stop")
        distributed.destroy_process_group()


def started_by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def finish(writing: Future[Any], what: str) -> None:
    """Wait until what `Ranks.save` began is on disk. Raises StorageError when a rank could not write. Blocks."""
    try:
        writing.result()
    except CheckpointException as error:  # a BaseException, not an Exception
        failures = [failure for failure, _ in error.failures.values()] or [error]
        raise StorageError(f"cannot write {what}: {failures[0]}", hint="is the disk full?") from error


def is_first() -> bool:
    """Return whether this process is the trainer: alone, or rank 0 of several."""
    return not started_by_torchrun() or os.environ["RANK"] == "0"


def samples_to_tensors(samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """Return what an update needs of its samples, end to end; the inverse of `samples_from_tensors`."""
    return {
        "tokens": _end_to_end([part for s in samples for part in (s.prompt, s.completion)], np.int32),
        "lengths": torch.tensor(
            [[len(s.prompt), len(s.completion), s.completion_length, len(s.spans)] for s in samples], dtype=torch.int64
        ).reshape(-1, 4),
        "spans": _end_to_end([s.spans for s in samples], np.int32),
        "logprobs": _end_to_end([s.logprobs for s in samples], np.float32),
        "advantages": torch.tensor([s.advantage for s in samples], dtype=torch.float64),
    }


def samples_from_tensors(tensors: Mapping[str, torch.Tensor]) -> list[Sample]:
    """Return the samples, without what only reports need: the files they came in."""
    lengths = tensors["lengths"].numpy()
    tokens = np.split(tensors["tokens"].numpy(), lengths[:, :2].flatten().cumsum())
    logprobs = np.split(tensors["logprobs"].numpy(), lengths[:, 2].cumsum())[:-1]
    spans = np.split(tensors["spans"].numpy(), lengths[:, 3].cumsum())[:-1]
    parts = zip(tokens[0:-1:2], tokens[1:-1:2], logprobs, tensors["advantages"].tolist(), strict=True)
    return [Sample(*part, spans=own) for part, own in zip(parts, spans, strict=True)]


def _group(seconds: float) -> distributed.ProcessGroup:
    group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=seconds))
    assert isinstance(group, distributed.ProcessGroup)
    return group


def _end_to_end(parts: Sequence[np.ndarray], dtype: type) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype))
