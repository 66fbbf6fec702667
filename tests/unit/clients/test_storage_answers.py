"""Bad answers of an S3 server: each becomes a Muster error, and none counts as a stored file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from muster.clients.storage import ContentStore
from muster.clients.storage_probe import probe
from muster.errors import MusterError, StorageError
from muster.protocol.hashes import content_hash
from testbed.http import scripted
from testbed.servers.s3 import Endpoint

NAME = "0x" + "ab" * 32
STAMPED = b'Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nETag: "x"\r\n'
NEVER_GOOD = {
    "no HTTP": b"\0garbage\r\n\r\n",
    "nothing": b"",
    "a length below zero": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n" + STAMPED + b"\r\nhello",
    "a redirect to itself": b"HTTP/1.1 307 T\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
    "a redirect to a file": b"HTTP/1.1 301 T\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
    "a header of 4 MiB": b"HTTP/1.1 200 OK\r\nX: " + bytes(4 << 20).replace(b"\0", b"a") + b"\r\n\r\n",
    "a conflict": b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n",
}


@asynccontextmanager
async def answering(reply: bytes, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A store whose server gives one answer to everything."""

    async with scripted(reply) as server:
        for name, value in Endpoint(server.url).environment.items():
            monkeypatch.setenv(name, value)
        yield "s3://bucket/prefix"


async def listed(store: ContentStore) -> list[str]:
    return [name async for name in store.names()]


@pytest.mark.parametrize("reply", NEVER_GOOD.values(), ids=NEVER_GOOD)
async def test_every_operation_fails_with_an_error_of_ours(reply: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(reply, monkeypatch) as url:
        store = ContentStore(url)
        operations: list[Callable[[], Awaitable[object]]] = [
            lambda: store.exists(NAME),
            lambda: store.open(NAME),
            lambda: store.get(NAME),
            lambda: listed(store),
            lambda: store.check(),
            lambda: store.put(b"data"),
            lambda: probe(url),
        ]
        for operation in operations:
            with pytest.raises(MusterError):
                await operation()


async def test_a_file_that_exists_with_other_bytes_is_not_taken_for_kept(tmp_path: Path) -> None:
    store, data = ContentStore(f"file:{tmp_path}"), b"the whole file"
    name = await store.put(data)
    assert await store.put(data) == name == content_hash(data)
    kept = tmp_path / "files" / name[2:4] / name[2:]
    kept.write_bytes(data[:5])
    with pytest.raises(StorageError, match=r"has 5 bytes under files/.*, which should be 14"):
        await store.put(data)


def test_storage_url_that_names_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("file", "loop", "file/inside"):
        with pytest.raises(StorageError) as refused:
            ContentStore(f"file:{tmp_path / name}")
        assert refused.value.hint == "set orchestrator.storage_url to a folder: this is something else"
