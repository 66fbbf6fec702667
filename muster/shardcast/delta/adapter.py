"""A difference that is a low-rank adapter: what a run that trains one (`trainer.lora_rank`) sends after its first step.

    adapter_config.json, adapter_model.safetensors   as the `peft` library has them

The base is the step that the adapter was trained on, whatever step it leads to; `muster.models.lora` makes the weights.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from muster.errors import CheckError, MalformedError, StorageError
from muster.models.lora import CONFIG_NAME, WEIGHTS_NAME, Adapter
from muster.models.safetensors import WIDTHS, Tensor
from muster.runtime import telemetry
from muster.shardcast.delta.difference import TIMES_SMALLER, TargetStep, made_shard, read_target, same_tiling
from muster.shardcast.format.manifest import TARGET_NAME, Shard
from muster.shardcast.format.store import disk_errors

_log = telemetry.logger("shardcast")


def write_adapted(base: TargetStep, target: TargetStep, folder: Path, *, adapter: Path) -> bool:
    """Write the files of the difference that an adapter on disk is. Raises OSError when the disk refuses. Blocking.

    Returns False when it does not make the target out of this base, or has more than half of its bytes.
    """
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        shutil.copyfile(adapter / name, folder / name)
    (folder / TARGET_NAME).write_bytes(target.manifest.canonical)
    if why := _unfit(base, target, folder):
        _log.warning("an adapter is not used as a difference", step=target.manifest.step, why=why)
    return not why


def _unfit(base: TargetStep, target: TargetStep, folder: Path) -> str:
    """Return why the files of a difference in `folder` may not be published; "" when they may."""
    size = sum(file.stat().st_size for file in folder.iterdir())
    if size * TIMES_SMALLER > target.manifest.total_bytes:
        return f"it has {size} bytes, and the whole step {target.manifest.total_bytes}"
    if not same_tiling(base.manifest, target.manifest):
        return "the first step's files are others"
    try:
        chain = [AdapterDifference(folder)]
        wrong = [shard.index for shard in target.manifest.shards if made_shard(base, chain, shard) is None]
    except (CheckError, StorageError) as error:
        return str(error)
    return f"{len(wrong)} shards come out otherwise, {wrong[0]} first" if wrong else ""


class AdapterDifference:
    """An adapter on disk, as a `Difference`.

    Raises StorageError when a file cannot be read, MalformedError when one is not as it should be.
    """

    def __init__(self, version: Path, root: bytes | None = None) -> None:
        """Read the adapter. root: of the step that it must make; MismatchError when it makes another."""
        self.target = read_target(version, root)
        with disk_errors("cannot read", version):
            self._adapter = Adapter.read(version)

    def apply(self, shard: Shard, data: bytearray, layout: TargetStep) -> None:
        """See `Difference`."""
        for tensor in layout.tensors[shard.file]:
            low, high = max(shard.offset, tensor.start), min(shard.end, tensor.stop)
            if low < high and tensor.name in self._adapter.pairs:
                self._merge(tensor, memoryview(data)[low - shard.offset : high - shard.offset], low - tensor.start)

    def _merge(self, tensor: Tensor, data: memoryview, start: int) -> None:
        """Change the bytes of a tensor from byte `start` of it on."""
        width = WIDTHS.get(tensor.dtype, 1)
        if tensor.shape != self._adapter.shape(tensor.name):
            raise MalformedError(f"an adapter for another shape of {tensor.name}")
        if tensor.stop - tensor.start != width * math.prod(tensor.shape):
            raise MalformedError(f"{tensor.name} is longer or shorter than its shape")
        if start % width or len(data) % width:
            raise MalformedError(f"a shard ends within a number of {tensor.name}")
        self._adapter.merge(tensor.name, data, tensor.dtype, start // width)
