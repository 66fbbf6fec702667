"""Content-addressed storage: written once, checked on the way out, clear about what went wrong."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys

import obstore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.clients.storage import ContentStore
from muster.clients.storage_backend import open_backend
from muster.errors import ConfigError, MalformedError, MismatchError, StorageError
from muster.protocol.hashes import content_hash, hash_bytes, hex_hash, is_hash
from testbed.waiting import BOUND

ABC = "0xba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@pytest.fixture(params=["folder", "s3"])
def store(request, tmp_path) -> ContentStore:
    """A store in a folder, and a store in a fresh bucket of a real S3 server."""
    if request.param == "folder":
        return ContentStore(f"file:{tmp_path}/store")
    bucket = request.getfixturevalue("moto_server").new_bucket()
    return ContentStore(request.getfixturevalue("use_s3")(bucket))


async def kept(store: ContentStore) -> list[str]:
    """Return the paths of all objects in the store."""
    backend, _ = open_backend(store.url)
    return sorted([entry["path"] async for page in obstore.list(backend) for entry in page])


async def test_put_names_by_content_and_leaves_one_file(store):
    assert await store.put(b"abc") == ABC
    assert await store.put(b"abc") == ABC
    assert await store.get(ABC) == b"abc"
    assert await store.exists(ABC)
    assert (await store.open(ABC)).size == 3
    assert await kept(store) == [f"files/{ABC[2:4]}/{ABC[2:]}"]


async def test_large_files_arrive_whole(store, tmp_path):
    data = os.urandom(7 << 20)
    name = await store.put(data)
    assert name == "0x" + hashlib.sha256(data).hexdigest()
    assert await store.get(name) == data
    chunks = [chunk async for chunk in (await store.open(name)).chunks]
    assert b"".join(chunks) == data
    assert len(chunks) > 1


async def test_put_named_keeps_a_spooled_file(store, tmp_path):
    spool = tmp_path / "spool"
    spool.write_bytes(b"abc")
    await store.put_named(ABC, spool)
    spool.unlink()
    assert await store.get(ABC) == b"abc"


async def test_many_writers_of_one_file_agree(store):
    names = await asyncio.gather(*(store.put(b"abc" * 100_000) for _ in range(20)))
    assert len(set(names)) == 1
    assert await store.get(names[0]) == b"abc" * 100_000


async def test_kinds_are_apart(store, tmp_path):
    verdicts = ContentStore(store.url, "verdicts")
    await store.put(b"abc")
    assert not await verdicts.exists(ABC)
    other = await verdicts.put(b"def")
    assert [name async for name in verdicts.names()] == [other]
    assert [name async for name in store.names()] == [ABC]
    assert [name async for name in ContentStore(store.url, "none").names()] == []


async def test_missing_file_is_a_storage_error(store):
    assert not await store.exists(ABC)
    with pytest.raises(StorageError, match=f"no file {ABC}"):
        await store.get(ABC)


async def test_get_is_bounded(store):
    await store.put(b"abc")
    assert await store.get(ABC, max_bytes=3) == b"abc"
    with pytest.raises(MalformedError, match="larger than 2 bytes"):
        await store.get(ABC, max_bytes=2)


async def test_rotten_files_are_found_out(store):
    await store.put(b"abc")
    backend, _ = open_backend(store.url)
    await obstore.put_async(backend, f"files/{ABC[2:4]}/{ABC[2:]}", b"abd", mode="overwrite")
    with pytest.raises(MismatchError, match="hashes to"):
        await store.get(ABC)


@pytest.mark.parametrize(
    "name", ["", "abc", "0x" + "AB" * 32, "0x" + "ab" * 31, "../../etc/passwd", ABC + "/", ABC + "\n"]
)
async def test_names_are_hashes_only(store, name):
    for call in (store.get(name), store.open(name), store.exists(name)):
        with pytest.raises(MalformedError, match="64 lower-case hex"):
            await call


@pytest.mark.parametrize("url", ["", "store", "http://x/y", "file:", "ftp://x"])
def test_unknown_urls_are_refused(url):
    with pytest.raises(ConfigError, match="neither"):
        ContentStore(url)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Not a directory"):
        ContentStore(f"file:{tmp_path}/file/store")


def test_s3_urls_are_taken():
    assert ContentStore("s3://bucket/prefix").url == "s3://bucket/prefix"


async def test_check_says_whether_writing_works(store):
    await store.check()
    assert await kept(store) == []


async def test_concurrent_write_checks_all_pass(store):
    await asyncio.gather(*(store.check() for _ in range(50)))
    assert await kept(store) == []


async def test_a_file_begun_says_its_size_and_what_is_missing_is_none(store):
    name = await store.put(b"abc" * 200_000)
    found = await store.open(name)
    assert found is not None
    assert found.size == 600_000
    assert b"".join([chunk async for chunk in found.chunks]) == b"abc" * 200_000
    assert await store.open(ABC) is None


async def test_an_empty_file_is_a_file(store):
    found = await store.open(await store.put(b""))
    assert found is not None
    assert found.size == 0
    assert [chunk async for chunk in found.chunks] == []


_FILL = """
import asyncio, sys
from muster.errors import StorageError
from muster.clients.storage import ContentStore
async def main():
    store = ContentStore("file:" + sys.argv[1])
    try:
        await store.put(b"x" * 1_000_000)
    except StorageError as error:
        print(error, "|", error.hint)
    print([name async for name in store.names()])
asyncio.run(main())
"""


def test_a_full_disk_has_a_hint_and_leaves_nothing(tmp_path):
    """A real full file system: a tmpfs of 100 KB in a separate mount namespace."""
    script = f'mount -t tmpfs -o size=100k none "{tmp_path}" && exec "{sys.executable}" -c "$0" "{tmp_path}"'
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, _FILL],
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no mount namespaces here: {done.stderr.strip()}")
    assert "no space left in file:" in done.stdout
    assert "free space there" in done.stdout
    assert done.stdout.endswith("[]\n")


# Hashes


def test_hashes_have_one_form():
    assert content_hash(b"abc") == ABC
    assert hex_hash(hash_bytes(ABC)) == ABC
    assert hex_hash(ABC.upper().replace("0X", "0x")) == ABC
    assert not is_hash(ABC.upper())
    for bad in (b"", b"x" * 31, "0x", ABC[2:]):
        with pytest.raises(ValueError, match="32-byte hash"):
            hex_hash(bad)
    with pytest.raises(ValueError, match="lower-case"):
        hash_bytes(ABC.upper())


@settings(max_examples=50)
@given(st.binary(min_size=32, max_size=32))
def test_hashes_round_trip(raw):
    assert hash_bytes(hex_hash(raw)) == raw
