"""A version that is not complete yet: `.0x<root>.part` beside the complete ones.

Only verified shards are ever written, each at its place in its file. What a killed process left is not believed: a
shard counts as present when the bytes on disk hash to what the manifest says.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Self

from muster.errors import CheckError, StorageError
from muster.runtime.files import sync, write_at
from muster.shardcast.format.manifest import MANIFEST_NAME, Manifest, Shard
from muster.shardcast.format.store import (
    disk_errors,
    partial_path,
    read_manifest,
    shard_is_good,
    version_path,
    whole_manifest,
)


class PartialVersion:
    """A version growing in `folder`. All methods block."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self._writing = threading.Lock()
        """One thread at a time: the system lets no two write into a file, and has the others spin."""
        self.path = partial_path(folder, manifest.root)
        self.final = version_path(folder, manifest.root)
        self.fresh = False
        """Nothing was on disk before."""

    @classmethod
    def whole(cls, folder: Path, root: bytes) -> Self | None:
        """Return the version, if it is complete and every byte is what it should be."""
        manifest = whole_manifest(version_path(folder, root), root)
        if manifest is None:
            return None
        partial = cls(folder, manifest)
        partial.path = partial.final
        return partial

    @classmethod
    def stored_manifest(cls, folder: Path, root: bytes) -> Manifest | None:
        """Return the manifest of a version that is here at least in part."""
        for path in (partial_path(folder, root), version_path(folder, root)):
            try:
                return read_manifest(path, root)
            except (StorageError, CheckError):
                continue
        return None

    @classmethod
    def prepare(cls, folder: Path, manifest: Manifest) -> Self:
        """Make room for a version, or take up what is there of it, be it a damaged version under its final name.

        Raises StorageError when the disk has no room for it or refuses.
        """
        partial = cls(folder, manifest)
        with disk_errors(f"no room for step {manifest.step}", folder):
            folder.mkdir(parents=True, exist_ok=True)
            if partial.final.exists():
                shutil.rmtree(partial.path, ignore_errors=True)
                partial.final.rename(partial.path)
            partial.fresh = not partial.path.exists()
            partial.path.mkdir(exist_ok=True)
            partial._make_room()
            partial._lay_out()
        return partial

    def _make_room(self) -> None:
        missing = self.manifest.total_bytes
        for entry in os.scandir(self.path):
            missing -= min(entry.stat(follow_symlinks=False).st_blocks * 512, missing)
        free = shutil.disk_usage(self.path).free
        if missing > free:
            raise StorageError(
                f"step {self.manifest.step} needs {missing} more bytes in {self.path.parent}, and {free} are free",
                hint=f"free space there (df -h {self.path.parent})",
            )

    def _lay_out(self) -> None:
        """Lay out exactly the manifest's files, at their full sizes, each with this one name.

        A file that has another name is the trainer's too (`publish`), so nothing is written into it.
        """
        wanted = {file.name for file in self.manifest.files} | {MANIFEST_NAME}
        for entry in list(self.path.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name not in wanted or entry.lstat().st_nlink > 1:
                entry.unlink()
        for file in self.manifest.files:
            descriptor = self._open(file.name)
            try:
                os.ftruncate(descriptor, file.size)
                _reserve(descriptor, file.size)
            finally:
                os.close(descriptor)
        (self.path / MANIFEST_NAME).write_bytes(self.manifest.canonical)

    def holds(self, shard: Shard) -> bool:
        """Return whether the shard is on disk."""
        return shard_is_good(self.path, self.manifest, shard)

    def write(self, shard: Shard, data: memoryview) -> None:
        """Put a verified shard in its place. Raises StorageError."""
        name = self.manifest.files[shard.file].name
        with disk_errors(f"cannot write shard {shard.index}", self.path / name):
            descriptor = self._open(name)
            try:
                with self._writing:
                    write_at(descriptor, data, shard.offset)
            finally:
                os.close(descriptor)

    def sync(self) -> None:
        """Force everything to disk."""
        with disk_errors(f"cannot finish step {self.manifest.step}", self.path):
            for file in self.manifest.files:
                sync(self.path / file.name)
            sync(self.path / MANIFEST_NAME)
            sync(self.path)

    def finish(self) -> None:
        """Give the version its final name. Call after `sync`, with all shards written."""
        self.path.rename(self.final)
        self.path = self.final

    def _open(self, name: str) -> int:
        return os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _reserve(descriptor: int, size: int) -> None:
    """Have the file system reserve all of a file's room at once. Raises OSError.

    That costs it less than block by block, and shows at the beginning when there is none.
    """
    if not size:
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot
            raise
