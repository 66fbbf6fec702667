"""Content-addressed files: a local folder or an S3-compatible bucket behind one interface (obstore).

A file's name is the sha256 of its bytes, so it is written once (put-if-absent, atomic), never changes, and is
checked on the way out. Kinds keep apart what is listed apart: rollout files, evidence, verdicts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, from_url

from muster.constants import MAX_FILE_BYTES
from muster.errors import ConfigError, MalformedError, MismatchError, StorageError
from muster.files import sync
from muster.hashes import content_hash, is_hash

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_FULL = ("os error 28", "os error 122", "os error 27", "StorageFull", "QuotaExceeded", "FileTooLarge")
_OPTIONS = {"timeout": "60s", "connect_timeout": "5s"}
_RETRIES = 5
WELL_SECONDS = 5.0
"""For how long a store that could be written is not tried again."""


class ContentStore:
    """Files of one kind. Safe to share between tasks and processes.

    `url` is file:FOLDER (made when missing) or s3://BUCKET/PREFIX (credentials from the environment, as AWS tools
    take them). Raises ConfigError when it is neither, StorageError when the folder cannot be made.
    """

    def __init__(self, url: str, kind: str = "files") -> None:
        self.url = url
        self.kind = kind
        self._folder: Path | None = None
        self._well_until = 0.0
        self._store = self._open(url)

    def _open(self, url: str) -> ObjectStore:
        parts = urlsplit(url)
        if parts.scheme == "s3":
            return from_url(url, client_options=_OPTIONS, retry_config={"max_retries": _RETRIES})  # type: ignore[arg-type]
        if parts.scheme != "file" or not (path := url.removeprefix("file:").removeprefix("//")):
            raise ConfigError(f"storage url {url!r} is neither file:FOLDER nor s3://BUCKET/PREFIX")
        self._folder = Path(path).absolute()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"storage folder {self._folder}: {error.strerror}", hint=f"mkdir -p {path}") from error
        return LocalStore(self._folder)

    def _key(self, name: str) -> str:
        if not is_hash(name):
            raise MalformedError(f"{name!r} is not 0x and 64 lower-case hex digits")
        return f"{self.kind}/{name[2:4]}/{name[2:]}"

    def _failed(self, what: str, error: Exception) -> StorageError:
        text = str(error)
        if any(word in text for word in _FULL):
            return StorageError(f"{what}: no space left in {self.url}", hint="free space there, then try again")
        return StorageError(
            f"{what} in {self.url}: {text.splitlines()[0]}", hint="check the storage url and its rights"
        )

    async def put(self, data: bytes) -> str:
        """Keep `data`, durably, and return its name. Putting the same bytes again changes nothing."""
        name = await asyncio.to_thread(content_hash, data) if len(data) > 1 << 18 else content_hash(data)
        await self._put(name, data)
        return name

    async def put_path(self, path: Path, name: str) -> None:
        """Keep the file at `path`, whose content hash the caller has found to be `name` while writing it."""
        await self._put(name, path)

    async def _put(self, name: str, data: bytes | Path) -> None:
        key = self._key(name)
        try:
            await obstore.put_async(self._store, key, data, mode="create")
        except (AlreadyExistsError, FileExistsError):
            pass
        except (BaseError, OSError) as error:
            raise self._failed(f"cannot keep {name}", error) from error
        if self._folder is not None:
            # Forced to disk with its folder's entry: a receipt is a promise that survives a power failure.
            for path in (self._folder / key, (self._folder / key).parent):
                await asyncio.to_thread(sync, path)

    async def exists(self, name: str) -> bool:
        """Whether a file of this name is kept."""
        return await self.size(name) is not None

    async def size(self, name: str) -> int | None:
        """Bytes of the file, or None when there is none."""
        try:
            return (await obstore.head_async(self._store, self._key(name)))["size"]
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            raise self._failed(f"cannot look for {name}", error) from error

    async def get(self, name: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """The file's bytes, at most `max_bytes`, found to hash to `name`.

        Raises StorageError when there is no such file, MalformedError when it is larger, MismatchError when what is
        kept is not what the name says.
        """
        data = bytearray()
        async for chunk in self.stream(name):
            data += chunk
            if len(data) > max_bytes:
                raise MalformedError(f"{name} is larger than {max_bytes} bytes")
        found = await asyncio.to_thread(content_hash, bytes(data))
        if found != name:
            raise MismatchError(f"the file kept as {name} hashes to {found}", hint="fetch it again from its author")
        return bytes(data)

    async def stream(self, name: str) -> AsyncIterator[bytes]:
        """The file's bytes in chunks, unchecked: for passing on to somebody who checks."""
        try:
            found = await obstore.get_async(self._store, self._key(name))
            async for chunk in found.stream(min_chunk_size=1 << 18):
                yield bytes(chunk)
        except FileNotFoundError as error:
            raise StorageError(
                f"no file {name} in {self.url}", hint="check the hash; it may never have arrived"
            ) from error
        except (BaseError, OSError) as error:
            raise self._failed(f"cannot read {name}", error) from error

    async def names(self) -> AsyncIterator[str]:
        """The names of all files of this kind, in no order: for rebuilding what was derived from them."""
        try:
            async for page in obstore.list(self._store, prefix=f"{self.kind}/", chunk_size=1000):
                for entry in page:
                    name = "0x" + entry["path"].rsplit("/", 1)[-1]
                    if is_hash(name):
                        yield name
        except (BaseError, OSError) as error:
            raise self._failed("cannot list", error) from error

    async def check(self) -> None:
        """Write and remove a few bytes, unless that went well a moment ago: anybody may ask. Raises StorageError when
        the store cannot keep files."""
        if time.monotonic() < self._well_until:
            return
        key = f"{self.kind}/.check-{os.getpid()}"
        try:
            await obstore.put_async(self._store, key, b"muster", mode="overwrite")
            with contextlib.suppress(FileNotFoundError):  # somebody else who asked has removed it
                await obstore.delete_async(self._store, key)
            self._well_until = time.monotonic() + WELL_SECONDS
        except (BaseError, OSError) as error:
            raise self._failed("cannot write", error) from error
