"""The records of an evaluation: one line of JSON for each item that was answered, on disk before the next one.

The first line says what the records depend on. An interrupted evaluation goes on after the last whole line, and only
with what they depend on unchanged. Where nothing is recorded yet, anything may begin.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from muster.errors import ConfigError, MalformedError, StorageError
from muster.runtime.closing import Closing

MAX_LINE_BYTES: Final = 1 << 30


class RecordFile(Closing):
    """The records of one evaluation. Use as a context manager."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        """Open or make it for `identity`: what the records depend on, as JSON.

        Raises ConfigError when it has records of something else, or another process uses it; StorageError.
        """
        self.path = path
        self._identity: dict[str, Any] = json.loads(json.dumps(identity))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b")
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error.strerror}", hint="name another file") from error
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(f"{path} is in use by another process", hint="wait for it to end") from None
            self.count = self._read()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def add(self, record: Mapping[str, Any]) -> None:
        """Keep what came of an item; on disk on return. Raises StorageError."""
        self._write(record)
        self.count += 1

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records, in order."""
        self._file.seek(0)
        self._file.readline(MAX_LINE_BYTES)
        for _ in range(self.count):
            yield from_json(self._file.readline(MAX_LINE_BYTES))
        self._file.seek(0, os.SEEK_END)

    def sha256(self) -> str:
        """Return the hash of the whole file."""
        self._file.seek(0)
        return "0x" + hashlib.file_digest(self._file, "sha256").hexdigest()

    def _read(self) -> int:
        """Check the first line and cut off a last one that a crash left unfinished; return the number of records."""
        end, count, first = 0, -1, b""
        while (line := self._file.readline(MAX_LINE_BYTES)).endswith(b"\n"):
            first = first or line
            end, count = end + len(line), count + 1
        others = self._differing(first) if first else ["identity"]
        if others and count > 0:
            raise ConfigError(
                f"{self.path} has records of another evaluation: {', '.join(others)} differ",
                hint=f"ask as before, choose another place to write, or delete {self.path} to start over",
            )
        self._file.seek(0 if others else end)
        self._file.truncate()
        if others:
            self._write({"identity": self._identity})
        return max(count, 0)

    def _differing(self, line: bytes) -> list[str]:
        """Return by which names the first line differs from what the records must depend on."""
        try:
            before = from_json(line)["identity"]
            return sorted(name for name in {*self._identity, *before} if before.get(name) != self._identity.get(name))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MalformedError(f"{self.path} is no file of records", hint="choose another place to write") from error

    def _write(self, document: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(document, sort_keys=True).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {error.strerror}", hint="is the disk full?") from error
