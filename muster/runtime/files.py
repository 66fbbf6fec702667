"""Write files atomically, so that no reader sees part of one, and force them to disk; folders of this user alone."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from muster.errors import ConfigError, MalformedError, MusterError, StorageError


def write_atomically(path: Path, text: str) -> None:
    """Replace a file: a reader sees the old content or the new, also after a crash. Makes its folder.

    Two writers at once are safe too: each has its own temporary file, and the last one wins. After a power failure the
    old content may be back; `write_durably` rules that out.
    """
    _replace(path, text.encode())


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file, and force it and its name to disk before returning. Raises StorageError."""
    try:
        _replace(path, data)
        sync(path.parent)
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}", hint="is the disk full?") from error


def read_bounded(path: Path, limit: int, unreadable: type[MusterError] = MalformedError, hint: str = "") -> bytes:
    """Return a file's bytes. Raises `unreadable` when that fails, MalformedError when it has more than `limit`."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise unreadable(f"{path} cannot be read: {error.strerror}", hint=hint) from error
    if len(data) > limit:
        raise MalformedError(f"{path} has more than {limit} bytes")
    return data


def sha256_of(path: Path) -> str:
    """Return a file's hash, hexadecimal. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cache_folder(name: str) -> Path:
    """Return Muster's folder of this name in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster" / name


def private_folder(folder: Path) -> Path:
    """Make a folder that only this user can reach. Raises ConfigError when it is somebody else's or open to others."""
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(
            f"{folder} belongs to another user or is open to others: compiled code is not loaded from there",
            hint=f"chmod 700 {folder}, or set XDG_CACHE_HOME",
        )
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that other processes respect."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the name of `folder`, and its place, once the block ends; it goes if that fails.

    What a killed process left is removed first. After a crash in between, an older folder is beside the new one. Raises
    ConfigError while another process writes the same.
    """
    folder = folder.absolute()
    partial, old = (folder.with_name(f".{folder.name}.{what}") for what in ("part", "old"))
    partial.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another process is writing {folder}", hint="wait for it to end") from error
        for path in partial.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        try:
            yield partial
            for path in (*partial.iterdir(), partial):
                sync(path)
            shutil.rmtree(old, ignore_errors=True)
            if folder.exists():
                folder.rename(old)
            partial.rename(folder)
            sync(folder.parent)
            shutil.rmtree(old, ignore_errors=True)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)


def use_temporary_folder(path: Path) -> None:
    """Make `path` the folder for temporary files of this process and those it starts, and empty it.

    What a killed process left there is deleted at its next start. Sockets stay in the usual folder, since the length of
    their paths is bounded.
    """
    os.environ.setdefault("VLLM_RPC_BASE_PATH", tempfile.gettempdir())
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True, mode=0o700)
    os.environ["TMPDIR"] = tempfile.tempdir = str(path)


def sync(path: Path) -> None:
    """Force a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


WRITE_BYTES: Final = 1 << 16
"""Written at a time by `write_at`. For more at once Linux takes larger pages, and a virtual machine has few of these
that its host has not taken back: getting a new one costs several times as much as filling it."""


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at `offset`, and start its way to disk, so that a later `sync` waits less. Raises OSError."""
    at = offset
    while data:
        written = os.pwrite(descriptor, data[:WRITE_BYTES], at)
        data, at = data[written:], at + written
    if _sync_file_range is not None:
        _sync_file_range(descriptor, offset, at - offset, _SYNC_FILE_RANGE_WRITE)


def _find_sync_file_range() -> Any:
    """Return Linux' system call sync_file_range, which Python does not offer; None on other systems."""
    try:
        function = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_SYNC_FILE_RANGE_WRITE: Final = 2
_sync_file_range = _find_sync_file_range()


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
