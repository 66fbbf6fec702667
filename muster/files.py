"""Files that must never be seen half-written, and forcing what was written to disk."""

from __future__ import annotations

import os
from pathlib import Path

from muster.errors import StorageError


def write_atomically(path: Path, text: str) -> None:
    """Replace a file: a reader sees the old content or the new, also after a crash. Makes the folder it lies in.

    Two writers at once are safe too: each has a temporary file of its own, and the last one wins. After a power failure
    it may be the old content once more; where that is too little, `write_durably`.
    """
    _replace(path, text.encode())


def write_durably(path: Path, data: bytes) -> None:
    """The same, and on disk before returning, name included. Raises StorageError when the disk refuses."""
    try:
        _replace(path, data)
        sync(path.parent)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", hint="is the disk full?") from error


def sync(path: Path) -> None:
    """Force a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
