"""A difference between two steps, as a version of its own that travels like any other.

It holds two files and nothing else:

    step.json    the manifest of the step that it makes, the one whose root is on chain
    step.delta   "MUSTERD1", the number of frames u32, the length of each u32, and one frame (`muster.shardcast.delta`)
                 for each shard of that manifest

Its manifest names the base step. Its own root is not on chain and need not be: a difference only proposes bytes, and
what it makes counts when it hashes to what the anchored manifest says.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from blake3 import blake3

from muster.errors import MalformedError, StorageError
from muster.shardcast.delta import apply, encode, max_frame_bytes
from muster.shardcast.folder import disk_error
from muster.shardcast.manifest import MAX_MANIFEST_BYTES, Manifest, Shard, parse_manifest
from muster.shardcast.stretches import cut, stretches_of

TARGET_NAME: Final = "step.json"
FRAMES_NAME: Final = "step.delta"
MAX_SHARE: Final = 2
"""A difference has at most one part in so many of the bytes that it stands for; a larger one is neither published nor
fetched."""

_MAGIC: Final = b"MUSTERD1"
_COUNT: Final = struct.Struct("<I")


def check_difference(manifest: Manifest, run: int, step: int, base_step: int, max_bytes: int) -> None:
    """Raise MalformedError unless this may be the difference of a run between two steps, of at most so many bytes."""
    if (manifest.run, manifest.step, manifest.base_step) != (run, step, base_step):
        raise MalformedError(f"{manifest.id} is no difference of run {run} from step {base_step} to {step}")
    if [file.name for file in manifest.files] != [FRAMES_NAME, TARGET_NAME]:
        raise MalformedError(f"{manifest.id} holds other files than a difference")
    if manifest.total_bytes > max_bytes:
        raise MalformedError(f"{manifest.id} has {manifest.total_bytes} bytes; at most {max_bytes} are accepted")


def write_difference(base: Step, target: Step, folder: Path) -> bool:
    """Write the two files of the difference between two steps that are on disk; False when it is not worth it.

    It is not where the steps are cut differently or most of the bytes changed. What is written has been tried: applied
    to the base, or to nothing where the base is damaged here, it gives what the target's manifest says. Raises
    StorageError when the target is damaged, OSError when the disk refuses. Blocking.
    """
    if not same_tiling(base.manifest, target.manifest):
        return False
    allowed = target.manifest.total_bytes // MAX_SHARE - len(target.manifest.canonical)
    layouts = [stretches_of(target.path / file.name) for file in target.manifest.files]
    lengths: list[int] = []
    with (folder / FRAMES_NAME).open("wb") as file:
        file.write(_head([0] * len(target.manifest.shards)))
        for old, new in zip(base.manifest.shards, target.manifest.shards, strict=True):
            before, after = base.read(old), target.read(new)
            good = blake3(before).digest() == old.digest
            layout = cut(layouts[new.file], new.offset, new.end)
            frame = encode(memoryview(before) if good else None, memoryview(after), layout)
            made = before if good else bytearray(new.size)
            apply(frame, made)
            if blake3(made).digest() != new.digest:
                raise StorageError(f"shard {new.index} of {target.path} is damaged", hint="publish the step again")
            file.write(frame)
            lengths.append(len(frame))
            if file.tell() > allowed:
                return False
        file.seek(0)
        file.write(_head(lengths))
    (folder / TARGET_NAME).write_bytes(target.manifest.canonical)
    return True


def same_tiling(one: Manifest, other: Manifest) -> bool:
    """Whether two versions have the same files, cut in the same way, so that one can come out of the other."""
    places = [[(shard.file, shard.offset, shard.size) for shard in manifest.shards] for manifest in (one, other)]
    return one.files == other.files and places[0] == places[1]


@dataclass(frozen=True)
class Step:
    """A version on disk that is no difference."""

    path: Path
    manifest: Manifest

    def read(self, shard: Shard) -> bytearray:
        """The bytes that are there now; zeros where a damaged file has none. Raises StorageError."""
        data, got = bytearray(shard.size), 0
        path = self.path / self.manifest.files[shard.file].name
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(shard.offset)
                while got < shard.size and (count := file.readinto(memoryview(data)[got:])):
                    got += count
        except OSError as error:
            raise disk_error("cannot read", path, error) from error
        return data


class Difference:
    """A difference on disk, open for reading. Use as a context manager; everything blocks.

    Raises StorageError when a file cannot be read, MalformedError when one is not as it should be.
    """

    def __init__(self, version: Path, root: bytes | None = None) -> None:
        """root: of the step that it must make; MismatchError when it makes another."""
        try:
            with (version / TARGET_NAME).open("rb") as file:
                self.target = parse_manifest(file.read(MAX_MANIFEST_BYTES + 1), root)
            self._descriptor = os.open(version / FRAMES_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise disk_error("cannot read", version, error) from error
        try:
            self._places = self._read_head()
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def frame(self, index: int) -> bytes:
        """How a shard of the target comes out of the base's bytes."""
        start, stop = self._places[index]
        return self._read(stop - start, start)

    def _read_head(self) -> list[tuple[int, int]]:
        """First and last byte of each frame, which follow each other to the end of the file."""
        shards = self.target.shards
        head = self._read(len(_MAGIC) + _COUNT.size * (1 + len(shards)), 0)
        if head[: len(_MAGIC)] != _MAGIC or _COUNT.unpack_from(head, len(_MAGIC))[0] != len(shards):
            raise MalformedError(f"no frames of {len(shards)} shards")
        places, at = [], len(head)
        lengths = struct.iter_unpack(_COUNT.format, head[len(_MAGIC) + _COUNT.size :])
        for shard, (length,) in zip(shards, lengths, strict=True):
            if length > max_frame_bytes(shard.size):
                raise MalformedError(f"a frame of {length} bytes for a shard of {shard.size}")
            places.append((at, at + length))
            at += length
        if at != os.fstat(self._descriptor).st_size:
            raise MalformedError(f"frames of {at} bytes in a file of {os.fstat(self._descriptor).st_size}")
        return places

    def _read(self, size: int, start: int) -> bytes:
        data = os.pread(self._descriptor, size, start)
        if len(data) < size:
            raise MalformedError(f"the frames end at byte {start + len(data)}")
        return data


def made_shard(base: Step, chain: Sequence[Difference], shard: Shard) -> bytearray | None:
    """A shard of what the last difference makes, out of the base and all of them in turn; None when it comes out wrong.

    The only bytes ever returned are the ones that the last one's target, the anchored manifest, says. Raises
    StorageError.
    """
    data = base.read(shard)
    try:
        for difference in chain:
            apply(difference.frame(shard.index), data)
    except MalformedError:
        return None
    return data if blake3(data).digest() == shard.digest else None


def _head(lengths: Sequence[int]) -> bytes:
    return _MAGIC + _COUNT.pack(len(lengths)) + b"".join(map(_COUNT.pack, lengths))
