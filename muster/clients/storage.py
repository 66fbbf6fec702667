"""Content-addressed files: a local folder or an S3-compatible bucket behind one interface (obstore).

A file's name is the sha256 of its bytes, so it is written once (put-if-absent, atomic), never changes, and is
checked on the way out. Kinds keep apart what is listed apart: rollout files, evidence, verdicts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import obstore

from muster.clients.storage_backend import CREATED, answer, create, open_backend, write_seconds
from muster.constants import MAX_FILE_BYTES
from muster.errors import MalformedError, MismatchError, StorageError
from muster.protocol.hashes import content_hash, is_hash
from muster.runtime.files import sync

T = TypeVar("T")

_CHUNK_BYTES = 1 << 18
MAX_SEGMENT_BYTES: Final = 1 << 27
"""Of a file in order: more than the longest list of looks takes, a text that is in a text of a text."""
CHECKED_SECONDS = 5.0
"""For so long a store that could be written is not checked again."""


@dataclass(frozen=True)
class StoredFile:
    """A file whose first bytes have arrived."""

    size: int
    chunks: AsyncIterator[bytes]
    """All of it, unchecked. Raises StorageError when the store fails or stalls half way."""


class ContentStore:
    """Files of one kind. Safe to share between tasks and processes.

    `url` is file:FOLDER (made when missing) or s3://BUCKET/PREFIX (credentials from the environment, as AWS tools
    take them). Raises ConfigError when it is neither, StorageError when the folder cannot be made.
    """

    def __init__(self, url: str, kind: str = "files") -> None:
        self.url = url
        self.kind = kind
        self._store, self._folder = open_backend(url)
        self._checked_until = 0.0
        self._checking = asyncio.Lock()

    def _key(self, name: str) -> str:
        if not is_hash(name):
            raise MalformedError(f"{name!r} is not 0x and 64 lower-case hex digits")
        return f"{self.kind}/{name[2:4]}/{name[2:]}"

    async def _answer(self, work: Awaitable[T], what: str, *, may_lack: bool = False) -> T:
        return await answer(work, what, self.url, may_lack=may_lack)

    async def put(self, data: bytes) -> str:
        """Keep `data`, durably, and return its name. Putting the same bytes again changes nothing."""
        name = await asyncio.to_thread(content_hash, data) if len(data) > 1 << 18 else content_hash(data)
        await self.put_named(name, data)
        return name

    async def put_named(self, name: str, data: bytes | Path) -> None:
        """Keep these bytes, or the file at this path, whose content hash the caller has found to be `name`."""
        size = len(data) if isinstance(data, bytes) else (await asyncio.to_thread(data.stat)).st_size
        write = self._write(self._key(name), data, size)
        await answer(write, f"cannot keep {name}", self.url, seconds=write_seconds(size))

    async def _write(self, key: str, data: bytes | Path, size: int) -> None:
        try:
            await create(self._store, key, data)
        except CREATED as error:
            # Not trusted: S3 answers 409 to a create that met another request, and then nothing need be kept.
            kept = (await obstore.head_async(self._store, key))["size"]
            if kept != size:
                raise StorageError(
                    f"{self.url} has {kept} bytes under {key}, which should be {size}",
                    hint="the file there is damaged: remove it, then try again",
                ) from error
        await _sync(self._folder, key)

    async def exists(self, name: str) -> bool:
        head = obstore.head_async(self._store, self._key(name))
        try:
            await self._answer(head, f"cannot look for {name}", may_lack=True)
        except FileNotFoundError:
            return False
        return True

    async def get(self, name: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the file's bytes, at most `max_bytes`, found to hash to `name`.

        Raises StorageError when there is no such file, MalformedError when it is larger, MismatchError when what is
        kept is not what the name says.
        """
        file = await self.open(name)
        if file is None:
            raise StorageError(f"no file {name} in {self.url}", hint="check the hash; it may never have arrived")
        data = bytearray()
        async for chunk in file.chunks:
            data += chunk
            if len(data) > max_bytes:
                raise MalformedError(f"{name} is larger than {max_bytes} bytes")
        found = await asyncio.to_thread(content_hash, bytes(data))
        if found != name:
            raise MismatchError(f"the file kept as {name} hashes to {found}", hint="fetch it again from its author")
        return bytes(data)

    async def open(self, name: str) -> StoredFile | None:
        """Begin to read a file; None when there is none. Raises StorageError, within ANSWER_SECONDS."""
        what = f"cannot read {name}"
        try:
            size, first, rest = await self._answer(self._begin(self._key(name)), what, may_lack=True)
        except FileNotFoundError:
            return None
        return StoredFile(size, self._chunks(first, rest, what))

    async def _begin(self, key: str) -> tuple[int, bytes, AsyncIterator[Any]]:
        found = await obstore.get_async(self._store, key)
        rest = aiter(found.stream(min_chunk_size=_CHUNK_BYTES))
        return found.meta["size"], bytes(await anext(rest, b"")), rest

    async def _chunks(self, first: bytes, rest: AsyncIterator[Any], what: str) -> AsyncIterator[bytes]:
        chunk = first
        while chunk:
            yield chunk
            chunk = bytes(await self._answer(anext(rest, b""), what))

    async def names(self) -> AsyncIterator[str]:
        """Yield the names of all files of this kind, in no order: for rebuilding what was derived from them."""
        async for name, _ in self.sizes():
            yield name

    async def sizes(self) -> AsyncIterator[tuple[str, int]]:
        """Yield the names of all files of this kind, in no order, each with its bytes."""
        pages = aiter(obstore.list(self._store, prefix=f"{self.kind}/", chunk_size=1000))
        while page := await self._answer(anext(pages, []), "cannot list"):
            for entry in page:
                name = "0x" + entry["path"].rsplit("/", 1)[-1]
                if is_hash(name):
                    yield name, entry["size"]

    async def delete(self, name: str) -> None:
        """Delete a file, for good; one that is not there is no error."""
        with contextlib.suppress(FileNotFoundError):
            await self._answer(
                obstore.delete_async(self._store, self._key(name)), f"cannot delete {name}", may_lack=True
            )

    async def mark(self, name: str) -> str:
        """Return what `set_mark` wrote last under a name; "" before it did."""
        try:
            _, mark, _ = await self._answer(
                self._begin(f"{self.kind}/{name[2:]}"), f"cannot read {name}", may_lack=True
            )
        except FileNotFoundError:
            return ""
        return mark.decode(errors="replace")

    async def set_mark(self, name: str, mark: str) -> None:
        """Write a few characters under a name, durably, in place of those before: all else here never changes."""
        key = f"{self.kind}/{name[2:]}"
        await self._answer(obstore.put_async(self._store, key, mark.encode(), mode="overwrite"), f"cannot write {name}")
        await _sync(self._folder, key)

    async def check(self) -> None:
        """Write and remove a few bytes, unless that succeeded within CHECKED_SECONDS: anyone may ask for a check.

        Raises StorageError when the store cannot keep files.
        """
        async with self._checking:
            if time.monotonic() < self._checked_until:
                return
            key = f"{self.kind}/.check-{os.getpid()}"
            await self._answer(obstore.put_async(self._store, key, b"muster", mode="overwrite"), "cannot write")
            with contextlib.suppress(FileNotFoundError):  # another process that asked has removed it
                await self._answer(obstore.delete_async(self._store, key), "cannot write", may_lack=True)
            self._checked_until = time.monotonic() + CHECKED_SECONDS


