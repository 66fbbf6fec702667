"""A difference that is a low-rank adapter: what a run that trains one (`trainer.lora_rank`) sends after its first step.

    adapter_config.json, adapter_model.safetensors   as the `peft` library has them

The base is the step that the adapter was trained on, whatever step it leads to; `muster.lora` makes the weights.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Self

from muster.errors import CheckError, MalformedError, StorageError
from muster.lora import CONFIG_NAME, WEIGHTS_NAME, WIDTHS, Adapter
from muster.shardcast.difference import MAX_SHARE, TARGET_NAME, Step, read_target, same_tiling
from muster.shardcast.folder import disk_error
from muster.shardcast.manifest import Shard
from muster.shardcast.stretches import Tensor


def write_adapted(base: Step, target: Step, folder: Path, *, adapter: Path) -> bool:
    """Write the files of the difference that an adapter on disk is; False when it does not make the target out of this
    base, or has half of its bytes. Raises OSError when the disk refuses. Blocking."""
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        shutil.copyfile(adapter / name, folder / name)
    (folder / TARGET_NAME).write_bytes(target.manifest.canonical)
    size = sum(file.stat().st_size for file in folder.iterdir())
    if not same_tiling(base.manifest, target.manifest) or size * MAX_SHARE > target.manifest.total_bytes:
        return False
    try:
        with Adapted(folder) as difference:
            return all(_makes(difference, base, target, shard) for shard in target.manifest.shards)
    except (CheckError, StorageError):
        return False


def _makes(difference: Adapted, base: Step, target: Step, shard: Shard) -> bool:
    data = base.read(shard)
    difference.apply(shard, data, base)
    return data == target.read(shard)


class Adapted:
    """An adapter on disk, as a `Difference`.

    Raises StorageError when a file cannot be read, MalformedError when one is not as it should be.
    """

    def __init__(self, version: Path, root: bytes | None = None) -> None:
        """root: of the step that it must make; MismatchError when it makes another."""
        self.target = read_target(version, root)
        try:
            self._adapter = Adapter.read(version)
        except OSError as error:
            raise disk_error("cannot read", version, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def apply(self, shard: Shard, data: bytearray, base: Step) -> None:
        """See `Difference`."""
        for tensor in base.tensors[shard.file]:
            low, high = max(shard.offset, tensor.start), min(shard.end, tensor.stop)
            if low < high and tensor.name in self._adapter.pairs:
                self._merge(tensor, memoryview(data)[low - shard.offset : high - shard.offset], low - tensor.start)

    def _merge(self, tensor: Tensor, data: memoryview, start: int) -> None:
        """Change the bytes of a tensor from byte `start` of it on."""
        width = WIDTHS.get(tensor.dtype, 0)
        if tensor.stop - tensor.start != width * self._adapter.size(tensor.name):
            raise MalformedError(f"an adapter for another shape of {tensor.name}, or for one in {tensor.dtype}")
        if start % width or len(data) % width:
            raise MalformedError(f"a shard ends within a number of {tensor.name}")
        self._adapter.merge(tensor.name, data, tensor.dtype, start // width)
