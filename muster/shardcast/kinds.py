"""The kinds of difference there are, told apart by the files that they hold, and the shards that come of a chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from blake3 import blake3

from muster.errors import MalformedError
from muster.lora import CONFIG_NAME, WEIGHTS_NAME
from muster.shardcast.adapter_version import Adapted
from muster.shardcast.delta_version import FRAMES_NAME, Frames
from muster.shardcast.difference import TARGET_NAME, Difference, Step
from muster.shardcast.manifest import Manifest, Shard

_KINDS: Final[Mapping[tuple[str, ...], type[Frames | Adapted]]] = {
    (FRAMES_NAME, TARGET_NAME): Frames,
    (CONFIG_NAME, WEIGHTS_NAME, TARGET_NAME): Adapted,
}
"""By the names of their files, in order."""


def check_difference(manifest: Manifest, run: int, step: int, base_step: int, max_bytes: int) -> None:
    """Raise MalformedError unless this may be the difference of a run between two steps, of at most so many bytes."""
    if (manifest.run, manifest.step, manifest.base_step) != (run, step, base_step):
        raise MalformedError(f"{manifest.id} is no difference of run {run} from step {base_step} to {step}")
    if tuple(file.name for file in manifest.files) not in _KINDS:
        raise MalformedError(f"{manifest.id} holds other files than a difference")
    if manifest.total_bytes > max_bytes:
        raise MalformedError(f"{manifest.id} has {manifest.total_bytes} bytes; at most {max_bytes} are accepted")


def open_difference(version: Path, root: bytes | None = None) -> Difference:
    """A difference on disk, whichever it is. root: of the step that it must make.

    Raises MismatchError when it makes another, StorageError when a file cannot be read, MalformedError when one is not
    as it should be.
    """
    kind = Frames if (version / FRAMES_NAME).exists() else Adapted
    return kind(version, root)


def made_shard(base: Step, chain: Sequence[Difference], shard: Shard) -> bytearray | None:
    """A shard of what the last difference makes, out of the base and all of them in turn; None when it comes out wrong.

    The only bytes ever returned are the ones that the last one's target, the anchored manifest, says. Raises
    StorageError.
    """
    data = base.read(shard)
    try:
        for difference in chain:
            difference.apply(shard, data, base)
    except MalformedError:
        return None
    return data if blake3(data).digest() == shard.digest else None