class SegmentStore:
    """Files of one kind in an order: each is named by the place of its first document, and created once.

    Whoever creates a file has that place: of two that try, one learns that the place is taken. Safe to share between
    tasks and processes. `url` and errors as of `ContentStore`.
    """

    def __init__(self, url: str, kind: str) -> None:
        self.url, self.kind = url, kind
        self._store, self._folder = open_backend(url)

    def _key(self, first: int) -> str:
        return f"{self.kind}/{first:016d}"

    async def create(self, first: int, documents: Sequence[bytes]) -> bool:
        """Keep documents of a line each, durably, from a place on; return False where that place is taken."""
        data = b"\n".join(documents)
        write, seconds, is_new = create(self._store, self._key(first), data), write_seconds(len(data)), True
        try:
            await answer(write, f"cannot keep place {first}", self.url, seconds=seconds, may_exist=True)
        except CREATED:
            is_new = False  # who created it may have been killed before it was on disk
        await _sync(self._folder, self._key(first))
        return is_new

    async def read(self, first: int) -> list[bytes]:
        """Return the documents from a place on that were created together. Raises StorageError, MalformedError."""
        found = await answer(self._read(first), f"cannot read place {first}", self.url)
        return found.split(b"\n")

    async def _read(self, first: int) -> bytes:
        found = await obstore.get_async(self._store, self._key(first))
        if found.meta["size"] > MAX_SEGMENT_BYTES:
            raise MalformedError(f"the documents from place {first} on are {found.meta['size']} bytes")
        return bytes(await found.bytes_async())

    async def firsts(self, after: int = -1) -> list[int]:
        """Return the places after one from which files begin, in order."""
        found, pages = list[int](), aiter(obstore.list(self._store, prefix=f"{self.kind}/", chunk_size=1000))
        while page := await answer(anext(pages, []), "cannot list", self.url):
            names = (entry["path"].rsplit("/", 1)[-1] for entry in page)
            found += [int(name) for name in names if len(name) == 16 and name.isascii() and name.isdigit()]
        return sorted(first for first in found if first > after)

    async def delete(self, first: int) -> None:
        """Delete a file, for good; one that is not there is no error."""
        with contextlib.suppress(FileNotFoundError):
            await answer(
                obstore.delete_async(self._store, self._key(first)), f"cannot delete {first}", self.url, may_lack=True
            )


async def _sync(folder: Path | None, key: str) -> None:
    """Force a file in a folder to disk, and the entries that lead to it: a receipt survives a power failure."""
    if folder is not None:
        paths = [folder / path for path in (Path(key), *Path(key).parents)]
        await asyncio.to_thread(lambda: [sync(path) for path in paths])
